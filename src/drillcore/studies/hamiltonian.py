"""The study `hamiltonian`: which placements make training a well-posed problem (arXiv 2510.09904).

The closed forms, the rule by degree and every constant are ours, derived from the paper's setting; its own theorems
were not available.
"""

import polars as pl

from drillcore.studies.hamiltonian_cell import cell
from drillcore.study import Axis, Claim, Figure, Preset, Study, Verdict
from drillcore.study.claims import Values, at_most, difference_at_least, not_run, share_at_least
from drillcore.study.reference import TITLES

NORMED = ("peri-gelu", "peri-swiglu", "peri-attention", "branch-out-gelu", "branch-out-swiglu")
DESIGNS = (*NORMED, "pre-gelu", "pre-swiglu", "pre-attention", "sub-ln-gelu", "layerscale-gelu", "dyt-both-gelu",
           "softcap-gelu")  # fmt: skip
SEEDS, DECAYS = (0, 1, 2, 3, 4), (0.0, 0.1, 3.0, 30.0)
SHARE = 0.75  # 15 of 15 has a 95 % interval from 0.78 on


def finite(
    frame: pl.DataFrame, designs: tuple[str, ...], decays: tuple[float, ...], gains: str = "fixed"
) -> pl.DataFrame:
    """The rows that say whether H is finite, of these designs, decays and gains; what did not settle is no case."""
    return frame.filter(
        pl.col("measure") == "hamiltonian.finite", pl.col("value").is_not_null(), pl.col("design").is_in(designs),
        pl.col("decay").is_in(decays), pl.col("gains") == gains,
    )  # fmt: skip


def share(frame: pl.DataFrame, wanted: float) -> Verdict:
    """The share of cases that are finite (1) or not (0), with an exact interval."""
    return share_at_least(int((frame["value"] == wanted).sum()), len(frame), SHARE)


def mean(frame: pl.DataFrame, measure: str, designs: tuple[str, ...]) -> Values:
    """The mean over designs of a measure at decay 0 with fixed gains, by seed."""
    rows = frame.filter(pl.col("measure") == measure, pl.col("value").is_not_null(), pl.col("design").is_in(designs),
                        pl.col("decay") == 0.0, pl.col("gains") == "fixed")  # fmt: skip
    found = rows.group_by("seed").agg(pl.col("value").mean())
    return {int(seed): float(value) for seed, value in found.iter_rows()}


def _threshold(frame: pl.DataFrame) -> Verdict:
    """Infinite below and finite above: hits among all cases of both."""
    low, high = (
        finite(frame, ("pre-gelu", "pre-attention"), (0.0, 0.1)),
        finite(frame, ("pre-gelu", "pre-attention"), (30.0,)),
    )
    if not len(low) or not len(high):
        return not_run("share ≥ 0.75")
    hits = int((low["value"] == 0).sum()) + int((high["value"] == 1).sum())
    return share_at_least(hits, len(low) + len(high), SHARE)


def _never(frame: pl.DataFrame) -> Verdict:
    """Two designs of degree 3; LayerScale is one once its gain is a control."""
    swiglu, scaled = finite(frame, ("pre-swiglu",), DECAYS), finite(frame, ("layerscale-gelu",), DECAYS, "trained")
    return share(pl.concat([swiglu, scaled]), 0.0)


def _with_decay(frame: pl.DataFrame) -> Verdict:
    without, decayed = finite(frame, ("sub-ln-gelu",), (0.0,)), finite(frame, ("sub-ln-gelu",), DECAYS[1:])
    if not len(without) or not len(decayed):
        return not_run("share ≥ 0.75")
    hits = int((without["value"] == 0).sum()) + int((decayed["value"] == 1).sum())
    return share_at_least(hits, len(without) + len(decayed), SHARE)


CLAIMS = (
    Claim("peri-finite", "Peri and branch-out, gains fixed: H is finite without decay", "finite (Peri-LN)",
          lambda f: share(finite(f, NORMED, (0.0,)), 1.0)),
    Claim("closed-form", "there the ascent reaches the closed form √d‖PΓp‖ − β·p within 0.5 %", "derived (drillcore)",
          lambda f: at_most(mean(f, "hamiltonian.relative_error", NORMED), 0.005)),
    Claim("pre-infinite", "Pre without decay: H is infinite for MLP, SwiGLU and attention", "infinite (Pre-LN)",
          lambda f: share(finite(f, ("pre-gelu", "pre-swiglu", "pre-attention"), (0.0,)), 0.0)),
    Claim("pre-threshold", "Pre of degree 2 (GELU, attention): infinite at decay 0 and 0.1, finite at 30",
          "derived (drillcore)", _threshold),
    Claim("swiglu-never", "Pre of degree 3 (SwiGLU, LayerScale with its gain): infinite at every decay up to 30",
          "derived (drillcore)",
          _never),
    Claim("sub-ln-decay", "Sub-LN (degree 1): infinite without decay, finite with any", "derived (drillcore)",
          _with_decay),
    Claim("gains-are-controls", "Peri with trained gains and no decay: H is infinite again", "derived (drillcore)",
          lambda f: share(finite(f, NORMED, (0.0,), "trained"), 0.0)),
    Claim("gains-decayed", "Peri with trained gains and decay 0.1: H is finite", "derived (drillcore)",
          lambda f: share(finite(f, NORMED, (0.1,), "trained"), 1.0)),
    Claim("caps-finite", "a tanh on the output (DyT, softcap) bounds H as well", "derived (drillcore)",
          lambda f: share(finite(f, ("dyt-both-gelu", "softcap-gelu"), (0.0,)), 1.0)),
    Claim("input-blind", "a sweep of the input's scale cannot tell Pre from Peri: exponents differ by less than 0.1",
          "derived (drillcore)",
          lambda f: at_most(_gap(f, "exponent.input"), 0.1)),
    Claim("parameters-see", "a sweep of the parameters' scale can: Pre's exponent is above Peri's by 1.5",
          "derived (drillcore)",
          lambda f: difference_at_least(mean(f, "exponent.parameters", ("pre-gelu",)),
                                        mean(f, "exponent.parameters", ("peri-gelu",)), 1.5)),
)  # fmt: skip


def _gap(frame: pl.DataFrame, measure: str) -> Values:
    pre, peri = (mean(frame, measure, (design,)) for design in ("pre-gelu", "peri-gelu"))
    return {seed: abs(pre[seed] - peri[seed]) for seed in pre.keys() & peri.keys()}


Grid = dict[str, tuple[str | int | float | bool, ...]]
GRID: Grid = {"design": DESIGNS, "decay": DECAYS, "seed": SEEDS}
CAPPED: Grid = {"design": ("dyt-both-gelu", "softcap-gelu"), "seed": tuple(range(10))}  # two designs: more seeds
TRAINED: Grid = {"design": (*NORMED, "layerscale-gelu"), "decay": DECAYS, "gains": ("trained",), "seed": SEEDS}
study = Study(
    name="hamiltonian", title=TITLES["hamiltonian"],
    about="Is sup over the parameters of −p·f(x; θ) − λ‖θ‖² finite? Where it is not, optimal hidden states may be "
    "arbitrarily large (arXiv 2510.09904). Ascents from three scales, beside the closed form.",
    axes=(
        Axis("design", DESIGNS, about="placement and branch, as `drillcore check` names them"),
        Axis("decay", DECAYS, about="λ"),
        Axis("gains", ("fixed", "trained"), about="whether gains are controls too"),
        Axis("seed", SEEDS, role="nuisance", about="weights, state and direction"),
        Axis("width", (32,), role="fixed", about="of the stream"),
    ),
    cell=cell,
    presets={
        "quick": Preset((GRID, TRAINED, CAPPED), about="12 designs, four decays, five seeds, width 32",
                        budget="10 minutes"),
        "paper": Preset(tuple({**grid, "width": (64,)} for grid in (GRID, TRAINED, CAPPED)),
                        about="the same at width 64", budget="half an hour"),
    },
    claims=CLAIMS,
    figures=(
        Figure("finite", "Share of finite Hamiltonians by decay, gains fixed", "hamiltonian.finite", kind="bars",
               x="decay", series="design", where={"gains": "fixed"}),
        Figure("trained", "The same with trained gains", "hamiltonian.finite", kind="bars", x="decay", series="design",
               where={"gains": "trained"}),
        Figure("value", "Its value where it is finite", "hamiltonian.value", kind="bars", x="decay", series="design",
               where={"gains": "fixed"}),
        Figure("input", "Growth with the scale of the input", "exponent.input", kind="bars", x="design", series="gains",
               where={"decay": 0.0}),
        Figure("parameters", "Growth with the scale of the parameters", "exponent.parameters", kind="bars", x="design",
               series="gains", where={"decay": 0.0}),
    ),
    stack=("seed", "decay"), cost=lambda task: 1.2 * len(task.runs),
)  # fmt: skip
