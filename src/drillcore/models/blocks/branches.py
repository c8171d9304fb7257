"""What a half-step computes: MLP, gated MLP, causal attention, or several of them in parallel. No norm of the stream.

Each maps … × tokens × width to the same shape. `inner_norm` stands just before the last matrix (Sub-LN, arXiv
2210.06423).
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "relu": functional.relu,
    "silu": functional.silu,
}
GATED: dict[str, Callable[[Tensor], Tensor]] = {"swiglu": functional.silu, "geglu": functional.gelu}


class MLP(nn.Module):
    """W_down act(W_up x)."""

    def __init__(self, width: int, hidden: int, activation: str = "gelu", *, bias: bool = False,
                 inner_norm: nn.Module | None = None) -> None:  # fmt: skip
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.up = nn.Linear(width, hidden, bias=bias)
        self.inner_norm = inner_norm or nn.Identity()
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map … × width."""
        result: Tensor = self.down(self.inner_norm(self.activation(self.up(x))))
        return result


class GatedMLP(nn.Module):
    """W_down (act(W_gate x) ⊙ W_up x): SwiGLU and GEGLU (arXiv 2002.05202)."""

    def __init__(self, width: int, hidden: int, activation: str = "swiglu", *, bias: bool = False,
                 inner_norm: nn.Module | None = None) -> None:  # fmt: skip
        super().__init__()
        self.activation = GATED[activation]
        self.gate = nn.Linear(width, hidden, bias=bias)
        self.up = nn.Linear(width, hidden, bias=bias)
        self.inner_norm = inner_norm or nn.Identity()
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map … × width."""
        result: Tensor = self.down(self.inner_norm(self.activation(self.gate(x)) * self.up(x)))
        return result


class Attention(nn.Module):
    """Causal attention of `heads` query heads on `kv_heads` key and value heads (arXiv 2305.13245).

    `qk_norm` makes a norm of the head's dimension, once for the queries and once for the keys. `rope_base` turns
    queries and keys by their positions (arXiv 2104.09864); None leaves them as they are.
    """

    def __init__(
        self, width: int, heads: int, kv_heads: int | None = None, *, bias: bool = False, causal: bool = True,
        rope_base: float | None = None, qk_norm: Callable[[int], nn.Module] | None = None,
        inner_norm: nn.Module | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        kv_heads = kv_heads or heads
        if width % heads or heads % kv_heads:
            raise ValueError(f"{heads} heads do not divide a width of {width}, or {kv_heads} key heads not the heads")
        self.heads, self.kv_heads, self.rope_base, self.causal = heads, kv_heads, rope_base, causal
        size = width // heads
        self.q = nn.Linear(width, width, bias=bias)
        self.k = nn.Linear(width, kv_heads * size, bias=bias)
        self.v = nn.Linear(width, kv_heads * size, bias=bias)
        self.q_norm = qk_norm(size) if qk_norm else nn.Identity()
        self.k_norm = qk_norm(size) if qk_norm else nn.Identity()
        self.inner_norm = inner_norm or nn.Identity()
        self.o = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map … × tokens × width."""
        q = self._placed(self.q_norm(self._split(self.q(x), self.heads)))
        k = self._placed(self.k_norm(self._split(self.k(x), self.kv_heads)))
        v = self._split(self.v(x), self.kv_heads)
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, -3), v.repeat_interleave(group, -3)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        result: Tensor = self.o(self.inner_norm(mixed.transpose(-3, -2).flatten(-2)))
        return result

    def _split(self, x: Tensor, heads: int) -> Tensor:
        """… × tokens × (heads · size) → … × heads × tokens × size."""
        return x.reshape(*x.shape[:-1], heads, -1).transpose(-3, -2)

    def _placed(self, x: Tensor) -> Tensor:
        return x if self.rope_base is None else rotary(x, self.rope_base)


class Parallel(nn.Module):
    """The sum of several branches of one input (GPT-J, Phi, Cohere)."""

    def __init__(self, branches: Iterable[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """Map … × width."""
        return torch.stack([branch(x) for branch in self.branches]).sum(0)


def rotary(x: Tensor, base: float = 10_000.0) -> Tensor:
    """Rotary positions of … × tokens × size: the pair (j, j + size/2) turns by position · base^(−2j/size)."""
    tokens, half = x.shape[-2], x.shape[-1] // 2
    rates = base ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    angles = torch.arange(tokens, dtype=torch.float64, device=x.device)[:, None] * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
