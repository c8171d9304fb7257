"""The study hamiltonian: claims on rows made by hand, and real cells of designs whose answer is known."""

from typing import Any

import polars as pl
import pytest

from drillcore.studies.hamiltonian import DECAYS, NORMED, study
from drillcore.studies.hamiltonian_cell import rows_of
from drillcore.study import Run


def rows(measure: str, value: float, designs: tuple[str, ...], decays: tuple[float, ...] = (0.0,), **changed: Any) \
        -> pl.DataFrame:  # fmt: skip
    key = {"measure": measure, "gains": "fixed", **changed}
    return pl.DataFrame([{**key, "design": d, "decay": x, "seed": s, "value": value + s * 1e-4 * (measure[0] == "e")}
                         for d in designs for x in decays for s in range(5)])  # fmt: skip


def decided(name: str, *frames: pl.DataFrame) -> str:
    (claim,) = (c for c in study.claims if c.name == name)
    return claim.decide(pl.concat(frames)).outcome


FINITE, PRE = "hamiltonian.finite", ("pre-gelu", "pre-swiglu", "pre-attention")


def test_shares_are_judged_both_ways() -> None:
    assert decided("peri-finite", rows(FINITE, 1.0, NORMED)) == "supported"
    assert decided("peri-finite", rows(FINITE, 0.0, NORMED)) == "refuted"
    assert decided("pre-infinite", rows(FINITE, 0.0, PRE)) == "supported"
    assert decided("pre-infinite", rows(FINITE, 1.0, PRE)) == "refuted"
    assert decided("pre-infinite", rows(FINITE, 1.0, PRE, (3.0,))) == "not-run"
    assert decided("gains-are-controls", rows(FINITE, 0.0, NORMED)) == "not-run"
    assert decided("gains-are-controls", rows(FINITE, 0.0, NORMED, gains="trained")) == "supported"


def test_a_threshold_needs_both_sides() -> None:
    two = ("pre-gelu", "pre-attention")
    low, high = rows(FINITE, 0.0, two, (0.0, 0.1)), rows(FINITE, 1.0, two, (30.0,))
    assert decided("pre-threshold", low, high) == "supported"
    assert decided("pre-threshold", low) == "not-run"
    assert decided("pre-threshold", rows(FINITE, 1.0, two, (0.0, 0.1)), high) == "refuted"
    one = ("sub-ln-gelu",)
    assert decided("sub-ln-decay", rows(FINITE, 0.0, one), rows(FINITE, 1.0, one, DECAYS[1:])) == "supported"


def test_exponents_are_compared_by_seed() -> None:
    pre, peri = (rows("exponent.input", 0.0, (d,)) for d in ("pre-gelu", "peri-gelu"))
    assert decided("input-blind", pre, peri) == "supported"
    assert decided("input-blind", rows("exponent.input", 1.0, ("pre-gelu",)), peri) == "refuted"
    pre, peri = (rows("exponent.parameters", v, (d,)) for v, d in ((2.0, "pre-gelu"), (0.0, "peri-gelu")))
    assert decided("parameters-see", pre, peri) in ("supported", "inconclusive")


def seen(design: str, decay: float, gains: str = "fixed") -> dict[str, float | None]:
    run = Run("hamiltonian", {"design": design, "decay": decay, "gains": gains, "seed": 0, "width": 16})
    return {row.measure: row.value for row in rows_of(run)}


def test_real_cells_give_the_known_answers() -> None:
    peri = seen("peri-gelu", 0.0)
    assert peri[FINITE] == 1.0
    assert peri["hamiltonian.relative_error"] == pytest.approx(0.0, abs=5e-3)
    assert peri["exponent.parameters"] == pytest.approx(0.0, abs=0.05)
    pre = seen("pre-gelu", 0.0)
    assert pre[FINITE] == 0.0
    assert "hamiltonian.relative_error" not in pre
    assert pre["exponent.parameters"] == pytest.approx(2.0, abs=0.1)
    assert seen("pre-gelu", 300.0)[FINITE] == 1.0
    assert seen("peri-gelu", 0.0, "trained")[FINITE] == 0.0


def test_every_claim_is_decided_by_the_quick_preset() -> None:
    frames = [rows(m, 1.0, tuple(study.axis("design").values), DECAYS, gains=g)
              for m in (FINITE, "hamiltonian.relative_error", "exponent.input", "exponent.parameters")
              for g in ("fixed", "trained")]  # fmt: skip
    assert all(claim.decide(pl.concat(frames)).outcome != "not-run" for claim in study.claims)
