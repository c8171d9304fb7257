"""The residual gauge: a model whose stream is divided by k, with the same output (derived (drillcore)).

Where every branch reads the stream through a norm and the output does too, what is written to the stream may be divided
by k: the embedding and every branch's last matrix, or its output norm. Norms do not see the scale, but for their ε.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from drillcore.weights.assign import Assignment
from drillcore.weights.placement import Placement
from drillcore.weights.role import Norm
from drillcore.weights.source import InputError, Source

_EPS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_eps", "norm_epsilon")
_STEPS = ("residual_multiplier", "residual_step")
_EMBEDDINGS = ("embed", "position", "token_type")
_FLOATS = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Change:
    """What happens to one tensor: multiplied by `factor`; a zero-centred gain w as 1 + w."""

    tensor: str
    factor: float
    what: str  # "embedding", "o", "down", "gain", "shift", "bias", "final gain"
    zero_centered: bool = False


@dataclass(frozen=True)
class Gauge:
    """Changes of tensors and of the configuration, and whether ε is scaled with the stream, which makes it exact."""

    changes: tuple[Change, ...]
    config: Mapping[str, Any]
    exact_eps: bool
    eps: float


def residual_gauge(
    source: Source, assignment: Assignment, placed: Mapping[str, Placement], k: float, *, step: float | None = None,
    scale_eps: bool = True,
) -> Gauge:  # fmt: skip
    """Plan the division of the stream by k.

    Args:
        source: a checkpoint of floating tensors.
        assignment: its roles; nothing may be unknown.
        placed: where its norms stand, by stack.
        k: above 0; a power of two keeps every mantissa.
        step: the residual step that the new checkpoint is to state; the old one is folded into the branches (§2.7 of
            arXiv 2510.09904's notes). None leaves it.
        scale_eps: divide ε by k², where only norms that read the stream use it.

    Raises:
        InputError: it would not be exact, or not be known to be; says why.
    """
    check_exact(source, assignment, placed)
    own = next(iter(placed.values()))
    turn = 1.0 if step is None else own.residual_step / _positive(step)
    changes = [*_embedding(assignment, k), *_branches(source, assignment, placed, turn / k)]
    divided = {change.tensor for change in changes}
    if any(w.role.kind == "unembed" and w.tensor in divided for w in assignment.weights):
        changes += _final(assignment, k)
    config = _with_step(source.config, step) if step is not None else dict(source.config)
    reads_only = all(n.side == "in" for n in assignment.norms)
    exact = scale_eps and reads_only and k != 1
    if exact:
        config = _with_eps(config, k)
    return Gauge(tuple({c.tensor: c for c in changes if c.factor != 1}.values()), config, exact or k == 1, own.eps)


def check_exact(source: Source, assignment: Assignment, placed: Mapping[str, Placement]) -> None:
    """Refuse, without reading a matrix, what cannot be divided exactly.

    Raises:
        InputError: with the reason.
    """
    for stack, found in placed.items():
        name = f"the {stack} stack" if stack else "it"
        if found.norm_placement == "undecided":
            raise InputError(f"the norm placement of {name} is undecided: {found.reason}", where=source.label,
                             remedy=found.remedy)  # fmt: skip
        if found.norm_placement not in ("pre", "peri"):
            raise InputError(f"{name} is {found.norm_placement}: {_WHY[found.norm_placement]}", where=source.label)
        if not found.final_norm:
            raise InputError(f"no final norm of {name} is known, so its output would be divided too",
                             where=source.label)  # fmt: skip
    lost = [e for e in assignment.census.entries if e.state in ("unknown", "skipped", "missing")]
    if lost:
        told = (
            f"{len(lost)} tensors are not understood, first {lost[0].tensor} ({lost[0].detail}); one of them may write"
        )
        raise InputError(f"{told} to the stream", where=source.label, remedy="see `drillcore describe`")
    if pictures := [w for w in assignment.weights if w.role.kind in ("patch", "project_in", "project_out")]:
        raise InputError(f"{pictures[0].tensor} reads or writes the stream without a norm", where=source.label)
    if packed := [s for s in source.specs.values() if s.dtype not in _FLOATS and len(s.shape) == 2]:
        raise InputError(f"{packed[0].name} is stored as {packed[0].dtype}", where=source.label,
                         remedy="rescale the checkpoint before it is quantised")  # fmt: skip


_WHY = {
    "branch_out": "its branches read the stream without a norm, and a branch that is not linear sees another input",
    "post": "its norms stand on the stream, which has their scale already",
    "none": "nothing takes the scale out of the stream",
    "sub_ln": "its branches read the stream through a norm that is not known to be the only one",
    "deepnorm": "its norms stand on the stream, which has their scale already",
    "ngpt": "its stream has norm 1 already",
}


def _embedding(assignment: Assignment, k: float) -> Iterator[Change]:
    """What makes the first stream: a norm on the embedding where there is one, else the embeddings themselves."""
    norms = [n for n in assignment.norms if n.layer is None and n.side == "post"]
    for norm in norms:
        yield from _norm(norm, 1 / k, "gain")
    if not norms:
        for weight in assignment.weights:
            if weight.role.kind in _EMBEDDINGS:
                yield Change(weight.tensor, 1 / k, "embedding")


def _branches(source: Source, assignment: Assignment, placed: Mapping[str, Placement], factor: float) \
        -> Iterator[Change]:  # fmt: skip
    for norm in assignment.norms:
        if norm.layer is not None and norm.side == "out":
            yield from _norm(norm, factor, "gain")
    for weight in assignment.weights:
        role = weight.role
        if role.layer is not None and role.writes == "residual" and placed[role.stack].norm_placement == "pre":
            yield Change(weight.tensor, factor, role.kind)
            for bias in (f"{weight.tensor.removesuffix('.weight')}.bias", f"{weight.tensor}_bias"):
                if bias in source.specs and bias != weight.tensor:
                    yield Change(bias, factor, "bias")


def _final(assignment: Assignment, k: float) -> Iterator[Change]:
    """The head shares the divided embedding: the norm before it gives k times as much."""
    for norm in assignment.norms:
        if norm.layer is None and norm.side == "in" and "unembed" in norm.feeds:
            yield from _norm(norm, k, "final gain")


def _norm(norm: Norm, factor: float, what: str) -> Iterator[Change]:
    yield Change(norm.tensor, factor, what, norm.zero_centered)
    if norm.bias:
        yield Change(norm.bias, factor, "shift")


def _with_step(config: Mapping[str, Any], step: float) -> dict[str, Any]:
    key = next((key for key in _STEPS if key in config), None)
    if key is not None:
        return {**config, key: step}
    if step != 1:
        raise InputError(f"its configuration has no residual step to set to {step:g} ({', '.join(_STEPS)})",
                         where="--residual-step", remedy="fold it: --residual-step 1")  # fmt: skip
    return dict(config)


def _with_eps(config: Mapping[str, Any], k: float) -> dict[str, Any]:
    return {name: value / k**2 if name in _EPS and isinstance(value, float) else value
            for name, value in config.items()}  # fmt: skip


def _positive(step: float) -> float:
    if not step > 0:
        raise InputError(f"a residual step is above 0, got {step:g}", where="--residual-step")
    return step
