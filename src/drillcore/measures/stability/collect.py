"""Collect what every matrix can give while a survey reads them; nothing but vectors is kept."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from drillcore.measures.stability.extent import Ellipsoid, Extent, Region, around_zero, either, product
from drillcore.measures.stability.half_steps import WRITERS, HalfStep, half_steps
from drillcore.measures.stability.start import Start, ellipsoid, start
from drillcore.weights.assign import Assignment
from drillcore.weights.forward_pass import ForwardPass, Unchecked, forward_pass
from drillcore.weights.layout import read_bias
from drillcore.weights.norm_names import BRANCHES, looks_like_norm
from drillcore.weights.placement import Placement
from drillcore.weights.role import Norm, Role, Weight
from drillcore.weights.source import Source

_MEMORY = frozenset({"cross_k", "cross_v"})  # they read the encoder's stream
_VALUES = {"o": "v", "cross_o": "cross_v"}
_UP = {"down": ("up", "gate"), "shared_down": ("shared_up", "shared_gate")}
NOT_READ = "a matrix that it depends on was not read"
Key = tuple[int, str, int | None]  # layer, kind, expert


@dataclass
class StackBounds:
    """What is known of one stack: its half-steps, the sets its branches read, and those its matrices give."""

    placed: Placement
    numbers: ForwardPass
    steps: list[HalfStep]
    begin: Start
    inputs: Mapping[tuple[int, str], Extent]
    norms: Mapping[str, Ellipsoid]  # gain's tensor → what the norm gives
    of_heads: Mapping[tuple[int, str], Ellipsoid]  # (layer, "q" or "k") → what its norm gives
    memory: Extent | None
    images: dict[Key, Region] = field(default_factory=dict)

    def reads(self, role: Role) -> Extent | None:
        """The set of what a matrix reads, where it is known yet."""
        assert role.layer is not None
        if role.kind in _VALUES:
            return self._mixed(role.layer, _VALUES[role.kind])
        if role.kind in _UP:
            return self._hidden(role.layer, role.expert, *_UP[role.kind])
        if role.kind in _MEMORY:
            return self.memory
        branch = next((name for name, kinds in BRANCHES.items() if role.kind in kinds), "")
        return self.inputs.get((role.layer, branch))

    def hidden(self, layer: int, expert: int | None, kind: str) -> Region | None:
        """What the activation gives before `down` or `shared_down`."""
        return self._hidden(layer, expert, *_UP[kind])

    def output(self, layer: int, branch: str, assignment: Assignment) -> Region | None:
        """What a branch gives before a norm on its output; None where a matrix is missing."""
        found: Region | None = None
        for kind in WRITERS[branch]:
            own = [w for w in assignment.of(kind, self.placed.stack) if w.role.layer == layer]
            images = [self.images.get((layer, kind, w.role.expert)) for w in own]
            known = [image for image in images if image is not None]
            if len(known) < len(images):
                return None
            if known:  # the router's weights are shares: the sum lies between what the experts give
                part = known[0] if len(known) == 1 else either(known)
                found = part if found is None else found.plus(part)
        return found

    def missing(self, layer: int, branch: str) -> str:
        """Why nothing is known of what a branch gives."""
        if (layer, branch) not in self.inputs:
            return self.begin.reason or NOT_READ
        if branch == "cross" and self.memory is None:
            return "it reads the stream of an encoder that is not in this checkpoint"
        return NOT_READ

    def _mixed(self, layer: int, kind: str) -> Region | None:
        values = self.images.get((layer, kind, None))
        heads = self.numbers.kv_heads if kind == "v" else self.numbers.heads
        if values is None or len(values.spread) % heads or self.numbers.heads % heads:
            return None
        return values.heads(heads, self.numbers.heads // heads)

    def _hidden(self, layer: int, expert: int | None, up: str, gate: str) -> Region | None:
        rising, gating = self.images.get((layer, up, expert)), self.images.get((layer, gate, expert))
        if rising is None:
            return None
        plain = around_zero(rising.entries, rising.norm)
        if gating is not None:
            return product(plain, around_zero(gating.entries, gating.norm))
        return product(plain, plain) if self.numbers.squared else plain


class Collector:
    """The bounds of every stack of a checkpoint, filled matrix by matrix; readers of the stream come before writers."""

    def __init__(self, source: Source, assignment: Assignment, placed: Mapping[str, Placement]) -> None:
        self.source, self.assignment = source, assignment
        self.stacks: dict[str, StackBounds] = {}
        self.refused: dict[str, str] = {}  # stack → why no bound is given
        for stack, own in placed.items():
            try:
                self.stacks[stack] = self._stack(own, placed)
            except Unchecked as why:
                self.refused[stack] = str(why)

    def observe(self, weight: Weight, W: Tensor, sigma: float) -> None:
        """Be shown a matrix (out × in); `sigma` bounds its norm from above, or is infinite."""
        role, own = weight.role, self.stacks.get(weight.role.stack)
        if own is None or role.layer is None or role.kind == "router":
            return
        extent = own.reads(role)
        width = len(extent.gain if isinstance(extent, Ellipsoid) else extent.spread) if extent is not None else 0
        if extent is not None and width == W.shape[1]:
            own.images[role.layer, role.kind, role.expert] = extent.image(W, read_bias(self.source, weight), sigma)

    def _stack(self, placed: Placement, every: Mapping[str, Placement]) -> StackBounds:
        self._whole()
        tables = [w for w in self.assignment.weights if w.role.kind == "position"]
        positions = any(w.role.stack in ("", placed.stack) for w in tables)
        numbers = forward_pass(self.source.config, placed.stack, positions=positions)
        steps = half_steps(self.assignment, placed)
        begin = start(self.source, self.assignment, placed, numbers)
        own = self._norms(placed.stack)
        norms = {n.tensor: ellipsoid(self.source, n, placed) for n in own}
        inputs = branch_inputs(placed, steps, begin, norms)
        of_heads = {(n.layer or 0, _letter(n)): norms[n.tensor] for n in own if n.side == "inner"}
        return StackBounds(placed, numbers, steps, begin, inputs, norms, of_heads, self._memory(placed, every))

    def _whole(self) -> None:
        """Everything of the checkpoint is understood."""
        lost = [e for e in self.assignment.census.entries if e.state in ("unknown", "skipped", "missing")]
        if lost:
            raise Unchecked(f"{len(lost)} of its tensors are not understood, first {lost[0].tensor}")
        if any(spec.delta for spec in self.source.specs.values()):
            raise Unchecked("an adapter holds changes, not the matrices that run")

    def _norms(self, stack: str) -> list[Norm]:
        own = [n for n in self.assignment.norms if n.stack == stack and n.layer is not None]
        if strange := [n for n in own if n.side == "inner" and looks_like_norm(n.tensor) != "qk"]:
            raise Unchecked(f"{strange[0].tensor} stands inside a branch, where no bound follows it")
        if strange := [n for n in own if len(self.source.specs[n.tensor].shape) != 1]:
            raise Unchecked(f"the gain {strange[0].tensor} is not one vector")
        return own

    def _memory(self, placed: Placement, every: Mapping[str, Placement]) -> Ellipsoid | None:
        """What cross-attention reads: the encoder's last norm."""
        encoder = every.get("encoder")
        if placed.stack != "decoder" or encoder is None:
            return None
        own = [n for n in self.assignment.norms if n.stack == "encoder"]
        final = [n for n in own if n.layer is None and "cross_k" in n.feeds]
        if not final and encoder.norm_placement == "post":
            last = half_steps(self.assignment, encoder)[-1].branches[-1].post
            final = [] if last is None else [last]
        return ellipsoid(self.source, final[0], encoder) if final else None


def _letter(norm: Norm) -> str:
    """Whether a norm inside attention is of the queries or of the keys."""
    return "q" if re.search(r"(^|[._])q(uery)?_[a-z]+(\.weight)?$", norm.tensor) else "k"


def branch_inputs(
    placed: Placement, steps: list[HalfStep], begin: Start, norms: Mapping[str, Ellipsoid]
) -> dict[tuple[int, str], Extent]:
    """(layer, branch) → the set that it reads, as far as the norms alone tell."""
    found: dict[tuple[int, str], Extent] = {}
    stream: Extent | None = begin.extent
    for step in steps:
        for branch in step.branches:
            extent = norms[branch.reads.tensor] if branch.reads is not None else stream
            if extent is not None:
                found[step.layer, branch.name] = extent
        for branch in step.branches:
            if branch.post is not None:
                stream = norms[branch.post.tensor]
            elif branch.out is not None and stream is not None:
                held = stream.region if isinstance(stream, Ellipsoid) else stream
                stream = held.plus(norms[branch.out.tensor].region, placed.residual_step)
            else:
                stream = None
    return found
