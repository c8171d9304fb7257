"""The path of the leading vectors through the layers, seen in a plane (arXiv 2605.04971, Fig. 1 and Eq. 6)."""

from collections.abc import Iterator

import torch
from torch import Tensor

from drillcore.measures.reading import KindReading
from drillcore.table import Row


def sign_aligned(vectors: Tensor) -> Tensor:
    """Vectors (layers × d) with signs such that none points away from the one before it (Eq. 6)."""
    turns = torch.where((vectors[1:] * vectors[:-1]).sum(1) < 0, -1.0, 1.0).to(vectors.dtype)
    return torch.cat([vectors[:1], vectors[1:] * turns.cumprod(0)[:, None]])


def v1_path(reading: KindReading, measure: str) -> Iterator[Row]:
    """Two coordinates of each layer's sign-aligned v1, in the plane that holds most of all layers' (derived).

    The plane is that of the two leading right singular vectors of the stacked v1 (layers × d), not centred: a layer's
    distance from the origin is the share of its v1 that the plane holds, 1 at most. `subset` names the coordinate. The
    paper does not say how it projects. A layer of zeros has no direction and no row.
    """
    layers = [layer for layer in reading.layers if layer.triplets.status != "zero"]
    if len(layers) < 2:
        return
    vectors = sign_aligned(torch.stack([layer.triplets.v[:, 0] for layer in layers]).double())
    _, _, plane = torch.linalg.svd(vectors, full_matrices=False)
    for layer, point in zip(layers, (vectors @ plane[:2].T).tolist(), strict=True):
        for place, value in enumerate(point, start=1):
            yield Row(kind=reading.kind, layer=layer.layer, subset=str(place), measure=measure, value=value, unit="1")
