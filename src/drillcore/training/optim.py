"""Optimisers as frozen values."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

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
        fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in given)
        if self.name == "adam":
            return torch.optim.Adam(given, lr=self.lr, betas=self.betas, fused=fused)
        return torch.optim.SGD(given, lr=self.lr, momentum=self.momentum, fused=fused)
