"""Where the stream of a stack begins: the set of everything that its embedding can give."""

from dataclasses import dataclass

import torch
from torch import Tensor

from drillcore.linalg import Product
from drillcore.measures.row_blocks import residual_rows
from drillcore.measures.stability.extent import Ellipsoid, Extent, around_zero
from drillcore.weights.assign import Assignment
from drillcore.weights.forward_pass import ForwardPass, Unchecked
from drillcore.weights.layout import read_norm
from drillcore.weights.placement import Placement
from drillcore.weights.role import Norm, Weight
from drillcore.weights.source import Source

_TABLES = ("embed", "position", "token_type")


@dataclass(frozen=True)
class Start:
    """The first stream. An extent of None has a reason."""

    extent: Extent | None
    reason: str = ""


def ellipsoid(source: Source, norm: Norm, placed: Placement) -> Ellipsoid:
    """What a norm of the stack gives."""
    gain, shift = read_norm(source, norm)
    return Ellipsoid(gain, torch.zeros_like(gain) if shift is None else shift, placed.norm_kind == "layernorm")


def start(source: Source, assignment: Assignment, placed: Placement, numbers: ForwardPass) -> Start:
    """Bound the first stream: by the norm on the embedding, or by its longest row and largest entries."""
    on_stream = [n for n in assignment.norms if n.layer is None and n.side == "post" and n.stack == placed.stack]
    own = [w for w in assignment.weights if w.role.stack in ("", placed.stack) and w.role.layer is None]
    if any(w.role.kind == "project_in" for w in own):
        return Start(None, reason="its embedding reaches the stream through a projection")
    if on_stream:
        return Start(ellipsoid(source, on_stream[0], placed))
    if any(w.role.kind == "patch" for w in own):
        return Start(None, reason="its stream begins with pictures, whose numbers the weights do not bound")
    tables = [w for w in own if w.role.kind in _TABLES and w.role.tie is None]
    if not any(w.role.kind == "embed" for w in tables):
        return Start(None, reason="its embedding is not known")
    try:
        return _sum(source, tables, numbers.embedding_scale)
    except Unchecked as why:
        return Start(None, reason=str(why))


def _sum(source: Source, tables: list[Weight], scale: float) -> Start:
    entries, norm = torch.zeros(tables[0].shape[0], dtype=torch.float64), 0.0
    for weight in tables:
        factor = scale if weight.role.kind == "embed" else 1.0
        largest, longest = _extremes(source, weight)
        entries, norm = entries + factor * largest, norm + factor * longest
    return Start(around_zero(entries, norm))


def _extremes(source: Source, weight: Weight) -> tuple[Tensor, float]:
    """Over the rows of a table: the largest |entry| of each column, and the longest row."""
    rows = residual_rows(source, weight)
    largest, longest = torch.zeros(rows.m), 0.0
    for first, last in rows.spans():
        stored = rows.stored(first, last)
        assert not isinstance(stored, Product)
        block = stored.float().abs()
        largest = torch.maximum(largest, block.amax(0).cpu())
        longest = max(longest, float(torch.linalg.vector_norm(block, dim=1, dtype=torch.float64).max()))
    if not bool(largest.isfinite().all()):
        raise Unchecked(f"{weight.tensor} holds NaN or infinity")
    return largest.double(), longest
