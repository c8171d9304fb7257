"""The claims of `superposition-small`, decided before the runs (arXiv 2505.10465; published values in its figures)."""

from collections.abc import Callable

import polars as pl

from drillcore.data.published import published
from drillcore.studies.superposition_axes import SMALL
from drillcore.studies.superposition_results import (
    LOSS,
    Values,
    by_seed,
    by_width,
    exponents,
    holds_curve,
    holds_one_run,
    log_error,
    ratio,
    select,
    slope,
    tail_slope,
)  # fmt: skip
from drillcore.study import Claim, Verdict
from drillcore.study.claims import at_least, at_most, between, difference_at_least, not_run

STRONG, WEAK = -0.5556, 0.5556
OVERLAP, VARIANCE = "superposition.mean_sq_overlap_x_m", "superposition.variance_ratio"


def _worst(frame: pl.DataFrame, measure: str, **where: object) -> Values:
    """The value furthest from 1 over the widths, by seed."""
    curves = by_width(frame, measure, **where)
    return {seed: max(curve.values(), key=lambda v: abs(v - 1)) for seed, curve in curves.items()}


def _extreme(frame: pl.DataFrame, measure: str, pick: Callable[..., float], **where: object) -> Values:
    """The largest or smallest value over the widths, by seed."""
    return {seed: pick(curve.values()) for seed, curve in by_width(frame, measure, **where).items()}


def _phi_over_share(frame: pl.DataFrame) -> Values:
    """φ½ over m/n, mean over the widths, by seed."""
    curves, n = by_width(frame, "superposition.phi_half", gamma=WEAK, alpha=1.0, subset="all"), _size(frame)
    return {seed: sum(v * n / m for m, v in curve.items()) / len(curve) for seed, curve in curves.items() if n}


def _size(frame: pl.DataFrame) -> int | None:
    return None if frame.is_empty() else int(frame["features"][0])


def weak_loss(frame: pl.DataFrame, theory: str, **where: object) -> Values:
    """|ln(measured/theory)| of the loss, mean over the widths, by seed."""
    measured, told = by_width(frame, LOSS, gamma=WEAK, **where), by_width(frame, theory, gamma=WEAK, **where)
    return {seed: sum(log_error(ratio(measured[seed], told[seed])).values()) / len(measured[seed])
            for seed in measured if seed in told}  # fmt: skip


def finite_slope(frame: pl.DataFrame, alpha: float) -> Verdict:
    """The measured weak exponent within 0.15 of the exact tail sum's over the same widths."""
    found, n = by_width(frame, LOSS, gamma=WEAK, alpha=alpha), _size(frame)
    if not found or n is None:
        return not_run()
    exact = tail_slope("power", n, alpha, sorted(next(iter(found.values()))))
    return between({seed: slope(curve) for seed, curve in found.items()}, exact - 0.15, exact + 0.15)


def bound_of_frames(frame: pl.DataFrame) -> Verdict:
    """φ₁ over m²/2n at the largest m with m²/2n ≤ 0.35, α = 1."""
    rows = select(frame, "superposition.phi_1", gamma=STRONG, alpha=1.0, subset="all")
    if rows.is_empty():
        return not_run("≤ 1.2")
    fits = rows.filter(pl.col("m") ** 2 / (2 * pl.col("features")) <= 0.35)
    m, n = int(fits["m"].max()), int(fits["features"][0])  # type: ignore[arg-type]
    return at_most({s: v * 2 * n / m**2 for s, v in by_seed(fits, "superposition.phi_1", m=m).items()}, 1.2)


def _oracle(measure: str, value: float, error: float = 0.0, **where: object) -> Claim:
    def decide(frame: pl.DataFrame) -> Verdict:
        key = {"features": 1000, "m": 63, "alpha": 0.5, "gamma": STRONG, **where}
        return holds_one_run(by_seed(frame, measure, **key), value, error)

    name = f"z-official-{measure.split('.')[1]}"
    told = "the official code, run once at n = 1000, m = 63, α = 0.5, γ = −0.556, could be one of our seeds: "
    return Claim(name, told + measure, f"{value:g}", decide)


def _official_curve(frame: pl.DataFrame) -> Verdict:
    """The loss on the way, as logged by the official run."""
    thousands = {2: 0.724, 4: 0.388, 6: 0.308, 8: 0.291, 10: 0.284, 12: 0.282, 16: 0.272, 20: 0.265}
    key = {"measure": LOSS, "features": 1000, "m": 63, "alpha": 0.5, "gamma": STRONG}
    rows = frame.filter(*(pl.col(name) == value for name, value in key.items()))
    points = []
    for step, value in ((1000 * k, value) for k, value in thousands.items()):
        here = rows.filter(pl.col("step") == step).group_by("seed").agg(pl.col("value").mean())
        points.append((f"step {step}", value, {int(s): float(v) for s, v in here.iter_rows()}))
    return holds_curve(points, error=0.004)  # means of 100 steps: sd 0.018/10 each, twice


def _curve_of_widths(table: str, column: str, measure: str, published_alpha: tuple[float, ...], error: float = 0.0,
                     **where: object) -> Callable[[pl.DataFrame], Verdict]:  # fmt: skip
    def decide(frame: pl.DataFrame) -> Verdict:
        points = []
        for alpha in published_alpha:
            for row in published(table, alpha=alpha):
                ours = by_seed(frame, measure, m=int(row["m"]), alpha=alpha, features=1000, **where)
                points.append((f"α = {alpha:g}, m = {row['m']:.0f}", row[column], ours))
        return holds_curve(points, error)

    return decide


def _exponent_map(frame: pl.DataFrame) -> Verdict:
    if _size(frame) != 1000:
        return not_run("share ≥ 0.95")
    points = []
    for row in published("toy_small_heatmap_alpha_m"):
        ours = exponents(frame, len(SMALL), gamma=row["gamma"], alpha=row["alpha"])
        points.append((f"α = {row['alpha']:g}, γ = {row['gamma']:g}", row["alpha_m"], ours))
    return holds_curve(points, error=0.02)


def _phi_by_gamma(frame: pl.DataFrame) -> Verdict:
    points = []
    for row in published("toy_small_phi_half_vs_gamma_alpha1"):
        ours = by_seed(frame, "superposition.phi_half", m=int(row["m"]), gamma=row["gamma"], alpha=1.0, features=1000)
        points.append((f"m = {row['m']:.0f}, γ = {row['gamma']:g}", row["phi_half"], ours))
    return holds_curve(points, error=0.001)


CLAIMS = (
    Claim("a-weak-tail", "weak (γ = 0.556), α = 0: loss within 10 % of the exact tail sum after φ½n features",
          "agrees (eq. 4)", lambda f: at_most(weak_loss(f, "loss.weak_represented", alpha=0.0), 0.0953)),
    Claim("a-weak-tail-skewed", "the same at α = 2", "agrees; within a factor of two in its figure",
          lambda f: at_most(weak_loss(f, "loss.weak_represented", alpha=2.0), 0.0953)),
    Claim("a-weak-twice", "weak, α = 2: within a factor of two of it", "within a factor of two in its figure",
          lambda f: at_most(weak_loss(f, "loss.weak_represented", alpha=2.0), 0.693)),
    Claim("b-weak-exponent", "weak, α = 2: the exponent is that of the exact tail sum, ± 0.15", "α − 1 for n ≫ m",
          lambda f: finite_slope(f, 2.0)),
    Claim("b-weak-flat", "weak, α = 0: no power law to speak of, exponent below 0.15", "only for α > 1",
          lambda f: at_most(exponents(f, gamma=WEAK, alpha=0.0), 0.15)),
    Claim("b-weak-asymptotic", "weak, α = 1: exponent α − 1 = 0, below 0.05", "α − 1",
          lambda f: at_most(exponents(f, gamma=WEAK, alpha=1.0), 0.05)),
    Claim("c-strong-flat", "strong (γ = −0.556), α = 0: exponent 1 ± 0.1", "≈ 1; 0.85 in its map at n = 1000",
          lambda f: between(exponents(f, gamma=STRONG, alpha=0.0), 0.9, 1.1)),
    Claim("c-strong-half", "strong, α = 0.5: exponent 1 ± 0.1", "≈ 1; 0.91 in its map",
          lambda f: between(exponents(f, gamma=STRONG, alpha=0.5), 0.9, 1.1)),
    Claim("c-strong-one", "strong, α = 1: exponent 1 ± 0.1", "≈ 1; 1.06 in its map",
          lambda f: between(exponents(f, gamma=STRONG, alpha=1.0), 0.9, 1.1)),
    Claim("c-strong-skewed", "strong, α = 2: exponent 2(α − 1) = 2, ± 0.3", "2(α − 1); 2.21 in its map",
          lambda f: between(exponents(f, gamma=STRONG, alpha=2.0), 1.7, 2.3)),
    Claim("c-robust", "at α = 0 the strong exponent is above the weak one by 0.4", "robust against not",
          lambda f: difference_at_least(exponents(f, gamma=STRONG, alpha=0.0),
                                        exponents(f, gamma=WEAK, alpha=0.0), 0.4)),
    Claim("d-overlap", "strong, α = 0: m × mean squared overlap of rows above norm 1 is 1 ± 0.15 at every m",
          "0.89 … 1.005", lambda f: between(_worst(f, OVERLAP, gamma=STRONG, alpha=0.0, subset="strong"), 0.85, 1.15)),
    Claim("d-variance", "strong, α = 1: their squared overlaps vary less than random vectors' at every m",
          "ratio 0.44 … 0.92",
          lambda f: at_most(_extreme(f, VARIANCE, max, gamma=STRONG, alpha=1.0, subset="strong"), 1.0)),
    Claim("d-frames", "strong, α = 1: rows above norm 1 are at most 1.2 times those of a frame of equal angles, m²/2n",
          "m²/2n expected; three times that in its figure", bound_of_frames),
    Claim("e-strong", "γ = −0.556, α = 1: φ½ above 0.9 at every m", "0.992 … 1",
          lambda f: at_least(_extreme(f, "superposition.phi_half", min, gamma=STRONG, alpha=1.0), 0.9)),
    Claim("e-weak", "γ = 0.556, α = 1: φ½ below 2m/n, mean over m", "1.0 … 2.0 m/n",
          lambda f: at_most(_phi_over_share(f), 2.0)),
    _oracle(LOSS, 0.270, 0.002), _oracle("superposition.phi_half", 0.995, subset="all"),
    _oracle("superposition.phi_1", 0.853, subset="all"),
    _oracle("superposition.variance_ratio", 0.567, subset="strong"),
    _oracle("superposition.max_overlap_over_welch", 3.37, subset="strong"),
    Claim("z-official-way", "its logged losses at 2,000 … 20,000 steps", "0.724 … 0.265", _official_curve),
    Claim("z-figure-exponents", "the published exponents of each (γ, α) could be one of our seeds", "one run each",
          _exponent_map),
    Claim("z-figure-phi", "the published φ½ at α = 1 by γ and m", "one run each", _phi_by_gamma),
    Claim("z-figure-overlap", "the published mean squared overlaps of strong rows, times m (their γ = −0.556 is ours)",
          "one run each", _curve_of_widths("toy_small_mean_sq_overlap_strong_rows_vs_m", "times_m", OVERLAP,
                                           (0.0, 0.5, 1.0), 0.001, gamma=STRONG, subset="strong")),
    Claim("z-figure-variance", "the published variance ratios of strong rows at γ = −0.556", "one run each; four are 0",
          _curve_of_widths("toy_small_var_ratio_vs_m_gamma-0.55", "var_over_random", "superposition.variance_ratio",
                           (0.0, 0.5, 1.0), 0.001, gamma=STRONG, subset="strong")),
)  # fmt: skip
