"""The page of a study: what it says, and every figure drawn in a real browser."""

from pathlib import Path

import counting
import polars as pl
import pytest
from test_chromium import BROWSER, DRIVER, Driver, driver, opened, severe  # noqa: F401 (the fixture)

from drillcore.pages.study_page import render, study_report
from drillcore.study import Figure, Study, verify


def results() -> pl.DataFrame:
    rows = []
    for x in (1, 2, 3):
        for seed in (0, 1):
            for step in (0, 10, 20):
                key = {"run": f"{x}-{seed}", "x": x, "seed": seed, "step": step, "null": 0.05}
                rows.append({**key, "measure": "square", "value": x * x + step / 100 + seed / 10, "layer": 0})
                for i, j in ((0, 1), (1, 2), (0, 2)):
                    pair = {"layer": i, "other": j, "adjacent": j == i + 1}
                    rows.append({**key, "measure": "cosine", "value": 0.1 * x, **pair})
    return pl.DataFrame(rows, infer_schema_length=None)


def study() -> Study:
    from dataclasses import replace

    figures = (
        *counting.study.figures,
        Figure("pairs", "Pairs <of> layers", "cosine", kind="heat", series="x"),
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
    assert page.index("the square of three is at least eight") < page.index("Axes and presets")
    assert "1 claims wait for runs" in page
    assert ">supported<" in page
    assert "Pairs &lt;of&gt; layers" in page
    assert "Never measured" not in page


@pytest.mark.skipif(not (BROWSER and DRIVER), reason="chromium and chromedriver are not both installed")
def test_every_figure_is_drawn(driver: Driver, tmp_path: Path) -> None:  # noqa: F811
    made = study()
    opened(driver, study_report(made, results(), decided(made, results()), tmp_path / "report.html"))
    plots = driver.find_elements("css selector", ".plot")
    drawn = driver.find_elements("css selector", ".plot:has(.main-svg):has(.trace path, .heatmaplayer image)")
    assert len(plots) == 5
    assert drawn == plots
    assert driver.execute_script("return document.documentElement.dataset.failed") == "0"
    assert severe(driver) == []
