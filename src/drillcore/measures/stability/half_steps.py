"""The half-steps of a stack: which norm its branches read the stream through, and which stands on what they give."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from drillcore.weights.assign import Assignment
from drillcore.weights.forward_pass import Unchecked
from drillcore.weights.norm_names import BRANCHES, branches_of
from drillcore.weights.placement import Placement
from drillcore.weights.role import Norm

WRITERS = {"attention": ("o",), "cross": ("cross_o",), "mlp": ("down", "shared_down")}
_NEEDS = {"pre": ("in",), "peri": ("in", "out"), "branch_out": ("out",), "post": ("post",)}


@dataclass(frozen=True)
class Branch:
    """A branch of a layer with its norms; None where it has none on that side."""

    name: str  # a key of BRANCHES
    reads: Norm | None
    out: Norm | None
    post: Norm | None


@dataclass(frozen=True)
class HalfStep:
    """One residual add: a branch, or all branches of a layer whose branches are parallel."""

    layer: int
    branches: tuple[Branch, ...]


def half_steps(assignment: Assignment, placed: Placement) -> list[HalfStep]:
    """The half-steps of a stack, in their order.

    Raises:
        Unchecked: the placement is none that bounds are known for, or a branch has not the norms that it asks for.
    """
    if placed.norm_placement == "undecided":
        raise Unchecked(f"where its norms stand is undecided: {placed.reason}")
    if placed.norm_placement not in _NEEDS:
        raise Unchecked(f"no bound is known for {placed.norm_placement} norms")
    norms = [n for n in assignment.norms if n.stack == placed.stack and n.layer is not None]
    found: list[HalfStep] = []
    for layer, kinds in sorted(_layers(assignment, placed.stack).items()):
        own = [n for n in norms if n.layer == layer]
        branches = [_branch(name, own, placed, layer) for name in BRANCHES if kinds & set(WRITERS[name])]
        found += [HalfStep(layer, tuple(branches))] if placed.parallel else [HalfStep(layer, (b,)) for b in branches]
    return found


def _layers(assignment: Assignment, stack: str) -> Mapping[int, set[str]]:
    layers: dict[int, set[str]] = {}
    for weight in assignment.weights:
        if weight.role.stack == stack and weight.role.layer is not None:
            layers.setdefault(weight.role.layer, set()).add(weight.role.kind)
    return layers


def _branch(name: str, norms: Sequence[Norm], placed: Placement, layer: int) -> Branch:
    sides = {side: _only(norms, name, side) for side in ("in", "out", "post")}
    for side in _NEEDS[placed.norm_placement]:
        if sides[side] is None:
            raise Unchecked(f"the norm ({side}) of the {name} of layer {layer} is not known")
    return Branch(name, sides["in"], sides["out"], sides["post"])


def _only(norms: Sequence[Norm], branch: str, side: Literal["in", "out", "post"] | str) -> Norm | None:
    return next((n for n in norms if n.side == side and branch in branches_of(n)), None)
