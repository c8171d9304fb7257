"""Plans against brute force over shapes, the shipped coefficients, and bad budgets."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import drillcore
from drillcore.cli.app import run
from drillcore.data.published import published
from drillcore.laws import solve
from drillcore.verbs.plan import Coefficients, PlanError

LAW = Coefficients(0.9, 1.2, 0.3, 250, 8, 600, 1.75)


def test_the_best_shape_is_that_of_a_search() -> None:
    n, m = 1e9, np.geomspace(100, 20_000, 200_001)
    losses = LAW.c_m / m**LAW.a + LAW.c_l / (n / (12 * m**2)) ** LAW.b
    assert LAW.width(n) == pytest.approx(float(m[losses.argmin()]), rel=1e-3)


def test_the_best_parameters_for_operations_are_those_of_a_search() -> None:
    flops, n = 1e21, np.geomspace(1e8, 1e11, 20_001)
    losses = [LAW.loss(m := LAW.width(float(x)), float(x) / (12 * m**2), flops / (6 * float(x))) for x in n]
    assert LAW.parameters(flops) == pytest.approx(float(n[int(np.argmin(losses))]), rel=2e-3)


def test_a_plan_for_parameters_and_one_for_its_operations_agree() -> None:
    by_params = drillcore.plan(params=1e9)
    by_flops = drillcore.plan(flops=by_params.flops.value)
    assert by_flops.parameters.value == pytest.approx(1e9, rel=1e-6)
    assert by_flops.tokens.value == pytest.approx(by_params.tokens.value, rel=1e-6)
    for value in by_params.numbers.values():
        assert value.low <= value.high
    low, high = by_params.as_good
    assert low < by_params.width.value / by_params.depth.value < high
    assert not by_params.warnings
    assert any("outside" in w for w in drillcore.plan(params=1e12).warnings)
    assert drillcore.plan(params=1e9, tokens=1e10).tokens.value == 1e10


def test_shipped_coefficients_are_those_of_the_fit() -> None:
    folder = os.environ.get("DRILLCORE_REFERENCE")
    if folder is None:
        pytest.skip("DRILLCORE_REFERENCE is not set")
    import runpy

    script = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "plan_coefficients.py"))
    found = solve(script["LAW"], script["points"](Path(folder)))
    assert published("width_depth_data")[0] == pytest.approx(found.values, rel=1e-3)


def test_the_command_and_ones_own_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--params", "1e9"]) == 0
    told = capsys.readouterr().out
    assert "loses less than 1 %" in told
    own = {"fits": [{"terms": ["w", "d", "t"], "law": "mine", "parameters": {
        "alpha_w": 0.9, "alpha_d": 1.2, "alpha_t": 0.3, "c_w": 250, "c_d": 8, "c_t": 600, "L0": 1.75}}]}  # fmt: skip
    (tmp_path / "fit.json").write_text(json.dumps(own))
    found = drillcore.plan(params=1e9, fit=tmp_path / "fit.json")
    assert found.width.value == pytest.approx(LAW.width(1e9))


BAD = [[], ["--params", "1e9", "--flops", "1e21"], ["--params", "-3"], ["--flops", "1e21", "--tokens", "1e9"],
       ["--params", "1e9", "--fit", "none"]]  # fmt: skip


@pytest.mark.parametrize("arguments", BAD)
def test_bad_budgets_are_told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *arguments]) == 2
    assert capsys.readouterr().err.startswith("error:")


def test_a_fit_of_another_law_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fit.json").write_text('{"fits": [{"terms": ["m"]}]}')
    with pytest.raises(PlanError, match="--law sum"):
        drillcore.plan(params=1e9, fit=tmp_path / "fit.json")
