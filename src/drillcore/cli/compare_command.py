"""`drillcore survey A B …`: several checkpoints side by side."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import drillcore
from drillcore.cli import screen
from drillcore.cli.bars import progress_bar
from drillcore.cli.options import check_folder
from drillcore.cli.terminal import OUT, note, number, plain

if TYPE_CHECKING:
    from drillcore.verbs.comparison import Comparison


def is_list(checkpoint: str) -> bool:
    """Whether this is a text file that lists checkpoints."""
    return checkpoint.endswith(".txt") and Path(checkpoint).is_file()


def compare(checkpoints: Sequence[str], folder: Path, unused: Collection[str], *, quiet: bool, **options: Any) -> int:
    """Survey what they pack, print a line for each matrix, and write rows, JSON and page into `folder`.

    Raises:
        InputError: an option has no meaning here, or no checkpoint can be used.
    """
    if not checkpoints:
        raise drillcore.InputError("no checkpoint is named", remedy="drillcore survey CHECKPOINT")
    if unused:
        raise drillcore.InputError("says nothing where several checkpoints are compared", where=sorted(unused)[0],
                                   remedy="leave it out, or survey one checkpoint at a time")  # fmt: skip
    check_folder(folder)
    targets = [t for c in checkpoints for t in (drillcore.listed(Path(c)) if is_list(c) else [c])]
    with progress_bar("bytes", quiet=quiet) as bar:
        found = drillcore.compare(targets, progress=bar, **options)
    paths = [*found.save(folder), drillcore.compare_report(found, folder / "report.html")]
    if not quiet:
        _show(found)
    for why in found.failed.values():
        note(f"left out: {why}")
    screen.show_paths(paths)
    return 1 if found.failed or any(s.census.left_out for s in found.surveys) else 0


def _show(found: "Comparison") -> None:
    table = plain("Superposition: n directions in m dimensions")
    table.add_column("checkpoint", overflow="fold")
    table.add_column("matrix")
    for name in ("n", "m", "norm", "overlap²", "× m", "mean removed, × m", "published"):
        table.add_column(name, justify="right")
    for p in found.packings:
        scaled = [None if value is None else value * p.m for value in (p.overlap, p.centred)]
        table.add_row(Path(p.source).name, p.kind + (" (head)" if p.head else ""), f"{p.n:,}", str(p.m), number(p.norm),
                      number(p.overlap), *map(number, scaled), number(p.published))  # fmt: skip
    table.caption = "overlap²: mean squared cosine; × m is 1 for random directions"
    OUT.print(table)
    fit = found.exponent
    if fit is not None:
        OUT.print(f"over the heads overlap² falls as m^−{fit.value:.2f}, 95 % interval {fit.low:.2f} to {fit.high:.2f}")
