"""Sums of outer products over rows that are streamed in blocks.

On a CPU the upper triangle is formed tile by tile in NumPy, whose BLAS takes half the work for a tile on the diagonal.
"""

from collections.abc import Iterator
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drillcore.linalg.tiles import on_tiles

Array = Any  # an ndarray on a CPU, a Tensor on another device: both know @, *=, max and slices

_STRIP = 512  # rows of the sum handled at once, so that no second m × m matrix is needed
_TILE = 256, 1024  # least and most rows of a tile of the sum


class GramSum:
    """The sum of x xᵀ over rows x, each block formed in its own dtype and added up in float64.

    Only the upper triangle is kept right; read it through the methods.
    """

    def __init__(self, m: int, device: torch.device | str = "cpu") -> None:
        self.m = m
        self._sum = torch.zeros(m, m, dtype=torch.float64, device=device)

    def add(self, block: Tensor) -> None:
        """Add the rows of `block` (rows × m, float32 or float64, contiguous)."""
        if block.device.type != "cpu":
            self._sum += block.T @ block
            return
        X, total = block.numpy(), self._sum.numpy()
        size = min(max(_TILE[0], self.m // 4), _TILE[1])

        def add(tile: tuple[slice, slice]) -> None:
            i, j = tile
            total[i, j] += X[:, i].T @ X[:, j]

        cuts = [slice(start, start + size) for start in range(0, self.m, size)]
        if len(cuts) == 1:
            add((cuts[0], cuts[0]))
            return
        for _ in on_tiles(add, combinations_with_replacement(cuts, 2)):
            pass

    def subtract_outer(self, vector: Tensor, weight: float) -> None:
        """Subtract `weight` times v vᵀ (v of length m, float64), as centring does with the mean and the count."""
        self._sum.addr_(vector, vector, alpha=-weight)

    def eigh(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues, rising, and eigenvectors (m × m) in float64."""
        if self._sum.device.type == "cpu":
            values, vectors = np.linalg.eigh(self._sum.numpy(), UPLO="U")
            return torch.from_numpy(values), torch.from_numpy(vectors)
        return tuple(torch.linalg.eigh(self._sum, UPLO="U"))

    def leading(self, count: int) -> tuple[Tensor, Tensor]:
        """The `count` largest eigenvalues, rising, and their eigenvectors (m × count) in float64."""
        if self._sum.device.type != "cpu" or count > self.m // 4:  # from there on the whole is no slower
            values, vectors = self.eigh()
            return values[-count:], vectors[:, -count:]
        from scipy.linalg import eigh  # a slow import, and whole spectra do not need it

        wanted = [self.m - count, self.m - 1]
        values, vectors = eigh(self._sum.numpy(), lower=False, subset_by_index=wanted, check_finite=False)
        return torch.from_numpy(values), torch.from_numpy(vectors)

    def trace(self) -> float:
        """The trace, which is the sum of the squared norms of the rows."""
        return float(self._sum.diagonal().sum())

    def participation_ratio(self) -> float:
        """(tr C)²/tr C², the effective number of dimensions; 0 for the zero matrix."""
        squared = self.squared_norm()
        return self.trace() ** 2 / squared if squared > 0 else 0.0

    def squared_norm(self) -> float:
        """Squared Frobenius norm, which is also the sum of (x·y)² over all ordered pairs of rows, x = y included."""
        return sum(float((above * above).sum()) for above in self._upper())

    def squared_distance(self, scale: float) -> float:
        """Squared Frobenius norm of the sum minus `scale` times the identity."""
        shifted = self._sum.diagonal() - scale
        return self.squared_norm() - float(self._sum.diagonal().square().sum()) + float(shifted.square().sum())

    def _upper(self) -> Iterator[Tensor]:
        """Strips of the upper triangle, off-diagonal entries times √2: their squares count both triangles."""
        for start in range(0, self._sum.shape[0], _STRIP):
            strip = self._sum[start : start + _STRIP, start:].triu(1) * 2**0.5
            strip.diagonal().copy_(self._sum.diagonal()[start : start + _STRIP])
            yield strip


def native(block: Tensor) -> Array:
    """The same values as an ndarray on a CPU, without a copy; unchanged on another device.

    NumPy multiplies with OpenBLAS, a third faster here than torch's library, and passes over a small tile on one
    thread, where torch would open a parallel region for each.
    """
    return block.numpy() if block.device.type == "cpu" else block


def row_norms(block: Tensor) -> Tensor:
    """Euclidean norms of the rows (rows × m), squared and added in float64 a cache-sized strip at a time."""
    return torch.cat([torch.linalg.vector_norm(strip.double(), dim=1) for strip in _strips(block)])


def column_sums(block: Tensor) -> Tensor:
    """Sum of the rows (rows × m), added in float64 a cache-sized strip at a time."""
    total = torch.zeros(block.shape[1], dtype=torch.float64, device=block.device)
    for strip in _strips(block):
        total += strip.double().sum(0)
    return total


def _strips(block: Tensor) -> Iterator[Tensor]:
    return (block[start : start + _STRIP] for start in range(0, len(block), _STRIP))
