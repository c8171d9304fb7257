"""The whole spectrum through the Gram matrix of the short side, in float64.

Singular values are right to about 1e-8·σ₁ (the square root of float64's rounding), below the float32 rounding of
the weights themselves; `drillcore.linalg.triplets` measures the residual of what is returned.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from drillcore.linalg.factored import Product
from drillcore.linalg.gram import GramSum
from drillcore.linalg.operator import DenseOperator, Operator, ProductOperator, row_blocks


class Spectrum(NamedTuple):
    """All singular values (falling) and as many vectors: U (out × r), V (in × r), float32."""

    U: Tensor
    s: Tensor
    V: Tensor


def full_spectrum(operator: Operator, count: int | None = None) -> Spectrum:
    """All min(out, in) singular values of a dense operator, or the r of a product, with their vectors.

    With `count` only so many leading ones of a dense operator, which takes a third of the time.
    """
    if isinstance(operator, ProductOperator):
        return _of_product(Product(operator.left, operator.right))
    if not isinstance(operator, DenseOperator):
        raise ValueError("the full spectrum needs a matrix that is held")  # as_operator holds all but stacks
    W = operator.W
    if W.shape[0] < W.shape[1]:
        V, s, U = _of_tall(W.T, count)
        return Spectrum(U, s, V)
    return Spectrum(*_of_tall(W, count))


def _of_tall(W: Tensor, count: int | None) -> tuple[Tensor, Tensor, Tensor]:
    gram = GramSum(W.shape[1], W.device)
    for _, block in row_blocks(W, 1 << 22):
        gram.add(block.double().contiguous())
    squares, vectors = gram.eigh() if count is None else gram.leading(count)
    s = squares.flip(0).clamp_min(0).sqrt()
    V = vectors.flip(1).float()
    # Below this a value is rounding noise of the Gram matrix and its left vector is not defined: it is zero.
    kept = s > 1e-7 * s[0]
    U = (W @ V) * torch.where(kept, 1 / s.clamp_min(torch.finfo(s.dtype).tiny), 0.0).float()
    return U, s, V


def _of_product(product: Product) -> Spectrum:
    """SVD of left @ right through the QR of both factors: nothing of size out × in is formed."""
    ql, rl = torch.linalg.qr(product.left.double())
    qr, rr = torch.linalg.qr(product.right.T.double())
    u, s, vh = torch.linalg.svd(rl @ rr.T)
    return Spectrum((ql @ u).float(), s, (qr @ vh.T).float())
