"""Read the layers of networks that train side by side, as `reading` reads those of a checkpoint."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Literal

from torch import Tensor

from drillcore.linalg import Triplets, leading_triplets
from drillcore.linalg.tiles import on_tiles
from drillcore.measures.pairs import PairSums, pair_sums
from drillcore.measures.reading import KindReading, LayerReading, Options


def read_replicas(
    matrices: Sequence[Tensor], kind: str, *, key: str = "weights", rank: int = 8, spectrum: bool = True,
    faces: Literal["in", "out"] = "in",
) -> list[KindReading]:  # fmt: skip
    """Read one kind of several replicas.

    Args:
        matrices: one tensor a layer, replicas × out × in.
        kind: what the matrices are.
        key: with kind and place it names the random starts of large matrices. Matrices that are compared with one
            another (weights and their gradients) must differ in it: a shared start invents alignment.
        rank: number of leading triplets.
        spectrum: compute whole spectra and compare adjacent ones exactly.
        faces: the side that faces the residual stream.

    Returns:
        One reading for each replica.

    Raises:
        NonFiniteError: a matrix holds NaN or infinity.
    """
    replicas, depth = matrices[0].shape[0], len(matrices)

    def triplets(place: tuple[int, int]) -> Triplets:
        r, layer = place
        return leading_triplets(matrices[layer][r].detach(), rank, key=f"{key}/{kind}/{r}/{layer}", full=spectrum)

    found = list(on_tiles(triplets, product(range(replicas), range(depth))))
    by_replica = [found[r * depth : (r + 1) * depth] for r in range(replicas)]
    options = Options(rank=rank, needs=frozenset({"subspace", "spectrum"} if spectrum else {"subspace"}))
    return [KindReading("", kind, faces, options, tuple(_layers(layers, spectrum))) for layers in by_replica]


def _layers(triplets: list[Triplets], spectrum: bool) -> list[LayerReading]:
    sums = list(on_tiles(_compared, pairwise(triplets))) if spectrum else []
    return [
        LayerReading(
            layer, (t.u.shape[0], t.v.shape[0]), replace(t, full_u=None, full_v=None),
            next=sums[layer] if layer < len(sums) else None,
        )
        for layer, t in enumerate(triplets)
    ]  # fmt: skip


def _compared(pair: tuple[Triplets, Triplets]) -> PairSums | None:
    """None where a matrix is zero: it has no spectrum."""
    return None if any(t.spectrum is None for t in pair) else pair_sums(*pair)
