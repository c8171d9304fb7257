"""Sums of outer products over rows that are streamed in blocks.

On a CPU they go to OpenBLAS through SciPy without a copy: a symmetric rank-k update does half the work of a
product, and torch has none.
"""

from collections.abc import Iterator
from typing import Any

import torch
from scipy.linalg.blas import ssyrk
from torch import Tensor

Array = Any  # an ndarray on a CPU, a Tensor on another device: both know @, *=, max and slices

_STRIP = 512  # rows of the sum handled at once, so that no second m × m matrix is needed


class GramSum:
    """The sum of x xᵀ over rows x, each block formed in float32 and added up in float64.

    Only the upper triangle is kept right; read it through the methods.
    """

    def __init__(self, m: int, device: torch.device | str = "cpu") -> None:
        self.m = m
        self._sum = torch.zeros(m, m, dtype=torch.float64, device=device)

    def add(self, block: Tensor) -> None:
        """Add the rows of `block` (rows × m, float32, contiguous)."""
        if block.device.type == "cpu":
            # In Fortran order the block is m × rows, so this is XᵀX; its lower triangle is our upper one.
            self._sum += torch.from_numpy(ssyrk(1.0, block.numpy().T, lower=1).T)
        else:
            self._sum += block.T @ block

    def subtract_outer(self, vector: Tensor, weight: float) -> None:
        """Subtract `weight` times v vᵀ (v of length m, float64), as centring does with the mean and the count."""
        self._sum.addr_(vector, vector, alpha=-weight)

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
