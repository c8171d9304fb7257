"""Exact sums over two whole spectra."""

from dataclasses import dataclass
from math import sqrt

import torch

from drillcore.linalg import Triplets

_ISOTROPIC = 1e-10  # of tr(G)²/d: singular values that differ by less than 1e-5


@dataclass(frozen=True)
class PairSums:
    """Sums over the full spectra of two layers; None where a side has two dimensions.

    `s2_weighted` is Σ_i p_i |⟨v_i, v'_i⟩| with p_i = s_i²/Σ s² of the lower layer, and `s2_weight` is √(Σ p_i²).
    `gram_v` and `gram_u` are cosines of the traceless Gram matrices WᵀW and WWᵀ; None also where one of them is
    isotropic, a multiple of the identity to rounding.
    """

    s2_weighted: float | None
    s2_weight: float
    gram_v: float | None
    gram_u: float | None


def pair_sums(lower: Triplets, upper: Triplets) -> PairSums:
    """Compare two layers whose full spectra are at hand."""
    assert lower.spectrum is not None
    assert upper.spectrum is not None
    s, t = lower.spectrum, upper.spectrum
    p = s.square() / s.square().sum()
    weighted = None
    if lower.full_v is not None and upper.full_v is not None and lower.full_v.shape[0] == upper.full_v.shape[0]:
        common = min(len(s), len(t))
        cosines = (lower.full_v[:, :common] * upper.full_v[:, :common]).sum(0).double().abs()
        weighted = float((p[:common] * cosines).sum())
    return PairSums(
        weighted, float(p.square().sum().sqrt()),
        _gram_cosine(lower.full_v, s, upper.full_v, t), _gram_cosine(lower.full_u, s, upper.full_u, t),
    )  # fmt: skip


def _gram_cosine(X: torch.Tensor | None, s: torch.Tensor, Y: torch.Tensor | None, t: torch.Tensor) -> float | None:
    """Cosine of X diag(s²) Xᵀ and Y diag(t²) Yᵀ after taking the trace part from both."""
    if X is None or Y is None or X.shape[0] != Y.shape[0]:
        return None
    d, a, b = X.shape[0], s.square(), t.square()
    if any(isotropic(_traceless_norm(x, d), float(x.sum()), d) for x in (a, b)):
        return None
    squares = (X.T @ Y).double().square()
    if len(a) == len(b) == d:  # whole bases: without the trace before the product, nothing cancels
        cross = (a - a.mean()) @ squares @ (b - b.mean())
    else:
        cross = a @ squares @ b - a.sum() * b.sum() / d
    return max(-1.0, min(1.0, float(cross) / sqrt(_traceless_norm(a, d) * _traceless_norm(b, d))))


def isotropic(square: float, trace: float, d: int) -> bool:
    """Whether the traceless part of a d × d Gram matrix, of this squared norm, is rounding: it has no direction."""
    return square <= _ISOTROPIC * trace**2 / d


def _traceless_norm(a: torch.Tensor, d: int) -> float:
    """‖G − tr(G)/d‖²_F of a d × d matrix G with the eigenvalues a and d − len(a) zeros."""
    mean = a.sum() / d
    return float((a - mean).square().sum() + (d - len(a)) * mean.square())
