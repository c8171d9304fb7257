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
