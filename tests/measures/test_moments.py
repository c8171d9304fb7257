"""Moments summed up in pieces against plain formulas over all entries."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drillcore.measures.moments import Moments


def tokens(n: int, d: int, seed: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=random) * torch.linspace(0.1, 3, d) + torch.linspace(-1, 2, d)
    return x + torch.randn(n, 1, generator=random)


@given(n=st.integers(2, 40), d=st.integers(2, 30), seed=st.integers(0, 5), cut=st.integers(1, 39))
@settings(max_examples=40, deadline=None)
def test_sums_over_pieces_are_the_moments_of_the_whole(n: int, d: int, seed: int, cut: int) -> None:
    x = tokens(n, d, seed)
    found = Moments()
    for piece in (x[: min(cut, n - 1)], x[min(cut, n - 1) :]):
        found.add(piece)
    exact = x.double()
    assert found.mean_abs == pytest.approx(float(exact.abs().mean()))
    assert found.rms == pytest.approx(float(exact.square().mean().sqrt()))
    assert found.entry_variance == pytest.approx(float(exact.var(1, correction=0).mean()))
    assert found.data_variance == pytest.approx(float(exact.var(0, correction=0).mean()))
    assert found.largest == pytest.approx(float(exact.abs().max()))
    squares = exact.square().sum(0).sort(descending=True).values
    assert found.top_share(1) == pytest.approx(float(squares[0] / squares.sum()))
    assert found.top_share(d) == pytest.approx(1.0)


def test_variances_within_and_between_tokens_make_up_the_total() -> None:
    """mean_n Var_j + Var_n(mean_j) = mean_j Var_n + Var_j(mean_n) = total."""
    x = tokens(50, 7).double()
    found = Moments()
    found.add(x)
    total = float(x.var(correction=0))
    assert found.entry_variance + found.variance_of_means == pytest.approx(total)
    assert found.data_variance + float(x.mean(0).var(correction=0)) == pytest.approx(total)
    assert found.total_variance == pytest.approx(total)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_99th_percentile_is_right_to_half_a_percent(scale: float) -> None:
    x = torch.randn(400, 50, generator=torch.Generator().manual_seed(1)) * scale
    found = Moments()
    for piece in x.split(90):
        found.add(piece)
    assert found.p99 == pytest.approx(float(x.abs().flatten().quantile(0.99)), rel=5e-3)


def test_a_number_that_is_none_is_the_largest_of_all() -> None:
    found = Moments()
    found.add(torch.tensor([[1.0, float("nan")]]))
    found.add(torch.tensor([[5.0, 2.0]]))
    assert found.largest != found.largest
