"""Axes, grids, runs and their grouping into tasks."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import counting
import numpy as np
import polars as pl
import pytest
from scipy import stats as reference

from drillcore.study import Axis, Claim, Figure, Preset, Run, StudyError, verify
from drillcore.study.claims import Verdict, at_least, at_most, between, difference_at_least, share_at_least
from drillcore.study.spec import tasks
from drillcore.table import Row

study = counting.study


def test_grids_are_united_and_axes_left_out_take_their_default() -> None:
    runs = study.runs("quick")
    assert [(r["x"], r["seed"], r["size"]) for r in runs] == [(x, s, 10) for x in (1, 2, 3) for s in (0, 1)]
    assert len({r.id for r in runs}) == 6


def test_a_run_is_named_by_its_study_and_axes_only() -> None:
    assert Run("a", {"x": 1, "y": 2}).id == Run("a", {"y": 2, "x": 1}).id
    assert Run("a", {"x": 1}).id != Run("b", {"x": 1}).id
    assert Run("a", {"x": 1}).id != Run("a", {"x": 1.5}).id


def test_runs_that_differ_in_stacked_axes_only_are_one_task(tmp_path: Path) -> None:
    grouped = tasks(study, study.runs("quick"), tmp_path, 1)
    assert [[r["seed"] for r in task.runs] for task in grouped] == [[0, 1]] * 3
    folders = {task.folder.path for task in grouped}
    assert len(folders) == 3
    assert folders.isdisjoint({task.folder.path for task in tasks(study, study.runs("quick"), tmp_path, 2)})
    fewer = tasks(study, study.runs("quick", {"seed": ("0",)}), tmp_path, 1)
    assert folders.isdisjoint({task.folder.path for task in fewer})
    with pytest.raises(ValueError, match="unpack"):
        _ = grouped[0].run


def test_set_replaces_values_and_says_what_there_is() -> None:
    runs = study.runs("quick", {"x": ("2",), "size": ("7",), "seed": ("5",)})
    assert [dict(r.axes) for r in runs] == [{"x": 2, "seed": 5, "size": 7}]
    with pytest.raises(StudyError, match="no axis 'y'; it has x, seed, size"):
        study.runs("quick", {"y": ("1",)})
    with pytest.raises(StudyError, match="x has no value '9'; it has 1, 2, 3"):
        study.runs("quick", {"x": ("9",)})
    with pytest.raises(StudyError, match="seed takes values like 0, not 'many'"):
        study.runs("quick", {"seed": ("many",)})
    with pytest.raises(StudyError, match="no preset 'paper'; it has quick"):
        study.runs("paper")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"presets": {"quick": Preset(({"y": (1,)},))}}, "preset 'quick' names 'y'; there is no axis 'y'"),
        ({"presets": {"quick": Preset(({}, {"x": (2, 9)}))}}, "gives x the value 9; it has 1, 2, 3"),
        ({"presets": {}}, "needs an axis and a preset"), ({"axes": ()}, "needs an axis and a preset"),
        ({"axes": (*study.axes, Axis("layer", (1,)))}, "axis 'layer' has the name of a column"),
        ({"axes": (*study.axes, Axis("study", (1,)))}, "axis 'study' has the name of a column"),
        ({"axes": (*study.axes, Axis("x", (1,)))}, "two axes are called 'x'"),
        ({"axes": (*study.axes, Axis("z", ()))}, "'z' has no value"),
        ({"claims": study.claims * 2}, "two claims are called 'nine'"),
        ({"figures": study.figures * 2}, "two figures are called 'by-"),
        ({"stack": ("seeds",)}, "stack names 'seeds'"),
        ({"figures": (Figure("f", "", "square"),)}, "figure 'f' names 'variant'"),
        ({"figures": (Figure("f", "", "square", series="x", where={"y": 1}),)}, "figure 'f' names 'y'"),
        ({"figures": (Figure("f", "", "square", series="x", panels="y"),)}, "figure 'f' names 'y'"),
    ],
)  # fmt: skip
def test_a_study_that_does_not_agree_with_itself_is_refused_when_it_is_written(
    changed: dict[str, object], said: str
) -> None:
    with pytest.raises(StudyError, match=said):
        replace(study, **changed)  # type: ignore[arg-type]


def test_a_fixed_axis_takes_any_value_and_equal_values_are_one_run() -> None:
    grids = ({"size": (10, 10.0, 7)}, {"x": (1.0,)})
    made = replace(study, presets={"quick": Preset(grids)}).runs("quick")
    assert [(r["x"], r["size"]) for r in made] == [(1, 10), (1, 7)]
    assert made[0].id == study.runs("quick")[0].id


def test_a_row_of_no_run_of_the_task_is_refused(tmp_path: Path) -> None:
    task = tasks(study, study.runs("quick"), tmp_path, 1)[0]
    with pytest.raises(StudyError, match="rows of the run None, which is not of this task"):
        task.rows([Row(measure="m", value=1.0)])
    task.rows([Row(run=task.runs[1].id, measure="m", value=1.0)])


TIGHT, LOOSE = {0: 0.90, 1: 0.92, 2: 0.91}, {0: 0.2, 1: 0.9, 2: 0.6}


@pytest.mark.parametrize(
    ("verdict", "outcome"),
    [
        (at_least(TIGHT, 0.8), "supported"), (at_least(TIGHT, 0.95), "refuted"), (at_least(LOOSE, 0.5), "inconclusive"),
        (at_most(TIGHT, 0.95), "supported"), (at_most(TIGHT, 0.8), "refuted"), (at_least({}, 0.5), "not-run"),
        (at_least({0: 0.99}, 0.5), "inconclusive"), (between(TIGHT, 0.85, 0.95), "supported"),
        (between(TIGHT, 0.95, 0.99), "refuted"), (between(TIGHT, 0.91, 0.99), "inconclusive"),
        (difference_at_least({0: 1.2, 1: 0.7, 9: 5.0}, {0: 1.0, 1: 0.51}, 0.1), "supported"),
        (difference_at_least(TIGHT, {7: 0.0}, 0.0), "not-run"),
        (difference_at_least(LOOSE, {0: 0.1}, 0.0), "inconclusive"),
        (share_at_least(60, 60, 0.9), "supported"), (share_at_least(3, 3, 0.9), "inconclusive"),
        (at_least({0: 0.9, 1: float("nan"), 2: 0.9}, 0.1), "inconclusive"),
        (at_most({0: float("-inf")}, 1.0), "inconclusive"),
        (difference_at_least({0: 9.0, 1: float("inf")}, {0: 1.0, 1: 1.0}, 0.1), "inconclusive"),
        (share_at_least(1, 60, 0.9), "refuted"), (share_at_least(0, 0, 0.9), "not-run"),
    ],
)  # fmt: skip
def test_a_verdict_needs_the_whole_interval_on_one_side(verdict: Verdict, outcome: str) -> None:
    assert verdict.outcome == outcome


def test_a_seed_that_diverged_is_named_and_no_number_is_given() -> None:
    found = at_least({0: 0.9, 3: float("nan"), 2: float("inf")}, 0.1)
    assert (found.value, found.low, found.high, found.n) == (None, None, None, 3)
    assert found.how == "not a finite number at seed 2, 3"


def test_a_verdict_of_ones_own_that_is_not_finite_is_inconclusive() -> None:
    own = Claim("own", "", "", lambda f: Verdict("supported", float("nan"), 0.0, 1.0, "≥ 1", 4, "mine"))
    (found,) = verify(replace(study, claims=(own,)), pl.DataFrame())
    assert found.verdict == Verdict("inconclusive", threshold="≥ 1", n=4, how="not a finite number")


def test_pairing_by_seed_is_what_makes_a_small_difference_count() -> None:
    first, second = {0: 1.21, 1: 0.70, 2: 2.2}, {0: 1.0, 1: 0.5, 2: 2.0}
    assert difference_at_least(first, second, 0.1).outcome == "supported"
    assert difference_at_least(first, {0: 0.5, 1: 2.0, 2: 1.0}, 0.1).outcome == "inconclusive"


def frame() -> pl.DataFrame:
    rows = []
    for x, s, t, i in product((1, 2), (0, 1), (0, 5), (0, 1)):
        place = {"layer": i, "other": i + 1, "adjacent": True, "measure": "m", "null": 0.5, "null_sd": 0.1}
        rows.append({"run": f"r{x}{s}", "seed": s, "step": t, "x": x, "value": x + s + t + i / 10, **place})
    far = {**rows[-1], "layer": 0, "other": 2, "adjacent": False, "value": 99.0}
    return pl.DataFrame([*rows, far, {**rows[0], "measure": "other"}])


def test_curves_average_layers_and_give_the_interval_over_seeds() -> None:
    data = Figure("f", "", "m", series="x").data(frame())
    assert data.select("x", "step", "value", "seeds").rows() == [
        pytest.approx((x, t, x + t + 0.55, 2)) for x in (1, 2) for t in (0, 5)
    ]
    for value, low, high in data.select("value", "low", "high").iter_rows():
        seeds = [value - 0.5, value + 0.5]
        expected = reference.t.interval(0.95, 1, loc=np.mean(seeds), scale=reference.sem(seeds))
        assert (low, high) == pytest.approx(expected)
    assert Figure("f", "", "m", series="x", where={"x": (2,)}).data(frame())["x"].unique().to_list() == [2]


def test_one_seed_has_no_interval() -> None:
    data = Figure("f", "", "m", series="x", where={"seed": 0}).data(frame())
    assert data.select("low", "high", "seeds").unique().rows() == [(None, None, 1)]


def test_the_band_of_chance_is_that_of_the_mean() -> None:
    data = Figure("f", "", "m", series="x").data(frame())
    assert data.select("null", "null_sd").unique().rows() == [(0.5, pytest.approx(0.1 / 4**0.5))]  # 2 pairs, 2 seeds
    random = np.random.default_rng(0).normal(0.5, 0.1, size=(20000, 2, 2)).mean((1, 2))
    assert data["null_sd"][0] == pytest.approx(random.std(), rel=0.03)
    one_unknown = frame().with_columns(
        null_sd=pl.when((pl.col("x") == 1) & (pl.col("layer") == 0)).then(None).otherwise(0.1)
    )
    found = Figure("f", "", "m", series="x").data(one_unknown)
    assert found.filter(pl.col("x") == 1)["null_sd"].to_list() == [None, None]
    assert found.filter(pl.col("x") == 2)["null_sd"].null_count() == 0


def test_panels_are_kept_apart() -> None:
    data = Figure("f", "", "m", series="x", panels="layer", where={"step": 5}).data(frame())
    assert data.select("layer", "x", "value").rows() == [(i, x, x + 5 + 0.5 + i / 10) for i in (0, 1) for x in (1, 2)]


def test_rows_of_runs_that_diverged_are_counted_and_not_drawn() -> None:
    diverged = (pl.col("x") == 2) & (pl.col("seed") == 1) & pl.col("adjacent")
    made = frame().with_columns(value=pl.when(diverged).then(float("inf")).otherwise("value"))
    spec = Figure("f", "", "m", series="x")
    assert spec.broken(made) == 4
    assert spec.broken(frame()) == 0
    assert spec.data(made).filter(pl.col("x") == 2)["seeds"].to_list() == [1, 1]


def test_a_trajectory_follows_two_coordinates_at_the_end() -> None:
    rows = [
        {"seed": s, "step": t, "x": x, "layer": i, "other": None, "adjacent": None, "measure": "path", "null": None,
         "null_sd": None, "subset": c, "value": 100.0 * s + 10 * t + i + float(c) / 10}
        for s in (0, 1) for t in (0, 5) for x in (1, 2) for i in (2, 0, 1) for c in "21"
    ]  # fmt: skip
    data = Figure("f", "", "path", kind="trajectories", x="layer", series="x").data(pl.DataFrame(rows))
    assert data.select("x", "layer", "first", "second").rows() == [
        (x, i, 50 + i + 0.1, 50 + i + 0.2) for x in (1, 2) for i in (0, 1, 2)
    ]


def test_heat_maps_show_every_pair_of_the_first_seed_at_the_end_and_bars_the_end() -> None:
    heat = Figure("f", "", "m", kind="heat", series="x").data(frame())
    assert heat.filter(pl.col("x") == 1).rows() == [(1, 0, 1, 6.0), (1, 1, 2, 6.1)]
    bars = Figure("f", "", "m", kind="bars", x="x", series="measure").data(frame())
    assert bars["value"].to_list() == pytest.approx([6.55, 7.55])
