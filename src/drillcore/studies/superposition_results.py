"""What the claims of the superposition studies are about: values by seed, exponents, agreement with a published run."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, log, sqrt

import numpy as np
import polars as pl
from scipy.special import stdtrit

from drillcore.data.features import frequencies
from drillcore.intervals import binomial_exact
from drillcore.measures.feature_packing import tail_loss
from drillcore.study import Verdict
from drillcore.study.claims import not_run

Values = dict[int, float]  # seed → value
LOSS = "loss.test"


def select(frame: pl.DataFrame, measure: str, **where: object) -> pl.DataFrame:
    """The rows of a measure at the end of each run, with these values of axes and columns."""
    wanted = [pl.col(name) == value for name, value in where.items()]
    rows = frame.filter(pl.col("measure") == measure, pl.col("value").is_not_null(), *wanted)
    return rows.filter(pl.col("step").fill_null(0) == pl.col("step").fill_null(0).max().over("run"))


def by_seed(frame: pl.DataFrame, measure: str, **where: object) -> Values:
    """The mean over whatever `where` leaves open, by seed."""
    found = select(frame, measure, **where).group_by("seed").agg(pl.col("value").mean()).sort("seed")
    return {int(seed): float(value) for seed, value in found.iter_rows()}


def by_width(frame: pl.DataFrame, measure: str, **where: object) -> dict[int, dict[int, float]]:
    """seed → m → value, of seeds that have every m that any has."""
    found: dict[int, dict[int, float]] = {}
    for row in select(frame, measure, **where).iter_rows(named=True):
        found.setdefault(row["seed"], {})[row["m"]] = row["value"]
    whole = {m for widths in found.values() for m in widths}
    return {seed: widths for seed, widths in found.items() if set(widths) == whole}


def exponents(frame: pl.DataFrame, fewest: int = 4, **where: object) -> Values:
    """α_m of each seed: minus the least-squares slope of ln L on ln m over all m that were run (paper)."""
    curves = by_width(frame, LOSS, **where)
    return {seed: slope(curve) for seed, curve in curves.items() if len(curve) >= fewest}


def slope(curve: Mapping[int, float]) -> float:
    """Minus the least-squares slope of the logarithms; infinite where a loss is zero or diverged."""
    if not all(0 < value < inf for value in curve.values()):
        return inf
    x, y = np.log(list(curve)), np.log(list(curve.values()))
    return float(-np.polyfit(x, y, 1)[0])


def tail_slope(family: str, n: int, alpha: float, widths: Iterable[int]) -> float:
    """The exponent over these m of a model that keeps exactly the m most frequent of n features."""
    p = frequencies(family, n, alpha=alpha)
    return slope({m: tail_loss(p, m) for m in widths})


def ratio(first: Mapping[int, float], second: Mapping[int, float]) -> Values:
    """first/second of the seeds that both have."""
    return {seed: first[seed] / second[seed] for seed in first if seed in second}


def log_error(ratios: Values) -> Values:
    """|ln ratio| by seed."""
    return {seed: abs(log(value)) for seed, value in ratios.items()}


@dataclass(frozen=True)
class Band:
    """Where one further run would lie with 95 %: mean ± t·sd·√(1 + 1/seeds)."""

    mean: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Values, error: float = 0.0) -> "Band | None":
        """None of fewer than two seeds. `error` is that of the published value, read off a figure."""
        found = np.array(list(values.values()))
        if len(found) < 2 or not np.isfinite(found).all():
            return None
        half = float(stdtrit(len(found) - 1, 0.975)) * float(found.std(ddof=1)) * sqrt(1 + 1 / len(found)) + error
        return cls(float(found.mean()), float(found.mean()) - half, float(found.mean()) + half, len(found))


def holds_one_run(values: Values, published: float, error: float = 0.0) -> Verdict:
    """Whether a published single run could be one more of ours."""
    label, band = f"{published:g} is one more run", Band.of(values, error)
    if band is None:
        return not_run(label)
    inside = band.low <= published <= band.high
    return Verdict("supported" if inside else "refuted", band.mean, band.low, band.high, label, band.n,
                   "where one further run lies with 95 %")  # fmt: skip


def holds_curve(points: Iterable[tuple[str, float, Values]], error: float = 0.0) -> Verdict:
    """Share of published points (name, value, ours by seed) that could be one more run; those that could not are named.

    Supported where the exact interval of the share reaches 95 %: five in a hundred miss by chance.
    """
    label, outside, n = "share ≥ 0.95", [], 0
    for name, value, ours in points:
        band = Band.of(ours, error)
        if band is None:
            continue
        n += 1
        if not band.low <= value <= band.high:
            outside.append(f"{name}: {value:g}, ours {band.low:.3g} … {band.high:.3g}")
    if n == 0:
        return not_run(label)
    share = binomial_exact(n - len(outside), n)
    told = "; ".join(outside) or "all inside"
    return Verdict("supported" if share.high >= 0.95 else "refuted", share.value, share.low, share.high, label, n, told)
