"""How far the law of the tokens moves from the first site to the last, against what the gains allow."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import sqrt

import torch
from torch import Tensor

from drillcore.table import Row


def wasserstein(first: Tensor, second: Tensor) -> float:
    """W₂ between the empirical laws of two equally large samples (n × d): the square root of the least mean squared
    distance over all pairings, exact (Kuhn and Munkres). It is above W₂ of the laws they were drawn from."""
    from scipy.optimize import linear_sum_assignment  # a slow import

    costs = torch.cdist(first.double(), second.double()).square().numpy()
    rows, columns = linear_sum_assignment(costs)
    return sqrt(float(costs[rows, columns].mean()))


def transport_rows(stack: str, ends: Sequence[Tensor], gains: Sequence[tuple[Tensor, Tensor | None, float]] | None) \
        -> Iterator[Row]:  # fmt: skip
    """W₂ between the tokens of the first and the last site, and the bound Σ Δt (√d·max|γ| + ‖β‖) (derived (drillcore)).

    Args:
        stack: of the tokens.
        ends: the same tokens (n × d) at the first and the last site.
        gains: gain, shift and residual step of every output norm, one a half-step; None where a half-step has none.
    """
    first, last = ends
    base = Row(stack=stack or None, measure="transport.w2", n=len(first), unit="1")
    if not bool(torch.isfinite(first).all() and torch.isfinite(last).all()):
        yield Row(stack=base.stack, measure="transport.w2", status="non-finite", reason="a token is not finite")
        return
    yield replace(base, value=wasserstein(first, last))
    width = sqrt(first.shape[1])
    if gains is None:
        reason = "a branch without an output norm: how far it can move a token depends on its weights"
        yield Row(stack=base.stack, measure="transport.bound", status="not-bounded", reason=reason)
        return
    most = sum(
        step * (width * float(g.abs().max()) + (float(b.norm()) if b is not None else 0.0)) for g, b, step in gains
    )
    yield replace(base, measure="transport.bound", value=most)
