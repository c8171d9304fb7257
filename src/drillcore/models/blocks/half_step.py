"""One residual half-step, with the norm where `norm_placement` says (arXiv 2510.09904; names of the placements there).

With g the branch and Δt the residual step (equations: shared notes §1.2 and §4.5, in words below):

    none, sub_ln*, pre   x + Δt · λ ⊙ g(N x)          none: N is the identity; sub_ln: pre, and g has an inner norm
    peri                 x + Δt · λ ⊙ N_out(g(N x))
    branch_out           x + Δt · λ ⊙ N_out(g(x))
    post                 N(x + Δt · λ ⊙ g(x))
    deepnorm             N(α x + Δt · λ ⊙ g(x))        arXiv 2203.00555
    ngpt                 N(x + |a| ⊙ (N(g(x)) − x))    arXiv 2410.01131, a stored at the scale 1/√width

Δt stands outside the output norm, which would cancel it inside. λ is LayerScale (a vector), ReZero or SkipInit (one
number), or absent. `norm_scale` multiplies the input norm's output (LayerNorm scaling: 1/√layer, arXiv 2502.05795).
`softcap` c sends the branch through c·tanh(·/c).
"""

from dataclasses import dataclass
from math import sqrt
from typing import Literal

import torch
from torch import Tensor, nn

from drillcore.models.blocks.norms import NormKind, make_norm

NormPlacement = Literal["none", "post", "pre", "peri", "branch_out", "sub_ln", "deepnorm", "ngpt"]
_READS = ("pre", "peri", "sub_ln")
_WRITES = ("peri", "branch_out", "ngpt")
_RESETS = ("post", "deepnorm", "ngpt")


@dataclass(frozen=True)
class Form:
    """How a half-step is put together around its branch."""

    norm_placement: NormPlacement = "pre"
    norm_kind: NormKind = "layernorm"
    eps: float = 1e-5
    zero_centred_gain: bool = False
    residual_step: float = 1.0
    branch_gain: Literal["none", "scalar", "vector"] = "none"
    branch_gain_start: float = 1.0
    norm_scale: float = 1.0
    softcap: float | None = None
    alpha: float = 1.0  # of deepnorm: what the stream is multiplied by; of ngpt: how far a half-step goes

    @property
    def resets(self) -> bool:
        """Whether the norm acts on the stream itself, after the add."""
        return self.norm_placement in _RESETS


class HalfStep(nn.Module):
    """A branch with its norms, gain and residual add."""

    def __init__(self, branch: nn.Module, width: int, form: Form) -> None:
        super().__init__()
        self.form = form

        def norm(wanted: bool) -> nn.Module:
            kind = form.norm_kind if wanted else "none"
            return make_norm(kind, width, eps=form.eps, zero_centred=wanted and form.zero_centred_gain)

        self.norm_in = norm(form.norm_placement in _READS)
        self.branch = branch
        self.norm_out = norm(form.norm_placement in _WRITES)
        self.norm_add = norm(form.resets)
        size = {"none": None, "scalar": (), "vector": (width,)}[form.branch_gain]
        self.branch_gain = None if size is None else nn.Parameter(torch.full(size, form.branch_gain_start))
        start = torch.full((width,), 1 / sqrt(width))
        self.alpha = nn.Parameter(start) if form.norm_placement == "ngpt" else None
        self._alpha_scale = form.alpha * sqrt(width)

    def velocity(self, x: Tensor) -> Tensor:
        """What is added to the stream, before Δt: … × tokens × width."""
        form = self.form
        z = self.norm_in(x)
        g: Tensor = self.norm_out(self.branch(z if form.norm_scale == 1 else form.norm_scale * z))
        if form.softcap is not None:
            g = form.softcap * torch.tanh(g / form.softcap)
        return g if self.branch_gain is None else self.branch_gain * g

    def forward(self, x: Tensor) -> Tensor:
        """The stream after the half-step."""
        v, form = self.velocity(x), self.form
        if self.alpha is not None:
            after = x + (self.alpha * self._alpha_scale).abs() * (v - x)
        else:
            carried = form.alpha * x if form.norm_placement == "deepnorm" else x
            after = carried + (v if form.residual_step == 1 else form.residual_step * v)
        result: Tensor = self.norm_add(after)
        return result
