"""The command `drillcore check`. Nothing heavy is imported before it runs."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

import drillcore
from drillcore.cli import check_screen, screen
from drillcore.cli.bars import progress_bar

MET, UNMET = 0, 1


def check(
    target: Annotated[str, Parameter(help="FILE.py:FACTORY, a variant by name, or a config.json (or its folder).")],
    *,
    width: Annotated[int, Parameter(help="Width of the stream.")] = 512,
    half_steps: Annotated[
        int | None, Parameter(help="Residual adds of the stack; 48, or two per layer of a config.json.")
    ] = None,
    residual_step: Annotated[float | None, Parameter(help="What multiplies the branch before it is added.")] = None,
    decay: Annotated[float, Parameter(help="Weight decay of the training that is planned.")] = 0.1,
    block: Annotated[
        bool, Parameter(help="The module is a whole block, stream to stream, not a branch.", negative=())
    ] = False,
    require: Annotated[
        str | None, Parameter(help="Classes to be met, e.g. forward=bounded,backward=scale-free; else exit code 1.")
    ] = None,
    dtype: Annotated[Literal["float32", "float64"], Parameter(help="What is computed in.")] = "float32",
    out: Annotated[Path | None, Parameter(help="Folder for the results; ./check-NAME by default.")] = None,
    quiet: Annotated[bool, Parameter(help="No progress and no table; only errors and the paths.", negative=())] = False,
) -> int:
    """Check a residual branch or block before it is trained: does the stream stay bounded, and do gradients?

    FILE.py is executed, as `python FILE.py` would; FACTORY is a function or class of it that returns a
    torch.nn.Module, given the width if it takes an argument. A module that maps the stream to the stream says so by
    an attribute residual_adds (the number of adds inside), or by --block. Variants: pre-gelu, peri-swiglu, llama, …;
    a wrong name lists them.

    Writes check.json, rows.parquet and check.html. Exit codes: 0 requirements met (or none), 1 not met, 2 bad input.

    Examples:

    `drillcore check my_block.py:Branch --width 256 --require forward=bounded,backward=scale-free`

    `drillcore check llama`
    """
    wanted = _requirements(require)
    with progress_bar("parts", quiet=quiet) as bar:
        result = drillcore.check(
            target, width=width, half_steps=half_steps, residual_step=residual_step, decay=decay, block=block,
            dtype=dtype, require=wanted, progress=bar,
        )  # fmt: skip
    missed = result.unmet(wanted)
    folder = out or Path(f"check-{_name(target)}")
    paths = [*result.save(folder), drillcore.check_report(result, folder / "check.html")]
    if not quiet:
        check_screen.show_check(result)
    check_screen.show_requirements(wanted, missed, quiet=quiet)
    screen.show_paths(paths)
    return UNMET if missed else MET


def _requirements(text: str | None) -> dict[str, str]:
    """ "forward=bounded,backward=grows" as a mapping; refused before anything is computed."""
    wanted = {}
    for word in (text or "").split(","):
        side, equals, name = (part.strip() for part in word.partition("="))
        if word.strip() and (not equals or not name):
            raise drillcore.InputError(f"{word!r} is not a requirement", where="--require",
                                       remedy="write for example forward=bounded,backward=scale-free")  # fmt: skip
        if name:
            wanted[side] = name
    return wanted


def _name(target: str) -> str:
    path, _, factory = target.rpartition(":")
    return f"{Path(path).stem}-{factory}" if path else Path(target.rstrip("/")).stem
