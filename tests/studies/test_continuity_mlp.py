"""The study continuity-mlp: its claims on curves made by hand, its grids, and a run of it at a small size."""

from typing import Any

import polars as pl
import pytest

from drillcore.studies import continuity_claims as claims
from drillcore.studies.continuity_cell import VARIANTS
from drillcore.studies.continuity_mlp import AXES, PAPER, QUICK, study

LATER = {"steps": 10, "probe_every": 5, "data": "subset", "shift": 0}


def rows(measure: str, curves: dict[int, list[float]], *, layer: bool = False, **changed: Any) -> pl.DataFrame:
    """Rows of a measure: per seed, one value at each of the steps 0, 5, 10, spread over two places."""
    found = []
    for seed, values in curves.items():
        for i, value in enumerate(values):
            for place, shift in ((0, -0.01), (1, 0.01)):
                key = {"layer": place, "adjacent": None if layer else True}
                found.append({"seed": seed, "step": 5 * i, "measure": measure, "value": value + shift, **key,
                              **claims.BASE, **LATER, **changed})  # fmt: skip
            far = {"layer": 0, "adjacent": False, "value": -1.0}
            if not layer:
                found.append(
                    {"seed": seed, "step": 5 * i, "measure": measure, **far, **claims.BASE, **LATER, **changed}
                )
    return pl.DataFrame(found, infer_schema_length=None)


def decided(name: str, *frames: pl.DataFrame) -> str:
    (claim,) = (c for c in study.claims if c.name == name)
    return claim.decide(pl.concat(frames, how="diagonal_relaxed")).outcome


HIGH = {0: [0.1, 0.6, 0.95], 1: [0.1, 0.7, 0.96], 2: [0.1, 0.65, 0.94]}
FALLS = {0: [0.1, 0.60, 0.21], 1: [0.1, 0.62, 0.2], 2: [0.1, 0.61, 0.22]}


def test_curves_are_means_over_adjacent_pairs_of_the_base_runs_only() -> None:
    frame = pl.concat([rows(claims.V1, HIGH), rows(claims.V1, FALLS, variant="Res+None"),
                       rows(claims.V1, FALLS, optimiser="sgd")])  # fmt: skip
    assert claims.last(frame, claims.V1) == pytest.approx({0: 0.95, 1: 0.96, 2: 0.94})
    assert claims.last(frame, claims.V1, variant="Res+None") == pytest.approx({0: 0.21, 1: 0.2, 2: 0.22})
    assert claims.at(frame, claims.V1, 7) == pytest.approx({0: 0.6, 1: 0.7, 2: 0.65})
    assert claims.highest(frame, claims.V1, variant="Res+None") == pytest.approx({0: 0.6, 1: 0.62, 2: 0.61})
    assert claims.onset(frame, claims.V1, 0.62) == {0: 10, 1: 5, 2: 5}


def test_the_lowest_value_counts_after_the_highest_only() -> None:
    frame = rows(claims.V1, {0: [0.01, 0.5, 0.4]}, variant="Res+None")
    assert claims.lowest_after_peak(frame, claims.V1, variant="Res+None") == pytest.approx({0: 0.4})


def test_a_layer_counts_from_its_own_crossing_on() -> None:
    ratio = rows("coherence.update_ratio", {0: [0.0, 1.0, 2.0]}, layer=True)  # place 0 crosses at 10, place 1 at 5
    turned = rows("coherence.weight_to_gradient", {0: [0.1, 0.5, 0.9]}, layer=True)
    assert claims.after_crossing(pl.concat([ratio, turned])) == pytest.approx({0: (0.89 + 0.51) / 2})


def test_verdicts_go_both_ways() -> None:
    assert decided("e-relu", rows(claims.V1, HIGH)) == "supported"
    assert decided("e-relu", rows(claims.V1, FALLS)) == "refuted"
    assert decided("e-relu", rows(claims.V1, {0: [0.1, 0.2, 0.8], 1: [0.1, 0.2, 0.95]})) == "inconclusive"
    assert decided("c-falls", rows(claims.V1, FALLS, variant="Res+None")) == "supported"
    assert decided("c-falls", rows(claims.V1, HIGH, variant="Res+None")) == "refuted"
    none = rows(claims.V1, FALLS, variant="Res+None+LN")
    assert decided("h-concentrates", rows(claims.V1, HIGH), none) == "supported"


def test_v1_is_ranked_against_the_measured_breaking_of_symmetry() -> None:
    blends = (0.0, 0.03, 0.1, 0.3, 1.0)

    def frame(ends: tuple[float, ...]) -> pl.DataFrame:
        found = []
        for blend, end in zip(blends, ends, strict=True):
            changed = {"variant": "Res+Radial", "blend": blend}
            found.append(rows(claims.V1, {seed: [0.0, 0.0, end + seed / 1000] for seed in range(3)}, **changed))
            found.append(rows("symmetry.breaking", {s: [0.0, 0.0, blend] for s in range(3)}, layer=True, **changed))
        return pl.concat(found, how="diagonal_relaxed")

    assert claims.rank_correlation(frame((0.1, 0.2, 0.5, 0.8, 0.9))) == pytest.approx({0: 1.0, 1: 1.0, 2: 1.0})
    assert claims.rank_correlation(frame((0.1, 0.2, 0.5, 0.9, 0.8)))[0] == pytest.approx(0.9)
    assert decided("l-index", frame((0.1, 0.2, 0.5, 0.8, 0.9))) == "supported"
    assert decided("l-index", frame((0.9, 0.8, 0.5, 0.2, 0.1))) == "refuted"
    assert decided("l-index", rows(claims.V1, HIGH)) == "not-run"


def test_what_did_not_run_is_said() -> None:
    assert decided("d-falls", rows(claims.V1, HIGH)) == "not-run"
    assert decided("f-order", rows("continuity.s2_weighted", HIGH)) == "not-run"


def test_every_claim_can_be_decided_by_the_paper_preset() -> None:
    """Each claim names runs that a grid of the preset holds: it is decided once all runs have some curve."""
    defaults = {axis.name: axis.values[0] for axis in AXES}
    frames = []
    for grid in PAPER.grids:
        chosen = {name: grid.get(name, (default,)) for name, default in defaults.items()}
        for measure in (claims.V1, claims.STEP, claims.SUM, "continuity.s2_weighted", "coherence.update_ratio",
                        "coherence.weight_to_gradient", "symmetry.breaking"):  # fmt: skip
            for variant in chosen["variant"]:
                for changed in _products({k: chosen[k] for k in claims.BASE if k != "variant"}):
                    curves = {seed: [0.0, 0.6, 1.01 + seed / 100] for seed in chosen["seed"]}
                    layer = measure in ("coherence.update_ratio", "coherence.weight_to_gradient", "symmetry.breaking")
                    frames.append(rows(measure, curves, layer=layer, variant=variant, **changed))
    frame = pl.concat(frames, how="diagonal_relaxed")
    outcomes = {claim.name: claim.decide(frame).outcome for claim in study.claims}
    assert "not-run" not in outcomes.values(), outcomes


def _products(values: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{}]
    for name, options in values.items():
        found = [{**f, name: option} for f in found for option in options]
    return found


def test_presets_name_values_that_the_axes_have_or_that_are_fixed() -> None:
    known = {axis.name: axis for axis in AXES}
    for preset in (QUICK, PAPER):
        for grid in preset.grids:
            for name, values in grid.items():
                if known[name].role != "fixed":
                    assert set(values) <= set(known[name].values), (name, values)
    assert set(VARIANTS) == set(known["variant"].values)
