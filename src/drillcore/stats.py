"""Exact nulls: what independent random directions would give.

All are for unit vectors and subspaces drawn uniformly in `d` dimensions. With c = cos of two independent
unit vectors, c² ~ Beta(1/2, (d − 1)/2) (Muirhead, Aspects of Multivariate Statistical Theory, 1982, §1.5).
"""

from math import exp, lgamma, pi, sqrt
from typing import NamedTuple

_EULER = 0.5772156649015329


class Null(NamedTuple):
    """Mean and standard deviation of a statistic under chance."""

    mean: float
    sd: float


def abs_cos(d: int) -> Null:
    """Null of |cos| between independent unit vectors in `d` dimensions.

    Mean Γ(d/2) / (√π Γ((d+1)/2)), close to √(2/(πd)); second moment 1/d.

    >>> round(abs_cos(256).mean, 4)
    0.0499
    """
    _check(d)
    mean = exp(lgamma(d / 2) - lgamma((d + 1) / 2)) / sqrt(pi)
    return Null(mean, sqrt(max(0.0, 1 / d - mean * mean)))


def abs_cos_quantile(d: int, q: float) -> float:
    """The `q` quantile of |cos| between independent unit vectors in `d` dimensions."""
    from scipy.special import betaincinv

    _check(d)
    return 1.0 if d == 1 else float(sqrt(betaincinv(0.5, (d - 1) / 2, q)))


def abs_cos_p_value(d: int, value: float) -> float:
    """Probability that |cos| of independent unit vectors in `d` dimensions reaches `value`."""
    from scipy.special import betaincc

    _check(d)
    return 1.0 if d == 1 else float(betaincc(0.5, (d - 1) / 2, min(1.0, value * value)))


def subspace_overlap(d: int, k: int) -> Null:
    """Null of the overlap ‖VᵀV'‖²_F/k of two independent `k`-dimensional subspaces in `d` dimensions.

    Mean k/d; variance of the trace of the product of two projectors 2k²(d−k)²/(d²(d−1)(d+2)), over k²
    (derived from the Haar second moments; k = 1 gives the variance of Beta(1/2, (d−1)/2)).

    >>> round(subspace_overlap(768, 16).sd, 4)
    0.0018
    """
    _check(d)
    if not 1 <= k <= d:
        raise ValueError(f"a subspace of {d} dimensions cannot have rank {k}")
    if d == 1:
        return Null(1.0, 0.0)
    return Null(k / d, sqrt(2.0 / ((d - 1) * (d + 2))) * (d - k) / d)


def squared_cos(d: int) -> Null:
    """Null of cos² between independent unit vectors in `d` dimensions: Beta(1/2, (d − 1)/2).

    Mean 1/d, variance 2(d − 1)/(d²(d + 2)). The cosines of different pairs among independent vectors are
    uncorrelated, so the mean over N pairs has the same mean and this standard deviation over √N.

    >>> round(squared_cos(384).mean, 6)
    0.002604
    """
    _check(d)
    return Null(1 / d, sqrt(2 * (d - 1) / (d + 2)) / d)


def largest_abs_cos(d: int, pairs: int) -> float:
    """Mean of the largest |cos| among `pairs` pairs of independent unit vectors in `d` dimensions.

    The pairs count as independent and the maximum as Gumbel (Cai, Fan and Jiang, Distributions of angles in
    random packing on spheres, JMLR 14, 2013), whose mean is its exp(−e^−γ) quantile, γ Euler's constant.
    """
    return abs_cos_quantile(d, exp(-exp(-_EULER) / pairs))


def welch_bound(n: int, d: int) -> float:
    """Lower bound κ of the largest |cos| among `n` > `d` unit vectors; κ² also bounds the mean of cos².

    κ² = (n − d)/(d(n − 1)) (Welch, Lower bounds on the maximum cross correlation of signals, 1974). Every tight
    frame reaches it in the mean, only an equiangular one in the maximum.

    >>> round(welch_bound(3, 2), 4)
    0.5
    """
    _check(d)
    if n <= d:
        raise ValueError(f"the Welch bound needs more vectors than dimensions, got {n} in {d}")
    return sqrt((n - d) / (d * (n - 1)))


def _check(d: int) -> None:
    if d < 1:
        raise ValueError(f"dimension must be at least 1, got {d}")
