"""Coherence while a network trains: gradients across layers, and what of them reaches the weights.

Metrics 5 to 9 of arXiv 2605.04971 (cumulative gradient, its gap to the weights, update ratio, rotation). Rows of a pair
carry the lower layer in `layer`. A matrix of zeros has no direction: its pairs have the status "zero-matrix" in
`gradient_cosines`, and the measures of single layers (`turned_to_gradient`, `rotation`) give no row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import acos, asin, degrees, pi, sqrt
from typing import Literal

from torch import Tensor

from drillcore.measures.continuity import cosine_bound, vector_cosines
from drillcore.measures.reading import KindReading
from drillcore.stats import abs_cos, line_angle
from drillcore.table import Row


def gradient_cosines(gradients: KindReading, measure: str, *, every: bool = False) -> Iterator[Row]:
    """|cos| of the leading right (…v1) or left (…u1) vectors of gradient matrices; of `every` pair or adjacent ones."""
    side: Literal["u", "v"] = "u" if measure.endswith("u1") else "v"
    yield from (row for row in vector_cosines(gradients, measure, side) if every or row.adjacent)


def gradient_weight_gap(gradients: KindReading, weights: KindReading, measure: str) -> Iterator[Row]:
    """Δ_GW = C_v of the gradients − C_v of the weights: large where a coherent gradient does not shape the weights.

    Null: both are means over independent directions; its sd is that of one |cos| times √(1/N_g + 1/N_w).
    """
    means, inverse = [], 0.0
    for reading in (gradients, weights):
        found = [row.value for row in gradient_cosines(reading, "v1") if row.value is not None]
        if not found:
            return
        means.append(sum(found) / len(found))
        inverse += 1 / len(found)
    sd = abs_cos(weights.layers[0].shape[1]).sd * sqrt(inverse)
    yield Row(kind=weights.kind, measure=measure, value=means[0] - means[1], null=0.0, null_sd=sd, unit="1")


def turned_to_gradient(gradients: KindReading, weights: KindReading, measure: str) -> Iterator[Row]:
    """|cos| of a layer's leading right vector and that of its own summed gradient (Fig. 12)."""
    for g, w in zip(gradients.layers, weights.layers, strict=True):
        if "zero" not in (g.triplets.status, w.triplets.status):
            null = abs_cos(w.shape[1])
            value = abs(float(g.triplets.v[:, 0] @ w.triplets.v[:, 0]))
            yield Row(kind=weights.kind, layer=w.layer, measure=measure, value=min(1.0, value), null=null.mean,
                      null_sd=null.sd, bound=cosine_bound(g, w), unit="1")  # fmt: skip


def rotation(weights: KindReading, reference: Tensor, bounds: Tensor, measure: str) -> Iterator[Row]:
    """Angle in degrees between a layer's leading right vector and the reference (layers × in), both without a sign.

    `bounds` (layers) are those of the reference, on the sine of its error: the angles of both errors add. The null is
    the angle of independent lines. It says nothing alone: layers that turn together keep their continuity.
    """
    for w, before, doubt in zip(weights.layers, reference, bounds.tolist(), strict=True):
        if w.triplets.status != "zero":
            angle = acos(min(1.0, abs(float(w.triplets.v[:, 0] @ before))))
            bound = min(pi / 2, asin(float(w.triplets.bound[0])) + asin(doubt))
            null = line_angle(w.shape[1])
            yield Row(kind=weights.kind, layer=w.layer, measure=measure, value=degrees(angle), bound=degrees(bound),
                      null=degrees(null.mean), null_sd=degrees(null.sd), unit="degree")  # fmt: skip


def update_ratio(now: Sequence[Tensor], first: Sequence[Tensor], kind: str, measure: str) -> Iterator[Row]:
    """‖W − W₀‖_F / ‖W₀‖_F of each layer."""
    for layer, (W, W0) in enumerate(zip(now, first, strict=True)):
        row, size = Row(kind=kind, layer=layer, measure=measure, unit="1"), float(W0.norm())
        if size > 0:
            yield replace(row, value=float((W - W0).norm()) / size)
        else:
            yield replace(row, status="zero-matrix", reason="the first weights are all zero: nothing to compare with")
