"""Optimisers as frozen values."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import cos, pi
from typing import Any, Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Optim:
    """An optimiser of torch and its settings; it works entry by entry, so that stacked replicas do not mix."""

    name: Literal["adam", "sgd"] = "adam"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.0

    def over(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        """The optimiser of these parameters; fused, one pass over memory a step, where that is available."""
        given = list(parameters)
        if self.name == "adam":
            return torch.optim.Adam(given, lr=self.lr, betas=self.betas, fused=_can_fuse(given))
        return torch.optim.SGD(given, lr=self.lr, momentum=self.momentum, fused=_can_fuse(given))


@dataclass(frozen=True)
class WarmUpCosine:
    """Learning rate as a share of its peak: linear warm-up, then a cosine down to `floor` at the last step.

    With s steps done, `warm_up` w and `steps` T: (s + 1)/w, then floor + (1 − floor)(1 + cos π(s + 1 − w)/(T − w))/2
    (arXiv 2505.10465, official code).
    """

    steps: int
    warm_up: int
    floor: float = 0.05

    def __call__(self, done: int) -> float:
        """The share for the step after `done` steps."""
        s = done + 1
        if s < self.warm_up:
            return s / self.warm_up
        rest = max(1, self.steps - self.warm_up)
        return self.floor + (1 - self.floor) * (1 + cos(pi * min(1.0, (s - self.warm_up) / rest))) / 2


class RowDecayAdam(torch.optim.Adam):
    """Adam after a decay γ of the rows of the first parameter (replicas × rows × columns); the others do not decay.

    Before Adam's move, with η the learning rate of the step: γ ≥ 0 shrinks, w ← w(1 − ηγ); γ < 0 pulls each row to
    norm 1 from either side, w ← w + η|γ|w(1/‖w‖ − 1) (arXiv 2505.10465, eq. 2 and official code). A row of zeros stays.

    Args:
        rows: the parameter that decays.
        others: those that do not.
        decay: γ, one a replica.
        lr: peak learning rates of `rows` and of `others`.
        schedule: share of the peak at a step.

    Adam's eps of 1e-8 belongs to the mean over features: with their sum, rare features would move differently.
    """

    def __init__(self, rows: Tensor, others: Iterable[Tensor], decay: Tensor, lr: tuple[float, float],
                 schedule: Callable[[int], float]) -> None:  # fmt: skip
        rest = list(others)
        self.peak, self.schedule = lr, schedule
        self.decay = decay.to(rows)[:, None, None]
        groups = [{"params": [rows], "lr": lr[0]}, {"params": rest, "lr": lr[1]}]
        super().__init__(groups, eps=1e-8, fused=_can_fuse([rows, *rest]))

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Decay, then Adam, both with the learning rate of this step."""
        (rows,) = self.param_groups[0]["params"]
        done = int(self.state[rows]["step"]) if self.state[rows] else 0
        share = self.schedule(done)
        for group, peak in zip(self.param_groups, self.peak, strict=True):
            group["lr"] = peak * share
        rows.mul_(self._kept(rows, self.peak[0] * share))
        return super().step(closure)

    def _kept(self, rows: Tensor, lr: float) -> Tensor:
        """What each row is multiplied by: replicas × rows × 1."""
        pull = rows.norm(dim=2, keepdim=True).add_(1e-8).reciprocal_().sub_(1)
        return 1 - lr * torch.where(self.decay < 0, self.decay * pull, self.decay)


def _can_fuse(parameters: list[Tensor]) -> bool:
    return all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in parameters)
