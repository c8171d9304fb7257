"""Coherence of gradients and weights against torch's SVD, and planted layers."""

import itertools
from math import asin, cos, degrees, radians, sin, sqrt
from statistics import fmean, stdev

import pytest
import torch
from torch import Tensor

from drillcore.measures import coherence
from drillcore.measures.replicas import read_replicas
from drillcore.stats import abs_cos, line_angle
from drillcore.table import Row


def random_layers(replicas: int, depth: int, out: int, into: int, seed: int = 0) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(replicas, out, into, generator=random) for _ in range(depth)]


def leading(W: Tensor) -> tuple[Tensor, Tensor]:
    U, _, Vh = torch.linalg.svd(W.double())
    return U[:, 0], Vh[0]


def values(rows: object) -> list[float]:
    return [row.value for row in rows if isinstance(row, Row) and row.value is not None]  # type: ignore[attr-defined]


def test_replicas_are_read_as_their_own_layers_would_be() -> None:
    layers = random_layers(3, 4, 30, 20)
    for r, reading in enumerate(read_replicas(layers, "mlp")):
        for W, layer in zip(layers, reading.layers, strict=True):
            s = torch.linalg.svdvals(W[r].double())
            assert layer.triplets.spectrum is not None
            torch.testing.assert_close(layer.triplets.spectrum, s, rtol=1e-6, atol=1e-6)
        found = values(coherence.gradient_cosines(reading, "coherence.step_v1"))
        expected = [abs(float(leading(a[r])[1] @ leading(b[r])[1])) for a, b in itertools.pairwise(layers)]
        assert found == pytest.approx(expected, abs=1e-5)
        left = values(coherence.gradient_cosines(reading, "coherence.step_u1", every=True))
        assert len(left) == 6
        assert left[2] == pytest.approx(abs(float(leading(layers[0][r])[0] @ leading(layers[3][r])[0])), abs=1e-5)


def test_exact_sums_of_adjacent_layers_are_kept() -> None:
    (reading,) = read_replicas(random_layers(1, 3, 12, 12), "mlp")
    assert [layer.next is not None for layer in reading.layers] == [True, True, False]


def test_the_gap_is_the_difference_of_the_means() -> None:
    (weights,), (gradients,) = (
        read_replicas(random_layers(1, 4, 9, 9), "W"),
        read_replicas(random_layers(1, 4, 9, 9, 1), "G"),
    )
    (row,) = coherence.gradient_weight_gap(gradients, weights, "coherence.gradient_weight_gap")
    means = [sum(values(coherence.gradient_cosines(r, "v1"))) / 3 for r in (gradients, weights)]
    assert row.value == pytest.approx(means[0] - means[1])


def test_the_null_of_the_gap_by_simulation() -> None:
    gaps = []
    for seed in range(200):
        (weights,), (gradients,) = (
            read_replicas(random_layers(1, 3, 6, 6, 2 * seed + i), name) for i, name in enumerate("WG")
        )
        (row,) = coherence.gradient_weight_gap(gradients, weights, "gap")
        gaps.append(row.value)
    assert stdev(gaps) == pytest.approx(row.null_sd, rel=0.15)  # type: ignore[type-var]
    assert abs(fmean(gaps)) < 4 * row.null_sd / sqrt(200)  # type: ignore[type-var,operator]


def test_weights_and_gradients_start_from_different_vectors() -> None:
    W = random_layers(1, 1, 600, 600)
    starts = [read_replicas(W, "mlp", key=key, rank=1, spectrum=False)[0].layers[0] for key in ("weights", "sums")]
    assert not torch.equal(starts[0].triplets.v, starts[1].triplets.v)  # one matrix: they differ by rounding alone
    assert float((starts[0].triplets.v[:, 0] @ starts[1].triplets.v[:, 0]).abs()) > 0.99


def test_a_sum_of_no_gradients_has_no_direction_and_gives_no_gap() -> None:
    (weights,), (zero,) = read_replicas(random_layers(1, 3, 9, 9), "W"), read_replicas([torch.zeros(1, 9, 9)] * 3, "G")
    assert not list(coherence.gradient_weight_gap(zero, weights, "gap"))
    assert not list(coherence.turned_to_gradient(zero, weights, "turned"))


def spiked(v: Tensor, seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    u = torch.randn(20, 1, generator=random)
    return 10 * u / u.norm() * v + 0.01 * torch.randn(20, len(v), generator=random)


def test_a_planted_turn_is_measured_in_degrees_and_as_a_cosine() -> None:
    e = torch.eye(16)
    turned = cos(radians(25)) * e[0] + sin(radians(25)) * e[1]
    (weights,) = read_replicas([spiked(-turned, 0)[None], spiked(e[2], 1)[None]], "W")
    (gradients,) = read_replicas([spiked(e[0], 2)[None], spiked(e[3], 3)[None]], "G")
    reference, doubts = torch.stack([e[0], e[2]]), torch.tensor([0.0, sin(radians(10))], dtype=torch.float64)
    rows = list(coherence.rotation(weights, reference, doubts, "coherence.rotation"))
    assert values(rows) == pytest.approx([25, 0], abs=0.5)
    own = [degrees(asin(float(layer.triplets.bound[0]))) for layer in weights.layers]
    assert [row.bound for row in rows] == pytest.approx([own[0], own[1] + 10])
    assert rows[0].null == pytest.approx(degrees(line_angle(16).mean))
    cosines = list(coherence.turned_to_gradient(gradients, weights, "coherence.weight_to_gradient"))
    assert values(cosines) == pytest.approx([cos(radians(25)), 0], abs=0.01)
    assert cosines[0].null == abs_cos(16).mean
    doubt = sum(asin(float(r.layers[0].triplets.bound[0])) for r in (weights, gradients))
    assert cosines[0].bound == pytest.approx(sin(doubt))
    assert degrees(radians(25)) == pytest.approx(25)


def test_the_update_ratio_is_a_ratio_of_frobenius_norms() -> None:
    first = random_layers(1, 2, 5, 5)
    now = [W * 1.5 for W in first]
    assert values(coherence.update_ratio(now, first, "mlp", "m")) == pytest.approx([0.5, 0.5])
    (row,) = coherence.update_ratio(now[:1], [torch.zeros(1, 5, 5)], "mlp", "m")
    assert (row.value, row.status) == (None, "zero-matrix")
