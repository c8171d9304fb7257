"""Spectra: one row per layer, from the triplets that continuity uses."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import torch

from drillcore.linalg import sigma_above
from drillcore.measures.reading import KindReading, LayerReading
from drillcore.measures.stability import growth_row
from drillcore.stats import Null, abs_cos
from drillcore.table import Row

_UNCONVERGED = "iteration stopped before the residual reached the tolerance"


def sigma1(reading: KindReading, measure: str) -> Iterator[Row]:
    """σ₁, from below; `bound` is its residual and `high` an upper bound on it (`linalg.sigma_above`)."""
    for r in reading.layers:
        t = r.triplets
        yield _row(reading, r, measure, float(t.s[0]), bound=float(t.residual[0]), high=sigma_above(t))


def norm_growth(reading: KindReading, measure: str) -> Iterator[Row]:
    """How σ₁ grows over the layers of a kind: exponential rate or exponent, as `unit` says."""
    yield replace(growth_row(reading.stack, reading.kind, [float(r.triplets.s[0]) for r in reading.layers]),
                  measure=measure)  # fmt: skip


def sigma(reading: KindReading, measure: str) -> Iterator[Row]:
    """The leading singular values; `subset` is the index from 1."""
    for r in reading.layers:
        for i, (value, residual) in enumerate(zip(r.triplets.s.tolist(), r.triplets.residual.tolist(), strict=True), 1):
            yield _row(reading, r, measure, value, bound=residual, subset=str(i))


def gap(reading: KindReading, measure: str) -> Iterator[Row]:
    """σ₁/σ₂, where σ₂ is the next value found plus its residual: 1 means that the vector cannot be told apart."""
    for r in reading.layers:
        first, below = float(r.triplets.s[0]), float(r.triplets.gap_below[0])
        second = first - below
        if second > 0:
            yield _row(reading, r, measure, first / second)
        elif first > 0:
            yield _row(reading, r, measure, None, status="rank-one", reason="there is no second singular value")
        else:
            yield _zero(reading, r, measure)


def angle_bound(reading: KindReading, measure: str) -> Iterator[Row]:
    """Bound on the sine of the angle of the leading vectors to the true ones; above 0.1 they are unidentifiable."""
    for r in reading.layers:
        if r.triplets.status == "zero":
            yield _zero(reading, r, measure)
            continue
        bound, known = float(r.triplets.bound[0]), bool(r.triplets.identifiable[0])
        reason = None if known else "σ₁ and σ₂ are too close: trust the subspace, not the vector"
        status = "ok" if known else "unidentifiable"
        yield _row(reading, r, measure, bound, status=status, reason=reason)


def stable_rank(reading: KindReading, measure: str) -> Iterator[Row]:
    """‖W‖²_F / σ₁²."""
    for r in reading.layers:
        first = float(r.triplets.s[0])
        yield _row(reading, r, measure, (r.triplets.frobenius / first) ** 2) if first else _zero(reading, r, measure)


def effective_rank(reading: KindReading, measure: str) -> Iterator[Row]:
    """exp(−Σ p_i ln p_i) with p_i = s_i²/Σ s² (arXiv 2605.04971, Eq. 3)."""
    for r in reading.layers:
        s = r.triplets.spectrum
        if r.no_spectrum:
            status, reason = r.no_spectrum
            yield _row(reading, r, measure, None, status=status, reason=reason)
        elif s is not None:
            p = s.square() / s.square().sum()
            yield _row(reading, r, measure, float(torch.special.entr(p).sum().exp()))


def ones(reading: KindReading, measure: str, side: Literal["u", "v"]) -> Iterator[Row]:
    """|cos| of the leading vector with the constant vector: near 1 its entries share one sign."""
    for r in reading.layers:
        if r.triplets.status == "zero":
            yield _zero(reading, r, measure)
        else:
            x = getattr(r.triplets, side)[:, 0].double()
            yield _row(reading, r, measure, abs(float(x.sum())) / x.numel() ** 0.5, null=abs_cos(x.numel()))


def peak(reading: KindReading, measure: str, side: Literal["u", "v"]) -> Iterator[Row]:
    """Largest squared entry of the leading vector: near 1 it is one coordinate."""
    for r in reading.layers:
        if r.triplets.status == "zero":
            yield _zero(reading, r, measure)
        else:
            yield _row(reading, r, measure, float(getattr(r.triplets, side)[:, 0].double().square().max()))


def _row(
    reading: KindReading, r: LayerReading, measure: str, value: float | None, *, bound: float | None = None,
    high: float | None = None, subset: str | None = None, null: Null | None = None, status: str | None = None,
    reason: str | None = None,
) -> Row:  # fmt: skip
    if status is None and r.triplets.status == "not-converged":
        status, reason = "not-converged", _UNCONVERGED
    return Row(
        stack=reading.stack, layer=r.layer, kind=reading.kind, subset=subset, measure=measure, value=value, bound=bound,
        high=high, null=null.mean if null else None, null_sd=null.sd if null else None, status=status or "ok",
        reason=reason, unit="1",
    )  # fmt: skip


def _zero(reading: KindReading, r: LayerReading, measure: str) -> Row:
    return _row(reading, r, measure, None, status="zero-matrix", reason="the matrix is all zero")
