"""A transformer block: an attention half-step and an MLP half-step, or both in parallel."""

from dataclasses import dataclass, field
from functools import partial

from torch import Tensor, nn

from drillcore.models.blocks.branches import GATED, MLP, Attention, GatedMLP, Parallel
from drillcore.models.blocks.half_step import Form, HalfStep
from drillcore.models.blocks.norms import make_norm


@dataclass(frozen=True)
class Design:
    """What a block is, apart from its numbers.

    `mlp` is gelu, relu, silu, swiglu or geglu; `hidden` is 4 · width where it is None, 8/3 · width of a gated one.
    """

    width: int
    form: Form = field(default_factory=Form)
    mlp: str = "gelu"
    hidden: int | None = None
    heads: int = 4
    kv_heads: int | None = None
    qk_norm: bool = False
    rope_base: float | None = None
    bias: bool = False
    parallel: bool = False
    causal: bool = True


def mlp_half(design: Design) -> HalfStep:
    """The MLP half-step of a design."""
    return HalfStep(_mlp(design), design.width, design.form)


def attention_half(design: Design) -> HalfStep:
    """The attention half-step of a design."""
    return HalfStep(_attention(design), design.width, design.form)


class Block(nn.Module):
    """Two half-steps, attention first; a parallel design has one half-step whose branch is the sum of both."""

    def __init__(self, design: Design) -> None:
        super().__init__()
        self.design = design
        if design.parallel:
            both = Parallel([_attention(design), _mlp(design)])
            self.half_steps = nn.ModuleList([HalfStep(both, design.width, design.form)])
        else:
            self.half_steps = nn.ModuleList([attention_half(design), mlp_half(design)])

    def forward(self, x: Tensor) -> Tensor:
        """The stream after the block: … × tokens × width."""
        for half in self.half_steps:
            x = half(x)
        return x


def _mlp(design: Design) -> nn.Module:
    gated = design.mlp in GATED
    hidden = design.hidden or (8 * design.width // 3 if gated else 4 * design.width)
    make = GatedMLP if gated else MLP
    return make(design.width, hidden, design.mlp, bias=design.bias, inner_norm=_inner(design, hidden))


def _attention(design: Design) -> nn.Module:
    form = design.form
    kind = form.norm_kind if form.norm_kind in ("layernorm", "rmsnorm", "l2") else "rmsnorm"
    return Attention(
        design.width, design.heads, design.kv_heads, bias=design.bias, rope_base=design.rope_base,
        qk_norm=partial(make_norm, kind, eps=form.eps) if design.qk_norm else None,
        inner_norm=_inner(design, design.width), causal=design.causal,
    )  # fmt: skip


def _inner(design: Design, width: int) -> nn.Module | None:
    form = design.form
    if form.norm_placement != "sub_ln":
        return None
    return make_norm(form.norm_kind, width, eps=form.eps, zero_centred=form.zero_centred_gain)
