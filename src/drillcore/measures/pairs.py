"""Exact sums over two whole spectra."""

from dataclasses import dataclass

import torch

from drillcore.linalg import Triplets


@dataclass(frozen=True)
class PairSums:
    """Sums over the full spectra of two layers; None where a side has two dimensions.

    `s2_weighted` is Σ_i p_i |⟨v_i, v'_i⟩| with p_i = s_i²/Σ s² of the lower layer, and `s2_weight` is √(Σ p_i²).
    `gram_v` and `gram_u` are cosines of the traceless Gram matrices WᵀW and WWᵀ.
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
    cross = a @ (X.T @ Y).double().square() @ b - a.sum() * b.sum() / d
    norms = (a.square().sum() - a.sum() ** 2 / d) * (b.square().sum() - b.sum() ** 2 / d)
    return float(cross / norms.sqrt()) if float(norms) > 0 else None
