"""The command `drillcore rescale`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

import drillcore
from drillcore.cli.bars import progress_bar
from drillcore.cli.terminal import OUT, number, plain, say

if TYPE_CHECKING:
    from drillcore.verbs.rescale import Rescaled


_ENOUGH = (
    "Power of two to divide by; by default what is enough for --signal or --peak, else, by the weights, for any text."
)
Divisor = Annotated[float | None, Parameter(help=_ENOUGH)]


def rescale(
    checkpoint: Annotated[str, Parameter(help="Folder of safetensors; it is only read.")],
    *,
    out: Annotated[Path, Parameter(help="The new folder.")],
    k: Divisor = None,
    signal: Annotated[Path | None, Parameter(help="What `drillcore signal` wrote of this model.")] = None,
    peak: Annotated[float | None, Parameter(help="Largest |x| of the stream, where it is known.")] = None,
    residual_step: Annotated[
        float | None, Parameter(help="Fold the residual step into the branches until it is this one, often 1.")
    ] = None,
    scale_eps: Annotated[bool, Parameter(help="Divide ε by k² where that makes it exact.")] = True,
    float32_gains: Annotated[bool, Parameter(help="Store changed gains in float32.")] = False,
    tolerance: Annotated[float, Parameter(help="Largest relative error of a stored tensor.")] = 1e-3,
    norm_placement: Annotated[str | None, Parameter(help="Where the norms stand, if it cannot be decided.")] = None,
    roles: Annotated[Path | None, Parameter(help="TOML file with the roles of an unknown family.")] = None,
) -> int:
    """Write the same model with a smaller residual stream, so that it fits fp16.

    For pre-norm and peri-norm models with a final norm: the embedding and every branch's output are divided by k, and
    the logits stay. Refused, with the reason, where it would not be exact.

    Examples:

    `drillcore signal ./gemma-3-4b --text book.txt --out seen`

    `drillcore rescale ./gemma-3-4b --signal seen --out ./gemma-3-4b-fp16 --float32-gains`

    `drillcore rescale ./gemma-3-4b --out ./gemma-3-4b-fp16`

    `drillcore rescale ./granite --residual-step 1 --out ./granite-folded`
    """
    with progress_bar("bytes", quiet=False) as bar:
        made = drillcore.rescale(
            checkpoint, out, k=k, signal=signal, peak=peak, residual_step=residual_step, scale_eps=scale_eps,
            float32_gains=float32_gains, tolerance=tolerance, norm_placement=norm_placement, roles=roles, progress=bar,
        )  # fmt: skip
    _show(made)
    OUT.print(str(made.out), soft_wrap=True, markup=False)
    return 0


def _why(made: "Rescaled") -> str:
    if made.peak is None:
        return ""
    if made.certificates:
        return f" (no input takes it above {number(made.peak)}, by the weights; a text may need less: see --signal)"
    return f" (it reached {number(made.peak)})"


def _show(made: "Rescaled") -> None:
    say(f"The stream is divided by {made.k:g}{_why(made)}.")
    for part in made.still:
        say(f"The {part.part} may still leave fp16's range (bound {number(part.bound)}, {part.branch} of layer "
            f"{part.layer}): dividing the stream does not change them.")  # fmt: skip
    table = plain("What was multiplied")
    for name, justify in (("what", "left"), ("tensors", "right"), ("by", "right"), ("largest error", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for what, factor in dict.fromkeys((s.change.what, s.change.factor) for s in made.stored):
        own = [s for s in made.stored if (s.change.what, s.change.factor) == (what, factor)]
        table.add_row(what, str(len(own)), number(factor), number(max(s.error for s in own)))
    OUT.print(table)
    if made.gauge.exact_eps:
        say("ε is scaled with the stream: exact up to storage.")
    elif made.eps_errors:
        site, error = max(made.eps_errors.items(), key=lambda item: item[1])
        say(f"ε is not scaled, since norms that do not read the stream use it too: it adds a relative error of at most "
            f"{number(error)} (at site {site}).")  # fmt: skip
    else:
        say(f"ε is not scaled: it adds a relative error of {number((made.k**2 - 1) * made.gauge.eps / 2)}/σ² where the "
            "stream's mean square is σ²; give --signal to see it by site.")  # fmt: skip
