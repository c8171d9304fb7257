"""The verdict rules at their thresholds (shared notes §4.4)."""

import pytest

from drillcore.measures.stability_rules import (
    backward_class,
    carry_findings,
    continuity_forecast,
    forward_class,
)


@pytest.mark.parametrize(("q", "plateau", "p_s", "name"), [
    (0.0, 1.0, 0.0, "bounded"), (0.1, 1.04, 0.1, "bounded"), (0.05, 1.06, 0.0, "needs-decay"),
    (0.11, 1.0, 0.0, "needs-decay"), (1.5, 2.8, 0.0, "needs-decay"), (1.51, 2.9, 0.0, "threshold"),
    (2.3, 4.9, 0.0, "threshold"), (2.31, 5.0, 0.0, "ill-posed"), (0.0, 1.0, 0.2, "needs-decay"),
    (2.0, 4.0, 1.0, "ill-posed"), (1.0, 2.0, 1.0, "threshold"), (0.0, 1.0, 1.2, "ill-posed"),
    (3.0, 8.0, 1.0, "ill-posed"), (0.0, None, 0.0, "bounded"),
])  # fmt: skip
def test_forward(q: float, plateau: float | None, p_s: float, name: str) -> None:
    found = forward_class(q, plateau, p_s, resets=False)
    assert found.name == name
    assert found.reason
    assert found.remedy
    assert "stable" not in found.reason
    assert forward_class(q, plateau, p_s, resets=True).name == "state-reset"


@pytest.mark.parametrize(("j_all", "j_last", "name"), [
    (0.0, 0.0, "scale-free"), (-1.6, 0.1, "scale-free"), (0.0, 0.11, "grows"), (1.1, 1.0, "grows"),
    (2.0, 1.0, "explodes"), (0.0, 1.2, "explodes"),
])  # fmt: skip
def test_backward(j_all: float, j_last: float, name: str) -> None:
    assert backward_class(j_all, j_last).name == name


def test_the_skip_path() -> None:
    def names(*numbers: float) -> list[str]:
        return [f.name for f in carry_findings(*numbers, 48)]

    assert names(0.9, 0.9, 1.0) == []
    assert names(0.9, 0.9e-3, 1.0) == ["vanishing"]
    assert names(1e-4, 1.0, 1.0) == ["vanishing"]
    assert names(float("nan"), 1.0, 1.0) == []  # the stack overflows: nothing is known
    assert names(1.0, 1.0, 1.2**48) == ["carry-explodes"]  # 6.3e3; nanochat's 1.10^48 = 97 is not
    assert names(1.0, 1.0, 1.10**48) == []


def test_the_forecast_of_continuity() -> None:
    assert continuity_forecast(0.9, 0.1, 0.9, False).name == "forms and holds"
    assert continuity_forecast(0.9, 0.1, 0.05, False).name == "forms, then drifts"
    assert continuity_forecast(0.29, 0.1, 0.9, False).name == "does not form"
    assert continuity_forecast(0.35, 0.2, 0.9, False).name == "does not form"  # below twice its chance
    assert continuity_forecast(0.9, 0.1, None, True).name == "forms, holding unknown"
    assert "attention" in continuity_forecast(0.9, 0.1, None, True).reason
    assert continuity_forecast(None, None, None, False).name == "unknown"
