"""The Hamiltonian of a residual branch: H(p) = sup over the parameters of −p·f(x; θ) − λ‖θ‖².

Training a deep residual network is well posed where H is finite (arXiv 2510.09904). The closed forms and the rule by
degree are derived (drillcore), shared notes §2.3: a branch that is positively homogeneous of degree k in its
parameters has a finite H without decay for k = 0, for every decay λ > 0 for k = 1, only above a threshold in λ for
k = 2, and never for k ≥ 3. An output norm keeps its branch on an ellipsoid, given its gains.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Literal

import torch
from torch import Tensor

Outcome = Literal["converged", "diverged", "collapsed", "not-converged"]
_DIVERGED = 1e4  # times the value where the ascent began to count
_COLLAPSED = 1e-3  # of the size of the parameters at the start
_WINDOW = 10  # steps over which a value settles


def ellipsoid_value(p: Tensor, gain: Tensor, shift: Tensor, *, centred: bool) -> float:
    """H(p) of a branch whose output norm has this gain and shift: −β·p + √d‖P Γ p‖ (derived (drillcore), §2.3).

    Args:
        p: the direction, d.
        gain: γ as it acts (1 + w where gains are zero-centred), d.
        shift: β, d.
        centred: the norm takes the mean out (LayerNorm): P = I − 11ᵀ/d; else P = I (RMSNorm).
    """
    gp = gain * p
    if centred:
        gp = gp - gp.mean()
    return float(-(shift * p).sum() + sqrt(p.numel()) * torch.linalg.vector_norm(gp))


def box_value(p: Tensor, gain: Tensor, shift: Tensor) -> float:
    """H(p) of a branch that ends in γ·tanh(·) + β (DyT, softcap): −β·p + Σ|γ_j p_j| (derived (drillcore), §2.3)."""
    return float((gain * p).abs().sum() - (shift * p).sum())


def last_matrix_value(p: Tensor, h_norm: float, decay: float) -> float:
    """H(p) under decay λ of a branch W h with ‖h‖ fixed: ‖p‖²‖h‖²/(4λ), at W = −p hᵀ/2λ (derived (drillcore), §2.3)."""
    return float(p.square().sum()) * h_norm**2 / (4 * decay)


@dataclass(frozen=True)
class Ascent:
    """Where an ascent ended. `value` is a lower bound on H(p); `change` its relative change over the last steps."""

    outcome: Outcome
    value: float
    change: float
    steps: int
    start: float  # the scale of the parameters it started from


def ascend(
    f: Callable[[], Tensor], parameters: Sequence[Tensor], p: Tensor, *, decay: float = 0.0,
    starts: Sequence[float] = (0.3, 3.0, 30.0), steps: int = 400, tol: float = 1e-4, align: int = 40,
) -> list[Ascent]:  # fmt: skip
    """Climb −p·f(θ) − λ‖θ‖² from θ at several scales, and say how each climb ended. The parameters are put back.

    Each step moves every tensor by the same share of its own size along its gradient and is kept only if the value
    rises; the share grows when it does and halves when not. First, `align` steps turn the tensors at fixed size and
    without decay: a random start pulls too weakly to be told from one that decay draws into the origin. The share is
    relative, so that a value without a limit grows geometrically and is known after a few steps.

    Args:
        f: the branch at one state, d; called anew after every step.
        parameters: the controls θ, all of them requiring gradients.
        p: the direction, d.
        decay: λ.
        starts: what the aligned parameters are multiplied by.
        steps: at most so many from each start.
        tol: relative change over ten steps below which the value is taken as settled.
        align: steps of the alignment.

    Returns:
        For each start "diverged" where the value passed 1e4 times (and the parameters twice) those of the start,
        "collapsed" where decay drew the parameters to the origin, "converged", or "not-converged".
    """
    climb = _Climb(f, parameters, p)
    kept = [q.detach().clone() for q in parameters]
    try:
        for _ in range(align):
            climb.step(0.0, keep_size=True)
        aligned = [q.detach().clone() for q in parameters]
        found = []
        for start in starts:
            climb.restart(aligned, start)
            found.append(climb.run(decay, steps, tol, start))
        return found
    finally:
        climb.restart(kept, 1.0)


class _Climb:
    """The ascent; buffers are made once, since large ones cost more to make than to fill."""

    def __init__(self, f: Callable[[], Tensor], parameters: Sequence[Tensor], p: Tensor) -> None:
        self.f, self.parameters, self.p, self.share = f, list(parameters), p, 0.1
        self._before = [torch.empty_like(q, requires_grad=False) for q in self.parameters]

    @torch.no_grad()
    def restart(self, values: Sequence[Tensor], scale: float) -> None:
        """Set the parameters to `values` times `scale`."""
        for q, value in zip(self.parameters, values, strict=True):
            q.copy_(value).mul_(scale)
        self.share = 0.1

    def run(self, decay: float, steps: int, tol: float, start: float) -> Ascent:
        """Climb until the value settles, passes all measure or falls to the origin."""
        history, size = [self._value(decay)], self._size()
        first = max(abs(self._value(0.0)), 1e-12)
        change = float("inf")
        for done in range(1, steps + 1):
            history.append(self.step(decay))
            now = history[-1]
            change = abs(now - history[max(0, done - _WINDOW)]) / max(abs(now), 1e-12 * first)
            if now >= _DIVERGED * first and self._size() > 2 * size:
                return Ascent("diverged", now, change, done, start)
            if self._size() < _COLLAPSED * size and abs(now) < 1e-2 * first:
                return Ascent("collapsed", now, change, done, start)
            if done >= _WINDOW and change < tol:
                return Ascent("converged", now, change, done, start)
        return Ascent("not-converged", history[-1], change, steps, start)

    def step(self, decay: float, keep_size: bool = False) -> float:
        """One accepted step, or none when ten shares in a row are too long; gives the value."""
        with torch.enable_grad():
            objective = self._objective(decay)
            gradients = torch.autograd.grad(objective, self.parameters, allow_unused=True)
        value = float(objective.detach())
        moves = [(q, b, g) for q, b, g in zip(self.parameters, self._before, gradients, strict=True) if g is not None]
        with torch.no_grad():
            sizes = [(float(q.norm()), float(g.norm())) for q, _, g in moves]
            for q, b, _ in moves:
                b.copy_(q)
            for _ in range(10):
                for (q, b, g), (size, steep) in zip(moves, sizes, strict=True):
                    if steep > 0:
                        torch.add(b, g, alpha=self.share * size / steep, out=q)
                    if keep_size:
                        q.mul_(size / max(float(q.norm()), 1e-300))
                after = self._value(decay)
                if after > value:
                    self.share = min(0.5, 1.3 * self.share)
                    return after
                self.share /= 2
            for q, b, _ in moves:
                q.copy_(b)
        return value

    @torch.no_grad()
    def _value(self, decay: float) -> float:
        return float(self._objective(decay))

    def _objective(self, decay: float) -> Tensor:
        value = -(self.p * self.f()).sum()
        return value - decay * sum(q.square().sum() for q in self.parameters) if decay else value

    @torch.no_grad()
    def _size(self) -> float:
        return sqrt(sum(float(q.norm()) ** 2 for q in self.parameters))
