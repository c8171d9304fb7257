"""Measures: plain functions from what was read of a kind to rows. `MEASURES` is the whole list.

To add one: write a function ``(reading, measure) -> Iterator[Row]`` and add its line here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from drillcore.measures import continuity, spectrum
from drillcore.measures.reading import KindReading, Need
from drillcore.table import Row


@dataclass(frozen=True)
class Measure:
    """A measure over the layers of one kind: its function and what must be read for it."""

    rows: Callable[[KindReading, str], Iterator[Row]]
    needs: frozenset[Need] = frozenset()


def _measure(rows: Callable[..., Iterator[Row]], *needs: Need, **fixed: str) -> Measure:
    return Measure(partial(rows, **fixed), frozenset(needs))


MEASURES: dict[str, Measure] = {
    "continuity.v1": _measure(continuity.vector_cosines, side="v"),
    "continuity.u1": _measure(continuity.vector_cosines, side="u"),
    "continuity.v1_without_ones": _measure(continuity.cleaned_cosines, side="v", remove="ones"),
    "continuity.u1_without_ones": _measure(continuity.cleaned_cosines, side="u", remove="ones"),
    "continuity.v1_without_peak": _measure(continuity.cleaned_cosines, side="v", remove="peak"),
    "continuity.u1_without_peak": _measure(continuity.cleaned_cosines, side="u", remove="peak"),
    "continuity.v_subspace": _measure(continuity.subspace_overlap_rows, "subspace", side="v"),
    "continuity.u_subspace": _measure(continuity.subspace_overlap_rows, "subspace", side="u"),
    "continuity.s2_weighted": _measure(continuity.s2_weighted, "spectrum"),
    "continuity.gram_v": _measure(continuity.gram_cosines, "probes", "spectrum", side="v"),
    "continuity.gram_u": _measure(continuity.gram_cosines, "probes", "spectrum", side="u"),
    "continuity.expert_mean": _measure(continuity.expert_mean, "experts"),
    "continuity.expert_matched": _measure(continuity.expert_matched, "experts"),
    "spectrum.sigma1": _measure(spectrum.sigma1),
    "spectrum.sigma": _measure(spectrum.sigma),
    "spectrum.gap": _measure(spectrum.gap),
    "spectrum.angle_bound": _measure(spectrum.angle_bound),
    "spectrum.stable_rank": _measure(spectrum.stable_rank),
    "spectrum.effective_rank": _measure(spectrum.effective_rank, "spectrum"),
    "spectrum.ones_u": _measure(spectrum.ones, side="u"),
    "spectrum.ones_v": _measure(spectrum.ones, side="v"),
    "spectrum.peak_u": _measure(spectrum.peak, side="u"),
    "spectrum.peak_v": _measure(spectrum.peak, side="v"),
    "stability.norm_growth": _measure(spectrum.norm_growth),
}
