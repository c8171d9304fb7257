"""The study `superposition-density`: does loss rise with how many features are active (arXiv 2505.10465, appendix)?"""

import polars as pl

from drillcore.data.published import published
from drillcore.studies.superposition_axes import AXES, DENSITIES, GAMMAS, SEEDS, SMALL, STACK
from drillcore.studies.superposition_cell import cell, cost
from drillcore.studies.superposition_figures import by_width
from drillcore.studies.superposition_results import LOSS, Values, by_seed, exponents, holds_curve, select
from drillcore.study import Claim, Figure, Preset, Study, Verdict
from drillcore.study.claims import at_least, between, difference_at_least, not_run
from drillcore.study.reference import TITLES

STRONG = -0.5556


def correlation(frame: pl.DataFrame) -> Values:
    """Of loss and density at γ = −0.556, mean over m, by seed: 1 where the loss is linear in the density."""
    rows = select(frame, LOSS, gamma=STRONG)
    by = rows.group_by("seed", "m").agg(pl.corr("density", "value").alias("value"), pl.len())
    found = by.filter(pl.col("len") >= 3).group_by("seed").agg(pl.col("value").mean())
    return {int(seed): float(value) for seed, value in found.iter_rows()}


def _ends(frame: pl.DataFrame) -> Verdict:
    """The loss at the highest density over that at density 1, at the largest m, against the ratio of the densities."""
    rows = select(frame, LOSS, gamma=STRONG)
    densities = sorted(set(rows["density"].to_list()))
    if len(densities) < 2:
        return not_run()
    first, last = (by_seed(rows.filter(pl.col("m") == pl.col("m").max()), LOSS, density=d)
                   for d in (densities[0], densities[-1]))  # fmt: skip
    return at_least({s: last[s] / first[s] for s in first if s in last}, densities[-1] / densities[0])


def _published(frame: pl.DataFrame) -> Verdict:
    points = [(f"E = {row['E']:g}, m = {row['m']:.0f}", row["loss_sum"],
               by_seed(frame, LOSS, density=row["E"], m=int(row["m"]), gamma=STRONG, features=1000))
              for row in published("toy_small_loss_vs_m_by_E_alpha1")]  # fmt: skip
    return holds_curve(points, error=0.002)


CLAIMS = (
    Claim("a-linear", "strong, α = 1: loss and density correlate above 0.98 at each m", "close to linear",
          lambda f: at_least(correlation(f), 0.98)),
    Claim("b-more", "strong, α = 1, largest m: the loss grows by more than the density does", "14.4 times for 7.5",
          _ends),
    Claim("c-exponent-1", "strong, α = 1, density 1: exponent 1 ± 0.15", "1.12 ± 0.06",
          lambda f: between(exponents(f, gamma=STRONG, density=1.0), 0.85, 1.15)),
    Claim("c-exponent-5", "the same at density 5.05", "1.1 ± 0.1",
          lambda f: between(exponents(f, gamma=STRONG, density=5.053), 0.85, 1.15)),
    Claim("d-robust", "its exponent is at most 0.15 lower at density 5.05 than at 1", "unchanged within its errors",
          lambda f: difference_at_least(exponents(f, gamma=STRONG, density=5.053),
                                        exponents(f, gamma=STRONG, density=1.0), -0.15)),
    Claim("z-figure", "the published losses by density and m could be one of our seeds", "one run each", _published),
)  # fmt: skip

study = Study(
    name="superposition-density", title=TITLES["superposition-density"],
    about="How do loss and its exponent depend on how many features are active at once (arXiv 2505.10465)?",
    axes=AXES, cell=cell,
    presets={
        "quick": Preset(
            ({"features": (256,), "m": (8, 16, 24, 48), "batch": (512,), "steps": (6000,), "seed": SEEDS[:3],
              "gamma": (STRONG, 0.5556), "density": (1.0, 2.621, 5.053)},),
            about="256 features, three densities, two γ, three seeds", budget="6 minutes"),
        "paper": Preset(({"m": SMALL, "gamma": GAMMAS, "density": DENSITIES, "seed": SEEDS},),
                        about="the published scan, α = 1", budget="a day of two cores"),
    },
    claims=CLAIMS,
    figures=(Figure("density", "Loss against density", LOSS, x="density", series="m", panels="gamma"),
             *by_width("density", "gamma", STRONG)),
    stack=STACK, cost=cost,
)  # fmt: skip
