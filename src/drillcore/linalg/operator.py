"""A matrix as an operator: float32, held once, read once per step.

On a CPU a product with one vector costs one pass over memory, so a Golub–Kahan step does both products
``t = W v − β u`` and ``z = Wᵀ t`` on each block of rows while it is in the cache. numpy is used there, because its
BLAS reaches the memory rate on every x86 we measured, which torch's does not (benchmarks/survey.py prints both).
"""

from collections.abc import Iterator, Sequence
from math import isfinite, sqrt
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drillcore.linalg.factored import Matrix, Product

Array = NDArray[np.float32]

_THIN = 4  # up to so many columns, matrix-vector products beat a matrix product, which packs W first
_CACHE_ELEMENTS = 1 << 20  # float32 numbers of a row block: 4 MiB
_SUMMED = 1 << 10  # squares that are added in float32
_HELD_ELEMENTS = 1 << 27  # float32 numbers of the largest matrix that is held converted: 512 MiB


def row_blocks(W: Tensor, elements: int) -> Iterator[tuple[int, Tensor]]:
    """Cut W into blocks of whole rows of about `elements` numbers: (first row, block)."""
    rows = max(1, elements // max(1, W.shape[1]))
    for start in range(0, W.shape[0], rows):
        yield start, W[start : start + rows]


_LEAST, _MOST = 1e-15, 1e19  # ‖W‖_F: outside, the products that the solvers form leave the range of float32


class NonFiniteError(ValueError):
    """A matrix holds NaN or infinity, or its products would leave the range of float32; the message says which."""


class Operator(Protocol):
    """What the solvers need of a matrix W (out × in)."""

    shape: tuple[int, int]
    device: torch.device
    frobenius: float  # ‖W‖_F, finite

    def step(self, v: Tensor, u: Tensor, beta: float) -> tuple[Tensor, Tensor]:
        """Return t = W v − β u (out) and Wᵀ t (in)."""
        ...

    def both(self, V: Tensor, U: Tensor) -> tuple[Tensor, Tensor]:
        """Return W V (out × b) and Wᵀ U (in × b)."""
        ...


class Scratch:
    """One float32 buffer that grows and is reused: fresh memory costs five times the conversion itself."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0)

    def take(self, rows: int, columns: int, device: torch.device) -> Tensor:
        """A rows × columns float32 matrix with arbitrary contents."""
        if self._buffer.numel() < rows * columns or self._buffer.device != device:
            self._buffer = torch.empty(0)  # give the old one back before asking for more
            self._buffer = torch.empty(rows * columns, device=device)
        return self._buffer[: rows * columns].view(rows, columns)


class DenseOperator:
    """A float32 matrix stored row by row."""

    def __init__(self, W: Tensor) -> None:
        self.W = W
        self.shape = (W.shape[0], W.shape[1])
        self.device = W.device
        self.frobenius = _in_range(_frobenius(W))

    def step(self, v: Tensor, u: Tensor, beta: float) -> tuple[Tensor, Tensor]:
        """See `Operator.step`."""
        if self.device.type != "cpu":
            t = self.W @ v - beta * u
            return t, self.W.T @ t
        W, x = self.W.numpy(), v.numpy()
        t, z = torch.empty(self.shape[0]), torch.zeros(self.shape[1])
        out, acc = t.numpy(), z.numpy()
        shift = beta * u.numpy()
        for part in self._parts():
            out[part] = W[part] @ x - shift[part]
            acc += out[part] @ W[part]
        return t, z

    def both(self, V: Tensor, U: Tensor) -> tuple[Tensor, Tensor]:
        """See `Operator.both`."""
        if self.device.type != "cpu":
            return self.W @ V, self.W.T @ U
        W, X, Y = self.W.numpy(), V.contiguous().numpy(), U.contiguous().numpy()
        WV, WU = torch.empty(self.shape[0], V.shape[1]), torch.zeros(self.shape[1], U.shape[1])
        out, acc = WV.numpy(), WU.numpy()
        thin = X.shape[1] <= _THIN
        for part in self._parts():
            out[part] = _columns(W[part], X) if thin else W[part] @ X
            acc += _columns(W[part].T, Y[part]) if thin else W[part].T @ Y[part]
        return WV, WU

    def _parts(self) -> Iterator[slice]:
        for start, block in row_blocks(self.W, _CACHE_ELEMENTS):
            yield slice(start, start + block.shape[0])


def _columns(W: Array, X: Array) -> Array:
    """W X one column at a time."""
    return np.stack([W @ x for x in X.T], axis=1)


class StackedOperator:
    """Matrices stacked along the rows, too large to hold in float32: converted block by block at every step."""

    def __init__(self, matrices: Sequence[Tensor], gain: Tensor | None = None) -> None:
        self.matrices, self.gain = matrices, gain
        self.shape = (sum(m.shape[0] for m in matrices), matrices[0].shape[1])
        self.device = matrices[0].device
        self._held = Scratch()
        self.frobenius = _in_range(sum(_frobenius(block) ** 2 for _, block in self._blocks()) ** 0.5)

    def step(self, v: Tensor, u: Tensor, beta: float) -> tuple[Tensor, Tensor]:
        """See `Operator.step`."""
        t, z = v.new_empty(self.shape[0]), v.new_zeros(self.shape[1])
        for a, block in self._blocks():
            part = slice(a, a + block.shape[0])
            t[part] = block @ v - beta * u[part]
            z += block.T @ t[part]
        return t, z

    def both(self, V: Tensor, U: Tensor) -> tuple[Tensor, Tensor]:
        """See `Operator.both`."""
        WV, WU = V.new_empty(self.shape[0], V.shape[1]), U.new_zeros(self.shape[1], U.shape[1])
        for a, block in self._blocks():
            part = slice(a, a + block.shape[0])
            WV[part] = block @ V
            WU += block.T @ U[part]
        return WV, WU

    def _blocks(self) -> Iterator[tuple[int, Tensor]]:
        offset = 0
        for matrix in self.matrices:
            for start, part in row_blocks(matrix, 4 * _CACHE_ELEMENTS):
                block = self._held.take(part.shape[0], part.shape[1], self.device).copy_(part)
                if self.gain is not None:
                    block.mul_(self.gain)
                yield offset + start, block
            offset += matrix.shape[0]


class ProductOperator:
    """A product of two thin factors; it is applied factor by factor."""

    def __init__(self, product: Product) -> None:
        self.left, self.right = product.left.float(), product.right.float()
        self.shape = product.shape
        self.device = self.left.device
        inner = (self.left.T.double() @ self.left.double()) * (self.right.double() @ self.right.T.double())
        if not torch.isfinite(inner).all():
            raise NonFiniteError("holds NaN or infinity")
        self.frobenius = _in_range(float(inner.sum().clamp_min(0).sqrt()))

    def step(self, v: Tensor, u: Tensor, beta: float) -> tuple[Tensor, Tensor]:
        """See `Operator.step`."""
        t = self.left @ (self.right @ v) - beta * u
        return t, self.right.T @ (self.left.T @ t)

    def both(self, V: Tensor, U: Tensor) -> tuple[Tensor, Tensor]:
        """See `Operator.both`."""
        return self.left @ (self.right @ V), self.right.T @ (self.left.T @ U)


def as_operator(
    W: Matrix | Sequence[Tensor], *, scratch: Scratch | None = None, gain: Tensor | None = None
) -> tuple[Operator, bool]:
    """Make W an operator; the flag says that the operator is Wᵀ (W was stored column by column).

    Args:
        W: out × in, in any floating dtype; or matrices to be stacked along the rows (experts).
        scratch: where the float32 copy is put.
        gain: in-vector multiplied into the columns (a folded norm).

    Raises:
        NonFiniteError: W holds NaN or infinity, or numbers so large or small that their products do.
    """
    if isinstance(W, Product):
        scaled = W if gain is None else Product(W.left, W.right.float() * gain)
        return ProductOperator(scaled), False
    blocks = [W] if isinstance(W, Tensor) else list(W)
    rows, columns = sum(b.shape[0] for b in blocks), blocks[0].shape[1]
    if rows * columns > _HELD_ELEMENTS:
        return StackedOperator(blocks, gain), False
    turned = len(blocks) == 1 and W.stride(0) == 1 != W.stride(1)  # type: ignore[union-attr]
    if turned:
        blocks, rows, columns = [blocks[0].T], columns, rows
    held = (scratch or Scratch()).take(rows, columns, blocks[0].device)
    start = 0
    for block in blocks:
        held[start : start + block.shape[0]].copy_(block)
        start += block.shape[0]
    if gain is not None:
        held.mul_(gain[:, None] if turned else gain)
    return DenseOperator(held), turned


def _frobenius(W: Tensor) -> float:
    """‖W‖_F: float32 sums of few squares, added in float64. A float32 sum of millions is off by up to 1e-3."""
    parts = [block.reshape(-1) for _, block in row_blocks(W, 1 << 22)]
    total = sum(_squares(p) for p in parts)
    if isfinite(total) and total > 0:
        return sqrt(total)
    if not all(bool(torch.isfinite(p).all()) for p in parts):
        raise NonFiniteError("holds NaN or infinity")
    return sqrt(sum(float(torch.dot(p.double(), p.double())) for p in parts))  # float32 squares left its range


def _in_range(frobenius: float) -> float:
    if frobenius != 0.0 and not _LEAST <= frobenius <= _MOST:
        size = "large" if frobenius > _MOST else "small"
        raise NonFiniteError(f"holds numbers too {size} for float32 arithmetic (norm {frobenius:.1e})")
    return frobenius


def _squares(x: Tensor) -> float:
    """Σ x² of a vector."""
    if x.device.type != "cpu":
        return float(torch.linalg.vector_norm(x, dtype=torch.float64).square())
    whole = len(x) // _SUMMED * _SUMMED
    strips, rest = x[:whole].reshape(-1, _SUMMED).numpy(), x[whole:].double()
    with np.errstate(over="ignore", invalid="ignore"):
        sums = strips[:, None, :] @ strips[:, :, None]  # numpy has a dot product at the memory rate
        return float(sums.sum(dtype=np.float64)) + float(torch.dot(rest, rest))
