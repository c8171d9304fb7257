"""Blocks as a user may write them: sound, with a bug, or not to be checked at all."""

import torch
from torch import nn
from torch.nn import functional


class Sound(nn.Module):
    """A peri block of one's own: its norm classes, its attention, its names."""

    residual_adds = 2

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(4))
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.w1, self.w2 = nn.Linear(width, 2 * width, bias=False), nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (z.view(B, T, 2, C // 2).transpose(1, 2) for z in self.qkv(self.norms[0](x)).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)
        x = x + self.norms[1](self.proj(mixed))
        return x + self.norms[3](self.w2(functional.gelu(self.w1(self.norms[2](x)))))


class ExplodingSkip(Sound):
    """The skip path is multiplied, as by a gain that was meant for the branch."""

    def forward(self, x):
        return super().forward(x) + 0.4 * x


class Plain(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class ExplodingGain(Plain):
    """A gain per channel that multiplies an un-normed branch: degree three."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.layer_scale = nn.Parameter(torch.full((width,), 1e-2))
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return self.layer_scale * super().forward(self.norm(x))


class ZeroInit(Plain):
    """Zero-initialised last matrix in front of an output norm."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.norm = nn.LayerNorm(width)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, x):
        return self.norm(super().forward(x))


class OneMatrix(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.W = nn.Linear(width, width, bias=False)

    def forward(self, x):
        return self.W(x)


class Wider(Plain):
    def forward(self, x):
        return self.up(x)


class Noisy(Plain):
    def forward(self, x):
        return super().forward(x) + torch.rand_like(x)


class Detached(Plain):
    def forward(self, x):
        return super().forward(x.detach())


class NoGrad(Plain):
    def forward(self, x):
        with torch.no_grad():
            return super().forward(x)


class Overflows(Plain):
    def forward(self, x):
        return super().forward(x.exp())


class NeedsMask(Plain):
    def forward(self, x, mask, positions):
        return super().forward(x) * mask


class Tupled(Plain):
    def forward(self, x):
        return super().forward(x), None


class Raises(Plain):
    def forward(self, x):
        raise KeyError("layer 7")


class Empty(nn.Module):
    def forward(self, x):
        return x


def raises():
    raise OSError("weights are not here")


def two(width, heads):
    return Plain(width)


def no_module(width):
    return width


number = 3
made = Plain(16)
