"""Activations by name, among them those that commute with rotations."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

_POINTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "tanh": torch.tanh,
}
NAMES = (*_POINTWISE, "none", "radial")


@dataclass(frozen=True)
class Activation:
    """An activation of vectors (… × d).

    `radial` is x · tanh(‖x‖/radius), which commutes with every rotation (arXiv 2605.04971, §4.3, with radius 1; a
    larger radius keeps it away from the saturated regime, where it is almost the identity: derived). `blend` mixes in
    that share of ReLU, and `bias` adds a constant to every entry before: ways to break the symmetry partly (derived).
    """

    name: str = "relu"
    radius: float = 1.0
    blend: float = 0.0
    bias: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ValueError(f"no activation {self.name!r}; there are {', '.join(NAMES)}")
        if not 0 <= self.blend <= 1 or self.radius <= 0:
            raise ValueError(f"blend lies in [0, 1] and radius above 0, got {self.blend} and {self.radius}")

    def __call__(self, x: Tensor) -> Tensor:
        """Apply it along the last dimension."""
        if self.bias:
            x = x + self.bias
        value = self._pure(x)
        return value if not self.blend else torch.lerp(value, functional.relu(x), self.blend)

    def _pure(self, x: Tensor) -> Tensor:
        if self.name == "none":
            return x
        if self.name == "radial":
            return x * torch.tanh(x.norm(dim=-1, keepdim=True) / self.radius)
        return _POINTWISE[self.name](x)

    @property
    def rotates(self) -> bool:
        """Whether it commutes with every rotation."""
        return self.name in ("none", "radial") and not self.blend and not self.bias


def normalise(kind: str, gain: Tensor | None, shift: Tensor | None, x: Tensor) -> Tensor:
    """LayerNorm or RMSNorm along the last dimension with ε = 1e-5, or nothing; gain and shift broadcast."""
    if kind == "none":
        return x
    centred = x - x.mean(-1, keepdim=True) if kind == "layernorm" else x
    unit = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
    scaled = unit if gain is None else unit * gain
    return scaled if shift is None else scaled + shift
