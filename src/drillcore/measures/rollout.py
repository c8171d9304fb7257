"""A stack before training: K half-steps in a row, forward and backward.

`step(k)` gives the map of half-step k; it may set the weights of one module anew each time, so that a stack costs the
memory of one half-step: nothing is kept of a map once the next was asked for. Forward growth, the share of the signal
that the skip path carries, and the gradient's path are probes 5 and 7 of the shared notes §4.2 (derived (drillcore)).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, nan, sqrt
from statistics import median
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from drillcore.measures.sensitivity import Jacobian, Map, jacobian_trace, plain_attention
from drillcore.seeds import generator

Step = Callable[[int], Map]


@dataclass(frozen=True)
class Moments:
    """Statistics of states (tokens × width) at one site (shared notes §3.2)."""

    mean_abs: float
    entry_variance: float  # over the entries of a token, mean over tokens
    data_variance: float  # over the tokens of an entry, mean over entries
    rms: float
    largest: float

    @classmethod
    def of(cls, x: Tensor) -> "Moments":
        """The moments of … × width; what stands before the width counts as tokens."""
        flat = x.detach().double().reshape(-1, x.shape[-1])
        return cls(
            float(flat.abs().mean()), float(flat.var(1, correction=0).mean()), float(flat.var(0, correction=0).mean()),
            sqrt(float(flat.square().mean())), float(flat.abs().max()),
        )  # fmt: skip


@torch.no_grad()
def roll_out(step: Step, x: Tensor, count: int) -> list[Tensor]:
    """The states x₀ … x_K (each of the shape of x), K = `count`; it ends early where a state is not finite."""
    states = [x]
    with plain_attention():
        for k in range(count):
            states.append(step(k)(states[-1]))
            if not bool(torch.isfinite(states[-1]).all()):
                break
    return states


@dataclass(frozen=True)
class Backward:
    """The way back through a stack.

    `retention` is ρ = tr(J)/n of each half-step, from the first, and `stderr` its error by the probes; `gradient` is
    ‖∂L/∂x_k‖ at each site relative to the last, for a random linear L.
    """

    retention: tuple[float, ...]
    stderr: tuple[float, ...]
    gradient: tuple[float, ...]

    @property
    def carried(self) -> float:
        """ρ^K, ρ being the median over the half-steps: what the skip path keeps of the signal over the stack.

        0 where that ρ is not positive, NaN where one is not a number.
        """
        if not all(map(isfinite, self.retention)):
            return nan
        return max(0.0, median(self.retention)) ** len(self.retention)


def go_back(step: Step, states: Sequence[Tensor], probes: int = 2) -> Backward:
    """Carry a random gradient from the last state to the first, and read ρ on the way.

    Raises:
        RuntimeError: an operation of a half-step cannot be differentiated twice.
    """
    u = torch.randn(states[-1].shape, generator=generator("roll-out gradient"), dtype=torch.float64).to(states[-1])
    first = float(u.norm())
    kept, errors, sizes = [], [], [1.0]
    for k in reversed(range(len(states) - 1)):
        J = Jacobian(step(k), states[k])
        value, stderr = jacobian_trace(J, probes, key=f"retention {k}")
        kept.append(value)
        errors.append(stderr)
        u = J.pull(u)
        sizes.append(float(u.norm()) / first)
    return Backward(tuple(kept[::-1]), tuple(errors[::-1]), tuple(sizes[::-1]))


@dataclass(frozen=True)
class Growth:
    """How variance grows with depth: v ∝ e^{rate·k}, or v ∝ k^exponent where √v is straighter in k than log v.

    `value` is the rate per half-step or the exponent; `r2` and `r2_other` belong to the chosen and the other fit. It is
    "flat" where all values lie within a twentieth, "none" where one is zero or not finite.
    """

    kind: Literal["exponential", "polynomial", "flat", "none"]
    value: float
    r2: float
    r2_other: float


_LEAST_RATE = 0.02  # per half-step; below it a rise over 48 half-steps is not told from a polynomial


def growth(variances: Sequence[float]) -> Growth:
    """Fit log v and √v against k (shared notes §4.2, probe 7) and choose.

    The exponent of a polynomial is the slope of log v against log k over the upper three quarters of the depth.
    """
    v = np.asarray(variances, dtype=np.float64)
    k = np.arange(len(v), dtype=np.float64)
    if len(v) < 4 or not (np.isfinite(v).all() and (v > 0).all()):
        return Growth("none", float("nan"), float("nan"), float("nan"))
    if v.max() < 1.05 * v.min():
        return Growth("flat", 0.0, 1.0, 1.0)
    rate, r2_log = _line(k, np.log(v))
    _, r2_root = _line(k, np.sqrt(v))
    if r2_log > r2_root and rate > _LEAST_RATE:
        return Growth("exponential", rate, r2_log, r2_root)
    upper = k >= max(1, len(v) // 4)
    slope, _ = _line(np.log(k[upper]), np.log(v[upper]))
    return Growth("polynomial", slope, r2_root, r2_log)


def _line(x: "np.ndarray", y: "np.ndarray") -> tuple[float, float]:
    """Slope and R² of the least-squares line."""
    dx, dy = x - x.mean(), y - y.mean()
    total = float(dy @ dy)
    slope = float(dx @ dy / (dx @ dx))
    left = dy - slope * dx
    return slope, 1 - float(left @ left) / total if total > 0 else 1.0
