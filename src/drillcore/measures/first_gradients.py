"""Gradients of a stack's weights before the first step, and how far adjacent layers agree in them.

arXiv 2605.04971: through a residual stream ∂x_{l+1}/∂x_l holds the identity, so that all layers see nearly the same
states and the same error: their first gradients share leading singular vectors, and training carries these into the
weights. The data here are clusters on a Gaussian with a linear read-out (derived (drillcore)): structure enough for a
leading direction, no data set needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor
from torch.nn import functional

from drillcore.measures.coherence import gradient_cosines
from drillcore.measures.replicas import read_replicas
from drillcore.measures.rollout import Step, roll_out
from drillcore.measures.sensitivity import plain_attention
from drillcore.seeds import generator
from drillcore.table import Row

CLASSES = 10


@dataclass(frozen=True)
class Task:
    """States (batch × tokens × d) in clusters, the cluster of each token, and a read-out (classes × d)."""

    x: Tensor
    labels: Tensor
    readout: Tensor

    @classmethod
    def drawn(cls, batch: int, tokens: int, d: int, like: Tensor) -> "Task":
        """Cluster centres and noise have half of the variance each; rms of x is 1."""
        random = generator("cluster task", d)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=random, dtype=torch.float64)

        labels = torch.randint(CLASSES, (batch, tokens), generator=random)
        x = (normal(CLASSES, d)[labels] + normal(batch, tokens, d)) / sqrt(2)
        return cls(x.to(like), labels, (normal(CLASSES, d) / sqrt(d)).to(like))

    def loss(self, x: Tensor) -> Tensor:
        """Mean cross-entropy of the read-out of x/rms(x)."""
        unit = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
        return functional.cross_entropy((unit @ self.readout.T).flatten(0, -2), self.labels.flatten())


def stack_gradients(step: Step, parameters: Sequence[Tensor], task: Task, count: int) -> list[list[Tensor]]:
    """∂loss/∂W of each parameter in each of `count` half-steps in a row; `step(k)` sets these parameters anew.

    Returns:
        For every parameter one gradient a half-step, from the first; empty where the stack overflows.
    """
    states = roll_out(step, task.x, count)
    if not bool(torch.isfinite(states[-1]).all()):
        return []
    with torch.enable_grad(), plain_attention():
        last = states[-1].requires_grad_()
        (u,) = torch.autograd.grad(task.loss(last), last)
        found: list[list[Tensor]] = [[] for _ in parameters]
        for k in reversed(range(count)):
            x = states[k].detach().requires_grad_()
            y = step(k)(x)
            u, *gradients = torch.autograd.grad(y, [x, *parameters], u, allow_unused=True, materialize_grads=True)
            for kept, gradient in zip(found, gradients, strict=True):
                kept.append(gradient)
    return [kept[::-1] for kept in found]


def coherence_rows(gradients: Sequence[Tensor], name: str, faces: str) -> list[Row]:
    """|cos| of the leading vectors of adjacent gradients (each out × in) on the sides that face the stream, with nulls.

    Args:
        gradients: one a half-step.
        name: of the matrix, the rows' kind.
        faces: "v" for the input side, "u" for the output side, "uv" for both.
    """
    (reading,) = read_replicas([g[None] for g in gradients], name, key="first gradients", rank=2, spectrum=False)
    return [row for side in faces for row in gradient_cosines(reading, f"first_gradient.{side}1")]
