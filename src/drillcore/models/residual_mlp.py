"""A residual multi-layer perceptron, many replicas at once (arXiv 2605.04971, toy; choices of shared notes §8).

Every parameter has the replicas along its first dimension, so that networks which differ in nothing but their numbers
(seed, scale of the start) train in one program. Nothing mixes replicas.
"""

from dataclasses import dataclass, field
from math import sqrt
from typing import Literal

import torch
from torch import Tensor, nn

from drillcore.models.activations import Activation, normalise
from drillcore.models.stacked import stacked_linear
from drillcore.seeds import generator


@dataclass(frozen=True)
class Shape:
    """What a network is, apart from its numbers.

    `form` is "one" for x + act(W x), "two" for x + W₂ act(W x). Without `residual` the block's output replaces x.
    """

    activation: Activation = field(default_factory=Activation)
    residual: bool = True
    norm: Literal["none", "layernorm", "rmsnorm"] = "none"
    form: Literal["one", "two"] = "one"
    depth: int = 16
    width: int = 256
    inputs: int = 784
    classes: int = 10


@dataclass(frozen=True)
class Start:
    """The numbers a replica starts from: normal with deviation 0.02 · scale, or Xavier (normal, times scale)."""

    seed: int
    scale: float = 1.0
    law: Literal["normal", "xavier", "torch"] = "normal"


class ResidualMLP(nn.Module):
    """`len(starts)` replicas of one shape. The layers' matrices are `W[l]` (replicas × width × width)."""

    def __init__(self, shape: Shape, starts: tuple[Start, ...], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.shape, self.starts = shape, starts
        d, replicas = shape.width, len(starts)

        def drawn(name: str, out: int, into: int) -> nn.Parameter:
            return nn.Parameter(torch.stack([_draw(start, name, out, into) for start in starts]).to(dtype))

        self.embed = drawn("embed", d, shape.inputs)
        self.embed_bias = nn.Parameter(torch.zeros(replicas, 1, d, dtype=dtype))
        self.W = nn.ParameterList([drawn(f"W{i}", d, d) for i in range(shape.depth)])
        second = shape.depth if shape.form == "two" else 0
        self.W2 = nn.ParameterList([drawn(f"V{i}", d, d) for i in range(second)])
        normed = shape.depth if shape.norm != "none" else 0
        self.gain = nn.ParameterList([nn.Parameter(torch.ones(replicas, 1, d, dtype=dtype)) for _ in range(normed)])
        shifted = shape.depth if shape.norm == "layernorm" else 0
        self.shift = nn.ParameterList([nn.Parameter(torch.zeros(replicas, 1, d, dtype=dtype)) for _ in range(shifted)])
        self.head = drawn("head", shape.classes, d)
        self.head_bias = nn.Parameter(torch.zeros(replicas, 1, shape.classes, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Logits (replicas × batch × classes) of images (replicas or 1 × batch × inputs)."""
        h = self.entered(x)
        for layer in range(self.shape.depth):
            h = self.through(layer, h)
        return stacked_linear(h, self.head) + self.head_bias

    def entered(self, x: Tensor) -> Tensor:
        """The stream before the first block."""
        return stacked_linear(x.expand(len(self.starts), -1, -1), self.embed) + self.embed_bias

    def through(self, layer: int, h: Tensor) -> Tensor:
        """The stream after block `layer`."""
        branch = self.branch(layer, h)
        return h + branch if self.shape.residual else branch

    def branch(self, layer: int, h: Tensor) -> Tensor:
        """What block `layer` computes from the stream (replicas × batch × width) before it is added."""
        hidden = self.shape.activation(self.preactivation(layer, h))
        return stacked_linear(hidden, self.W2[layer]) if self.shape.form == "two" else hidden

    def preactivation(self, layer: int, h: Tensor) -> Tensor:
        """W h of block `layer`, after its norm: what the activation gets."""
        norm = self.shape.norm
        if norm != "none":
            h = normalise(norm, self.gain[layer], self.shift[layer] if len(self.shift) else None, h)
        return stacked_linear(h, self.W[layer])

    def preactivations(self, x: Tensor) -> list[Tensor]:
        """What the activation of each block gets (replicas × batch × width) for these images."""
        found, h = [], self.entered(x)
        for layer in range(self.shape.depth):
            found.append(self.preactivation(layer, h))
            h = self.through(layer, h)
        return found


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy of each replica; labels are replicas × batch."""
    logits = model(x)
    flat = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
    return flat.view(y.shape).mean(1)


def _draw(start: Start, name: str, out: int, into: int) -> Tensor:
    """The layers follow the start's law; embed and head are uniform in ±1/√in, as torch's Linear."""
    random = generator("residual mlp", name, start.seed)
    if start.law == "torch" or name in ("embed", "head"):
        values = (2 * torch.rand(out, into, generator=random) - 1) / sqrt(into)
    else:
        deviation = 0.02 if start.law == "normal" else sqrt(2 / (out + into))
        values = deviation * torch.randn(out, into, generator=random)
    return values if name in ("embed", "head") else start.scale * values
