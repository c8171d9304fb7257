"""The numbers that a block starts from."""

from math import sqrt

import torch
from torch import nn

from drillcore.seeds import generator

_DEEPNORM_SCALED = ("v.weight", "o.weight", "gate.weight", "up.weight", "down.weight")


def draw(module: nn.Module, *words: object) -> nn.Module:
    """Draw every matrix of `module` from N(0, 1/fan_in), from the stream named by `words`; gains stay as they are."""
    random = generator("block", *words)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() >= 2:
                values = torch.randn(parameter.shape, generator=random, dtype=torch.float32)
                parameter.copy_(values / sqrt(parameter.shape[-1]))
    return module


def shrink_for_deepnorm(module: nn.Module, layers: int) -> nn.Module:
    """Divide v, o and the MLP's matrices by (8·layers)^¼, as DeepNorm starts a decoder (arXiv 2203.00555)."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith(_DEEPNORM_SCALED):
                parameter.div_((8 * layers) ** 0.25)
    return module


def deepnorm_alpha(layers: int) -> float:
    """α = (2·layers)^¼ of a decoder-only DeepNorm (arXiv 2203.00555)."""
    return float((2 * layers) ** 0.25)
