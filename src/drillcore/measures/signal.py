"""The signal by depth: what the stream and its branches look like, forward and backward (arXiv 2510.09904).

`Forward` and `Backward` look on while a model runs and keep sums, never activations. Sites count residual adds; row
columns: `site` is the place in the stream, `layer` the block, `kind` the branch, `subset` "all" or "without-0" (tokens
other than the first of their window, which often is an outlier).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite

import torch
from torch import Tensor

from drillcore.measures.moments import Moments
from drillcore.measures.stream import Block, HalfStep
from drillcore.table import Row

FP16_MAX, FP16_TINY = 65504.0, 2.0**-25  # the largest value; what is smaller is rounded to zero
SUBSETS = ("all", "without-0")
Place = tuple[str, int]  # stack, site

_MOMENTS: dict[str, tuple[Callable[[Moments], float], str]] = {
    "mean_abs": (lambda m: m.mean_abs, "1"),
    "entry_variance": (lambda m: m.entry_variance, "1"),
    "data_variance": (lambda m: m.data_variance, "1"),
    "rms": (lambda m: m.rms, "1"),
    "max_abs": (lambda m: m.largest, "1"),
    "p99_abs": (lambda m: m.p99, "1"),
    "top1_share": (lambda m: m.top_share(1), "1"),
    "top1percent_share": (lambda m: m.top_share(max(1, m.width // 100)), "1"),
}


@dataclass
class _Seen:
    """What was summed at one place."""

    layer: int
    kind: str | None = None
    moments: tuple[Moments, Moments] = field(default_factory=lambda: (Moments(), Moments()))

    def add(self, x: Tensor) -> None:
        self.moments[0].add(x)
        if x.dim() == 3 and x.shape[1] > 1:
            self.moments[1].add(x[:, 1:])


@dataclass
class _Turn:
    """Sums over tokens of the change that a block makes."""

    tokens: int = 0
    lost: float = 0.0  # 1 − cos
    angle: float = 0.0


@dataclass
class Forward:
    """Looks at forward passes. `keep` tokens of the first and last site are kept for `transport`."""

    last_layer: dict[str, int]
    keep: int = 256
    states: dict[Place, _Seen] = field(default_factory=dict)
    branches: dict[Place, _Seen] = field(default_factory=dict)
    sums: dict[Place, float] = field(default_factory=dict)  # largest |stream + branch| of an add
    vanished: dict[Place, tuple[int, int]] = field(default_factory=dict)  # entries that bf16 loses, all entries
    turns: dict[tuple[str, int], _Turn] = field(default_factory=dict)
    ends: dict[str, list[Tensor]] = field(default_factory=dict)  # stack → tokens of the first and of the last site

    def entered(self, block: Block, site: int, stream: Tensor) -> None:
        """See `stream.Watcher`."""
        if site == 0 and block.stack not in self.ends:
            self.ends[block.stack] = [self._sample(stream)]

    def added(self, step: HalfStep) -> Tensor:
        """See `stream.Watcher`."""
        place, layer = (step.block.stack, step.site), step.block.layer
        self._at(self.states, place, layer, None).add(step.before)
        self._at(self.branches, place, layer, step.kind).add(step.branch)
        self.sums[place] = max(self.sums.get(place, 0.0), _largest(step.after))
        lost, total = self.vanished.get(place, (0, 0))
        before = step.before.bfloat16()
        same = before + step.branch.bfloat16() == before
        self.vanished[place] = lost + int((same & (step.branch != 0)).sum()), total + same.numel()
        return step.after

    def left(self, block: Block, site: int, before: Tensor, after: Tensor) -> None:
        """See `stream.Watcher`."""
        turn = self.turns.setdefault((block.stack, block.layer), _Turn())
        cosines = torch.nn.functional.cosine_similarity(before.float(), after.float(), dim=-1).clamp(-1, 1)
        turn.tokens += cosines.numel()
        turn.lost += float((1 - cosines).sum(dtype=torch.float64))
        turn.angle += float(cosines.acos().rad2deg().sum(dtype=torch.float64))
        if block.layer == self.last_layer[block.stack]:
            self._at(self.states, (block.stack, site), block.layer, None).add(after)
            if len(self.ends.get(block.stack, ())) == 1:
                self.ends[block.stack].append(self._sample(after))

    def _sample(self, x: Tensor) -> Tensor:
        rows = x.detach().reshape(-1, x.shape[-1])
        chosen = torch.linspace(0, len(rows) - 1, min(self.keep, len(rows))).long()
        return rows[chosen].float().cpu()

    @staticmethod
    def _at(where: dict[Place, _Seen], place: Place, layer: int, kind: str | None) -> _Seen:
        return where.setdefault(place, _Seen(layer, kind))

    def rows(self) -> Iterator[Row]:
        """All that was seen."""
        for (stack, site), seen in sorted(self.states.items()):
            yield from _moment_rows("stream", stack, site, seen)
        for (stack, site), seen in sorted(self.branches.items()):
            yield from _moment_rows("branch", stack, site, seen)
            row = _row(stack, site, seen)
            stream, branch = self.states[stack, site].moments[0], seen.moments[0]
            yield row("branch.ratio", branch.rms / stream.rms if stream.rms > 0 else None)
            lost, total = self.vanished[stack, site]
            yield row("branch.lost_bf16", lost / total)
            yield row("add.max_abs", self.sums[stack, site])
        for (stack, layer), turn in sorted(self.turns.items()):
            base = Row(stack=stack or None, layer=layer, measure="block.influence", n=turn.tokens, unit="1")
            yield _valued(base, turn.lost / turn.tokens)
            yield _valued(base, turn.angle / turn.tokens, measure="block.angle", unit="degree")


@dataclass
class Backward:
    """Looks at a forward pass with gradients; what flows back is seen by hooks on the stream.

    The gradient of the stream at a site is the sum of what comes past the branch above it and what comes through it.
    """

    last_layer: dict[str, int]
    states: dict[Place, _Seen] = field(default_factory=dict)
    branches: dict[Place, _Seen] = field(default_factory=dict)  # what comes back through the branch alone
    small: dict[Place, tuple[int, int]] = field(default_factory=dict)  # entries that fp16 rounds to zero, all entries
    _kinds: dict[Place, str] = field(default_factory=dict)
    _after: Tensor | None = None  # what the last add gave
    _above: dict[str, tuple[int, Tensor]] = field(default_factory=dict)  # stack → site of a sum, its gradient

    def entered(self, block: Block, site: int, stream: Tensor) -> None:
        """See `stream.Watcher`."""
        if site == 0:
            self._hook(stream, block, site, state=True, total=False)

    def added(self, step: HalfStep) -> Tensor:
        """See `stream.Watcher`."""
        self._kinds[step.block.stack, step.site] = step.kind
        if not step.direct:  # a post-norm model: the stream is the norm of the last sum
            self._hook(step.before, step.block, step.site, state=True, total=False)
        self._hook(step.after, step.block, step.site + 1, state=False, total=True)
        self._after = step.after
        return step.after

    def left(self, block: Block, site: int, before: Tensor, after: Tensor) -> None:
        """See `stream.Watcher`."""
        if block.layer == self.last_layer[block.stack] and after is not self._after:
            self._hook(after, block, site, state=True, total=False)

    def _hook(self, tensor: Tensor, block: Block, site: int, *, state: bool, total: bool) -> None:
        if tensor.requires_grad:
            flows = partial(self._flows, block=block, site=site, state=state, total=total)
            tensor.register_hook(flows)  # type: ignore[no-untyped-call]

    def _flows(self, gradient: Tensor, block: Block, site: int, *, state: bool, total: bool) -> None:
        """A gradient has arrived at a sum (`total`), at the norm of one (`state`), or at a sum that is the stream."""
        place = block.stack, site
        gradient = gradient.detach()
        if state or place not in self.states:
            self._take(gradient, block, place)
        if total:
            self._above[block.stack] = site, gradient

    def _take(self, gradient: Tensor, block: Block, place: Place) -> None:
        stack, site = place
        self.states[place] = seen = _Seen(block.layer)
        seen.add(gradient)
        tiny = (gradient.abs() < FP16_TINY) & (gradient != 0)
        self.small[place] = int(tiny.sum()), gradient.numel()
        above, arrived = self._above.get(stack, (-1, gradient))
        if above == site + 1 and arrived.shape == gradient.shape:
            self.branches[place] = through = _Seen(block.layer, self._kinds[place])
            through.add(gradient - arrived)

    def rows(self) -> Iterator[Row]:
        """All that was seen; a measure of a branch is of the gradient that it adds to the stream below it."""
        for (stack, site), seen in sorted(self.states.items()):
            yield from _moment_rows("gradient", stack, site, seen)
            zero, total = self.small[stack, site]
            yield _row(stack, site, seen)("gradient.lost_fp16", zero / total)
        for (stack, site), seen in sorted(self.branches.items()):
            yield from _moment_rows("branch_gradient", stack, site, seen)


@dataclass(frozen=True)
class Overflow:
    """The first place at which a number leaves the range of a dtype."""

    dtype: str
    direction: str  # forward or backward
    where: str  # stream (before the first add), branch, or add
    stack: str
    layer: int
    site: int
    kind: str | None
    value: float


def first_overflow(forward: Forward, backward: Backward | None) -> list[Overflow]:
    """In the order of execution, the first branch or add whose largest |x| is above fp16's maximum, or not finite.

    bf16 has the range of float32: only what is not finite leaves it. Backward, the stream's gradient at a site is the
    add of what comes through the branch and past it.
    """
    found = []
    for dtype, limit in (("fp16", FP16_MAX), ("bf16", torch.finfo(torch.bfloat16).max)):
        ways = (("forward", _forward_order(forward)), ("backward", _backward_order(backward) if backward else iter(())))
        for direction, places in ways:
            first = next((p for p in places if not p[-1] <= limit), None)
            if first is not None:
                found.append(Overflow(dtype, direction, *first))
    return found


_Ordered = Iterator[tuple[str, str, int, int, str | None, float]]


def _forward_order(forward: Forward) -> _Ordered:
    for (stack, site), state in sorted(forward.states.items()):
        if site == 0:
            yield "stream", stack, state.layer, site, None, state.moments[0].largest
        if (branch := forward.branches.get((stack, site))) is not None:
            yield "branch", stack, branch.layer, site, branch.kind, branch.moments[0].largest
            yield "add", stack, branch.layer, site, branch.kind, forward.sums[stack, site]


def _backward_order(backward: Backward) -> _Ordered:
    for (stack, site), state in sorted(backward.states.items(), reverse=True):
        if (branch := backward.branches.get((stack, site))) is not None:
            yield "branch", stack, branch.layer, site, branch.kind, branch.moments[0].largest
        yield "add", stack, state.layer, site, None, state.moments[0].largest


def _moment_rows(prefix: str, stack: str, site: int, seen: _Seen) -> Iterator[Row]:
    for subset, moments in zip(SUBSETS, seen.moments, strict=True):
        if moments.tokens:
            base = Row(stack=stack or None, site=site, layer=seen.layer, kind=seen.kind, subset=subset,
                       n=moments.tokens)  # fmt: skip
            for name, (value, unit) in _MOMENTS.items():
                yield _valued(base, value(moments), measure=f"{prefix}.{name}", unit=unit)


def _row(stack: str, site: int, seen: _Seen) -> Callable[[str, float | None], Row]:
    base = Row(stack=stack or None, site=site, layer=seen.layer, kind=seen.kind, n=seen.moments[0].tokens, unit="1")
    return lambda measure, value: _valued(base, value, measure=measure)


def _valued(row: Row, value: float | None, measure: str | None = None, unit: str = "1") -> Row:
    row = replace(row, measure=measure or row.measure, unit=unit)
    if value is not None and isfinite(value):
        return replace(row, value=value)
    return replace(row, status="non-finite", reason="the signal left the range of the dtype of this run")


def _largest(x: Tensor) -> float:
    value = float(x.detach().abs().max())
    return float("inf") if value != value else value
