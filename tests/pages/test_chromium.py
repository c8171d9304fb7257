"""The page in a real browser: every figure drawn, nothing on the console, nothing fetched."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait
from surveys import NASTY, made_survey, packing_rows, rich_survey

from drillcore.pages.page import render, report
from drillcore.verbs.survey import Survey

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason="chromium and chromedriver are not both installed")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1280,1800",
)  # fmt: skip
Driver = webdriver.Chrome


@pytest.fixture(scope="module")
def survey() -> Survey:
    return rich_survey(("q", "gate", "down"))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    yield started
    started.quit()


@pytest.fixture(scope="module")
def page(driver: Driver, survey: Survey, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    opened(driver, report(survey, tmp_path_factory.mktemp("page") / "report.html"))
    return driver


def opened(driver: Driver, path: Path) -> None:
    driver.get(path.as_uri())
    settled(driver)


def settled(driver: Driver) -> None:
    WebDriverWait(driver, 60).until(lambda d: d.execute_script("return document.documentElement.dataset.drawn"))


def click(driver: Driver, selector: str) -> None:
    node = driver.find_element(By.CSS_SELECTOR, selector)
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", node)
    node.click()


def severe(driver: Driver) -> list[str]:
    logs: list[dict[str, str]] = driver.get_log("browser")  # type: ignore[no-untyped-call]
    return [entry["message"] for entry in logs if entry["level"] == "SEVERE"]


def test_every_figure_is_drawn_in_silence_and_nothing_is_fetched(page: Driver) -> None:
    plots = page.find_elements(By.CSS_SELECTOR, ".plot")
    drawn = page.find_elements(By.CSS_SELECTOR, ".plot:has(.main-svg):has(.trace path, .heatmaplayer image)")
    assert len(plots) > 20
    assert drawn == plots
    assert page.execute_script("return document.documentElement.dataset.failed") == "0"
    assert page.execute_script("return performance.getEntriesByType('resource').map(e => e.name)") == []
    assert severe(page) == []


def test_the_selectors_switch_the_heat_map(page: Driver, survey: Survey) -> None:
    for kind, measure in (("down", "continuity.u1"), ("q", "continuity.gram_v")):
        Select(page.find_element(By.ID, "heat-kind")).select_by_value(kind)
        Select(page.find_element(By.ID, "heat-measure")).select_by_value(measure)
        rows = survey.rows.where(stack="", kind=kind, measure=measure)
        z = page.execute_script("return document.getElementById('heat').data[0].z")
        assert [z[i][i] for i in range(8)] == [None] * 8
        for row in rows:
            assert z[row.layer][row.other] == z[row.other][row.layer] == pytest.approx(row.value, abs=5.1e-5)
    assert severe(page) == []


def test_a_kind_without_the_measure_says_so(page: Driver) -> None:
    Select(page.find_element(By.ID, "heat-kind")).select_by_value("gate")
    assert "7 of them without a number" in page.find_element(By.ID, "heat-note").text


def test_the_view_of_continuity_changes(page: Driver, survey: Survey) -> None:
    click(page, "#view input[value=subspace]")
    drawn = page.execute_script(
        "return document.querySelector(\"[data-figure='continuity/subspace/q']\").data.at(-1).y"
    )
    assert (
        "7 of 7 pairs" in page.find_element(By.CSS_SELECTOR, "figure:has([data-figure='continuity/subspace/q'])").text
    )
    rows = survey.rows.where(stack="", kind="q", measure="continuity.v_subspace", adjacent=True)
    assert drawn == pytest.approx([r.value for r in rows], abs=5.1e-5)


def test_dark_turns_the_page_and_its_figures(page: Driver) -> None:
    def colours() -> list[str]:
        settled(page)
        found: list[str] = page.execute_script(
            "return [getComputedStyle(document.body).backgroundColor, heat.layout.font.color]"
        )
        return found

    light = colours()
    click(page, "#theme")
    assert colours() == ["rgb(21, 24, 28)", "#e4e7ea"]
    assert severe(page) == []
    click(page, "#theme")
    assert colours() == light


def test_the_census_is_searched_filtered_and_turned(page: Driver) -> None:
    def names() -> list[str]:
        return [cell.text for cell in page.find_elements(By.CSS_SELECTOR, "#census-table td:first-child")]

    assert names()[0] == NASTY
    assert len(names()) == 50
    click(page, "#census-next")
    assert names()[0] == "layers.48.q_proj.weight"
    page.find_element(By.ID, "census-search").send_keys("layers.7 q_proj")
    assert names() == ["layers.7.q_proj.weight", *(f"layers.{i}.q_proj.weight" for i in range(70, 80))]
    click(page, "#census-states input[value=used]")
    assert names() == []
    assert page.find_element(By.ID, "census-count").text == "0 of 122 lines"


def test_a_figure_that_fails_says_so_on_the_page_and_on_the_console(driver: Driver, tmp_path: Path) -> None:
    path = tmp_path / "broken.html"
    path.write_text(
        render(made_survey(list(packing_rows("embed")))).replace('"layout":', '"lost":', 1), encoding="utf-8"
    )
    opened(driver, path)
    assert driver.execute_script("return document.documentElement.dataset.failed") == "1"
    assert "could not be drawn" in driver.find_element(By.CSS_SELECTOR, ".plot .failed").text
    assert any("drillcore: figure" in message for message in severe(driver))
