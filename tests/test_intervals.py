"""Intervals against scipy, closed forms and their own promise: coverage."""

import numpy as np
import pytest
from scipy import stats as reference

from drillcore.intervals import binomial_exact, bootstrap, fisher_exact, paired_t, slope, student_t


def test_student_is_scipys() -> None:
    values = [0.3, 0.5, 0.45, 0.6, 0.2]
    found = student_t(values)
    low, high = reference.t.interval(0.95, 4, loc=np.mean(values), scale=reference.sem(values))
    assert found == pytest.approx((np.mean(values), low, high, 5))


def test_five_seeds_are_covered_as_promised() -> None:
    random = np.random.default_rng(0)
    covered = [low <= 0 <= high for _, low, high, _ in (student_t(list(random.normal(size=5))) for _ in range(2000))]
    assert np.mean(covered) == pytest.approx(0.95, abs=4 * (0.95 * 0.05 / 2000) ** 0.5)


def test_pairs_are_differences() -> None:
    assert paired_t([3.0, 5.0, 4.0], [1.0, 2.0, 2.0]) == student_t([2.0, 3.0, 2.0])
    with pytest.raises(ValueError, match="as many values on both sides, got 2 and 1"):
        paired_t([1.0, 2.0], [1.0])


@pytest.mark.parametrize(("hits", "n"), [(0, 5), (5, 5), (3, 5), (40, 60)])
def test_the_exact_interval_of_a_share(hits: int, n: int) -> None:
    expected = reference.binomtest(hits, n).proportion_ci(0.95, method="exact")
    assert binomial_exact(hits, n) == pytest.approx((hits / n, expected.low, expected.high, n))


def test_fisher_on_the_lady_tasting_tea() -> None:
    assert fisher_exact(3, 4, 1, 4) == pytest.approx(34 / 70)  # both tails of the hypergeometric (1, 16, 36, 16, 1)/70


def test_one_value_has_no_interval_and_few_groups_no_bootstrap() -> None:
    with pytest.raises(ValueError, match="two units or more, got 1"):
        student_t([1.0])
    with pytest.raises(ValueError, match="15 groups or more, got 5; use student_t"):
        bootstrap([[1.0]] * 5, np.mean, seed=0)


def test_why_a_bootstrap_of_five_is_refused() -> None:
    """The percentile interval of five seeds covers far less than it says; `bootstrap` starts where it covers enough."""

    def coverage(n: int) -> float:
        random = np.random.default_rng(n)
        samples = random.normal(size=(1500, n))
        drawn = random.integers(0, n, size=(400, n))
        means = samples[:, drawn].mean(2)
        low, high = np.quantile(means, [0.025, 0.975], axis=1)
        return float(np.mean((low <= 0) & (high >= 0)))

    assert coverage(5) == pytest.approx(0.84, abs=0.03)
    assert coverage(15) > 0.90
    for n, refused in ((14, True), (15, False)):
        groups = [[float(i)] for i in range(n)]
        if refused:
            with pytest.raises(ValueError, match="15 groups or more, got 14"):
                bootstrap(groups, np.mean, seed=0)
        else:
            assert bootstrap(groups, np.mean, seed=0).n == 15


def test_a_bootstrap_of_groups_knows_that_their_values_go_together() -> None:
    random = np.random.default_rng(1)
    means = random.normal(size=40)
    groups = [list(mean + 0.01 * random.normal(size=20)) for mean in means]
    found = bootstrap(groups, lambda v: float(np.mean(v)), seed=0)
    assert found.value == pytest.approx(np.mean(groups))
    expected = 2 * 1.96 * means.std() / 40**0.5  # as wide as 40 values allow, not 800
    assert found.high - found.low == pytest.approx(expected, rel=0.1)
    assert found == bootstrap(groups, lambda v: float(np.mean(v)), seed=0)


def test_slope_is_that_of_scipy_with_its_t_interval() -> None:
    linregress, t = reference.linregress, reference.t

    x, y = [1.0, 2.0, 4.0, 5.0, 9.0], [2.0, 1.5, 1.6, 0.4, -1.0]
    found, line = slope(x, y), linregress(x, y)
    assert found.value == pytest.approx(line.slope)
    assert found.high - found.value == pytest.approx(t.ppf(0.975, 3) * line.stderr)
    for bad in (([1.0, 2.0], [1.0, 2.0]), ([3.0, 3.0, 3.0], [1.0, 2.0, 3.0])):
        with pytest.raises(ValueError, match="three points"):
            slope(*bad)
