"""Alignment of directions and of subspaces."""

import torch
from torch import Tensor


def abs_cosines(X: Tensor) -> Tensor:
    """|cos| of every pair of columns of X (d × L): L × L."""
    unit = X / X.norm(dim=0).clamp_min(torch.finfo(X.dtype).tiny)
    cosines: Tensor = (unit.T @ unit).abs().clamp_max(1.0)
    return cosines


def subspace_overlap(A: Tensor, B: Tensor) -> float:
    """‖AᵀB‖²_F / k of two orthonormal bases (d × k): 1 for the same subspace, k/d by chance."""
    if A.shape != B.shape:
        raise ValueError(f"the bases must have one shape, got {tuple(A.shape)} and {tuple(B.shape)}")
    return float((A.T @ B).double().square().sum() / A.shape[1])


def subspace_overlaps(bases: list[Tensor]) -> Tensor:
    """Overlap of every pair of L orthonormal bases (d × k each): L × L."""
    stacked, k = torch.cat(bases, dim=1), bases[0].shape[1]
    layers = len(bases)
    return (stacked.T @ stacked).double().square().view(layers, k, layers, k).sum(dim=(1, 3)) / k


def principal_angles(A: Tensor, B: Tensor) -> Tensor:
    """Principal angles (radians, rising) between the spans of orthonormal A and B (d × k).

    Small angles come from the sine, large ones from the cosine, so that both are accurate
    (Björck & Golub, Math. Comp. 27, 1973).
    """
    A, B = A.double(), B.double()
    cosines = torch.linalg.svdvals(A.T @ B).clamp_max(1.0)
    sines = torch.linalg.svdvals(B - A @ (A.T @ B)).flip(0).clamp_max(1.0)
    return torch.where(cosines.square() < 0.5, cosines.arccos(), sines.arcsin())
