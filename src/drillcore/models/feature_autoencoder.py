"""The toy model of superposition: y = ReLU(W Wᵀx + b) of n features in m < n dimensions (arXiv 2505.10465, §1).

Replicas have their parameters along the first dimension and train in one program; nothing mixes them. Losses and
gradients are written by hand (`models/sparse_gradients.py`), since almost every entry of x is zero.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from drillcore.data.features import Active
from drillcore.errors import UserError
from drillcore.models.sparse_gradients import Found, found, found_stacked
from drillcore.seeds import generator


class FeatureAutoencoder(nn.Module):
    """One replica a seed. `W` is replicas × n × m and tied, `b` replicas × n; N(0, 1/m) and N(0, 1) at the start.

    Args:
        n: features.
        m: dimensions, fewer than features.
        seeds: one a replica.
        importance: weight of each feature in the loss, n; all 1 in the paper.

    Raises:
        UserError: m is not below n, or there is no replica.
    """

    importance: Tensor | None

    def __init__(self, n: int, m: int, seeds: Sequence[int], importance: Tensor | None = None) -> None:
        super().__init__()
        if not 1 <= m < n or not seeds:
            raise UserError(f"a toy model packs n features into m < n dimensions, not n = {n} into m = {m}")
        self.n, self.m = n, m
        self.W = nn.Parameter(torch.stack([_normal("W", seed, n, m) / sqrt(m) for seed in seeds]))
        self.b = nn.Parameter(torch.stack([_normal("b", seed, n) for seed in seeds]))
        self.register_buffer("importance", importance)

    def forward(self, x: Tensor) -> Tensor:
        """Reconstruction of x, both replicas × samples × n."""
        return torch.relu(x @ self.W @ self.W.mT + self.b[:, None])


def losses(model: FeatureAutoencoder, batch: Sequence[Active]) -> Tensor:
    """Mean over samples of ‖y − x‖², summed over features, of each replica: the paper's loss L. With gradients."""
    value: Tensor = _Losses.apply(model.W, model.b, tuple(batch), model.importance)  # type: ignore[no-untyped-call]
    return value


@torch.no_grad()
def losses_only(model: FeatureAutoencoder, batch: Sequence[Active]) -> Tensor:
    """The same without gradients, replicas."""
    return _found(model.W, model.b, batch, model.importance, gradients=False).loss


class _Losses(torch.autograd.Function):
    """Gradients are found with the losses, since both need y − x."""

    @staticmethod
    def forward(ctx: Any, W: Tensor, b: Tensor, batch: Sequence[Active], importance: Tensor | None) -> Tensor:
        result = _found(W, b, batch, importance, gradients=True)
        ctx.save_for_backward(result.grad_weight, result.grad_bias)
        return result.loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        dW, db = ctx.saved_tensors
        (g,) = grads
        return dW * g[:, None, None], db * g[:, None], None, None


def _found(W: Tensor, b: Tensor, batch: Sequence[Active], importance: Tensor | None, *, gradients: bool) -> Found:
    """On the CPU replica by replica, which keeps y − x in cache; elsewhere all at once, to keep the device busy."""
    if W.device.type != "cpu":
        return found_stacked(W, b, batch, importance, gradients=gradients)
    each = [found(W[i], b[i], active, importance, gradients=gradients) for i, active in enumerate(batch)]
    return Found(torch.stack([f.loss for f in each]), torch.stack([f.grad_weight for f in each]),
                 torch.stack([f.grad_bias for f in each]))  # fmt: skip


def _normal(name: str, seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator("feature autoencoder", name, seed))
