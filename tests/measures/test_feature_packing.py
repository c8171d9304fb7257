"""Geometry and theory of toy models against closed forms and brute force."""

from functools import partial

import pytest
import torch

from drillcore.data.features import frequencies
from drillcore.measures.feature_packing import (
    feature_dimensionality,
    feature_rows,
    loss_rows,
    regime,
    single_feature_loss,
    tail_loss,
    weak_distance,
)  # fmt: skip
from drillcore.table import Row


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def values(W: torch.Tensor) -> dict[tuple[str, str | None], float | None]:
    return {(row.measure.removeprefix("superposition."), row.subset): row.value for row in feature_rows(Row, W)}


def test_overlaps_of_subsets_are_those_of_brute_force() -> None:
    W = drawn(80, 6) * torch.linspace(0.1, 1.0, 80)[:, None]
    norms = W.norm(dim=1)
    found = values(W)
    for subset, kept in (("strong", norms > 1), ("others", norms <= 1), ("all", norms > 0)):
        units = W[kept].double() / norms[kept].double()[:, None]
        squares = (units @ units.T).square()[tuple(torch.triu_indices(len(units), len(units), 1))]
        assert found["n", subset] == len(units)
        assert found["mean_sq_overlap", subset] == pytest.approx(float(squares.mean()), rel=1e-5)
        random = 2 * 5 / (36 * 8)
        assert found["variance_ratio", subset] == pytest.approx(float(squares.var(correction=0)) / random, rel=1e-4)
    assert found["phi_half", "all"] == float((norms > 0.5).double().mean())
    assert found["phi_1", "all"] == float((norms > 1).double().mean())


def test_a_subset_without_a_pair_has_a_status() -> None:
    rows = [row for row in feature_rows(Row, 0.3 * drawn(12, 3).sign()) if row.subset == "strong"]
    assert [r.value for r in rows if r.measure == "superposition.n"] == [0]
    assert all(r.status == "not-applicable" and r.reason for r in rows if r.measure != "superposition.n")


def test_weak_distance_of_the_ideal_is_zero_and_of_any_other_that_of_the_whole_matrix() -> None:
    ideal = torch.zeros(30, 4)
    ideal[:4] = torch.linalg.qr(drawn(4, 4))[0]
    assert weak_distance(ideal) < 1e-6
    W = drawn(30, 4)
    corner = torch.zeros(30, 30, dtype=torch.float64)
    corner[:4, :4] = torch.eye(4)
    whole = torch.linalg.matrix_norm(W.double() @ W.double().T - corner, 2)
    assert weak_distance(W) == pytest.approx(float(whole), rel=1e-9)


@pytest.mark.parametrize(("k", "m"), [(5, 2), (3, 2), (2, 2)])
def test_dimensionality_of_a_polygon_is_shared_evenly(k: int, m: int) -> None:
    angles = 2 * torch.pi * torch.arange(k) / k if k > 2 else torch.tensor([0.0, torch.pi / 2])
    W = 1.3 * torch.stack([angles.cos(), angles.sin()], 1)
    assert feature_dimensionality(W).tolist() == pytest.approx([m / k] * k, rel=1e-5)
    assert feature_dimensionality(torch.cat([W, torch.zeros(1, 2)]))[-1] == 0


def test_tail_is_the_loss_of_a_model_that_keeps_the_first_features() -> None:
    p = frequencies("power", 50, alpha=1.25)
    assert tail_loss(p, 50) == 0
    assert tail_loss(p, 20) == pytest.approx(sum(4 / 3 * q - q * q for q in p[20:].tolist()))
    # levels of the note: 1.332 (flat) and 1.304 (α = 1) for the best bias alone at n = 1000
    assert tail_loss(frequencies("power", 1000, alpha=0.0), 0) == pytest.approx(1.332, abs=1e-3)
    assert tail_loss(frequencies("power", 1000, alpha=1.0), 0) == pytest.approx(1.304, abs=1e-3)


def test_loss_of_single_features_is_the_integral() -> None:
    W, b = 0.8 * drawn(9, 3), 0.4 * drawn(9, seed=1)
    W[4] = 0  # no slope at all, with either sign of the bias
    p = frequencies("power", 9)
    v = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 100_000
    total = 0.0
    for i in range(9):
        y = torch.relu(v[:, None] * (W.double() @ W[i].double()) + b.double())
        y[:, i] -= v
        total += float(p[i] * y.square().sum(1).mean())
    assert single_feature_loss(W, b, p) == pytest.approx(total, rel=1e-6)
    by_name = {row.measure: row.value for row in loss_rows(partial(Row), W, b, p)}
    assert by_name["loss.single_feature"] == pytest.approx(total, rel=1e-6)
    assert by_name["loss.zero"] == pytest.approx(4 / 3)


@pytest.mark.parametrize(("share", "label"), [(0.95, "strong"), (0.05, "mixed"), (0.019, "weak")])
def test_regimes(share: float, label: str) -> None:
    assert regime(share, 1000, 10) == label


def test_the_regime_of_a_matrix_is_a_row() -> None:
    W = torch.zeros(100, 4)
    W[:4] = torch.eye(4)
    assert [row.kind for row in feature_rows(Row, W) if row.measure == "superposition.regime"] == ["weak"]
    assert [row.kind for row in feature_rows(Row, W + 1) if row.measure == "superposition.regime"] == ["strong"]
