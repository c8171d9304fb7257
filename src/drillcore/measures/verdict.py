"""What the numbers of a kind say, in words. The rules are fixed before the numbers are seen.

*shared*: the mean over adjacent pairs is above null + 4 sd (of the mean) and at least twice the null.
*one-signed*, *one-coordinate*: shared, but nothing above the null is left once the constant vector (or the peak
coordinate) is taken out of both vectors. Else *at chance*.
"""

from dataclasses import dataclass
from math import sqrt
from statistics import fmean
from typing import Literal

from drillcore.table import Table

Word = Literal["shared", "one-signed", "one-coordinate", "at chance", "not measured"]


@dataclass(frozen=True)
class SideSummary:
    """Mean over adjacent pairs of one side's leading vectors, its null, and the word for it."""

    mean: float | None
    null: float | None
    null_sd: float | None  # of the mean
    pairs: int
    word: Word
    subspace: float | None
    subspace_null: float | None


@dataclass(frozen=True)
class KindSummary:
    """One line of the summary: both sides of a kind and the verdict on the side that faces the stream."""

    stack: str
    kind: str
    faces: str
    layers: int
    identifiable: int  # layers whose leading vector is identifiable
    v: SideSummary
    u: SideSummary

    @property
    def verdict(self) -> str:
        """In words: "shared input space", "shared output space (one-signed)", "at chance"."""
        side, space = (self.u, "output") if self.faces == "out" else (self.v, "input")
        if side.word in ("at chance", "not measured"):
            return side.word
        return f"shared {space} space" if side.word == "shared" else f"{side.word} {space} space"


def summarise(table: Table, stack: str, kind: str, faces: str) -> KindSummary:
    """Summarise the rows of one kind."""
    rows = table.where(stack=stack, kind=kind)
    bounds = rows.where(measure="spectrum.angle_bound")
    layers = {r.layer for r in rows if r.layer is not None} | {r.other for r in rows if r.other is not None}
    return KindSummary(
        stack, kind, faces, len(layers), sum(r.status == "ok" for r in bounds), _side(rows, "v"), _side(rows, "u")
    )


def _side(rows: Table, side: str) -> SideSummary:
    mean, null, sd, pairs = _adjacent_mean(rows, f"continuity.{side}1")
    subspace, subspace_null, _, _ = _adjacent_mean(rows, f"continuity.{side}_subspace")
    return SideSummary(mean, null, sd, pairs, _word(rows, side, mean, null, sd), subspace, subspace_null)


def _word(rows: Table, side: str, mean: float | None, null: float | None, sd: float | None) -> Word:
    if mean is None or null is None or sd is None:
        return "not measured"
    if not _above(mean, null, sd):
        return "at chance"
    words: dict[str, Word] = {"ones": "one-signed", "peak": "one-coordinate"}
    for what, word in words.items():
        left, left_null, left_sd, _ = _adjacent_mean(rows, f"continuity.{side}1_without_{what}")
        if left is not None and left_null is not None and left_sd is not None and not _above(left, left_null, left_sd):
            return word
    return "shared"


def _above(mean: float, null: float, sd: float) -> bool:
    return mean > null + 4 * sd and mean >= 2 * null


def _adjacent_mean(rows: Table, measure: str) -> tuple[float | None, float | None, float | None, int]:
    chosen = [r for r in rows.where(measure=measure, adjacent=True) if r.value is not None and r.null is not None]
    if not chosen:
        return None, None, None, 0
    null = fmean(r.null for r in chosen if r.null is not None)
    sd = sqrt(sum((r.null_sd or 0.0) ** 2 for r in chosen)) / len(chosen)
    return fmean(r.value for r in chosen if r.value is not None), null, sd, len(chosen)
