"""Superposition: how many directions a matrix packs into the residual stream, and how much they overlap.

The vectors are the rows of an embedding, a head or a reading matrix and the columns of a writing matrix: n vectors
of length m, the residual width. Measures and formulas follow Liu, Liu and Gore, Superposition Yields Robust Neural
Scaling, arXiv 2505.10465v4: represented fractions (eq. 3, 9), the Welch bound (eq. 5), squared overlaps over
unordered pairs and the ratio of their variance to that of random unit vectors, 2(m − 1)/(m²(m + 2)).

The mean squared overlap needs no n × n product: Σᵢⱼ(wᵢ·wⱼ)² = ‖WᵀW‖²_F for unit rows. It cannot tell a random
frame (1/m) from a tight one (κ², just below), so variance, maximum and distance from a tight frame stand beside it.
Rows that are zero, or padding at the end of a vocabulary, are masked everywhere and counted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt

import torch
from torch import Tensor

from drillcore import stats
from drillcore.linalg import Scratch
from drillcore.linalg.gram import GramSum, column_sums, row_norms
from drillcore.measures.overlaps import EXACT_ROWS, Directions, PairSpread, exact_spread, sampled_spread
from drillcore.measures.participation import Participation, Ratio, participation
from drillcore.measures.row_blocks import RowBlocks, is_vocabulary, residual_rows
from drillcore.table import Row
from drillcore.weights.role import Weight
from drillcore.weights.source import Source

_QUANTILES = (0.01, 0.05, 0.25, 0.75, 0.95, 0.99)
_LEAST, _MOST = 1e-30, 1e18  # of a norm: below it is zero; above, its square is beyond float32
_COINCIDENT = 1e-6  # a row closer to the mean than this times its norm equals it to the precision of float32
_PAIRS = ("mean_sq_overlap", "mean_sq_overlap_x_m", "mean_sq_overlap_over_welch", "variance_ratio", "max_overlap",
          "max_overlap_over_welch", "tight_frame_defect", "participation_ratio")  # fmt: skip

_NOT_FINITE = f"holds NaN, infinity or rows longer than {_MOST:.0e}"

Make = Callable[..., Row]


@dataclass(frozen=True, slots=True)
class Frame:
    """What the sums of outer products say of one subset, raw or centred."""

    subset: str
    directions: Directions
    participation: Ratio
    unit_sq_norm: float  # Σ (wᵢ·wⱼ)² over ordered pairs of unit vectors, i = j included
    defect: float

    @property
    def mean_sq_overlap(self) -> float:
        """Mean squared cosine over unordered pairs; needs two vectors."""
        n = self.directions.count
        return max(0.0, self.unit_sq_norm - n) / (n * (n - 1))


def superposition(source: Source, weight: Weight, *, exact_max: bool = False, device: str = "cpu") -> list[Row]:
    """Measure the superposition of one matrix, streaming its vectors in blocks.

    Overlap, frame and participation measures come twice: subset "raw", and "centred", where the mean row is
    subtracted first. `n` is the number of vectors, or of pairs where pairs were sampled. `superposition.norm_mean`
    is the mean of the norms, `superposition.mean_row_norm` the norm of the mean.

    Args:
        source: where the weights are.
        weight: a matrix that faces the residual stream.
        exact_max: form all pairs even for more than 50,000 vectors; the work grows with their square.
        device: where the products are formed.

    Returns:
        Rows with stack, layer, kind and expert set; run, source, seed and step are left to the caller. A measure
        that does not apply has a status and a reason. Above 50,000 vectors `superposition.max_overlap` has status
        "needs-exact-max" and only a lower bound, in `low`: the largest overlap among sampled pairs.

    Raises:
        InputError: the weights cannot be read.
    """
    role = weight.role
    make = partial(Row, stack=role.stack, layer=role.layer, kind=role.kind, expert=role.expert)
    if not role.faces:
        reason = f"{role.kind} touches the residual stream with neither side"
        return [make(measure="superposition.n", status="not-applicable", reason=reason)]
    rows = residual_rows(source, weight)
    return packing(make, rows, vocabulary=is_vocabulary(weight), exact_max=exact_max, device=device)


def packing(make: Make, rows: RowBlocks, *, vocabulary: bool = False, exact_max: bool = False,
            device: str = "cpu") -> list[Row]:  # fmt: skip
    """The same of vectors that are at hand, wherever they come from; `make` completes each row."""
    scan = _scan(rows, device)
    if scan is None:
        return [make(measure="superposition.n", status="non-finite", reason=_NOT_FINITE)]
    return [*_counts(make, rows, scan, vocabulary), *_norm_rows(make, scan),
            *_overlap_rows(make, rows, scan, exact_max, device)]  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Scan:
    """What the first pass gives: norms (n), the mean vector (m), and participation ratios, to be fed once more."""

    norms: Tensor
    mean: Tensor
    participation: Participation


def _scan(rows: RowBlocks, device: str) -> _Scan | None:
    """None where an entry is not finite, or too large."""
    norms, total = [], torch.zeros(rows.m, dtype=torch.float64, device=device)
    ratios, held = participation(rows, device), Scratch()
    for start, stop in rows.spans():
        block = rows.block(start, stop, device, held)
        found = row_norms(block)
        norms.append(torch.where(found < _LEAST, 0.0, found))
        if not bool((found <= _MOST).all()):
            return None
        total += column_sums(block)
        ratios.first(block)
    joined = torch.cat(norms)
    return _Scan(joined, total / max(1, int((joined > 0).sum())), ratios)


def _counts(make: Make, rows: RowBlocks, scan: _Scan, vocabulary: bool) -> Iterator[Row]:
    kept, padded = int((scan.norms > 0).sum()), len(rows.padded)
    yield make(measure="superposition.n", value=kept, unit="rows")
    yield make(measure="superposition.m", value=rows.m, unit="dimensions")
    yield make(measure="superposition.zero_rows", value=rows.n - kept - padded, n=rows.n, unit="rows")
    if vocabulary:
        yield make(measure="superposition.padded_rows", value=padded, n=rows.n, unit="rows")
    else:
        yield make(measure="superposition.padded_rows", status="not-applicable", reason="only a vocabulary is padded")


def _norm_rows(make: Make, scan: _Scan) -> Iterator[Row]:
    norms = scan.norms[scan.norms > 0]
    n = len(norms)
    if n == 0:
        reason = "every row is zero or padding; look at how the checkpoint was saved"
        yield make(measure="superposition.norm_mean", status="not-applicable", reason=reason, n=0)
        return
    ordered = norms.sort().values
    median = float(_quantile(ordered, 0.5))
    values = {"norm_mean": float(norms.mean()), "norm_min": float(ordered[0]), "norm_max": float(ordered[-1]),
              "norm_median": median, "mean_row_norm": float(torch.linalg.vector_norm(scan.mean))}  # fmt: skip
    for q in _QUANTILES:
        yield make(measure="superposition.norm_quantile", subset=f"q{q}", value=_quantile(ordered, q), n=n)
    # phi_1_relative is ½ by construction, up to ties: the share above the median.
    shares = {"phi_half": 0.5, "phi_1": 1.0, "phi_half_relative": median / 2, "phi_1_relative": median}
    for name, threshold in shares.items():
        values[name] = float((norms > threshold).double().mean())
    for name, value in values.items():
        yield make(measure=f"superposition.{name}", value=value, n=n)


def _quantile(ordered: Tensor, q: float) -> float:
    """Linear interpolation; torch.quantile refuses more than 16 million entries."""
    position = q * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return float(torch.lerp(ordered[low], ordered[high], position - low))


def _overlap_rows(make: Make, rows: RowBlocks, scan: _Scan, exact_max: bool, device: str) -> Iterator[Row]:
    frames = _frames(rows, scan, device)
    fewest = min(frame.directions.count for frame in frames)
    if fewest < 2:
        reason = f"{fewest} vector(s) left after masking rows that are zero, padding or equal to the mean; needs two"
        for frame in frames:
            for name in _PAIRS:
                yield make(measure=f"superposition.{name}", subset=frame.subset, status="not-applicable", reason=reason)
        return
    spread = exact_spread if exact_max or fewest <= EXACT_ROWS else sampled_spread
    raw, centred = frames
    means = (raw.mean_sq_overlap, centred.mean_sq_overlap)
    for frame, found in zip(frames, spread(rows, raw.directions, centred.directions, means, device), strict=True):
        here = partial(make, subset=frame.subset)
        yield from _mean_rows(here, frame, rows.m)
        yield from _spread_rows(here, frame, found, rows.m)
        yield from _frame_rows(here, frame, rows.m)


def _frames(rows: RowBlocks, scan: _Scan, device: str) -> tuple[Frame, Frame]:
    """The second pass: sums over unit vectors, raw and centred.

    Neither follows from the other or from the sum of the first pass, as each row has its own divisor.
    """
    shift, held, unit = scan.mean.float(), Scratch(), Scratch()
    raw, grams, distances = Directions(scan.norms), (GramSum(rows.m, device), GramSum(rows.m, device)), []
    for start, stop in rows.spans():
        of, block = slice(start, stop), rows.block(start, stop, device, held)
        scan.participation.second(block)
        grams[0].add(raw.units(unit.take(block.shape[0], rows.m, block.device).copy_(block), of))
        block -= shift
        distances.append(_distances(block, scan.norms[of], scan.mean))
        grams[1].add(Directions(distances[-1]).units(block, slice(None)))
    centred = Directions(torch.cat(distances), shift)
    ratios = scan.participation.ratios(scan.norms, scan.mean)
    return _frame("raw", raw, ratios[0], grams[0]), _frame("centred", centred, ratios[1], grams[1])


def _distances(block: Tensor, norms: Tensor, mean: Tensor) -> Tensor:
    """Norms of centred rows; zero for rows that are masked or coincide with the mean."""
    distances = row_norms(block)
    floor = _COINCIDENT * torch.linalg.vector_norm(mean)
    return torch.where((norms > 0) & (distances > floor), distances, 0.0)


def _frame(subset: str, directions: Directions, participation: Ratio, gram: GramSum) -> Frame:
    n, m = directions.count, gram.m
    defect = sqrt(gram.squared_distance(n / m) * m) / n if n else 0.0
    return Frame(subset, directions, participation, gram.squared_norm(), defect)


def _mean_rows(make: Make, frame: Frame, m: int) -> Iterator[Row]:
    """Null: the mean over pairs of random directions, where centred those of a Gaussian cloud less its mean.

    Few vectors of very different norms overlap more than that once centred: the mean is that of the long ones.
    """
    n, value = frame.directions.count, frame.mean_sq_overlap
    null, sd = stats.squared_cos(m).mean, stats.squared_cos(m).sd / sqrt(n * (n - 1) / 2)
    if frame.subset == "centred":
        null = stats.centred_squared_cos(m, n)
    scales = {"mean_sq_overlap": 1.0, "mean_sq_overlap_x_m": float(m)}
    if n > m:
        scales["mean_sq_overlap_over_welch"] = stats.welch_bound(n, m) ** -2
    for name, scale in scales.items():
        yield make(measure=f"superposition.{name}", value=value * scale, n=n, null=null * scale, null_sd=sd * scale)
    if n <= m:
        yield _no_welch(make, "mean_sq_overlap_over_welch", n, m)


def _spread_rows(make: Make, frame: Frame, found: PairSpread, m: int) -> Iterator[Row]:
    n, chance = frame.directions.count, stats.squared_cos(m).sd ** 2
    counted = n if found.exact else found.pairs
    if m == 1:
        reason = "unit vectors in one dimension all have a squared overlap of 1"
        yield make(measure="superposition.variance_ratio", status="not-applicable", reason=reason)
    else:
        yield make(measure="superposition.variance_ratio", value=found.variance / chance, n=counted, null=1.0,
                   stderr=None if found.stderr is None else found.stderr / chance)  # fmt: skip
    scales = {"max_overlap": 1.0}
    if n > m:
        scales["max_overlap_over_welch"] = 1 / stats.welch_bound(n, m)
    largest_by_chance = stats.largest_abs_cos(m, n * (n - 1) // 2)
    for name, scale in scales.items():
        row = make(
            measure=f"superposition.{name}", value=found.largest * scale, n=counted, null=largest_by_chance * scale
        )
        yield row if found.exact else _unfinished(row)
    if n <= m:
        yield _no_welch(make, "max_overlap_over_welch", n, m)


def _unfinished(row: Row) -> Row:
    """The largest of sampled pairs is no more than a lower bound of the maximum."""
    reason = f"largest of {row.n} sampled pairs, a lower bound; form all pairs with --exact-max"
    return replace(row, value=None, low=row.value, status="needs-exact-max", reason=reason)


def _frame_rows(make: Make, frame: Frame, m: int) -> Iterator[Row]:
    """Nulls: E‖G‖² = n + n(n − 1)/m for independent unit vectors; isotropic Gaussian rows for the participation."""
    n = frame.directions.count
    free = n if frame.subset == "raw" else n - 1  # degrees of freedom
    yield make(measure="superposition.tight_frame_defect", value=frame.defect, n=n, null=sqrt((m - 1) / n))
    yield make(measure="superposition.participation_ratio", value=frame.participation.value, n=n,
               stderr=frame.participation.stderr, null=(free * m + 2) / (free + m + 1))  # fmt: skip


def _no_welch(make: Make, name: str, n: int, m: int) -> Row:
    reason = f"the Welch bound needs more vectors than dimensions; there are {n} in {m}"
    return make(measure=f"superposition.{name}", status="not-applicable", reason=reason, n=n)
