"""Squared cosines over pairs of vectors: fourth powers and the largest, from all pairs or from sampled ones.

The mean of the squared cosines needs no pairs (it is a norm of the frame operator); their variance and their
maximum do.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import sqrt

import numpy as np
import torch
from torch import Tensor

from drillcore.linalg.gram import Array, native
from drillcore.linalg.tiles import on_tiles
from drillcore.measures.row_blocks import RowBlocks

EXACT_ROWS = 50_000  # up to here every pair is formed
_TILE = 512, 1024  # rows × columns of products at a time: what follows a product stays in a CPU's cache …
_LARGE_TILE = 4096, 4096  # … and on an accelerator outweighs the launch
_BLOCK_ELEMENTS = 1 << 24  # made unit vectors at a time: 64 MiB
_SAMPLES, _SAMPLE_ROWS = 32, 250  # independent blocks of 250 × 250 pairs: two million pairs
_STEEP = 4.0  # largest norm over distance from the mean for which centring after the product keeps six digits


@dataclass(frozen=True, slots=True)
class Directions:
    """How vectors become unit vectors: subtract `shift` (m, float32), divide by `norms` (n, float64).

    A vector whose norm is given as zero is masked: it becomes the zero vector.
    """

    norms: Tensor
    shift: Tensor | None = None

    @property
    def weights(self) -> Tensor:
        """1/norm, and 0 for a masked vector."""
        return torch.where(self.norms > 0, 1 / self.norms, 0.0)

    @property
    def count(self) -> int:
        """How many vectors are not masked."""
        return int((self.norms > 0).sum())

    def units(self, block: Tensor, of: slice | Tensor) -> Tensor:
        """Turn `block` (rows × m, float32, changed in place), the vectors `of`, into unit vectors."""
        if self.shift is not None:
            block -= self.shift
        return block.mul_(self.weights[of].to(block.dtype)[:, None])


@dataclass(slots=True)
class PairMoments:
    """Sum of the fourth powers of the cosines and the largest square, over the pairs added so far."""

    fourth: float = 0.0
    largest: float = 0.0

    @classmethod
    def of(cls, cosines: Array) -> "PairMoments":
        """The moments of a contiguous tile of cosines, which is squared in place."""
        cosines *= cosines
        squares = cosines.reshape(-1)
        return cls(float(squares @ squares), float(squares.max()))

    def add(self, other: "PairMoments") -> None:
        """Add the moments of other pairs."""
        self.fourth += other.fourth
        self.largest = max(self.largest, other.largest)


@dataclass(frozen=True, slots=True)
class PairSpread:
    """Variance of cos² and largest |cos| over `pairs` pairs; the variance has a `stderr` where they were sampled."""

    variance: float
    stderr: float | None
    largest: float
    pairs: int

    @property
    def exact(self) -> bool:
        """Whether every pair was looked at."""
        return self.stderr is None


def exact_spread(rows: RowBlocks, raw: Directions, centred: Directions, means: tuple[float, float],
                 device: str = "cpu") -> tuple[PairSpread, PairSpread]:  # fmt: skip
    """Every pair, for the raw and the centred directions, whose exact means of cos² are given.

    Each variance is right to about 1e-7 times the squared mean, the float32 of the fourth powers.
    """
    totals = (PairMoments(), PairMoments())
    for moments in _tiles(rows, raw, centred, device):
        for total, tile in zip(totals, moments, strict=True):
            total.add(tile)
    spreads = []
    for total, directions, mean in zip(totals, (raw, centred), means, strict=True):
        pairs = directions.count * (directions.count - 1) // 2
        variance = max(0.0, total.fourth / pairs - mean * mean)
        spreads.append(PairSpread(variance, None, sqrt(total.largest), pairs))
    return spreads[0], spreads[1]


def sampled_spread(rows: RowBlocks, raw: Directions, centred: Directions, means: tuple[float, float],
                   device: str = "cpu") -> tuple[PairSpread, PairSpread]:  # fmt: skip
    """Two million pairs in independent blocks of random vectors; the standard error is from the blocks' spread.

    The variance is the mean of (cos² − mean)² with the exact mean over all pairs. The draw depends on the name of
    the tensor alone, so it repeats, and no two tensors share it.
    """
    seed = hashlib.sha256(f"superposition pairs of {rows.name}".encode()).digest()[:8]
    random = np.random.default_rng(int.from_bytes(seed, "little"))
    kept = np.flatnonzero((centred.norms > 0).cpu().numpy())
    found: tuple[list[tuple[float, float]], ...] = ([], [])
    for _ in range(_SAMPLES):
        drawn = np.sort(random.choice(kept, 2 * _SAMPLE_ROWS, replace=False, shuffle=False))
        block = rows.gather(drawn, device)
        halves = torch.from_numpy(random.permutation(2 * _SAMPLE_ROWS)).to(device).view(2, _SAMPLE_ROWS)
        for moments, directions, mean in zip(found, (raw, centred), means, strict=True):
            units = directions.units(block.clone(), torch.from_numpy(drawn).to(device))
            squares = (native(units[halves[0]]) @ native(units[halves[1]]).T) ** 2
            moments.append((float(((squares - mean) ** 2).mean()), float(squares.max())))
    return _pooled(found[0]), _pooled(found[1])


def _pooled(moments: list[tuple[float, float]]) -> PairSpread:
    variances = np.array([variance for variance, _ in moments])
    stderr = float(variances.std(ddof=1) / sqrt(len(variances)))
    largest = max(largest for _, largest in moments)
    return PairSpread(float(variances.mean()), stderr, sqrt(largest), len(moments) * _SAMPLE_ROWS**2)


def _tiles(rows: RowBlocks, raw: Directions, centred: Directions, device: str) -> Iterator[tuple[PairMoments, ...]]:
    """Raw and centred moments of every unordered pair once, tile by tile."""
    centring = _Centring.of(raw, centred)
    height, width = _TILE if device == "cpu" else _LARGE_TILE
    spans = list(rows.spans(max(1, _BLOCK_ELEMENTS // rows.m)))

    def units(span: tuple[int, int]) -> _Units:
        first = native(raw.units(rows.block(*span, device), slice(*span)))
        return span, first, first if centring else native(centred.units(rows.block(*span, device), slice(*span)))

    for i, beside in enumerate(spans):
        right = units(beside)
        for above in spans[: i + 1]:
            left = right if above == beside else units(above)
            tiles = [(a, b) for a, b in product(_cut(*above, height), _cut(*beside, width)) if b.stop - 1 > a.start]
            job = partial(_moments, left, right, centring)
            yield from on_tiles(job, tiles) if device == "cpu" else map(job, tiles)


_Units = tuple[tuple[int, int], Array, Array]  # span, its raw unit vectors, its centred ones


def _moments(
    left: _Units, right: _Units, centring: "_Centring | None", tile: tuple[slice, slice]
) -> tuple[PairMoments, ...]:
    """Raw and centred moments of one tile; the places on and below the diagonal are zero."""
    a, b = tile
    here, there = _within(a, left[0]), _within(b, right[0])
    cosines = left[1][here] @ right[1][there].T
    other = centring.after(cosines, a, b) if centring else left[2][here] @ right[2][there].T
    _clear_diagonal(cosines, a, b)
    _clear_diagonal(other, a, b)
    return PairMoments.of(cosines), PairMoments.of(other)


def _clear_diagonal(tile: Array, rows: slice, columns: slice) -> None:
    """Set to zero the pairs of a vector with itself or with an earlier one."""
    for row in range(max(rows.start, columns.start), rows.stop):
        tile[row - rows.start, : row + 1 - columns.start] = 0


def _cut(start: int, stop: int, step: int) -> list[slice]:
    return [slice(at, min(at + step, stop)) for at in range(start, stop, step)]


def _within(part: slice, span: tuple[int, int]) -> slice:
    return slice(part.start - span[0], part.stop - span[0])


@dataclass(frozen=True, slots=True)
class _Centring:
    """Centred cosines from raw ones, in place of a second product.

    With r the norms, ρ the distances from the mean μ and q = ‖μ‖², 2 xᵢ·μ = rᵢ² − ρᵢ² + q, so that
    (xᵢ − μ)·(xⱼ − μ)/(ρᵢρⱼ) = (cᵢⱼ − bᵢ/rⱼ − bⱼ/rᵢ) αᵢαⱼ, with α = r/ρ and b = (r² − ρ²)/(2r).
    """

    ratio: Array  # α, n
    left: Array  # (b, 1/r), n × 2
    right: Array  # (1/r, b), 2 × n

    @classmethod
    def of(cls, raw: Directions, centred: Directions) -> "_Centring | None":
        """None where α is so large that the subtraction would lose the digits of float32."""
        ratio = torch.where(raw.norms > 0, raw.norms / centred.norms, 0.0)
        if float(ratio.max()) > _STEEP:
            return None
        b = (raw.norms**2 - centred.norms**2) / 2 * raw.weights
        pair = torch.stack([b, raw.weights]).float()
        return cls(native(ratio.float()), native(pair.T.contiguous()), native(pair.flip(0).contiguous()))

    def after(self, cosines: Array, rows: slice, columns: slice) -> Array:
        """The centred cosines of the tile `cosines`, as a new tile."""
        shifted = self.left[rows] @ self.right[:, columns]
        shifted -= cosines  # the sign is lost in the squares
        shifted *= self.ratio[columns]
        shifted *= self.ratio[rows, None]
        return shifted
