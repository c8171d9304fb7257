"""Progress bars."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Literal

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from drillcore import progress
from drillcore.cli.terminal import ERRORS

Unit = Literal["bytes", "steps", "parts"]


@contextlib.contextmanager
def progress_bar(unit: Unit, *, quiet: bool) -> Iterator[progress.Progress]:
    """Give a callback that draws what is done, and how long it takes; plain silence where nobody watches."""
    if quiet or not sys.stderr.isatty():
        yield progress.unwatched
        return
    with Progress(TextColumn("{task.description:<12}"), BarColumn(), *_columns(unit), console=ERRORS,
                  transient=True) as bar:  # fmt: skip
        task = bar.add_task("opening", total=None)
        yield lambda step: bar.update(task, description=step.what, completed=step.done, total=step.total)


def _columns(unit: Unit) -> tuple[ProgressColumn, ...]:
    if unit == "bytes":
        return DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn()
    if unit == "steps":
        return MofNCompleteColumn(), TimeRemainingColumn()
    return (TimeElapsedColumn(),)
