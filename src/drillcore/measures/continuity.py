"""Continuity: what the matrices of one kind share from layer to layer (arXiv 2605.04971, metrics 1 to 3).

Each measure is a plain function from a `KindReading` to rows. For a pair, `layer` is the lower and `other` the
upper one; adjacent means next among the layers that were read. Signs are nothing: every cosine of vectors is absolute.
"""

from collections.abc import Callable, Iterator
from itertools import combinations
from math import asin, pi, sin, sqrt
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from drillcore.linalg import Triplets, abs_cosines, subspace_overlaps
from drillcore.measures import probes
from drillcore.measures.reading import KindReading, LayerReading
from drillcore.seeds import seed_of
from drillcore.stats import Null, abs_cos, gram_cosine, subspace_overlap
from drillcore.table import OK, Row

Side = Literal["u", "v"]


def vector_cosines(reading: KindReading, measure: str, side: Side) -> Iterator[Row]:
    """|cos| of the leading singular vectors of every pair of layers (metric 1 and 2)."""

    def null(lower: LayerReading) -> Null:
        return abs_cos(_dimension(lower, side))

    yield from _all_pairs(reading, measure, side, _leading, null, cosine_bound, abs_cosines)


def subspace_overlap_rows(reading: KindReading, measure: str, side: Side) -> Iterator[Row]:
    """‖V_kᵀV'_k‖²_F/k of the k leading directions of every pair (derived; k: the rank of the survey or all there are).

    Layers that have different numbers of directions are not compared.
    """

    def null(lower: LayerReading) -> Null:
        return subspace_overlap(_dimension(lower, side), len(lower.triplets.s))

    def overlaps(stacked: Tensor) -> Tensor:
        return subspace_overlaps(list(stacked.unbind(0)))

    yield from _all_pairs(reading, measure, side, _subspace, null, _subspace_bound, overlaps)


def cleaned_cosines(reading: KindReading, measure: str, side: Side, remove: Literal["ones", "peak"]) -> Iterator[Row]:
    """|cos| of adjacent leading vectors after the constant vector, or each one's peak coordinate, is taken out."""
    for lower, upper in _adjacent(reading):
        x, y = (getattr(r.triplets, side)[:, 0].double() for r in (lower, upper))
        if x.shape != y.shape or _unusable(lower, upper):
            continue  # the pair has its status in continuity.v1 or .u1
        x, y = _clean(x, y, remove)
        left = float(x.norm()), float(y.norm())
        null = abs_cos(max(1, x.shape[0] - (1 if remove == "ones" else 2)))
        value = abs(float(x @ y)) / (left[0] * left[1]) if min(left) > 0 else 0.0
        yield _pair_row(reading, measure, lower, upper, True, value=min(1.0, value), null=null,
                        bound=cosine_bound(lower, upper, left))  # fmt: skip


def s2_weighted(reading: KindReading, measure: str) -> Iterator[Row]:
    """Σ_i p_i |⟨v_i, v'_i⟩|, p_i = s_i²/Σ s² of the lower layer (metric 3, reading A; adjacent pairs)."""
    for lower, upper in _adjacent(reading):
        sums = lower.next
        if sums is None:
            yield _no_spectrum(reading, measure, lower, upper)
        elif sums.s2_weighted is None:
            yield _differing(reading, measure, lower, upper, "v")
        else:
            null = abs_cos(lower.shape[1])
            null = Null(null.mean, null.sd * sums.s2_weight)
            yield _pair_row(reading, measure, lower, upper, True, value=sums.s2_weighted, null=null)


def gram_cosines(reading: KindReading, measure: str, side: Side) -> Iterator[Row]:
    """Cosine of the traceless Gram matrices WᵀW (v) or WWᵀ (u): exact only for adjacent pairs, others are probed.

    And exact only where both spectra are whole. The null is that of exact cosines; the error of probes is in `stderr`.
    """
    for (i, lower), (j, upper) in combinations(enumerate(reading.layers), 2):
        adjacent = j == i + 1
        if _unusable(lower, upper):
            yield _unusable_row(reading, measure, lower, upper, adjacent)
        elif _dimension(lower, side) != _dimension(upper, side):
            yield _differing(reading, measure, lower, upper, side, adjacent)
        elif adjacent and lower.next is not None:
            value = getattr(lower.next, f"gram_{side}")
            yield _gram_row(reading, measure, lower, upper, side, adjacent, value=value)
        elif lower.sketch is not None and upper.sketch is not None:
            value, stderr = probes.cosine(lower.sketch, upper.sketch, side) or (None, None)
            yield _gram_row(reading, measure, lower, upper, side, adjacent, value=value, stderr=stderr, n=probes.PROBES)


def _gram_row(
    reading: KindReading, measure: str, lower: LayerReading, upper: LayerReading, side: Side, adjacent: bool, *,
    value: float | None, stderr: float | None = None, n: int | None = None,
) -> Row:  # fmt: skip
    """A row with its null, or the reason why there is no cosine."""
    if value is None:
        reason = "the Gram matrix of a layer is a multiple of the identity: it has no direction"
        return _pair_row(reading, measure, lower, upper, adjacent, status="isotropic", reason=reason)
    return _pair_row(reading, measure, lower, upper, adjacent, value=value, stderr=stderr, n=n,
                     null=gram_cosine(_dimension(lower, side)))  # fmt: skip


def expert_mean(reading: KindReading, measure: str) -> Iterator[Row]:
    """Mean |cos| of the facing leading vectors over all pairs of experts of adjacent layers.

    The null takes the experts of one layer as they are and turns the layers at random. Its sd is that of one pair times
    √(mean (XᵀX)² · mean (YᵀY)²), the means over all ordered pairs of a layer's experts, each with itself included:
    1/√N for orthogonal experts, 1 for equal ones.
    """
    for lower, upper, cosines in _expert_pairs(reading):
        null = abs_cos(_facing(lower.experts[0], reading).shape[0])
        value = float(cosines.mean())
        alike = [float((X.T @ X).square().mean()) for X in (_experts(r, reading) for r in (lower, upper))]
        spread = null.sd * sqrt(alike[0] * alike[1])
        yield _pair_row(reading, measure, lower, upper, True, value=value, n=cosines.size, null=Null(null.mean, spread))


def expert_matched(reading: KindReading, measure: str) -> Iterator[Row]:
    """Mean |cos| under the best one-to-one matching of experts, against the best matching of shuffled entries.

    Experts have no common numbering across layers. The null shuffles all entries of the |cos| matrix (64 times):
    it keeps their distribution and destroys any pairing. The null is conservative: shuffling also destroys what a row
    or a column has in common (one expert that agrees with all), so that it can exceed the value.
    """
    for lower, upper, cosines in _expert_pairs(reading):
        rng = np.random.default_rng(seed_of("expert matching", reading.kind, lower.layer))
        shuffled = [_best_matching(rng.permutation(cosines.ravel()).reshape(cosines.shape)) for _ in range(64)]
        null = Null(float(np.mean(shuffled)), float(np.std(shuffled, ddof=1)))
        value = _best_matching(cosines)
        yield _pair_row(reading, measure, lower, upper, True, value=value, n=min(cosines.shape), null=null)


def _all_pairs(
    reading: KindReading, measure: str, side: Side, pick: Callable[[Triplets, Side], Tensor],
    null_of: Callable[[LayerReading], Null], bound_of: Callable[[LayerReading, LayerReading], float],
    compare: Callable[[Tensor], Tensor],
) -> Iterator[Row]:  # fmt: skip
    """Rows of every pair of layers; layers of one dimension are compared in one product."""
    if len(reading.layers) < 2:
        yield _one_layer(reading, measure)
        return
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, r in enumerate(reading.layers):
        groups.setdefault(tuple(pick(r.triplets, side).shape), []).append(i)
    values: dict[tuple[int, int], float] = {}
    for members in groups.values():
        chosen = [pick(reading.layers[i].triplets, side) for i in members]
        table = compare(torch.stack(chosen, dim=1 if chosen[0].ndim == 1 else 0))
        values |= {(i, j): float(table[a, b]) for (a, i), (b, j) in combinations(enumerate(members), 2)}
    for (i, lower), (j, upper) in combinations(enumerate(reading.layers), 2):
        adjacent = j == i + 1
        if _unusable(lower, upper):
            yield _unusable_row(reading, measure, lower, upper, adjacent)
        elif (i, j) not in values:
            yield _differing(reading, measure, lower, upper, side, adjacent)
        else:
            yield _pair_row(reading, measure, lower, upper, adjacent, value=values[i, j],
                            bound=bound_of(lower, upper), null=null_of(lower))  # fmt: skip


def _leading(triplets: Triplets, side: Side) -> Tensor:
    vector: Tensor = getattr(triplets, side)[:, 0]
    return vector


def _subspace(triplets: Triplets, side: Side) -> Tensor:
    basis: Tensor = getattr(triplets, side)
    return torch.linalg.qr(basis)[0] if triplets.status != "zero" else basis


def cosine_bound(lower: LayerReading, upper: LayerReading, left: tuple[float, float] = (1.0, 1.0)) -> float:
    """A cosine moves by at most the sine of the angles that its two vectors may be off (up to a right angle).

    `left` are the norms that a projection leaves of the two unit vectors: it turns errors into errors/left at most.
    """
    angle = 0.0
    for reading, norm in zip((lower, upper), left, strict=True):
        bound = float(reading.triplets.bound[0])
        angle += asin(bound / norm) if bound < norm else pi / 2
    return 1.0 if angle >= pi / 2 else sin(angle)


def _subspace_bound(lower: LayerReading, upper: LayerReading) -> float:
    """|Δ tr(PP')|/k ≤ √(2/k)(a + b) + 2ab/k for ‖sin Θ‖_F ≤ a and b (derived from ‖ΔP‖_F = √2 ‖sin Θ‖_F)."""
    k = len(lower.triplets.s)
    a, b = lower.triplets.subspace_bound, upper.triplets.subspace_bound
    return min(1.0, sqrt(2 / k) * (a + b) + 2 * a * b / k)


def _clean(x: Tensor, y: Tensor, remove: str) -> tuple[Tensor, Tensor]:
    if remove == "ones":
        return x - x.mean(), y - y.mean()
    x, y = x.clone(), y.clone()
    peaks = [int(x.abs().argmax()), int(y.abs().argmax())]
    x[peaks], y[peaks] = 0.0, 0.0
    return x, y


def _expert_pairs(reading: KindReading) -> Iterator[tuple[LayerReading, LayerReading, "np.ndarray"]]:
    for lower, upper in _adjacent(reading):
        if lower.experts and upper.experts:
            X, Y = (_experts(r, reading) for r in (lower, upper))
            yield lower, upper, (X.T @ Y).abs().numpy()


def _experts(layer: LayerReading, reading: KindReading) -> Tensor:
    return torch.stack([_facing(t, reading) for t in layer.experts], dim=1).double()


def _facing(triplets: Triplets, reading: KindReading) -> Tensor:
    return (triplets.u if reading.faces == "out" else triplets.v)[:, 0]


def _best_matching(cosines: "np.ndarray") -> float:
    from scipy.optimize import linear_sum_assignment  # a slow import, and only experts need it

    rows, columns = linear_sum_assignment(cosines, maximize=True)
    return float(cosines[rows, columns].mean())


def _adjacent(reading: KindReading) -> Iterator[tuple[LayerReading, LayerReading]]:
    yield from zip(reading.layers, reading.layers[1:], strict=False)


def _dimension(reading: LayerReading, side: Side) -> int:
    return reading.shape[0] if side == "u" else reading.shape[1]


def _unusable(*readings: LayerReading) -> bool:
    return any(r.triplets.status == "zero" for r in readings)


def _pair_row(
    reading: KindReading, measure: str, lower: LayerReading, upper: LayerReading, adjacent: bool, *,
    value: float | None = None, null: Null | None = None, bound: float | None = None, stderr: float | None = None,
    n: int | None = None, status: str = OK, reason: str | None = None,
) -> Row:  # fmt: skip
    """One row of a pair of layers."""
    unconverged = [r.layer for r in (lower, upper) if r.triplets.status == "not-converged"]
    if status == OK and unconverged:
        status, reason = "not-converged", f"layer {unconverged[0]} did not converge; its bound says how far"
    return Row(
        stack=reading.stack, layer=lower.layer, other=upper.layer, adjacent=adjacent, kind=reading.kind,
        measure=measure, value=value, bound=bound, stderr=stderr, n=n, null=null.mean if null else None,
        null_sd=null.sd if null else None, status=status, reason=reason, unit="1",
    )  # fmt: skip


def _no_spectrum(reading: KindReading, measure: str, lower: LayerReading, upper: LayerReading) -> Row:
    reasons = [r.no_spectrum for r in (lower, upper) if r.no_spectrum]
    status, reason = reasons[0]
    return _pair_row(reading, measure, lower, upper, True, status=status, reason=reason)


def _differing(
    reading: KindReading, measure: str, lower: LayerReading, upper: LayerReading, side: Side, adjacent: bool = True
) -> Row:
    if _dimension(lower, side) == _dimension(upper, side):
        ranks = f"{len(lower.triplets.s)} and {len(upper.triplets.s)}"
        reason = f"the two layers have {ranks} leading directions; ask for the smaller --rank"
        return _pair_row(reading, measure, lower, upper, adjacent, status="ranks-differ", reason=reason)
    sizes = f"{_dimension(lower, side)} and {_dimension(upper, side)}"
    return _pair_row(reading, measure, lower, upper, adjacent, status="shapes-differ",
                     reason=f"the two layers have {sizes} dimensions on this side")  # fmt: skip


def _unusable_row(reading: KindReading, measure: str, lower: LayerReading, upper: LayerReading, adjacent: bool) -> Row:
    zero = lower if _unusable(lower) else upper
    return _pair_row(reading, measure, lower, upper, adjacent, status="zero-matrix",
                     reason=f"the matrix of layer {zero.layer} is all zero: it has no directions")  # fmt: skip


def _one_layer(reading: KindReading, measure: str) -> Row:
    layer = reading.layers[0].layer if reading.layers else None
    return Row(stack=reading.stack, kind=reading.kind, layer=layer, measure=measure, status="one-layer",
               reason="one usable layer: there is no pair to compare", unit="1")  # fmt: skip
