"""What can leave the range of half precision inside a branch: its output, its hidden values, queries, keys, logits."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from drillcore.measures.stability.collect import NOT_READ, StackBounds
from drillcore.measures.stability.extent import Ellipsoid, Region
from drillcore.measures.stability.walk import Add
from drillcore.weights.assign import Assignment
from drillcore.weights.source import Source

Part = Literal["stream", "branch outputs", "hidden values", "projections", "attention logits"]
PARTS: tuple[Part, ...] = ("stream", "branch outputs", "hidden values", "projections", "attention logits")
_ATTENTION = {"attention": ("q", "k", "v"), "cross": ("cross_q", "cross_k", "cross_v")}
_MLP = {"down": ("up", "gate"), "shared_down": ("shared_up", "shared_gate")}
_STRETCHED = "its rotary embedding stretches queries and keys by a factor that has not been checked"


@dataclass(frozen=True)
class Reached:
    """What one place can reach: `value` bounds max |x|; None has a reason."""

    part: Part
    layer: int
    branch: str
    value: float | None
    reason: str = ""
    site: int | None = None


def stream_places(own: StackBounds, adds: list[Add]) -> Iterator[Reached]:
    """The stream at its start, and every sum."""
    if own.begin.extent is not None:
        yield Reached("stream", adds[0].layer, "embedding", own.begin.extent.largest, site=0)
    for add in adds:
        value = None if add.total is None else add.total.largest
        yield Reached("stream", add.layer, add.branch, value, add.reason, add.site)


def branch_places(own: StackBounds, assignment: Assignment, bias: float) -> Iterator[Reached]:
    """What the branches reach inside. `bias` bounds what is added to the logits."""
    for step in own.steps:
        for branch in step.branches:
            layer, name = step.layer, branch.name
            raw = own.output(layer, name, assignment)
            missing = "" if raw is not None else own.missing(layer, name)
            yield Reached("branch outputs", layer, name, None if raw is None else raw.largest, missing)
            if name == "mlp":
                value = _hidden(own, assignment, layer)
                yield Reached("hidden values", layer, name, value, "" if value is not None else missing or NOT_READ)
            else:
                yield from _attention(own, layer, name, bias)


def position_bias(source: Source, stack: str) -> float:
    """The largest number that T5's relative positions add to a logit."""
    names = [n for n in source.specs if n.endswith("relative_attention_bias.weight") and stack in n]
    return max((float(source.read(n).abs().max()) for n in names), default=0.0)  # type: ignore[union-attr]


def _hidden(own: StackBounds, assignment: Assignment, layer: int) -> float | None:
    """Before and behind the activation, of every expert."""
    values = []
    for down, kinds in _MLP.items():
        for weight in assignment.of(down, own.placed.stack):
            if weight.role.layer == layer:
                held = own.hidden(layer, weight.role.expert, down)
                if held is None:
                    return None
                images = [own.images.get((layer, kind, weight.role.expert)) for kind in kinds]
                values += [held.largest, *(image.largest for image in images if image is not None)]
    return max(values) if values else None


def _attention(own: StackBounds, layer: int, branch: str, bias: float) -> Iterator[Reached]:
    kinds = _ATTENTION[branch]
    q, k, v = (own.images.get((layer, kind, None)) for kind in kinds)
    stretch = own.numbers.rotation if branch == "attention" else 1.0
    if q is None or k is None or v is None:
        reason = own.missing(layer, branch)
    elif not isfinite(stretch):
        reason = _STRETCHED
    else:
        heads = own.numbers.heads
        kv_heads = own.numbers.kv_heads if branch == "attention" else heads
        norms = [own.of_heads.get((layer, letter)) if branch == "attention" else None for letter in "qk"]
        turned = [x.largest for x in (q, k, *norms) if x is not None]
        yield Reached("projections", layer, branch, max(max(turned) * stretch, v.largest))
        long_q, long_k = _longest_head(q, heads, norms[0]), _longest_head(k, kv_heads, norms[1])
        yield Reached("attention logits", layer, branch, long_q * long_k * own.numbers.logit_scale + bias)
        return
    yield Reached("projections", layer, branch, None, reason)
    yield Reached("attention logits", layer, branch, None, reason)


def _longest_head(x: Region, heads: int, norm: Ellipsoid | None) -> float:
    """Bound on the length of a head's query or key."""
    if norm is not None:
        return norm.region.norm
    centres = x.centre.reshape(heads, -1).norm(dim=1)
    return float((centres + x.heads(heads, 1).radii).max())
