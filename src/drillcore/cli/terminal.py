"""The terminal: its two streams, and how text, numbers and tables are written on it."""

from math import isfinite

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

OUT = Console(highlight=False, soft_wrap=False, emoji=False)
ERRORS = Console(stderr=True, highlight=False, emoji=False)


def say(text: str) -> None:
    """A sentence of the result."""
    OUT.print(escape(text))


def note(text: str) -> None:
    """What a person may want to know while it runs."""
    ERRORS.print(f"[dim]{escape(text)}[/]")


def plain(title: str) -> Table:
    """A table with a title and one rule."""
    return Table(title=title, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))


def number(value: float | None) -> str:
    """A value to three significant digits; a dash where there is none."""
    if value is None or not isfinite(value):
        return "–"
    return f"{value:.3g}"
