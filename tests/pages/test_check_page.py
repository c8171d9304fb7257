"""The page of a check: what it says, and every figure in a real browser, light and dark."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from test_chromium import BROWSER, DRIVER, Driver, click, driver, opened, settled, severe

from drillcore.pages.check_page import check_report, render
from drillcore.verbs.check import Check, check

__all__ = ["driver"]  # the fixture


@pytest.fixture(scope="module")
def bounded() -> Check:
    return check("peri-gelu", width=16, half_steps=12)


def data_of(page: str) -> dict[str, object]:
    (text,) = re.findall(r'id="data">(.*?)</script>', page, flags=re.DOTALL)
    found: dict[str, object] = json.loads(text)
    return found


def test_it_says_class_reason_remedy_and_what_is_derived(bounded: Check) -> None:
    page = render(bounded)
    for words in ("bounded", "scale-free", bounded.forward.remedy, "gains are controls", "derived (drillcore)",
                  "Gemma 3", "Δt Σ rms(γ)"):  # fmt: skip
        assert words in page
    assert "http://" not in page.replace("http://www.w3.org", "").split("<script>")[0]


def test_its_figures_hold_the_rows(bounded: Check) -> None:
    figures = data_of(render(bounded))["figures"]
    assert set(figures) == {"size", "sensitivity", "roll_out", "retention", "gradient", "bounds"}
    drawn = figures["roll_out"]["data"][0]["y"]
    rows = bounded.rows.where(measure="roll_out.entry_variance", subset="as given")
    assert drawn == pytest.approx([r.value for r in rows], rel=1e-4)
    assert max(y for trace in figures["bounds"]["data"] for y in trace["y"]) <= 1


def test_a_name_of_the_users_is_escaped_and_what_has_no_number_is_listed(bounded: Check) -> None:
    page = render(replace(check("post-gelu", width=16, half_steps=8), target="<b>x</b>.py:make"))
    assert "<b>x</b>" not in page
    assert "the norm acts on the state" in page
    assert "bounds" not in data_of(page)["figures"]


@pytest.mark.skipif(not (BROWSER and DRIVER), reason="chromium and chromedriver are not both installed")
def test_every_figure_is_drawn_light_and_dark(driver: Driver, bounded: Check, tmp_path: Path) -> None:
    opened(driver, check_report(bounded, tmp_path / "check.html"))
    for _ in range(2):
        plots = driver.find_elements("css selector", ".plot")
        assert len(plots) == 6
        assert driver.find_elements("css selector", ".plot:has(.main-svg):has(.trace path)") == plots
        assert driver.execute_script("return document.documentElement.dataset.failed") == "0"
        click(driver, "#theme")
        settled(driver)
    assert severe(driver) == []
