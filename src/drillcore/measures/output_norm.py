"""What a norm on a branch's output promises: bounds on the stream, with constants (shared notes §2.4, 1–5).

All follow from the triangle inequality and Lemma 1 of arXiv 2510.09904 (a norm's output lies on an ellipsoid); the
constants are derived (drillcore), not the paper's. They hold *given* the gains, which are trained too.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Literal

import torch
from torch import Tensor

from drillcore.measures.rollout import Moments


@dataclass(frozen=True)
class OutputNorm:
    """The norm on a branch's output: γ as it acts (1 + w where zero-centred) and β, both of the width."""

    kind: Literal["layernorm", "rmsnorm"]
    gain: Tensor
    shift: Tensor

    @property
    def budget(self) -> float:
        """rms(γ): what one half-step of Δt = 1 may add to the stream, per entry."""
        return float(self.gain.double().square().mean().sqrt())

    @property
    def centred(self) -> bool:
        """Whether the mean is taken out."""
        return self.kind == "layernorm"


@dataclass(frozen=True)
class Bound:
    """A measured statistic at a site and what it may not exceed."""

    name: str
    site: int
    measured: float
    bound: float

    @property
    def tightness(self) -> float:
        """measured / bound; above 1 the bound is broken."""
        return self.measured / self.bound


def recognise_norm(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> OutputNorm | None:
    """Tell from a norm's output y (… × d) what it is, by Lemma 1: (y − β)/γ has ‖·‖² = d, and mean 0 for a LayerNorm.

    `weight` is tried as γ and as γ − 1 (zero-centred). None where neither fits to 2 %.
    """
    d = y.shape[-1]
    rows = y.detach().double().reshape(-1, d)
    shift = torch.zeros(d, dtype=torch.float64) if bias is None else bias.detach().double()
    stored = torch.ones(d, dtype=torch.float64) if weight is None else weight.detach().double()
    for gain in (stored, 1 + stored) if weight is not None else (stored,):
        used = gain != 0
        if not bool(used.any()):
            continue
        u = (rows - shift)[:, used] / gain[used]
        size = u.square().sum(1) / used.sum()
        if bool(((size - 1).abs() < 0.02).all()) and (bool(used.all()) or len(rows) > 0):
            centred = bool(used.all()) and bool((u.mean(1).abs() < 1e-4).all())
            return OutputNorm("layernorm" if centred else "rmsnorm", gain, shift)
    return None


def bounds(norms: Iterable[Sequence[OutputNorm]], sites: Iterable[Moments], start: Tensor, residual_step: float) \
        -> Iterator[Bound]:  # fmt: skip
    """The five bounds at every site of a roll-out x₀ … x_K against what was measured there.

    1 mean |x| ≤ its start + Δt Σ [rms(γ) + mean|β|]; 2 rms ≤ … + Δt Σ [max|γ| + rms(β)]; 3 entry-wise standard
    deviation ≤ … + Δt Σ [max|γ| + sd(β)]; 4 data-wise ≤ … + Δt Σ max|γ|; 5 max|x_j| ≤ … + Δt Σ [|γ_j|√(d−1) + |β_j|]
    (√d for RMSNorm). Roots of mean squares over tokens obey the same by Minkowski's inequality.

    Args:
        norms: those between a site and the next, for each site but the last.
        sites: the moments of the states, the first before any norm.
        start: x₀, tokens × d.
        residual_step: Δt.
    """
    sites = list(sites)
    x = start.detach().double().reshape(-1, start.shape[-1])
    first, d = sites[0], x.shape[-1]
    sums = [first.mean_abs, first.rms, sqrt(first.entry_variance), sqrt(first.data_variance)]
    entry = x.abs().max(0).values
    for site, (between, found) in enumerate(zip(norms, sites[1:], strict=True), 1):
        for norm in between:
            gain, shift = norm.gain.double(), norm.shift.double()
            top, reach = float(gain.abs().max()), sqrt(d - 1) if norm.centred else sqrt(d)
            added = (
                norm.budget + float(shift.abs().mean()), top + float(shift.square().mean().sqrt()),
                top + float(shift.std(correction=0)), top,
            )  # fmt: skip
            sums = [s + residual_step * a for s, a in zip(sums, added, strict=True)]
            entry = entry + residual_step * (gain.abs() * reach + shift.abs())
        measured = (found.mean_abs, found.rms, sqrt(found.entry_variance), sqrt(found.data_variance), found.largest)
        for name, value, limit in zip(_NAMES, measured, (*sums, float(entry.max())), strict=True):
            yield Bound(name, site, value, limit)


_NAMES = ("mean_abs", "rms", "entry_sd", "data_sd", "largest")
