"""Upper bounds on the spectral norm that are bounds: a Ritz value is a lower one."""

from math import isfinite, sqrt

import torch

from drillcore.linalg.factored import Matrix, Product
from drillcore.linalg.operator import NonFiniteError, row_blocks


def spectral_norm_bound(W: Matrix) -> float:
    """min(‖W‖_F, √(‖W‖₁ ‖W‖_∞)) ≥ σ₁(W), accumulated in float64, W out × in in any floating dtype.

    For a product, the product of the factors' bounds.

    Raises:
        NonFiniteError: W holds NaN or infinity.
    """
    if isinstance(W, Product):
        return spectral_norm_bound(W.left) * spectral_norm_bound(W.right)
    columns = torch.zeros(W.shape[1], dtype=torch.float64, device=W.device)
    largest_row, squares = 0.0, 0.0
    for _, block in row_blocks(W, 1 << 22):
        magnitude = block.double().abs()
        columns += magnitude.sum(0)
        largest_row = max(largest_row, float(magnitude.sum(1).max()))
        squares += float(magnitude.square().sum())
    if not isfinite(squares):
        raise NonFiniteError("holds NaN or infinity")
    return min(sqrt(squares), sqrt(float(columns.max()) * largest_row))
