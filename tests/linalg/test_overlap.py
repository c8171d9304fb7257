"""Overlaps, principal angles and norm bounds against closed forms and LAPACK."""

from math import pi

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drillcore.linalg import (
    NonFiniteError,
    Product,
    abs_cosines,
    principal_angles,
    spectral_norm_bound,
    subspace_overlap,
    subspace_overlaps,
)


def basis(d: int, k: int, seed: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(d, k, generator=g, dtype=torch.float64))[0]


@pytest.mark.parametrize("angle", [0.0, 1e-9, 1e-4, 0.3, pi / 2 - 1e-6, pi / 2])
def test_principal_angle_of_planted_planes(angle: float) -> None:
    e = torch.eye(6, dtype=torch.float64)
    turned = torch.stack([e[0], torch.cos(torch.tensor(angle)) * e[1] + torch.sin(torch.tensor(angle)) * e[2]], dim=1)
    angles = principal_angles(e[:, :2], turned)
    # torch.cos of a float32 scalar carries the error here, not the function
    assert angles[0] == pytest.approx(0.0, abs=1e-7)
    assert angles[1] == pytest.approx(angle, abs=1e-6)


@given(st.integers(2, 12), st.integers(0, 5))
def test_overlap_is_the_mean_squared_cosine_of_the_angles(k: int, seed: int) -> None:
    A, B = basis(30, k, seed), basis(30, k, seed + 100)
    angles = principal_angles(A, B)
    assert subspace_overlap(A, B) == pytest.approx(float(angles.cos().square().mean()), abs=1e-10)
    turn = torch.linalg.qr(torch.randn(k, k, dtype=torch.float64))[0]
    assert subspace_overlap(A @ turn, B) == pytest.approx(subspace_overlap(A, B), abs=1e-12)


def test_tables_equal_the_pairs() -> None:
    bases = [basis(40, 3, i) for i in range(4)]
    table = subspace_overlaps(bases)
    for i in range(4):
        for j in range(4):
            assert float(table[i, j]) == pytest.approx(subspace_overlap(bases[i], bases[j]), abs=1e-12)
    X = torch.cat([b[:, :1] for b in bases], dim=1) * torch.tensor([1.0, -2.0, 3.0, 0.5])
    table = abs_cosines(X)
    assert float(table[0, 1]) == pytest.approx(abs(float(bases[0][:, 0] @ bases[1][:, 0])), abs=1e-12)
    assert torch.allclose(table.diagonal(), torch.ones(4, dtype=torch.float64))


def test_bases_of_different_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="one shape"):
        subspace_overlap(basis(5, 2, 0), basis(5, 3, 0))


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 9))
def test_norm_bound_is_an_upper_bound(out: int, into: int, seed: int) -> None:
    W = torch.randn(out, into, generator=torch.Generator().manual_seed(seed))
    sigma = float(torch.linalg.svdvals(W.double())[0])
    bound = spectral_norm_bound(W)
    assert sigma <= bound * (1 + 1e-12)
    assert bound <= float(W.double().norm()) * (1 + 1e-12)


def test_norm_bound_is_sharp_where_it_should_be() -> None:
    assert spectral_norm_bound(torch.eye(50)) == pytest.approx(1.0)  # √(‖W‖₁‖W‖_∞); ‖W‖_F would be 7
    outer = torch.outer(torch.randn(30), torch.randn(20))
    assert spectral_norm_bound(outer) == pytest.approx(float(outer.norm()), rel=1e-6)
    product = Product(torch.eye(5)[:, :2] * 3, torch.eye(6)[:2])
    assert spectral_norm_bound(product) == pytest.approx(3.0)


def test_norm_bound_refuses_nan() -> None:
    with pytest.raises(NonFiniteError):
        spectral_norm_bound(torch.tensor([[1.0, float("nan")]]))
