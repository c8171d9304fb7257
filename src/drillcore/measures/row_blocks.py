"""The vectors of a matrix that live in the residual stream, read in blocks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from drillcore.linalg import Product, Scratch
from drillcore.weights.layout import read_weight
from drillcore.weights.role import Weight
from drillcore.weights.source import InputError, Source

BLOCK_BYTES = 128 * 2**20  # of one block as float32
_BLOCK_ROWS = 8192  # at most: what one block adds up in float32
_TAIL_ROWS = 1024  # read at once while looking for padding from the end


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """`n` vectors of length `m`. `stored` reads a range of them in the stored dtype; `padded` ones read as zero."""

    name: str
    n: int
    m: int
    stored: Callable[[int, int], Tensor]
    padded: range = range(0)

    def spans(self, rows: int | None = None) -> Iterator[tuple[int, int]]:
        """Consecutive (start, stop) that cover the vectors, by default as large as the memory promise allows."""
        size = rows or max(1, min(_BLOCK_ROWS, BLOCK_BYTES // (4 * self.m)))
        return ((start, min(start + size, self.n)) for start in range(0, self.n, size))

    def block(self, start: int, stop: int, device: str = "cpu", held: Scratch | None = None) -> Tensor:
        """The vectors `start` … `stop` in float32, (stop − start) × m: in `held` until its next use, or fresh."""
        values = (held or Scratch()).take(stop - start, self.m, torch.device(device)).copy_(self.stored(start, stop))
        first, last = max(start, self.padded.start), min(stop, self.padded.stop)
        if first < last:
            values[first - start : last - start] = 0
        return values

    def gather(self, indices: np.ndarray, device: str = "cpu") -> Tensor:
        """The vectors of the given ascending indices, float32; a mapped file gives up only the pages they lie on."""
        parts = []
        for start, stop in self.spans():
            first, last = np.searchsorted(indices, (start, stop))
            if first < last:
                stored = self.stored(start, stop)
                parts.append(torch.stack([stored[i] for i in (indices[first:last] - start).tolist()]))
        return torch.cat(parts).to(device, torch.float32)


def residual_rows(source: Source, weight: Weight) -> RowBlocks:
    """The vectors of `weight` in the residual space: rows of a reading matrix, columns of a writing one.

    A matrix stored with these vectors as its rows is read slice by slice; any other is read once in its stored
    dtype, which for a mapped file is a view, and sliced. Padding at the end of a vocabulary is found and masked.

    Raises:
        InputError: neither side of the matrix faces the residual stream.
    """
    role, (out, inside) = weight.role, weight.shape
    if not role.faces:
        raise InputError(f"{role.kind} touches the residual stream with neither side", where=weight.tensor)
    n, m = (out, inside) if role.faces == "in" else (inside, out)
    upright = role.orientation == ("out_in" if role.faces == "in" else "in_out")
    if upright and role.split is None and not role.stacked and len(source.specs[weight.tensor].shape) == 2:
        stored = _sliced(source, weight.tensor)
    else:
        stored = _resident(source, weight)
    rows = RowBlocks(weight.tensor, n, m, stored)
    return replace(rows, padded=_padding(rows)) if is_vocabulary(weight) else rows


def is_vocabulary(weight: Weight) -> bool:
    """Whether the vectors belong to the entries of a vocabulary, which may be padded at its end."""
    return "vocab" in (weight.role.reads, weight.role.writes)


def _sliced(source: Source, name: str) -> Callable[[int, int], Tensor]:
    def stored(start: int, stop: int) -> Tensor:
        part = source.read(name, slice(start, stop))
        return part.left @ part.right if isinstance(part, Product) else part

    return stored


def _resident(source: Source, weight: Weight) -> Callable[[int, int], Tensor]:
    matrix = read_weight(source, weight)
    matrix = matrix if weight.role.faces == "in" else matrix.T

    def stored(start: int, stop: int) -> Tensor:
        if isinstance(matrix, Product):
            return matrix.left[start:stop] @ matrix.right
        return matrix[start:stop]

    return stored


def _padding(rows: RowBlocks) -> range:
    """The run of byte-identical rows at the end, before any zero rows there; empty when it is shorter than two.

    Vocabularies are padded to a round size with rows that training never touches. Where these are copies of one
    row (a mean, a constant) they would count as perfectly overlapping features. Two trained rows are never equal
    to the last bit, so a run of two at the very end is taken for padding; equal rows elsewhere are left alone.
    """
    stop = _run_start(rows, rows.n, lambda part: (part.float() == 0).all(1))
    if stop == 0:
        return range(0)
    if not bool(rows.stored(stop - 1, stop).isfinite().all()):
        return range(0)  # a fault to be found, not padding
    last = _bytes(rows.stored(stop - 1, stop))
    start = _run_start(rows, stop, lambda part: (_bytes(part) == last).all(1))
    return range(start, stop) if stop - start > 1 else range(0)


def _run_start(rows: RowBlocks, stop: int, matches: Callable[[Tensor], Tensor]) -> int:
    """Where the longest run of matching rows that ends at `stop` begins, read backwards."""
    while stop > 0:
        start = max(0, stop - _TAIL_ROWS)
        different = (~matches(rows.stored(start, stop))).nonzero()
        if len(different):
            return start + int(different[-1]) + 1
        stop = start
    return 0


def _bytes(part: Tensor) -> Tensor:
    return part.contiguous().view(torch.uint8)
