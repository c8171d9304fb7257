"""The rows of a survey by measure and kind, and how kinds and numbers are written."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import isfinite, nan
from typing import NamedTuple

from markupsafe import Markup

from drillcore.table import Row


class Kind(NamedTuple):
    """A kind of matrix in one stack of the model."""

    stack: str
    kind: str

    @property
    def label(self) -> str:
        """Its name on the page: "q", or "text q" where there are several stacks."""
        return f"{self.stack} {self.kind}".strip()

    @property
    def key(self) -> str:
        """Its name in the page's data."""
        return f"{self.stack}.{self.kind}".strip(".")


class RowIndex:
    """Rows by measure and kind, in the order of the table; built once, since a page asks often."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows: dict[str, dict[Kind, list[Row]]] = defaultdict(lambda: defaultdict(list))
        for row in rows:
            self._rows[row.measure][Kind(row.stack or "", row.kind or "")].append(row)

    def of(self, measure: str, kind: Kind) -> list[Row]:
        """The rows of one measure and kind."""
        return self._rows.get(measure, {}).get(kind, [])

    def kinds(self, *measures: str) -> list[Kind]:
        """Kinds that have a row of any of the measures, in the order of the table."""
        return list(dict.fromkeys(kind for m in measures for kind in self._rows.get(m, {})))

    def measures(self, prefix: str) -> list[str]:
        """Measures whose name begins with `prefix`, in the order of the table."""
        return [m for m in self._rows if m.startswith(prefix)]


def four(value: float | None) -> float | None:
    """`value` to four digits after the point; None where there is no finite value."""
    return None if value is None or not isfinite(value) else round(value, 4)


def five(value: float | None) -> float | None:
    """`value` to five significant digits; None where there is no finite value."""
    return None if value is None or not isfinite(value) else float(f"{value:.5g}")


def text(value: float | None, digits: int = 3) -> str:
    """`value` to `digits` significant digits, without an exponent between 1e-4 and 1e6; a dash for None.

    >>> text(0.00872578), text(30522), text(3.3507), text(None), text(2.6e-07)
    ('0.00873', '30,522', '3.35', '–', '2.60e-07')
    """
    value = nan if value is None else value
    if not isfinite(value):
        return "–"
    if abs(value) < 1e9 and value == int(value):
        return f"{int(value):,}"
    if not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}"
    exponent = int(f"{value:.{digits - 1}e}".split("e")[1])
    return f"{value:,.{max(0, digits - 1 - exponent)}f}"


def cosine(value: float | None) -> str:
    """A cosine or an overlap, three digits after the point; a dash for None."""
    return "–" if value is None or not isfinite(value) else f"{value:.3f}"


def size(nbytes: float) -> str:
    """Bytes with a decimal unit.

    >>> size(90_868_376)
    '90.9 MB'
    """
    return _scaled(nbytes, ("B", "kB", "MB", "GB", "TB"))


def count(number: float) -> str:
    """A large count in words.

    >>> count(22_713_216), count(8_030_261_248)
    ('22.7 million', '8.03 billion')
    """
    return _scaled(number, ("", "thousand", "million", "billion", "trillion"))


def _scaled(number: float, units: tuple[str, ...]) -> str:
    step = 0
    while number >= 1000 and step < len(units) - 1:
        number, step = number / 1000, step + 1
    return f"{text(number)} {units[step]}".strip()


def spans(numbers: Iterable[int]) -> str:
    """Whole numbers with runs joined.

    >>> spans([3, 0, 1, 2, 7])
    '0–3, 7'
    """
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)


def listed(names: Sequence[str]) -> Markup:
    """As English lists them: q, k and v."""
    return Markup(" and ").join(([Markup(", ").join(names[:-1])] if len(names) > 1 else []) + list(names[-1:]))
