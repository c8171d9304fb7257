"""Nulls against simulation and closed forms."""

from math import pi, sqrt

import pytest
import torch

from drillcore.stats import abs_cos, abs_cos_p_value, abs_cos_quantile, gram_cosine, line_angle, subspace_overlap


def draws(d: int, n: int = 20000) -> torch.Tensor:
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(d), dtype=torch.float64)
    return (x[:, 0] / x.norm(dim=1)).abs()  # the angle to a fixed vector is that to a random one


@pytest.mark.parametrize("d", [2, 3, 16, 256])
def test_abs_cos_by_simulation(d: int) -> None:
    sample, null = draws(d), abs_cos(d)
    assert float(sample.mean()) == pytest.approx(null.mean, abs=4 * null.sd / sqrt(len(sample)))
    assert float(sample.std()) == pytest.approx(null.sd, rel=0.03)
    for q in (0.5, 0.95):
        assert float((sample <= abs_cos_quantile(d, q)).double().mean()) == pytest.approx(q, abs=0.015)
    assert abs_cos_p_value(d, abs_cos_quantile(d, 0.9)) == pytest.approx(0.1, abs=1e-9)


@pytest.mark.parametrize("d", [2, 3, 12])
def test_gram_cosine_by_simulation(d: int) -> None:
    g = torch.Generator().manual_seed(d)

    def traceless() -> torch.Tensor:
        W = torch.randn(8000, d, d + 3, generator=g, dtype=torch.float64)
        G = W @ W.mT
        return G - torch.eye(d, dtype=G.dtype) * G.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]

    A, B = traceless(), traceless()
    sample = (A * B).sum((1, 2)) / (A.norm(dim=(1, 2)) * B.norm(dim=(1, 2)))
    null = gram_cosine(d)
    assert float(sample.mean()) == pytest.approx(0, abs=4 * null.sd / sqrt(8000))
    assert float(sample.std()) == pytest.approx(null.sd, rel=0.04)
    with pytest.raises(ValueError, match="at least 2"):
        gram_cosine(1)


@pytest.mark.parametrize("d", [2, 3, 4, 7, 256, 257])
def test_line_angle_by_simulation(d: int) -> None:
    sample, null = draws(d).arccos(), line_angle(d)
    assert float(sample.mean()) == pytest.approx(null.mean, abs=4 * null.sd / sqrt(len(sample)))
    assert float(sample.std()) == pytest.approx(null.sd, rel=0.03)


def test_line_angle_in_few_dimensions() -> None:
    assert line_angle(1) == (0.0, 0.0)
    assert line_angle(2) == pytest.approx((pi / 4, pi / 2 / sqrt(12)))  # uniform
    assert line_angle(3) == pytest.approx((1.0, sqrt(pi - 3)))  # density sin


def test_closed_forms() -> None:
    assert abs_cos(1) == pytest.approx((1.0, 0.0))
    assert abs_cos(2).mean == pytest.approx(2 / pi)  # mean of |cos| over the circle
    assert abs_cos(3).mean == pytest.approx(0.5)  # |cos| is uniform on the sphere
    assert abs_cos(4096).mean == pytest.approx(sqrt(2 / (pi * 4096)), rel=1e-3)
    assert abs_cos_quantile(1, 0.5) == 1.0
    assert abs_cos_p_value(1, 0.3) == 1.0


@pytest.mark.parametrize(("d", "k"), [(6, 2), (20, 5), (40, 1)])
def test_subspace_overlap_by_simulation(d: int, k: int) -> None:
    g = torch.Generator().manual_seed(k)
    bases = torch.linalg.qr(torch.randn(4000, d, k, generator=g, dtype=torch.float64))[0]
    sample = bases[:, :k].square().sum((1, 2)) / k  # overlap with the first k coordinates
    null = subspace_overlap(d, k)
    assert float(sample.mean()) == pytest.approx(null.mean, abs=4 * null.sd / sqrt(4000))
    assert float(sample.std()) == pytest.approx(null.sd, rel=0.06)


def test_whole_space_and_bad_ranks() -> None:
    assert subspace_overlap(5, 5) == (1.0, 0.0)
    assert subspace_overlap(1, 1) == (1.0, 0.0)
    with pytest.raises(ValueError, match="rank 6"):
        subspace_overlap(5, 6)
    with pytest.raises(ValueError, match="dimension"):
        abs_cos(0)
