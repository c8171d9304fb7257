"""Streamed sums of outer products against float64."""

import pytest
import torch

from drillcore.linalg.gram import GramSum, column_sums, row_norms


@pytest.mark.parametrize(("n", "m"), [(3, 7), (40, 7), (900, 1030)])
def test_a_sum_over_blocks_equals_the_whole_in_float64(n: int, m: int) -> None:
    rows = torch.randn(n, m, generator=torch.Generator().manual_seed(n))
    gram = GramSum(m)
    for block in rows.split(max(1, n // 3)):
        gram.add(block.contiguous())
    exact = rows.double().T @ rows.double()
    assert gram.trace() == pytest.approx(float(exact.trace()), rel=1e-6)
    assert gram.squared_norm() == pytest.approx(float(exact.square().sum()), rel=1e-6)
    assert gram.participation_ratio() == pytest.approx(float(exact.trace() ** 2 / exact.square().sum()), rel=1e-6)
    distance = float((exact - 2.5 * torch.eye(m)).square().sum())
    assert gram.squared_distance(2.5) == pytest.approx(distance, rel=1e-6)


def test_subtracting_the_mean_gives_the_centred_sum() -> None:
    rows = torch.randn(50, 6, generator=torch.Generator().manual_seed(0)) + 2
    gram = GramSum(6)
    gram.add(rows)
    gram.subtract_outer(rows.double().mean(0), 50)
    centred = rows.double() - rows.double().mean(0)
    assert gram.squared_norm() == pytest.approx(float((centred.T @ centred).square().sum()), rel=1e-5)


def test_norms_and_sums_are_those_of_float64() -> None:
    rows = torch.randn(1300, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(row_norms(rows), torch.linalg.vector_norm(rows.double(), dim=1))
    torch.testing.assert_close(column_sums(rows), rows.double().sum(0), rtol=1e-12, atol=1e-12)


def test_norms_neither_overflow_nor_vanish() -> None:
    rows = torch.tensor([[1e30, 0.0], [0.0, 1e-30]])
    assert row_norms(rows).tolist() == pytest.approx([1e30, 1e-30])


def test_the_zero_matrix_takes_part_in_no_dimension() -> None:
    assert GramSum(3).participation_ratio() == 0


@pytest.mark.parametrize("count", [1, 5, 30])
def test_the_leading_eigenvalues_are_those_of_the_whole(count: int) -> None:
    rows = torch.randn(60, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gram = GramSum(40)
    gram.add(rows)
    values, vectors = gram.leading(count)
    exact = torch.linalg.svd(rows, full_matrices=False)
    torch.testing.assert_close(values.flip(0), exact.S[:count] ** 2, rtol=1e-12, atol=0)
    cosines = (vectors.flip(1) * exact.Vh[:count].T).sum(0).abs()
    torch.testing.assert_close(cosines, torch.ones(count, dtype=torch.float64), rtol=1e-10, atol=0)
