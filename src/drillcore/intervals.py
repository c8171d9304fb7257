"""Intervals and tests for few units: exact where counts are compared, Student's t where seeds are.

A percentile bootstrap over five seeds covers 84 % where it says 95 %, so `bootstrap` refuses fewer than 15 units.
"""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import NamedTuple

_FEWEST_UNITS = 15


class Interval(NamedTuple):
    """An estimate between its limits, from `n` units."""

    value: float
    low: float
    high: float
    n: int


def student_t(values: Sequence[float], level: float = 0.95) -> Interval:
    """Mean of independent units (seeds) with Student's interval, t of n − 1 degrees of freedom.

    Raises:
        ValueError: fewer than two units: one value says nothing of its spread.
    """
    from scipy.special import stdtrit

    n = len(values)
    if n < 2:
        raise ValueError(f"an interval needs two units or more, got {n}")
    mean = sum(values) / n
    spread = sqrt(sum((v - mean) ** 2 for v in values) / (n - 1) / n)
    half = float(stdtrit(n - 1, (1 + level) / 2)) * spread
    return Interval(mean, mean - half, mean + half, n)


def paired_t(first: Sequence[float], second: Sequence[float], level: float = 0.95) -> Interval:
    """Mean of first − second over units that share everything else (a seed), with Student's interval."""
    if len(first) != len(second):
        raise ValueError(f"pairs need as many values on both sides, got {len(first)} and {len(second)}")
    return student_t([a - b for a, b in zip(first, second, strict=True)], level)


def slope(x: Sequence[float], y: Sequence[float], level: float = 0.95) -> Interval:
    """Least-squares slope of y on x with Student's interval, t of n − 2 degrees of freedom.

    Raises:
        ValueError: fewer than three points, or all x are equal.
    """
    from scipy.special import stdtrit

    n = len(x)
    mx, my = sum(x) / n if n else 0.0, sum(y) / n if n else 0.0
    across = sum((a - mx) ** 2 for a in x)
    if n < 3 or across == 0:
        raise ValueError(f"a slope with an interval needs three points at two places or more, got {n} points")
    value = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / across
    rest = sum((b - my - value * (a - mx)) ** 2 for a, b in zip(x, y, strict=True))
    half = float(stdtrit(n - 2, (1 + level) / 2)) * sqrt(rest / (n - 2) / across)
    return Interval(value, value - half, value + half, n)


def binomial_exact(hits: int, n: int, level: float = 0.95) -> Interval:
    """Share of hits with the exact interval of Clopper and Pearson (Biometrika 26, 1934)."""
    from scipy.special import betaincinv

    if not 0 <= hits <= n or n < 1:
        raise ValueError(f"hits lie between 0 and n ≥ 1, got {hits} of {n}")
    tail = (1 - level) / 2
    low = float(betaincinv(hits, n - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, n - hits, 1 - tail)) if hits < n else 1.0
    return Interval(hits / n, low, high, n)


def fisher_exact(hits: int, n: int, other_hits: int, other_n: int) -> float:
    """Two-sided p-value of Fisher's exact test that two shares are one (probabilities up to that of the table)."""
    from scipy.stats import fisher_exact as test

    return float(test([[hits, n - hits], [other_hits, other_n - other_hits]]).pvalue)


def bootstrap(groups: Sequence[Sequence[float]], statistic: Callable[[Sequence[float]], float], *, seed: int,
              draws: int = 4000, level: float = 0.95) -> Interval:  # fmt: skip
    """Percentile interval of a statistic of all values, drawing whole groups (runs) with replacement.

    Raises:
        ValueError: fewer than 15 groups: the interval would be too short.
    """
    import numpy as np

    if len(groups) < _FEWEST_UNITS:
        raise ValueError(f"a bootstrap needs {_FEWEST_UNITS} groups or more, got {len(groups)}; use student_t")
    random = np.random.default_rng(seed)
    found = []
    for _ in range(draws):
        drawn = random.integers(0, len(groups), len(groups))
        found.append(statistic([value for i in drawn for value in groups[i]]))
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return Interval(statistic([v for g in groups for v in g]), float(low), float(high), len(groups))
