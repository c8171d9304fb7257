"""Nulls of squared cosines and the Welch bound against simulation and closed forms."""

import numpy as np
import pytest

from drillcore import stats


@pytest.mark.parametrize("d", [1, 2, 3, 30])
def test_squared_cosines_have_the_moments_of_the_beta_law(d: int) -> None:
    from scipy.stats import beta

    null = stats.squared_cos(d)
    if d == 1:
        assert null == (1.0, 0.0)
        return
    law = beta(0.5, (d - 1) / 2)
    assert null.mean == pytest.approx(law.mean())
    assert null.sd == pytest.approx(law.std())
    assert null.sd == pytest.approx(stats.subspace_overlap(d, 1).sd)


@pytest.mark.parametrize(("d", "n"), [(2, 3), (8, 3), (3, 5), (16, 10)])
def test_centred_squared_cosines_by_simulation(d: int, n: int) -> None:
    x = np.random.default_rng(d).standard_normal((4000, n, d))
    x -= x.mean(1, keepdims=True)
    x /= np.linalg.norm(x, axis=2, keepdims=True)
    means = (np.square(x @ x.swapaxes(1, 2)).sum((1, 2)) - n) / (n * (n - 1))
    assert stats.centred_squared_cos(d, n) == pytest.approx(means.mean(), abs=4 * means.std() / np.sqrt(4000))
    assert stats.centred_squared_cos(d, 2) == 1.0
    with pytest.raises(ValueError, match="two vectors"):
        stats.centred_squared_cos(d, 1)


def test_the_largest_cosine_of_independent_pairs() -> None:
    random = np.random.default_rng(0)
    d, pairs = 20, 2000
    cosines = np.abs(random.standard_normal((400, pairs))) / np.sqrt(random.chisquare(d - 1, (400, pairs)))
    largest = (cosines / np.sqrt(1 + cosines**2)).max(1)
    assert stats.largest_abs_cos(d, pairs) == pytest.approx(largest.mean(), abs=4 * largest.std() / 20)


def test_the_welch_bound_of_a_simplex_is_its_cosine() -> None:
    assert stats.welch_bound(11, 10) == pytest.approx(1 / 10)
    with pytest.raises(ValueError, match="more vectors than dimensions"):
        stats.welch_bound(10, 10)
