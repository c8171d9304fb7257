"""Follow the bounds through a stack, add by add (notes on arXiv 2510.09904, §2.4 and 2.6; derived (drillcore))."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import sqrt

from drillcore.measures.stability.collect import StackBounds
from drillcore.measures.stability.extent import Ellipsoid, Extent, Region
from drillcore.weights.assign import Assignment


@dataclass(frozen=True)
class Add:
    """One residual add: what it can give, from the sets that are added; `total` of None has a reason."""

    site: int  # behind the add
    layer: int
    branch: str
    total: Region | None
    given: tuple[Extent, ...] = ()
    reason: str = ""
    settled: Ellipsoid | None = None  # what a norm on the sum makes of it


def follow(own: StackBounds, assignment: Assignment) -> Iterator[Add]:
    """Every add of a stack, in order."""
    stream = None if own.begin.extent is None else region(own.begin.extent)
    reason = own.begin.reason
    for site, step in enumerate(own.steps, 1):
        wanted = [b if b.out is None else own.norms[b.out.tensor] for b in step.branches]
        found = [own.output(step.layer, b.name, assignment) if not isinstance(b, Ellipsoid) else b for b in wanted]
        given = tuple(extent for extent in found if extent is not None)
        if stream is not None and len(given) < len(found):
            lost = next(b for b, extent in zip(step.branches, found, strict=True) if extent is None)
            stream, reason = None, own.missing(step.layer, lost.name)
        if stream is not None:
            stream = reduce(lambda s, x: s.plus(region(x), own.placed.residual_step), given, stream)
        post = step.branches[-1].post
        settled = None if post is None else own.norms[post.tensor]
        name = "+".join(b.name for b in step.branches)
        if stream is None:
            yield Add(site, step.layer, name, None, reason=reason, settled=settled)
        else:
            yield Add(site, step.layer, name, stream, given, settled=settled)
        stream = stream if settled is None else settled.region


@dataclass(frozen=True)
class Site:
    """Bounds at a place in the stream: max |x|, and (1) to (4) of the notes, per token or over the data."""

    site: int
    layer: int
    largest: float
    mean_abs: float
    rms: float
    entry_sd: float
    data_sd: float


def sites(own: StackBounds, adds: Sequence[Add]) -> Iterator[Site]:
    """The sites whose stream is bounded."""
    sums = None if own.begin.extent is None else _moments(own.begin.extent)
    if own.begin.extent is not None and sums is not None:
        yield Site(0, adds[0].layer, region(own.begin.extent).largest, *sums)
    for add in adds:
        if add.settled is not None:
            yield Site(add.site, add.layer, add.settled.largest, *_moments(add.settled))
        elif add.total is not None and sums is not None:
            for extent in add.given:
                sums = [a + own.placed.residual_step * b for a, b in zip(sums, _moments(extent), strict=True)]
            yield Site(add.site, add.layer, add.total.largest, *sums)


@dataclass(frozen=True)
class Transport:
    """Between the laws of the tokens: from the first site to the last, and of two inputs more than at the start."""

    drift: float
    apart: float


def transport(own: StackBounds, adds: Sequence[Add]) -> Transport | None:
    """W_p(X₀, X_K) ≤ Δt Σ (radius + ‖centre‖), and W_p of two laws grows by at most 2 Δt Σ radius (§2.6, derived).

    None where an add is not bounded, or a norm stands on the stream.
    """
    if any(add.settled is not None or (own.begin.extent is not None and add.total is None) for add in adds):
        return None
    given = [region(extent) for add in adds for extent in add.given]
    if own.begin.extent is None or not given:
        return None
    step = own.placed.residual_step
    return Transport(step * sum(r.norm for r in given), 2 * step * sum(r.radius for r in given))


def below_bfloat16(own: StackBounds) -> float | None:
    """Share of the half-steps with Δt·rms(branch) below 2⁻⁹·rms(stream), half a step of bfloat16 (derived).

    The branch's size is rms(γ) and rms(β) of its output norm, the stream's the sum of squares, as for branches that are
    not correlated, from the longest embedding. None where a branch has no output norm: its size is not in the weights.
    """
    if own.begin.extent is None or any(b.out is None for step in own.steps for b in step.branches):
        return None
    stream, lost = (region(own.begin.extent).norm ** 2) / _width(own.begin.extent), 0
    for step in own.steps:
        norms = [own.norms[b.out.tensor] for b in step.branches if b.out is not None]
        size = sum(float(n.gain.square().mean() + n.shift.square().mean()) for n in norms) * own.placed.residual_step**2
        lost += size < 2.0**-18 * stream
        stream += size
    return lost / len(own.steps)


def region(extent: Extent) -> Region:
    """The extent as a region."""
    return extent.region if isinstance(extent, Ellipsoid) else extent


def _moments(extent: Extent) -> list[float]:
    """Bounds on the mean |x|, the root mean square, and the standard deviation over the entries and over the data."""
    root = sqrt(_width(extent))
    if isinstance(extent, Ellipsoid):
        centre, one = extent.shift, float(extent.gain.abs().max())
        mean = float(extent.gain.norm()) / root
    else:
        centre, one = extent.centre, extent.radius / root
        mean = min(one, float(extent.spread.mean()))
    return [
        mean + float(centre.abs().mean()), one + float(centre.norm()) / root,
        one + float(centre.std(correction=0)), one,
    ]  # fmt: skip


def _width(extent: Extent) -> int:
    return len(extent.gain if isinstance(extent, Ellipsoid) else extent.spread)
