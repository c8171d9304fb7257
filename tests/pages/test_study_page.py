"""The page of a study: what it says, and every figure drawn in a real browser."""

from dataclasses import replace
from math import cos, sin
from pathlib import Path

import counting
import polars as pl
import pytest
from scipy import stats as reference
from test_chromium import BROWSER, DRIVER, Driver, driver, opened, severe  # noqa: F401 (the fixture)

from drillcore.pages.study_figures import drawings
from drillcore.pages.study_page import missing_runs, render, study_report
from drillcore.study import Coverage, Figure, Preset, Run, Study, verify


def results() -> pl.DataFrame:
    rows = []
    for x in (1, 2, 3):
        for seed in (0, 1):
            for step in (0, 10, 20):
                key = {"run": f"{x}-{seed}", "x": x, "seed": seed, "step": step, "null": 0.05, "null_sd": 0.01}
                rows.append({**key, "measure": "square", "value": x * x + step / 100 + seed / 10, "layer": 0})
                for i, j in ((0, 1), (1, 2), (0, 2)):
                    pair = {"layer": i, "other": j, "adjacent": j == i + 1}
                    rows.append({**key, "measure": "cosine", "value": 0.1 * x, **pair})
            for layer in range(6):
                for subset, value in (("1", cos(layer + x)), ("2", sin(layer + x))):
                    place = {"step": 20, "layer": layer, "subset": subset, "value": value}
                    rows.append({**key, **place, "measure": "path", "null": None, "null_sd": None})
    return pl.DataFrame(rows, infer_schema_length=None)


def study() -> Study:
    figures = (
        *counting.study.figures,
        Figure("pairs", "Pairs <of> layers", "cosine", kind="heat", series="x"),
        Figure("panels", "One picture for each seed", "square", series="x", panels="seed"),
        Figure("path", "Paths", "path", kind="trajectories", x="layer", series="x"),
        Figure("missing", "Never measured", "nothing", series="x"),
    )
    claims = tuple(
        replace(c, decide=lambda f: counting._claim(f.filter(f["measure"] == "square"))) for c in counting.study.claims
    )
    later = replace(claims[0], name="later", decide=lambda f: counting._claim(f.filter(f["x"] == 99)))
    return replace(counting.study, figures=figures, claims=(*claims, later))


def decided(made: Study, frame: pl.DataFrame):  # type: ignore[no-untyped-def]
    changed = frame.with_columns(step=pl.when(pl.col("step") == 20).then(1).otherwise(pl.col("step")))
    return verify(made, changed)


def test_verdicts_come_first_and_what_waits_is_told() -> None:
    page = render(study(), results(), decided(study(), results()))
    assert page.index("the square of three is at least eight") < page.index("<h2>Axes and runs")
    assert "1 claim waits for runs" in page
    assert ">supported<" in page
    assert "Pairs &lt;of&gt; layers" in page
    assert "Not drawn, since no row was found: Never measured (nothing)." in page
    assert "figure-missing" not in page


def test_what_is_missing_is_told_in_words_and_provenance_is_shown() -> None:
    missing = tuple(
        Run("counting", {"x": x, "seed": s, "size": n}) for x, n in ((1, 10), (2, 10), (3, 7)) for s in (0, 1)
    )
    assert list(missing_runs(counting.study, missing)) == [("the defaults", 2), ("x 2", 2), ("x 3, size 7", 2)]
    covered = (Coverage("quick", 4, missing[2:]), Coverage("paper", 6, ()))
    both = replace(study(), presets={"quick": Preset(({},), "Few"), "paper": Preset(({},), "All", "1 h")})
    page = render(both, results(), decided(study(), results()), covered, {"versions.torch": ["2.1", "2.2"]})
    assert "<b>quick</b>: Few: 4 of 8 runs are done.</p>" in page
    assert '<li>x 3, size 7 <span class="away">(2)</span></li>' in page
    assert "<b>paper</b>: All (1 h): 6 of 6 runs are done, all of it.</p>" in page
    assert "<b>quick</b>.</p>" in render(study(), results(), ())
    assert "<dt>versions.torch</dt><dd>2.1, 2.2</dd>" in page


def test_runs_that_diverged_are_told_and_do_not_break_the_page() -> None:
    broken = results().with_columns(value=pl.when(pl.col("x") == 3).then(float("nan")).otherwise("value"))
    page = render(study(), broken, ())
    assert "6 rows are not drawn: their value is not a finite number" in page


def drawing(kind: str, frame: pl.DataFrame | None = None, **more: object) -> dict:  # type: ignore[type-arg]
    spec = Figure("f", "t", "square", kind=kind, series="x", **more)  # type: ignore[arg-type]
    ((_, _, found),) = drawings(spec, results() if frame is None else frame)
    return found


def test_a_curve_is_shaded_between_its_limits_and_chance_is_a_band() -> None:
    band, chance, *lines = drawing("curves")["data"]
    half = 2 * 0.01 / 2**0.5  # two seeds
    assert chance["y"] == pytest.approx([0.05] * 3)
    assert band["y"] == pytest.approx([0.05 + half] * 3 + [0.05 - half] * 3, rel=1e-4)
    shade, line = lines[:2]
    low, high = reference.t.interval(0.95, 1, loc=1.05, scale=reference.sem([1.0, 1.1]))
    assert (shade["y"][0], shade["y"][-1]) == pytest.approx((high, low), rel=1e-4)
    assert line["y"] == pytest.approx([1.05, 1.15, 1.25])
    assert "95 % interval over 2 seeds" in line["text"][0]


def test_where_there_is_one_seed_only_nothing_is_shaded() -> None:
    only = results().filter((pl.col("seed") == 0) | (pl.col("step") == 0))
    shades = [t for t in drawing("curves", only)["data"] if t.get("fill") and t.get("name") is None]
    assert [t["x"] for t in shades] == [[0, 0]] * 3
    assert "one seed" in drawing("curves", only)["data"][3]["text"][2]


def test_points_carry_their_intervals_side_by_side() -> None:
    drawn = drawing("bars", x="layer")
    first = drawn["data"][0]
    half = reference.t.ppf(0.975, 1) * reference.sem([1.2, 1.3])
    assert (first["y"], first["error_y"]["array"]) == (pytest.approx([1.25]), pytest.approx([half], rel=1e-4))
    assert drawn["layout"]["scattermode"] == "group"
    assert [shape["type"] for shape in drawn["layout"]["shapes"]] == ["rect", "line"]


def test_panels_and_maps_share_their_scales_and_a_line_its_colour() -> None:
    frame = results().filter((pl.col("seed") == 1) | (pl.col("x") > 1))
    panels = [d for _, _, d in drawings(Figure("f", "t", "square", series="x", panels="seed"), frame)]
    assert panels[0]["layout"]["yaxis"]["range"] == panels[1]["layout"]["yaxis"]["range"]
    colours = [{t["name"]: t["line"]["color"] for t in d["data"] if t.get("text")} for d in panels]
    assert sorted(map(sorted, colours)) == [["1", "2", "3"], ["2", "3"]]
    assert all(colours[0][name] == colours[1][name] for name in ("2", "3"))
    signed = results().with_columns(value=pl.when(pl.col("x") == 2).then(-pl.col("value")).otherwise("value"))
    maps = [d["data"][0] for _, _, d in drawings(Figure("f", "t", "cosine", kind="heat", series="x"), signed)]
    assert {(m["zmin"], m["zmax"]) for m in maps} == {(-1.0, 1.0)}


@pytest.mark.skipif(not (BROWSER and DRIVER), reason="chromium and chromedriver are not both installed")
def test_every_figure_is_drawn(driver: Driver, tmp_path: Path) -> None:  # noqa: F811
    made = study()
    opened(driver, study_report(made, results(), decided(made, results()), tmp_path / "report.html"))
    plots = driver.find_elements("css selector", ".plot")
    drawn = driver.find_elements("css selector", ".plot:has(.main-svg):has(.trace path.point, .heatmaplayer image)")
    assert len(plots) == 8
    assert drawn == plots
    assert driver.execute_script("return document.documentElement.dataset.failed") == "0"
    assert severe(driver) == []
