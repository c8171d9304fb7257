"""Rows of gains and growth against planted profiles, and what the files say of biases and norms."""

from dataclasses import replace
from math import log, sqrt

import pytest
import torch
from tests.weights.tiny import CASES, StateSource
from torch import Tensor

from drillcore.measures.stability import growth_row, read_certificates, stability_rows
from drillcore.measures.stability.rows import gain_rows
from drillcore.table import Row
from drillcore.weights import assign
from drillcore.weights.placement import placements

LAYERS = 8


def gemma(gains: list[float], *, step: float = 1.0) -> tuple[dict[str, Tensor], dict[str, object]]:
    """Output norms of attention with these gains, of the MLP with twice as much, stored zero-centred."""
    model = CASES["gemma3_text"].build()
    state, config = dict(model.state_dict()), model.config.to_dict()
    inner = {name: t for name, t in state.items() if "layers.0." in name}
    state = {name: t for name, t in state.items() if "layers." not in name}
    for layer, gain in enumerate(gains):
        state |= {name.replace("layers.0.", f"layers.{layer}."): t for name, t in inner.items()}
        for name, factor in (("post_attention_layernorm", 1.0), ("post_feedforward_layernorm", 2.0)):
            state[f"model.layers.{layer}.{name}.weight"] = torch.full((32,), factor * gain - 1.0)
    return state, {**config, "num_hidden_layers": len(gains)}


def rows(state: dict[str, Tensor], config: dict[str, object]) -> list[Row]:
    source = StateSource(state, config)
    assignment = assign(source)
    placed = placements(source, assignment)
    return list(stability_rows(source, assignment, placed, read_certificates(source, assignment, placed)))


def values(found: list[Row], measure: str, **wanted: object) -> list[float | None]:
    return [r.value for r in found
            if r.measure == f"stability.{measure}" and all(getattr(r, k) == v for k, v in wanted.items())]  # fmt: skip


def test_gains_act_as_one_plus_what_is_stored_and_add_up_to_the_budget() -> None:
    gains = [0.5 + 0.25 * layer for layer in range(LAYERS)]
    found = rows(*gemma(gains))
    assert values(found, "gain_rms", kind="attention", subset="out") == pytest.approx(gains)
    assert values(found, "gain_max", kind="mlp", subset="out") == pytest.approx([2 * g for g in gains])
    sums = [sum(3 * g for g in gains[: layer + 1]) for layer in range(LAYERS)]
    assert values(found, "gain_budget") == pytest.approx(sums)


def test_a_residual_step_counts_in_the_budget() -> None:
    source = StateSource(*gemma([1.0, 2.0]))
    assignment = assign(source)
    placed = replace(placements(source, assignment)[""], residual_step=0.5)
    assert values(list(gain_rows(source, assignment, placed)), "gain_budget") == pytest.approx([1.5, 4.5])


def test_gains_of_outliers_differ_in_rms_and_max() -> None:
    state, config = gemma([1.0] * 2)
    state["model.layers.0.input_layernorm.weight"] = torch.tensor([7.0] + [-1.0] * 31)
    (rms, _), (largest, _) = (
        values(rows(state, config), f"gain_{name}", kind="attention", subset="in") for name in ("rms", "max")
    )
    assert rms == pytest.approx(sqrt(64 / 32))
    assert largest == 8.0


@pytest.mark.parametrize(
    ("profile", "unit", "value"),
    [
        ([1.2**i for i in range(LAYERS)], "rate per layer", log(1.2)),
        ([(i + 1e-9) ** 0.5 for i in range(1, 25)], "exponent", 0.5),
        ([3.0] * LAYERS, "flat", 0.0),
    ],
)
def test_growth_is_told_apart(profile: list[float], unit: str, value: float) -> None:
    row = growth_row("", "o", profile)
    assert (row.unit, row.status) == (unit, "ok")
    assert row.value == pytest.approx(value, abs=0.06)
    assert row.n == len(profile)


def test_growth_that_cannot_be_fitted_says_why() -> None:
    assert growth_row("", "o", [1.0, 2.0, 3.0]).reason == "fewer than four layers"
    assert growth_row("", "o", [1.0, 0.0, 3.0, 4.0]).reason == "a size is zero"
    assert growth_row("", "o", [1.0, 0.0, 3.0, 4.0]).value is None


def test_the_growth_of_gains_is_of_each_norm() -> None:
    found = rows(*gemma([1.3**layer for layer in range(LAYERS)]))
    for kind in ("attention", "mlp"):
        (row,) = [r for r in found if r.measure == "stability.growth" and (r.kind, r.subset) == (kind, "gain out")]
        assert (row.unit, row.value) == ("rate per layer", pytest.approx(log(1.3), rel=1e-5))


def test_a_norm_that_feeds_two_branches_has_one_row() -> None:
    model = CASES["gptj"].build()
    found = rows(dict(model.state_dict()), model.config.to_dict())
    assert {r.kind for r in found if r.measure == "stability.gain_rms"} == {"attention+mlp"}


def test_every_place_has_a_row_and_what_is_open_a_reason() -> None:
    model = CASES["electra"].build()
    found = rows(dict(model.state_dict()), model.config.to_dict())
    stated = [r for r in found if r.measure == "stability.bound" and r.subset == "stream"]
    assert [(r.layer, r.kind, r.site, r.status) for r in stated] == [
        (0, "attention", 1, "not-bounded"), (0, "mlp", 2, "ok"), (1, "attention", 3, "ok"), (1, "mlp", 4, "ok")
    ]  # fmt: skip
    assert "projection" in (stated[0].reason or "")
    model = CASES["cohere"].build()
    (row,) = [r for r in rows(dict(model.state_dict()), model.config.to_dict()) if r.measure == "stability.bound"]
    assert row.status == "not-bounded"
    assert "what to do: `drillcore signal`" in (row.reason or "")
