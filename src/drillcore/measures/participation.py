"""Participation ratios of the vectors of a matrix, (tr C)²/tr C², raw and about their mean."""

from typing import NamedTuple, Protocol

from torch import Tensor

from drillcore.linalg.gram import GramSum
from drillcore.linalg.gram_sketch import GramSketch
from drillcore.measures.row_blocks import RowBlocks

_EXACT_WORK = 1e12  # multiplications: some ten seconds on two cores


class Ratio(NamedTuple):
    """A participation ratio, and its standard error where it is estimated."""

    value: float
    stderr: float | None


class Participation(Protocol):
    """Fed every block of rows in a first and in a second pass."""

    def first(self, block: Tensor) -> None:
        """Take a block (rows × m, float32) of the first pass."""
        ...

    def second(self, block: Tensor) -> None:
        """Take a block of the second pass."""
        ...

    def ratios(self, norms: Tensor, mean: Tensor) -> tuple[Ratio, Ratio]:
        """Raw and centred, given the norms (n, float64; zero for a masked row) and the mean row (m, float64)."""
        ...


def participation(rows: RowBlocks, device: str) -> Participation:
    """Exact from the m × m sum of outer products; sketched where that takes more than 10¹² multiplications."""
    return _Exact(rows, device) if rows.n * rows.m**2 <= _EXACT_WORK else _Sketched(rows, device)


class _Exact:
    def __init__(self, rows: RowBlocks, device: str) -> None:
        self._gram = GramSum(rows.m, device)

    def first(self, block: Tensor) -> None:
        self._gram.add(block)

    def second(self, block: Tensor) -> None:
        """The first pass was enough."""

    def ratios(self, norms: Tensor, mean: Tensor) -> tuple[Ratio, Ratio]:
        raw = self._gram.participation_ratio()
        self._gram.subtract_outer(mean, int((norms > 0).sum()))
        return Ratio(raw, None), Ratio(self._gram.participation_ratio(), None)


class _Sketched:
    def __init__(self, rows: RowBlocks, device: str) -> None:
        self._sketch = GramSketch(rows.m, rows.name, device)

    def first(self, block: Tensor) -> None:
        self._sketch.first(block)

    def second(self, block: Tensor) -> None:
        self._sketch.second(block)

    def ratios(self, norms: Tensor, mean: Tensor) -> tuple[Ratio, Ratio]:
        trace, count = float(norms.square().sum()), int((norms > 0).sum())
        centred = trace - count * float(mean.square().sum())
        return _ratio(trace, *self._sketch.squared_norm()), _ratio(centred, *self._sketch.squared_norm(mean, count))


def _ratio(trace: float, squared_norm: float, stderr: float) -> Ratio:
    if squared_norm <= 0:
        return Ratio(0.0, 0.0)
    value = trace**2 / squared_norm
    return Ratio(value, value * stderr / squared_norm)
