"""Read the matrices of one kind, layer by layer, and keep what the measures need: small records, never weights."""

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

from torch import Tensor

from drillcore.linalg import Matrix, NonFiniteError, Product, Scratch, Triplets, leading_triplets, sigma_above
from drillcore.linalg.operator import StackedOperator, as_operator
from drillcore.linalg.triplets import operator_triplets
from drillcore.measures.pairs import PairSums, pair_sums
from drillcore.measures.probes import Sketch, sketch
from drillcore.weights.assign import Assignment
from drillcore.weights.layout import read_weight
from drillcore.weights.role import Norm, Weight
from drillcore.weights.rounding import rounding
from drillcore.weights.source import Source

# Shown each matrix (out × in) that is read, with an upper bound on its norm, or infinity.
Observe = Callable[[Weight, Tensor, float], None]
Need = Literal["subspace", "spectrum", "probes", "experts"]
FULL_SIDE = 2048  # up to this short side the whole spectrum is computed by default


@dataclass(frozen=True)
class Options:
    """How to read: rank of the subspaces, what the measures need, whether norms are folded, where to compute."""

    rank: int = 8
    needs: frozenset[Need] = frozenset({"subspace", "spectrum", "probes", "experts"})
    spectrum: Literal["auto", "full"] = "auto"
    fold_norms: bool = False
    device: str = "cpu"

    def full(self, out: int, into: int) -> bool:
        """The whole spectrum of an out × in matrix is asked for."""
        return "spectrum" in self.needs and (self.spectrum == "full" or min(out, into) <= FULL_SIDE)

    @property
    def k(self) -> int:
        """Number of leading triplets."""
        return self.rank if "subspace" in self.needs else 1


@dataclass(frozen=True)
class LayerReading:
    """What is kept of one layer's matrix of a kind. `next` compares it with the next that was read, where exact."""

    layer: int
    shape: tuple[int, int]
    triplets: Triplets
    sketch: Sketch | None = None
    experts: tuple[Triplets, ...] = ()
    next: PairSums | None = None
    stacked: bool = False  # the matrix is a stack of experts
    held: bool = True  # False: too large to be held, read block by block

    @property
    def no_spectrum(self) -> tuple[str, str] | None:
        """Status and reason where the whole spectrum was not computed; None where it was."""
        if self.triplets.spectrum is not None:
            return None
        if self.triplets.status == "zero":
            return "zero-matrix", f"the matrix of layer {self.layer} is all zero"
        if self.stacked:
            return "stacked-experts", "the experts of a layer are stacked; only of single matrices is it computed"
        if not self.held:
            out, into = self.shape
            return "too-large", f"{out} × {into} numbers are too many to hold; take the leading values instead"
        return "needs-full-spectrum", f"the short side is above {FULL_SIDE}; ask for it with --spectrum full"


@dataclass(frozen=True)
class KindReading:
    """All layers of one kind of one stack, rising. `faces` is the side that faces the residual stream."""

    stack: str
    kind: str
    faces: Literal["in", "out", ""]
    options: Options
    layers: tuple[LayerReading, ...]
    skipped: dict[str, tuple[str, str]] = field(default_factory=dict)  # tensor → (reason, remedy)


def read_kind(
    source: Source, assignment: Assignment, stack: str, kind: str, options: Options,
    layers: Container[int] | None = None, advance: Callable[[int], None] = lambda _: None,
    observe: Observe | None = None,
) -> KindReading:  # fmt: skip
    """Read every matrix of a kind once.

    A matrix that cannot be used (NaN) is left out and named in `skipped`. `advance` is told the bytes of each;
    `observe` is shown each that is not a product of factors.
    """
    groups = by_layer(assignment.of(kind, stack), layers)
    faces = groups[0][1][0].role.faces if groups else ""
    reader = _Reader(source, assignment.norms, options, advance, observe)
    read = [r for r in (reader.layer(layer, weights) for layer, weights in groups) if r is not None]
    return KindReading(stack, kind, faces, options, tuple(reader.linked(read)), reader.skipped)


def by_layer(weights: Sequence[Weight], layers: Container[int] | None = None) -> list[tuple[int, list[Weight]]]:
    """Group weights by layer, rising; the weights of one layer are its experts."""
    groups: dict[int, list[Weight]] = {}
    for weight in weights:
        if weight.role.layer is not None and (layers is None or weight.role.layer in layers):
            groups.setdefault(weight.role.layer, []).append(weight)
    return sorted(groups.items())


class _Reader:
    """Holds the buffer that all matrices share and the full spectrum of the layer read before."""

    def __init__(
        self, source: Source, norms: Sequence[Norm], options: Options, advance: Callable[[int], None],
        observe: Observe | None,
    ) -> None:  # fmt: skip
        self.source, self.norms, self.options, self.advance, self.observe = source, norms, options, advance, observe
        self.scratch = Scratch()
        self.skipped: dict[str, tuple[str, str]] = {}
        self._before: Triplets | None = None
        self._next: dict[int, PairSums] = {}  # lower layer → exact sums with the next
        self._last_layer = -1

    def layer(self, layer: int, weights: list[Weight]) -> LayerReading | None:
        """Read one layer, a single matrix or a stack of experts; None where it cannot be used."""
        gain = self._gain(weights[0]) if self.options.fold_norms else None
        try:
            reading = self._read(layer, weights, gain)
        except NonFiniteError as fault:
            for weight in weights:
                self.skipped[weight.tensor] = (str(fault), "repair or retrain this tensor")
            reading = None
        self.advance(sum(w.nbytes for w in weights))
        return reading

    def _read(self, layer: int, weights: list[Weight], gain: Tensor | None) -> LayerReading:
        options, faces = self.options, weights[0].role.faces
        matrices = [self._matrix(w) for w in weights]
        stacked, turned = _stacked(matrices, faces)
        out, into = _shape(stacked)
        operator, flipped = as_operator(stacked, scratch=self.scratch, gain=gain if not turned else None)
        found = operator_triplets(
            operator, options.k, key=f"{weights[0].tensor}/{weights[0].role.kind}",
            full=options.full(out, into) and len(weights) == 1,
            rounding=max(rounding(w.dtype) for w in weights),
        )  # fmt: skip
        triplets = found.T if turned != flipped else found
        drawn = sketch(operator, turned != flipped) if "probes" in options.needs else None
        experts: tuple[Triplets, ...] = ()
        if len(weights) > 1 and "experts" in options.needs:
            experts = tuple(self._expert(m, w, gain) for m, w in zip(matrices, weights, strict=True))
        self._compare(layer, triplets)
        if self.observe is not None:
            above = sigma_above(found) if gain is None else inf
            for weight, matrix in zip(weights, matrices, strict=True):
                if isinstance(matrix, Tensor):
                    self.observe(weight, matrix, above)
        shape = (into, out) if turned else (out, into)
        held = not isinstance(operator, StackedOperator)
        return LayerReading(layer, shape, _light(triplets), drawn, experts, stacked=len(weights) > 1, held=held)

    def _matrix(self, weight: Weight) -> Matrix:
        matrix = read_weight(self.source, weight)
        if isinstance(matrix, Product):
            return Product(matrix.left.to(self.options.device), matrix.right.to(self.options.device))
        return matrix.to(self.options.device)

    def _expert(self, matrix: Matrix, weight: Weight, gain: Tensor | None) -> Triplets:
        key = f"{weight.tensor}/{weight.role.kind}/{weight.role.expert}"
        return _light(
            leading_triplets(matrix, 1, key=key, scratch=self.scratch, gain=gain, rounding=rounding(weight.dtype))
        )

    def _compare(self, layer: int, triplets: Triplets) -> None:
        if self._before is not None and triplets.full_v is not None:
            self._next[self._last_layer] = pair_sums(self._before, triplets)
        self._before, self._last_layer = (triplets if triplets.full_v is not None else None), layer

    def linked(self, readings: list[LayerReading]) -> Iterator[LayerReading]:
        """Give each reading its exact comparison with the next layer."""
        for reading in readings:
            yield replace(reading, next=self._next.get(reading.layer))

    def _gain(self, weight: Weight) -> Tensor | None:
        role = weight.role
        for norm in self.norms:
            if norm.side == "in" and norm.layer == role.layer and norm.stack == role.stack and role.kind in norm.feeds:
                gain = self.source.read(norm.tensor)
                assert isinstance(gain, Tensor)
                return gain.float().to(self.options.device) + (1.0 if norm.zero_centered else 0.0)
        return None


def _stacked(matrices: list[Matrix], faces: str) -> tuple[Matrix | list[Tensor], bool]:
    """Stack experts along the side that does not face the stream; the flag says that the stack is transposed."""
    if len(matrices) == 1:
        return matrices[0], False
    tensors = [m for m in matrices if isinstance(m, Tensor)]
    if len(tensors) != len(matrices):
        raise ValueError("a delta over stacked experts cannot be stacked again")
    return ([m.T for m in tensors], True) if faces == "out" else (tensors, False)


def _shape(stacked: Matrix | list[Tensor]) -> tuple[int, int]:
    if isinstance(stacked, list):
        return sum(m.shape[0] for m in stacked), stacked[0].shape[1]
    return stacked.shape[0], stacked.shape[1]


def _light(t: Triplets) -> Triplets:
    """Without the full vectors, on the CPU: what may be kept for every layer."""
    return replace(t, u=t.u.cpu(), v=t.v.cpu(), full_u=None, full_v=None)
