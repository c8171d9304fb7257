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


def line_angle(d: int) -> Null:
    """Null of the angle (radians, 0 to π/2) between independent lines through the origin in `d` dimensions.

    φ = π/2 − angle has the density cosⁿφ/C, n = d − 2, C = ∫cosⁿ over 0 to π/2. By parts, from n − 2 to n, E φ falls
    by 1/(n² C) and E φ² by 2/n²; they start at n = 0 (φ uniform) or at n = 1 (derived).

    >>> round(line_angle(3).mean, 6)
    1.0
    """
    _check(d)
    if d == 1:
        return Null(0.0, 0.0)
    even = d % 2 == 0
    C = pi / 2 if even else 1.0
    mean, square = (pi / 4, pi**2 / 12) if even else (pi / 2 - 1, pi**2 / 4 - 2)
    for n in range(2 if even else 3, d - 1, 2):
        C *= (n - 1) / n
        mean -= 1 / (n * n * C)
        square -= 2 / (n * n)
    return Null(pi / 2 - mean, sqrt(max(0.0, square - mean * mean)))


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


def gram_cosine(d: int) -> Null:
    """Null of the cosine of two independent traceless symmetric d × d matrices, d > 1 (one of them turned at random).

    A random rotation of one gives ⟨A, R B Rᵀ⟩ the mean 0. Traceless symmetric matrices are an irreducible
    representation of the rotations, of dimension D = (d − 1)(d + 2)/2; so E (R B Rᵀ)⊗(R B Rᵀ) is ‖B‖²_F/D times
    the identity there (Schur), whence E ⟨A, R B Rᵀ⟩² = ‖A‖²_F ‖B‖²_F/D whatever the eigenvalues are.

    >>> round(gram_cosine(4096).sd, 6)
    0.000345
    """
    if d < 2:
        raise ValueError(f"a traceless matrix needs a dimension of at least 2, got {d}")
    return Null(0.0, sqrt(2 / ((d - 1) * (d + 2))))


def squared_cos(d: int) -> Null:
    """Null of cos² between independent unit vectors in `d` dimensions: Beta(1/2, (d − 1)/2).

    Mean 1/d, variance 2(d − 1)/(d²(d + 2)). The squared cosines of different pairs among independent vectors are
    pairwise independent, so the mean over N pairs has the same mean and this standard deviation over √N.

    >>> round(squared_cos(384).mean, 6)
    0.002604
    """
    _check(d)
    return Null(1 / d, sqrt(2 * (d - 1) / (d + 2)) / d)


def centred_squared_cos(d: int, n: int) -> float:
    """Mean of cos² over pairs of `n` independent Gaussian vectors of one scale in `d` dimensions less their mean.

    Taking the mean out leaves two vectors correlated by ρ = −1/(n − 1), as in a simplex. With that,
    E(1 − cos²) = (1 − 1/d)(1 − ρ²) ₂F₁(1, 1; d/2 + 1; ρ²) (Muirhead 1982, §5.1), so that the mean of cos² is close to
    1/d + (d − 1)/((d + 2)(n − 1)²).

    >>> round(centred_squared_cos(16, 10), 4)
    0.0728
    """
    from scipy.special import hyp2f1

    _check(d)
    if n < 2:
        raise ValueError(f"a pair needs two vectors, got {n}")
    if n == 2 or d == 1:
        return 1.0
    rho = 1 / (n - 1)
    return 1 - (1 - 1 / d) * (1 - rho**2) * float(hyp2f1(1, 1, d / 2 + 1, rho**2))


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
