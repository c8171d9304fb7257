"""Coherence while a network trains: gradients across layers, and what of them reaches the weights.

Metrics 5 to 9 of arXiv 2605.04971 (cumulative gradient, its gap to the weights, update ratio, rotation). Rows of a pair
carry the lower layer in `layer`; a matrix of zeros has no direction and gives no row.
"""

from collections.abc import Iterator, Sequence
from math import acos, degrees
from typing import Literal

from torch import Tensor

from drillcore.measures.continuity import vector_cosines
from drillcore.measures.reading import KindReading
from drillcore.stats import abs_cos
from drillcore.table import Row


def gradient_cosines(gradients: KindReading, measure: str, *, every: bool = False) -> Iterator[Row]:
    """|cos| of the leading right (…v1) or left (…u1) vectors of gradient matrices; of `every` pair or adjacent ones."""
    side: Literal["u", "v"] = "u" if measure.endswith("u1") else "v"
    yield from (row for row in vector_cosines(gradients, measure, side) if every or row.adjacent)


def gradient_weight_gap(gradients: KindReading, weights: KindReading, measure: str) -> Iterator[Row]:
    """Δ_GW = C_v of the gradients − C_v of the weights: large where a coherent gradient does not shape the weights."""
    means = []
    for reading in (gradients, weights):
        found = [row.value for row in gradient_cosines(reading, "v1") if row.value is not None]
        if not found:
            return
        means.append(sum(found) / len(found))
    yield Row(kind=weights.kind, measure=measure, value=means[0] - means[1], null=0.0, unit="1")


def turned_to_gradient(gradients: KindReading, weights: KindReading, measure: str) -> Iterator[Row]:
    """|cos| of a layer's leading right vector and that of its own summed gradient (Fig. 12)."""
    for g, w in zip(gradients.layers, weights.layers, strict=True):
        if "zero" not in (g.triplets.status, w.triplets.status):
            null = abs_cos(w.shape[1])
            value = abs(float(g.triplets.v[:, 0] @ w.triplets.v[:, 0]))
            yield Row(kind=weights.kind, layer=w.layer, measure=measure, value=min(1.0, value), null=null.mean,
                      null_sd=null.sd, unit="1")  # fmt: skip


def rotation(weights: KindReading, reference: Tensor, measure: str) -> Iterator[Row]:
    """Angle in degrees between a layer's leading right vector and the reference (layers × in), both without a sign.

    It says nothing alone: layers that turn together keep their continuity.
    """
    for w, before in zip(weights.layers, reference, strict=True):
        if w.triplets.status != "zero":
            angle = degrees(acos(min(1.0, abs(float(w.triplets.v[:, 0] @ before)))))
            yield Row(kind=weights.kind, layer=w.layer, measure=measure, value=angle, unit="degree")


def update_ratio(now: Sequence[Tensor], first: Sequence[Tensor], kind: str, measure: str) -> Iterator[Row]:
    """‖W − W₀‖_F / ‖W₀‖_F of each layer."""
    for layer, (W, W0) in enumerate(zip(now, first, strict=True)):
        yield Row(kind=kind, layer=layer, measure=measure, value=float((W - W0).norm() / W0.norm()), unit="1")
