"""The study `superposition-large`: three families of frequencies at n = 10240 (arXiv 2505.10465, figure 2)."""

from collections.abc import Callable

import polars as pl

from drillcore.data.published import published
from drillcore.studies.superposition_axes import AXES, LARGE, SEEDS, STACK
from drillcore.studies.superposition_cell import cell, cost
from drillcore.studies.superposition_figures import by_width
from drillcore.studies.superposition_results import (
    LOSS,
    Values,
    by_seed,
    holds_curve,
    slope,
    tail_slope,
)  # fmt: skip
from drillcore.studies.superposition_results import (
    by_width as curves_of,
)
from drillcore.study import Claim, Preset, Study, Verdict
from drillcore.study.claims import Values as Given
from drillcore.study.claims import between, difference_at_least, not_run
from drillcore.study.reference import TITLES

STRONG, WEAK, ALPHA = -1.0, 0.1, 1.2
FEWEST = {"exponential": 8, "power": 32, "linear": 32}  # the published fits start at these m


def exponents(frame: pl.DataFrame, family: str, gamma: float, start: int) -> Values:
    """Exponent over the m from `start` on, by seed."""
    curves = curves_of(frame, LOSS, family=family, gamma=gamma)
    kept = {seed: {m: v for m, v in curve.items() if m >= start} for seed, curve in curves.items()}
    return {seed: slope(curve) for seed, curve in kept.items() if len(curve) >= 3}


def _strong(family: str, value: str) -> Claim:
    start = FEWEST[family]
    return Claim(f"a-{family}", f"strong, {family} frequencies: exponent 1 ± 0.15 over m ≥ {start}", value,
                 lambda f: between(exponents(f, family, STRONG, start), 0.85, 1.15))  # fmt: skip


def _robust(family: str) -> Claim:
    start = FEWEST[family]
    return Claim(f"b-{family}", f"{family}: the strong exponent is above the weak one by 0.3", "1 against 0.1 … 0.5",
                 lambda f: difference_at_least(exponents(f, family, STRONG, start), exponents(f, family, WEAK, start),
                                               0.3))  # fmt: skip


def _weak_power(frame: pl.DataFrame) -> Verdict:
    """The weak exponent of the power family over the last five widths, against the exact tail sum's."""
    curves = curves_of(frame, LOSS, family="power", gamma=WEAK)
    if not curves:
        return not_run()
    widths = sorted(next(iter(curves.values())))[-5:]
    exact = tail_slope("power", int(frame["features"][0]), ALPHA, widths)
    return between(_over(curves, widths), exact - 0.15, exact + 0.15)


def _over(curves: dict[int, dict[int, float]], widths: list[int]) -> Given:
    return {seed: slope({m: curve[m] for m in widths}) for seed, curve in curves.items()}


def _figure(regime: str, gamma: float) -> Callable[[pl.DataFrame], Verdict]:
    def decide(frame: pl.DataFrame) -> Verdict:
        points = []
        for family in FEWEST:
            for row in published("toy_large_n10240_loss_vs_m", distribution=family, regime=regime):
                ours = by_seed(frame, LOSS, family=family, gamma=gamma, m=int(row["m"]), features=10240)
                points.append((f"{family}, m = {row['m']:.0f}", row["loss_sum_over_n"], ours))
        return holds_curve(points, error=0.002)

    return decide


CLAIMS = (
    _strong("exponential", "1.01 ± 0.05"), _strong("power", "1.0 ± 0.1"), _strong("linear", "0.89 ± 0.05"),
    _robust("exponential"), _robust("power"), _robust("linear"),
    Claim("c-weak-power", "weak, power: the exponent over the last five widths is the exact tail sum's, ± 0.15",
          "0.45 against 0.39 (α − 1 = 0.2)", _weak_power),
    Claim("z-strong", "the published strong losses could be one seed of ours", "one run each",
          _figure("strong", STRONG)),
    Claim("z-weak", "the published weak losses could be one seed of ours", "one run each", _figure("weak", WEAK)),
)  # fmt: skip

BOTH = {"gamma": (STRONG, WEAK), "alpha": (ALPHA,), "family": ("power", "exponential", "linear"), "rule": ("large",)}
study = Study(
    name="superposition-large", title=TITLES["superposition-large"],
    about="Is the exponent of loss against width 1 for all families of frequencies (arXiv 2505.10465)?",
    axes=AXES, cell=cell,
    presets={
        "quick": Preset(({**BOTH, "features": (2048,), "length": (80.0,), "m": (8, 16, 32, 64, 128), "batch": (256,),
                          "steps": (4000,), "seed": SEEDS[:3]},),
                        about="2,048 features, five widths, three families, three seeds", budget="15 minutes"),
        "paper": Preset(({**BOTH, "features": (10240,), "m": LARGE, "seed": SEEDS[:3]},),
                        about="the published size, three seeds instead of one", budget="hours of a GPU"),
    },
    claims=CLAIMS, figures=by_width("gamma", "family", STRONG), stack=STACK, cost=cost,
)  # fmt: skip
