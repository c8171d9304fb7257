"""Which measures a person asked for, and what must be read for them."""

from collections.abc import Collection
from dataclasses import dataclass

from drillcore.measures import MEASURES
from drillcore.measures.reading import Need
from drillcore.weights import InputError

# Without these a verdict on v1 or u1 cannot be given; they cost nothing beside it.
_COMPANIONS = (
    "continuity.v1", "continuity.u1", "continuity.v1_without_ones", "continuity.u1_without_ones",
    "continuity.v1_without_peak", "continuity.u1_without_peak", "spectrum.angle_bound",
)  # fmt: skip
_GROUPS = ("continuity", "spectrum", "superposition", "stability")


@dataclass(frozen=True)
class Selection:
    """Names of `MEASURES` in their order, whether superposition and certificates are asked for, what must be read."""

    names: tuple[str, ...]
    superposition: bool
    stability: bool
    needs: frozenset[Need]


def select(wanted: Collection[str] | None) -> Selection:
    """Resolve names ("continuity.v1"), short names ("v1") and groups ("spectrum"); None is everything.

    Raises:
        InputError: a name that is none of these.
    """
    if wanted is None:
        return _selection(set(MEASURES), superposition=True, stability=True)
    if not wanted:
        raise InputError("is empty", where="--measures", remedy="leave it out to measure everything")
    names: set[str] = set()
    for word in wanted:
        if word.startswith("superposition."):
            raise InputError(f"{word!r} alone is not measured", where="--measures",
                             remedy="say superposition: all of its measures come from the same passes")  # fmt: skip
        found = {n for n in MEASURES if word in (n, n.split(".")[0], n.split(".")[1])}
        if not found and word != "superposition":
            short = sorted(n.split(".")[1] for n in MEASURES)
            raise InputError(f"no measure called {word!r}", where="--measures",
                             remedy=f"choose of {', '.join((*_GROUPS, *short))}")  # fmt: skip
        names |= found
    if names & {"continuity.v1", "continuity.u1"}:
        names |= set(_COMPANIONS)
    return _selection(names, superposition="superposition" in wanted, stability="stability" in wanted)


def _selection(names: set[str], *, superposition: bool, stability: bool) -> Selection:
    ordered = tuple(n for n in MEASURES if n in names)
    needs = frozenset(need for n in ordered for need in MEASURES[n].needs)
    return Selection(ordered, superposition, stability, needs)
