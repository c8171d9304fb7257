"""Upper bounds on the spectral norm that are bounds: a Ritz value is a lower one."""

from math import inf, isfinite, log, sqrt

import torch

from drillcore.linalg.factored import Matrix, Product
from drillcore.linalg.operator import NonFiniteError, row_blocks
from drillcore.linalg.triplets import Triplets

_MISSED = log(1e12)  # a bound from Lanczos steps fails with a probability of at most 1e-12
_HELD = 1 + 2.0**-18  # float32 arithmetic of ‖W‖_F and of s


def sigma_above(t: Triplets) -> float:
    """An upper bound on σ₁ from triplets that were computed of W (out × in) already.

    The whole spectrum gives σ₁ itself, up to its residual. Lanczos from a random start gives s ≤ σ₁, and after j steps
    σ₁² − s² > ε σ₁² with a probability of at most 1.648 √in e^(−√ε (2j − 1)) (Kuczyński and Woźniakowski, SIAM J.
    Matrix Anal. Appl. 13, 1992): ε is taken for 1e-12. Never above ‖W‖_F, which bounds σ₁ without chance.
    """
    if t.status == "zero":
        return 0.0
    first = float(t.s[0])
    if t.method == "gram":
        return min(first + float(t.residual[0]), t.frobenius) * _HELD
    root = (log(1.648 * sqrt(len(t.v))) + _MISSED) / max(1, 2 * t.iterations - 1)
    above = first / sqrt(1 - root**2) if root < 1 else inf
    return min(above, t.frobenius) * _HELD


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
