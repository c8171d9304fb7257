"""The certificate of half precision: what cannot overflow, what may, and from which layer on (derived (drillcore))."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import ceil, log2
from typing import Any, Literal

from drillcore.measures.stability.collect import NOT_READ, Collector, StackBounds
from drillcore.measures.stability.parts import PARTS, Part, Reached, branch_places, position_bias, stream_places
from drillcore.measures.stability.walk import Site, Transport, below_bfloat16, follow, sites, transport
from drillcore.weights.placement import Placement

FP16_MAX = 65504.0
_HALF_STEP = 2.0**-11  # relative rounding of fp16
_OPERATIONS = 8  # roundings inside a branch that may all go up
Verdict = Literal["cannot overflow", "may overflow", "not bounded"]
_ORDER: tuple[Verdict, ...] = ("cannot overflow", "may overflow", "not bounded")
_WHOLE = "see which matrices were left out, and why"
_REMEDY = "`drillcore signal` measures it on a text"


@dataclass(frozen=True)
class PartVerdict:
    """One part of a stack: the largest bound of its places, where it is, and the first place above fp16's range."""

    part: Part
    verdict: Verdict
    bound: float | None  # None: not bounded
    layer: int | None  # of the largest bound; where not bounded, of the first place without one
    branch: str
    first: int | None  # layer of the first place whose bound is above the range
    reason: str = ""

    @property
    def head_room(self) -> float | None:
        """65504 / bound: below 1 it may overflow."""
        return None if not self.bound else FP16_MAX / self.bound

    @property
    def words(self) -> str:
        """The verdict in words."""
        if self.verdict == "may overflow":
            return f"may overflow from layer {self.first}"
        return self.verdict


@dataclass(frozen=True)
class Certificate:
    """Of one stack. `reason` and `remedy` are empty unless nothing could be bounded, or a part is not."""

    stack: str
    placed: Placement
    parts: tuple[PartVerdict, ...]
    places: tuple[Reached, ...]
    sites: tuple[Site, ...]
    transport: Transport | None
    below_bfloat16: float | None
    limit: float = FP16_MAX  # what a sum may reach before rounding upwards can leave the range
    reason: str = ""

    @property
    def worst(self) -> PartVerdict | None:
        """The part that decides: the worst verdict, then the least head-room."""
        return max(self.parts, key=lambda p: (_ORDER.index(p.verdict), p.bound or 0.0), default=None)

    @property
    def verdict(self) -> Verdict:
        """That of the worst part."""
        return "not bounded" if self.worst is None else self.worst.verdict

    @property
    def words(self) -> str:
        """The verdict in words, with the part that decides."""
        if self.worst is None:
            return "not bounded"
        return self.verdict if self.verdict == "cannot overflow" else f"{self.worst.part}: {self.worst.words}"

    @property
    def remedy(self) -> str:
        """What to do where something is not bounded."""
        if self.placed.norm_placement == "undecided":
            return self.placed.remedy
        if self.verdict != "not bounded":
            return ""
        return _WHOLE if self.reason == NOT_READ else _REMEDY

    def bound(self, part: Part) -> float | None:
        """The largest bound of a part; None where it has none."""
        return next((p.bound for p in self.parts if p.part == part), None)

    @property
    def divisor(self) -> float | None:
        """The smallest power of two by which the stream's bound is within the range; None where it has no bound."""
        bound = self.bound("stream")
        return None if bound is None else 2.0 ** max(0, ceil(log2(max(bound, 1.0) / self.limit)))

    def as_json(self) -> dict[str, Any]:
        """Verdicts as plain values; the bounds of single places are rows."""
        parts = [{**asdict(p), "head_room": p.head_room, "words": p.words} for p in self.parts]
        return {
            "stack": self.stack, "verdict": self.verdict, "words": self.words, "parts": parts, "derived": "drillcore",
            "transport": None if self.transport is None else asdict(self.transport),
            "below_bfloat16": self.below_bfloat16, "reason": self.reason, "remedy": self.remedy,
        }  # fmt: skip


def certify(collector: Collector, placed: Mapping[str, Placement]) -> tuple[Certificate, ...]:
    """The certificates of all stacks, from what was collected of their matrices."""
    found = []
    for stack, placement in placed.items():
        own = collector.stacks.get(stack)
        if own is None:
            found.append(Certificate(stack, placement, (), (), (), None, None, reason=collector.refused[stack]))
        else:
            found.append(_certificate(collector, own))
    return tuple(found)


def _certificate(collector: Collector, own: StackBounds) -> Certificate:
    adds = list(follow(own, collector.assignment))
    bias = position_bias(collector.source, own.placed.stack)
    places = (*stream_places(own, adds), *branch_places(own, collector.assignment, bias))
    limit = FP16_MAX / (1 + _HALF_STEP) ** (len(adds) + _OPERATIONS)
    parts = tuple(_judged(places, limit))
    reason = next((p.reason for p in parts if p.verdict == "not bounded"), "")
    return Certificate(own.placed.stack, own.placed, parts, places, tuple(sites(own, adds)), transport(own, adds),
                       below_bfloat16(own), limit, reason)  # fmt: skip


def _judged(places: tuple[Reached, ...], limit: float) -> Iterator[PartVerdict]:
    for part in PARTS:
        mine = [p for p in places if p.part == part]
        if not mine:
            continue
        lost = [p for p in mine if p.value is None]
        known = [(p.value, p) for p in mine if p.value is not None]
        over = [p.layer for value, p in known if value > limit]
        largest = max(known, key=lambda x: x[0], default=None)
        if lost:
            yield PartVerdict(part, "not bounded", None, lost[0].layer, lost[0].branch, None, lost[0].reason)
        elif largest is not None:
            verdict: Verdict = "may overflow" if over else "cannot overflow"
            yield PartVerdict(part, verdict, largest[0], largest[1].layer, largest[1].branch, min(over, default=None))
