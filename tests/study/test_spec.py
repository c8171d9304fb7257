"""Axes, grids, runs and their grouping into tasks."""

from itertools import product
from pathlib import Path

import counting
import polars as pl
import pytest

from drillcore.study import Axis, Preset, Run, Study, StudyError
from drillcore.study.claims import Verdict, at_least, at_most, between, difference_at_least, share_at_least
from drillcore.study.spec import tasks

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


def test_a_grid_with_an_unknown_axis_is_refused() -> None:
    broken = Study("s", (Axis("x", (1,)),), counting.cell, {"quick": Preset(({"y": (1,)},))})
    with pytest.raises(StudyError, match="no axis 'y'"):
        broken.runs("quick")


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
        (share_at_least(1, 60, 0.9), "refuted"), (share_at_least(0, 0, 0.9), "not-run"),
    ],
)  # fmt: skip
def test_a_verdict_needs_the_whole_interval_on_one_side(verdict: Verdict, outcome: str) -> None:
    assert verdict.outcome == outcome


def test_pairing_by_seed_is_what_makes_a_small_difference_count() -> None:
    first, second = {0: 1.21, 1: 0.70, 2: 2.2}, {0: 1.0, 1: 0.5, 2: 2.0}
    assert difference_at_least(first, second, 0.1).outcome == "supported"
    assert difference_at_least(first, {0: 0.5, 1: 2.0, 2: 1.0}, 0.1).outcome == "inconclusive"


def frame() -> pl.DataFrame:
    rows = []
    for x, s, t, i in product((1, 2), (0, 1), (0, 5), (0, 1)):
        place = {"layer": i, "other": i + 1, "adjacent": True, "measure": "m", "null": 0.5}
        rows.append({"run": f"r{x}{s}", "seed": s, "step": t, "x": x, "value": x + s + t + i / 10, **place})
    far = {**rows[-1], "layer": 0, "other": 2, "adjacent": False, "value": 99.0}
    return pl.DataFrame([*rows, far, {**rows[0], "measure": "other"}])


def test_curves_average_layers_and_show_the_range_of_seeds() -> None:
    from drillcore.study import Figure

    data = Figure("f", "", "m", series="x").data(frame())
    assert data.select("x", "step", "value", "low", "high", "seeds").rows() == [
        pytest.approx((x, t, x + t + 0.55, x + t + 0.05, x + t + 1.05, 2)) for x in (1, 2) for t in (0, 5)
    ]
    assert Figure("f", "", "m", series="x", where={"x": (2,)}).data(frame())["x"].unique().to_list() == [2]


def test_heat_maps_show_every_pair_of_the_first_seed_at_the_end_and_bars_the_end() -> None:
    from drillcore.study import Figure

    heat = Figure("f", "", "m", kind="heat", series="x").data(frame())
    assert heat.filter(pl.col("x") == 1).rows() == [(1, 0, 1, 6.0), (1, 1, 2, 6.1)]
    bars = Figure("f", "", "m", kind="bars", x="x", series="measure").data(frame())
    assert bars["value"].to_list() == pytest.approx([6.55, 7.55])
