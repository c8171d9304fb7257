"""Published values that studies are held against; README.md here says where they come from."""

import csv
from importlib import resources


def published(name: str, **where: object) -> list[dict[str, float]]:
    """Rows of a table of published numbers, those that have the values `where`; columns of words are left out.

    Raises:
        FileNotFoundError: there is no such table.
    """
    text = resources.files(__name__).joinpath(f"{name}.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    kept = [row for row in rows if all(_plain(row[key]) == value for key, value in where.items())]
    return [{k: v for k, v in ((k, _plain(v)) for k, v in row.items()) if isinstance(v, float)} for row in kept]


def _plain(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
