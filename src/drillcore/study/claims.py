"""Claims and verdicts. A claim is a function of the results, written before the runs.

It is supported when its whole 95 % interval lies on the claimed side of the threshold, refuted when it lies wholly on
the other, and otherwise inconclusive: more seeds would decide.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Literal

from drillcore.intervals import Interval, binomial_exact, paired_t, student_t

if TYPE_CHECKING:
    import polars as pl

Outcome = Literal["supported", "refuted", "inconclusive", "not-run", "failed"]
Values = Mapping[int, float]  # seed → value


@dataclass(frozen=True)
class Verdict:
    """What the results say of a claim: a value with its interval against a threshold, from `n` units."""

    outcome: Outcome
    value: float | None = None
    low: float | None = None
    high: float | None = None
    threshold: str = ""
    n: int = 0
    how: str = ""


@dataclass(frozen=True)
class Claim:
    """A statement that the results can support or refute, beside what was published."""

    name: str
    text: str
    published: str
    decide: Callable[["pl.DataFrame"], Verdict]


def not_run(threshold: str = "") -> Verdict:
    """The runs that the claim needs were not done."""
    return Verdict("not-run", threshold=threshold, how="its runs were not done")


def at_least(values: Values, threshold: float) -> Verdict:
    """The mean over seeds is at least `threshold`."""
    return _of_seeds(values, threshold, float("inf"), f"≥ {threshold:g}")


def at_most(values: Values, threshold: float) -> Verdict:
    """The mean over seeds is at most `threshold`."""
    return _of_seeds(values, float("-inf"), threshold, f"≤ {threshold:g}")


def between(values: Values, low: float, high: float) -> Verdict:
    """The mean over seeds lies between `low` and `high`."""
    return _of_seeds(values, low, high, f"{low:g} … {high:g}")


def difference_at_least(first: Values, second: Values, threshold: float) -> Verdict:
    """The mean of first − second over the seeds that both have is above `threshold`."""
    label = f"difference > {threshold:g}"
    seeds = sorted(set(first) & set(second))
    if not seeds:
        return not_run(label)
    if broken := [s for s in seeds if not isfinite(first[s] - second[s])]:
        return _diverged(broken, label, len(seeds))
    a, b = [first[s] for s in seeds], [second[s] for s in seeds]
    if len(seeds) < 2:
        return Verdict("inconclusive", a[0] - b[0], threshold=label, n=1, how="one seed")
    return _judged(paired_t(a, b), threshold, float("inf"), label, "Student t, paired by seed")


def share_at_least(hits: int, n: int, threshold: float) -> Verdict:
    """A share of counted cases is at least `threshold`."""
    label = f"share ≥ {threshold:g}"
    if n == 0:
        return not_run(label)
    return _judged(binomial_exact(hits, n), threshold, float("inf"), label, "Clopper–Pearson")


def _of_seeds(values: Values, low: float, high: float, label: str) -> Verdict:
    if not values:
        return not_run(label)
    if broken := [seed for seed, value in values.items() if not isfinite(value)]:
        return _diverged(broken, label, len(values))
    if len(values) < 2:
        return Verdict("inconclusive", next(iter(values.values())), threshold=label, n=1, how="one seed")
    return _judged(student_t(list(values.values())), low, high, label, "Student t over seeds")


def _diverged(seeds: list[int], label: str, n: int) -> Verdict:
    """A run that diverged is neither for nor against, and a mean without it would hide it."""
    which = ", ".join(map(str, sorted(seeds)))
    return Verdict("inconclusive", threshold=label, n=n, how=f"not a finite number at seed {which}")


def _judged(found: Interval, low: float, high: float, label: str, how: str) -> Verdict:
    outcome: Outcome = "inconclusive"
    if low <= found.low and found.high <= high:
        outcome = "supported"
    elif found.high < low or found.low > high:
        outcome = "refuted"
    return Verdict(outcome, found.value, found.low, found.high, label, found.n, how)
