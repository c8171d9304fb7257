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
    """Where an ascent ended. `value` is a lower bound on H(p); `change` its relative change over the last rounds."""

    outcome: Outcome
    value: float
    change: float
    steps: int
    start: float  # the scale of the parameters it started from


def ascend(
    f: Callable[[], Tensor], parameters: Sequence[Tensor], p: Tensor, *, decay: float = 0.0, start: float = 1.0,
    steps: int = 400, tol: float = 1e-4, align: int = 40,
) -> Ascent:  # fmt: skip
    """Climb −p·f(θ) − λ‖θ‖² from θ times `start`, and say how it ended. The parameters are put back.

    Each step moves every tensor by the same share of its own size along its gradient and is kept only if the value
    rises; the share grows when it does and halves when not. The first `align` steps turn the tensors at fixed size and
    without decay: a random start pulls too weakly to be told from one that decay draws into the origin. The share is
    relative, so that a value without a limit grows geometrically and is known after a few steps.

    Args:
        f: the branch at one state, d; called anew after every step.
        parameters: the controls θ, all of them requiring gradients.
        p: the direction, d.
        decay: λ.
        start: scale of the start.
        steps: at most so many after the alignment.
        tol: relative change over 20 steps below which the value is taken as settled.
        align: steps of the alignment.

    Returns:
        "diverged" where the value passed 1e4 times (and the parameters at least twice) those of the aligned start,
        "collapsed" where decay drew the parameters to the origin, "converged", or "not-converged".
    """
    kept = [q.detach().clone() for q in parameters]
    try:
        with torch.no_grad():
            for q in parameters:
                q.mul_(start)
        return _Climb(f, parameters, p, start).run(decay, steps, tol, align)
    finally:
        with torch.no_grad():
            for q, before in zip(parameters, kept, strict=True):
                q.copy_(before)


class _Climb:
    def __init__(self, f: Callable[[], Tensor], parameters: Sequence[Tensor], p: Tensor, start: float) -> None:
        self.f, self.parameters, self.p, self.start, self.share = f, parameters, p, start, 0.1

    def run(self, decay: float, steps: int, tol: float, align: int) -> Ascent:
        for _ in range(align):
            self._step(0.0, keep_size=True)
        self.share, history = 0.1, [self._value(decay)]
        first, size = max(abs(self._value(0.0)), 1e-12), self._size()
        for done in range(1, steps + 1):
            history.append(self._step(decay))
            change = abs(history[-1] - history[max(0, done - 20)]) / max(abs(history[-1]), 1e-12 * first)
            if not history[-1] < _DIVERGED * first and self._size() > 2 * size:
                return Ascent("diverged", history[-1], change, done, self.start)
            if self._size() < _COLLAPSED * size and abs(history[-1]) < 1e-2 * first:
                return Ascent("collapsed", history[-1], change, done, self.start)
            if done >= 20 and change < tol:
                return Ascent("converged", history[-1], change, done, self.start)
        return Ascent("not-converged", history[-1], change, steps, self.start)

    def _value(self, decay: float) -> float:
        with torch.no_grad():
            return float(self._objective(decay))

    def _objective(self, decay: float) -> Tensor:
        value = -(self.p * self.f()).sum()
        return value - decay * sum(q.square().sum() for q in self.parameters) if decay else value

    def _size(self) -> float:
        return sqrt(sum(float(q.detach().square().sum()) for q in self.parameters))

    def _step(self, decay: float, keep_size: bool = False) -> float:
        """One accepted step, or none when ten shares in a row are too long; gives the value."""
        with torch.enable_grad():
            objective = self._objective(decay)
            gradients = torch.autograd.grad(objective, list(self.parameters), allow_unused=True)
        value = float(objective.detach())
        before = [q.detach().clone() for q in self.parameters]
        for _ in range(10):
            with torch.no_grad():
                for q, b, g in zip(self.parameters, before, gradients, strict=True):
                    q.copy_(_moved(b, g, self.share, keep_size))
            after = self._value(decay)
            if after > value:
                self.share = min(0.5, 1.3 * self.share)
                return after
            self.share /= 2
        with torch.no_grad():
            for q, b in zip(self.parameters, before, strict=True):
                q.copy_(b)
        return value


def _moved(q: Tensor, gradient: Tensor | None, share: float, keep_size: bool) -> Tensor:
    if gradient is None:
        return q
    steep, size = float(gradient.norm()), float(q.norm())
    if steep == 0 or size == 0:
        return q
    moved = q + (share * size / steep) * gradient
    return moved * (size / moved.norm()) if keep_size else moved
