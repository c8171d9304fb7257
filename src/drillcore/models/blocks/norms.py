"""Norms of a residual stream: one module a kind, gains and shifts by their own names."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

NormKind = Literal["layernorm", "rmsnorm", "l2", "dyt", "none"]


class LayerNorm(nn.Module):
    """γ ⊙ (x − mean)/√(var + ε) + β along the last dimension; with `zero_centred` the stored gain w means γ = 1 + w."""

    def __init__(self, width: int, *, eps: float = 1e-5, zero_centred: bool = False, shift: bool = True) -> None:
        super().__init__()
        self.eps, self.zero_centred = eps, zero_centred
        self.gain = nn.Parameter(torch.zeros(width) if zero_centred else torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width)) if shift else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise … × width."""
        gain = 1 + self.gain if self.zero_centred else self.gain
        return functional.layer_norm(x, gain.shape, gain, self.shift, self.eps)


class RMSNorm(nn.Module):
    """γ ⊙ x/√(mean x² + ε); with `zero_centred` γ = 1 + w, as Gemma stores it."""

    def __init__(self, width: int, *, eps: float = 1e-5, zero_centred: bool = False) -> None:
        super().__init__()
        self.eps, self.zero_centred = eps, zero_centred
        self.gain = nn.Parameter(torch.zeros(width) if zero_centred else torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise … × width."""
        gain = 1 + self.gain if self.zero_centred else self.gain
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * gain


class L2Norm(nn.Module):
    """x/‖x‖, without a gain (nGPT, arXiv 2410.01131); ε² is added to ‖x‖²."""

    def __init__(self, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise … × width."""
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + self.eps**2)


class DyT(nn.Module):
    """γ ⊙ tanh(αx) + β, a bounded map in place of a norm (arXiv 2503.10622); α starts at 0.5."""

    def __init__(self, width: int, *, alpha: float = 0.5) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(alpha))
        self.gain = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Squash … × width."""
        return self.gain * torch.tanh(self.alpha * x) + self.shift


def make_norm(kind: NormKind, width: int, *, eps: float = 1e-5, zero_centred: bool = False) -> nn.Module:
    """A norm of this kind.

    Raises:
        ValueError: the kind has no gain that could be zero-centred.
    """
    if kind == "layernorm":
        return LayerNorm(width, eps=eps, zero_centred=zero_centred)
    if kind == "rmsnorm":
        return RMSNorm(width, eps=eps, zero_centred=zero_centred)
    if zero_centred:
        raise ValueError(f"a norm of kind {kind!r} has no zero-centred gain")
    if kind == "l2":
        return L2Norm()
    return DyT(width) if kind == "dyt" else nn.Identity()
