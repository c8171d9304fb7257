"""Gram matrices of large weights through shared random probes.

With ±1 probes z, E (G z)·(G' z) = ⟨G, G'⟩_F (Hutchinson 1990). All layers share the probes, which makes the
estimate of every pair possible from one small sketch per layer; nothing is iterated, so no alignment is invented.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Literal

import torch
from torch import Tensor

from drillcore.linalg.operator import Operator
from drillcore.measures.pairs import isotropic
from drillcore.seeds import generator

PROBES = 16


@dataclass(frozen=True)
class Sketch:
    """Traceless Gram matrices applied to the probes: (WᵀW − tr/in) Z (in × p) and (WWᵀ − tr/out) Z (out × p)."""

    v: Tensor
    u: Tensor
    trace: float


def sketch(operator: Operator, turned: bool, probes: int = PROBES) -> Sketch:
    """Sketch both Gram matrices of an operator in two passes; `turned` says that the operator is Wᵀ."""
    out, into = operator.shape
    Z, Y = _probes(into, probes, operator.device), _probes(out, probes, operator.device)
    WZ, WY = operator.both(Z, Y)
    WWY, WWZ = operator.both(WY, WZ)
    trace = operator.frobenius**2
    v, u = WWZ - trace / into * Z, WWY - trace / out * Y
    return Sketch(u.cpu(), v.cpu(), trace) if turned else Sketch(v.cpu(), u.cpu(), trace)


def cosine(lower: Sketch, upper: Sketch, side: Literal["u", "v"]) -> tuple[float, float] | None:
    """Cosine of two sketched matrices and its standard error (jackknife over the probes); None for an isotropic one."""
    x, y = (getattr(s, side).double() for s in (lower, upper))
    cross, xx, yy = ((a * b).sum(0) for a, b in ((x, y), (x, x), (y, y)))
    d, p = x.shape
    if any(isotropic(float(sq.mean()), s.trace, d) for sq, s in ((xx, lower), (yy, upper))):
        return None

    def ratio(c: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return c / (a * b).sqrt().clamp_min(torch.finfo(torch.float64).tiny)

    without = ratio(cross.sum() - cross, xx.sum() - xx, yy.sum() - yy)
    spread = float((without - without.mean()).square().sum())
    return float(ratio(cross.sum(), xx.sum(), yy.sum()).clamp(-1, 1)), sqrt((p - 1) / p * spread)


def _probes(d: int, p: int, device: torch.device) -> Tensor:
    random = generator("gram probes", d)
    return torch.randint(0, 2, (d, p), generator=random).float().mul_(2).sub_(1).to(device)
