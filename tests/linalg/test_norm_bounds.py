"""Upper bounds on spectral norms against LAPACK in float64: never below, and how far above."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drillcore.linalg import leading_triplets, sigma_above


def matrix(out: int, into: int, decay: float, seed: int) -> torch.Tensor:
    """A random matrix whose singular values fall as i^−decay."""
    g = torch.Generator().manual_seed(seed)
    W = torch.randn(out, into, generator=g, dtype=torch.float64)
    U, s, Vh = torch.linalg.svd(W, full_matrices=False)
    return (U * (s * torch.arange(1, len(s) + 1) ** -decay)) @ Vh


@given(st.integers(1, 60), st.integers(1, 60), st.floats(0, 2), st.integers(0, 99))
def test_the_whole_spectrum_gives_the_norm_itself(out: int, into: int, decay: float, seed: int) -> None:
    W = matrix(out, into, decay, seed)
    exact = float(torch.linalg.matrix_norm(W.float().double(), 2))
    above = sigma_above(leading_triplets(W.float(), 1, key="w"))
    assert exact <= above <= exact * (1 + 1e-3) + 1e-12


@pytest.mark.parametrize("decay", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("shape", [(1400, 640), (1024, 1024), (640, 1400)])
def test_steps_of_lanczos_bound_it_from_above(shape: tuple[int, int], decay: float) -> None:
    """Also a flat spectrum, where a Ritz value is a poor bound from below."""
    W = matrix(*shape, decay, 3)
    exact = float(torch.linalg.matrix_norm(W, 2))
    for k in (1, 8):
        found = leading_triplets(W.float(), k, key="w")
        assert found.method == "lanczos"
        above = sigma_above(found)
        assert exact <= above <= found.frobenius * (1 + 1e-5)
        assert above > found.s[0] * (1 + 1e-3)  # a Ritz value is taken for no bound
    assert sigma_above(found) < 1.6 * exact


def test_rank_one_and_nothing() -> None:
    """‖W‖_F is σ₁ for a rank of one; a zero matrix has a norm of zero."""
    u, v = torch.randn(900, generator=torch.Generator().manual_seed(0)), torch.ones(700)
    found = leading_triplets(torch.outer(u, v), 1, key="w")
    assert sigma_above(found) == pytest.approx(float(u.norm() * v.norm()), rel=1e-5)
    assert sigma_above(leading_triplets(torch.zeros(30, 20), 1, key="w")) == 0.0
