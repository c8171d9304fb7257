"""Transformer blocks with every norm placement, composed from the same few modules."""

from drillcore.models.blocks.block import Block, Design, attention_half, mlp_half
from drillcore.models.blocks.branches import MLP, Attention, GatedMLP, Parallel
from drillcore.models.blocks.half_step import Form, HalfStep, NormPlacement
from drillcore.models.blocks.norms import DyT, L2Norm, LayerNorm, NormKind, RMSNorm, make_norm
from drillcore.models.blocks.variants import VARIANTS, Variant

__all__ = [
    "MLP", "VARIANTS", "Attention", "Block", "Design", "DyT", "Form", "GatedMLP", "HalfStep", "L2Norm", "LayerNorm",
    "NormKind", "NormPlacement", "Parallel", "RMSNorm", "Variant", "attention_half", "make_norm", "mlp_half",
]  # fmt: skip
