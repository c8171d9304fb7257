"""The page of a signal: what it says of a run, and every figure in a real browser."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from selenium.webdriver.common.by import By
from test_chromium import BROWSER, DRIVER, Driver, driver, opened, severe
from torch import Tensor, nn

from drillcore.pages.signal_page import render, signal_report
from drillcore.verbs.signal import Signal, signal

__all__ = ["driver"]  # the fixture
ROLES = """family = "plain"
prefixes = [""]
[[part]]
prefix = "layers.{layer}."
[part.matrix]
"up" = { kind = "up" }
"down" = { kind = "down" }
"""


class Block(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.up, self.down, self.scale = nn.Linear(6, 9), nn.Linear(9, 6), scale

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.down(torch.relu(self.up(x)))


class Plain(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(20, 6), nn.Linear(6, 20)
        self.layers = nn.ModuleList([Block(scale) for _ in range(3)])

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def run(folder: Path, scale: float, **options: Any) -> Signal:
    roles = folder / "plain.toml"
    roles.write_text(ROLES)
    ids = torch.randint(0, 20, (2, 8), generator=torch.Generator().manual_seed(0))
    return signal(Plain(scale), tokens=ids, roles=roles, **options)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Signal:
    return run(tmp_path_factory.mktemp("signal"), 1.0)


def test_the_findings_say_how_far_fp16_is_or_where_it_is_left(quiet: Signal, tmp_path: Path) -> None:
    peak = max(r.value or 0.0 for r in quiet.rows if r.measure in ("stream.max_abs", "branch.max_abs", "add.max_abs"))
    said = render(quiet)
    assert f"the largest number is {peak:.3g}" in said
    assert "over 3 residual adds" in said
    loud = render(run(tmp_path, 1e7, sensitivity=False))
    assert "Forward, fp16 is left first at the branch of the mlp half-step of layer 0 (site 0)" in loud
    assert "No branch and no add" not in loud


def test_what_has_no_number_is_listed_and_names_are_escaped(quiet: Signal) -> None:
    said = render(quiet)
    assert "not-bounded" in said
    named = replace(quiet, provenance={**quiet.provenance, "source": "<b>x</b>", "random_parameters": ["<i>w</i>"]})
    assert "<b>x</b>" not in render(named)
    assert "lacks 1 parameters" in render(named)
    assert "&lt;i&gt;w" in render(named)


@pytest.mark.skipif(not (BROWSER and DRIVER), reason="chromium and chromedriver are not both installed")
def test_every_figure_is_drawn_in_both_themes(driver: Driver, quiet: Signal, tmp_path: Path) -> None:
    opened(driver, signal_report(quiet, tmp_path / "report.html"))
    plots = driver.find_elements(By.CSS_SELECTOR, ".plot")
    drawn = driver.find_elements(By.CSS_SELECTOR, ".plot:has(.main-svg):has(.trace path)")
    assert len(plots) >= 12
    assert drawn == plots
    driver.find_element(By.ID, "theme").click()
    assert driver.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 28)"
    assert driver.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert driver.execute_script("return document.documentElement.dataset.failed") == "0"
    assert severe(driver) == []
