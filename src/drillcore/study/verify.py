"""Verdicts: every claim of a study decided from the results."""

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from drillcore.study.claims import Claim, Verdict
from drillcore.study.spec import Study

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Decided:
    """A claim with its verdict."""

    name: str
    text: str
    published: str
    verdict: Verdict


def verify(study: Study, results: "pl.DataFrame") -> tuple[Decided, ...]:
    """Decide every claim of a study; a verdict whose numbers are not finite is inconclusive.

    A claim whose function raises has the outcome "failed" and hides no other.
    """
    return tuple(Decided(c.name, c.text, c.published, _decided(c, results)) for c in study.claims)


def _decided(claim: Claim, results: "pl.DataFrame") -> Verdict:
    try:
        return _finite(claim.decide(results))
    except Exception as error:  # noqa: BLE001 - it may be anybody's code
        return Verdict("failed", how=f"its function raised {type(error).__name__}: {error}")


def _finite(verdict: Verdict) -> Verdict:
    if all(isfinite(x) for x in (verdict.value, verdict.low, verdict.high) if x is not None):
        return verdict
    return Verdict("inconclusive", threshold=verdict.threshold, n=verdict.n, how="not a finite number")
