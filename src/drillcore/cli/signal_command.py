"""The command `drillcore signal`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

import drillcore
from drillcore.cli.bars import progress_bar
from drillcore.cli.options import check_folder, use_threads
from drillcore.cli.screen import show_paths
from drillcore.cli.terminal import OUT, note, number, plain, say

if TYPE_CHECKING:
    from drillcore.verbs.signal import Needs, Signal


def signal(
    model: Annotated[str, Parameter(help="Folder or Hugging Face id of the model; it is run, with transformers.")],
    *,
    text: Annotated[Path, Parameter(help="Plain text to run it on, .gz or not.")],
    out: Annotated[Path | None, Parameter(help="Folder for the results; ./signal-NAME by default.")] = None,
    context: Annotated[int | None, Parameter(help="Tokens in a window; 512 or what the model takes.")] = None,
    windows: Annotated[int, Parameter(help="Windows of the text.")] = 8,
    batch: Annotated[int, Parameter(help="Windows at once; the backward pass takes one batch.")] = 4,
    backward: Annotated[bool, Parameter(help="Measure gradients.")] = True,
    sensitivity: Annotated[bool, Parameter(help="Measure ‖∂branch/∂x‖, the slowest part.")] = True,
    rounds: Annotated[int, Parameter(help="Rounds of power iteration, at most.")] = 12,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], Parameter(help="Of the run; float32 foretells an overflow.")
    ] = "float32",
    tokenizer: Annotated[str | None, Parameter(help="Tokenizer, where the model's folder has none.")] = None,
    roles: Annotated[Path | None, Parameter(help="TOML file with the roles of an unknown family.")] = None,
    device: Annotated[str, Parameter(help="cpu, or a CUDA device such as cuda:0.")] = "cpu",
    threads: Annotated[int | None, Parameter(help="CPU threads; all cores by default.")] = None,
    quiet: Annotated[bool, Parameter(help="No progress bar and no table; only errors and the paths.")] = False,
) -> int:
    """Run a model on text and see its residual stream at every half-step, forward and backward.

    Says which branch or add leaves the range of fp16 first, how the stream grows, how much each branch adds and how
    sensitive it is, and whether the gradients of neighbouring layers agree. Writes rows.parquet, signal.json and
    report.html.

    Examples:

    `drillcore signal ./gpt2 --text book.txt`

    `drillcore signal ./Llama-3.2-1B --text book.txt.gz --dtype bfloat16 --no-sensitivity`
    """
    use_threads(threads)
    folder = out or Path(f"signal-{Path(model.rstrip('/')).name}")
    check_folder(folder)
    with progress_bar("steps", quiet=quiet) as bar:
        result = drillcore.signal(
            model, text=text, tokenizer=tokenizer, context=context, windows=windows, batch=batch, backward=backward,
            sensitivity=sensitivity, rounds=rounds, dtype=dtype, device=device, roles=roles,
            told=lambda needs: None if quiet else _tell(needs), progress=bar,
        )  # fmt: skip
    paths = [*result.save(folder), drillcore.signal_report(result, folder / "report.html")]
    if not quiet:
        _show(result)
    show_paths(paths)
    return 0


def _tell(needs: "Needs") -> None:
    parts = (("weights", needs.weights), ("gradients", needs.gradients), ("activations", needs.activations))
    told = ", ".join(f"{name} {nbytes / 2**30:.2f}" for name, nbytes in parts)
    note(f"needs about {needs.total / 2**30:.2f} GiB of memory: {told}")


def _show(result: "Signal") -> None:
    """One line a site: size of the stream, what was added, how sensitive it is."""
    for sentence in result.findings:
        say(sentence)
    rows = {(r.stack, r.site, r.measure): r for r in result.rows if r.subset in (None, "all")}
    table = plain("The stream, and what each half-step adds to it")
    for name in ("site", "layer", "branch"):
        table.add_column(name)
    names = ("rms", "max", "b max", "b/x", "grad rms", "‖∂b/∂x‖", "κ")
    for name in names:
        table.add_column(name, justify="right")
    keys = ("stream.rms", "stream.max_abs", "branch.max_abs", "branch.ratio", "gradient.rms", "sensitivity.local",
            "sensitivity.relative")  # fmt: skip
    for (stack, site, measure), state in rows.items():
        if measure == "stream.rms":
            branch = rows.get((stack, site, "branch.ratio"))
            cells = [number(found.value) if (found := rows.get((stack, site, key))) else "" for key in keys]
            table.add_row(f"{stack or ''} {site}".strip(), str(state.layer), branch.kind if branch else "", *cells)
    table.caption = (
        "x: the stream before the half-step · b: its branch · κ: sensitivity relative to the branch's spread"
    )
    OUT.print(table)
