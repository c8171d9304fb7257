"""Degrees of growth: how a map and its sensitivity grow with the scale of its input and of its parameters.

A sweep multiplies the input (or some parameters) by powers of two and reads the RMS of the map and ‖∂f/∂x‖₂. The
exponent is the least-squares slope of log₂ value against log₂ scale over the upper part of the sweep, where constants
no longer matter (shared notes §4.2, probes 1 to 3: derived (drillcore)).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import log2, sqrt

import torch
from torch import Tensor

from drillcore.measures.sensitivity import JacobianNorm, Map, jacobian_norm
from drillcore.weights.source import InputError

INPUT_SCALES = tuple(2.0**k for k in range(-4, 9))
PARAMETER_SCALES = tuple(2.0**k for k in range(7))
FITTED = 4  # the exponent is the slope over so many of the largest scales

Scaling = Callable[[float], AbstractContextManager[float]]


@dataclass(frozen=True)
class Point:
    """The map at one scale: its RMS over all inputs, the sensitivity at each, the largest last change of one."""

    scale: float
    rms: float
    sensitivity: tuple[float, ...] = ()
    change: float | None = None


@dataclass(frozen=True)
class Exponent:
    """A slope in log–log and the standard error of its fit; of several states the median and the range."""

    value: float
    stderr: float
    n: int
    low: float | None = None
    high: float | None = None


def sweep(
    f: Map, inputs: Sequence[Tensor], scales: Sequence[float], scaled: Scaling, *, rounds: int = 30, what: str = "input"
) -> list[Point]:
    """Read f at every scale.

    Args:
        f: the map; its input has the shape of one of `inputs`.
        inputs: sample states, each … × width.
        scales: rising.
        scaled: enters a scale: `scaled(c)` is a context that multiplies what is swept and gives the factor by which
            the input is to be multiplied meanwhile (`by_input`, `by_parameters`).
        rounds: of the power iteration, 0 for none; it is done at the scales of the fit and every second one below.
        what: named in errors.

    Raises:
        InputError: f is not finite at a scale.
        RuntimeError: an operation of f cannot be differentiated twice.
    """
    read = {*scales[-FITTED:], *scales[::2]}  # sensitivity is the dear part, and below it is only drawn
    found: list[Point] = []
    starts: list[Tensor | None] = [None] * len(inputs)
    for c in scales:
        with scaled(c) as factor:
            squares, sizes = 0.0, 0
            norms: list[JacobianNorm] = []
            for i, x in enumerate(inputs):
                with torch.no_grad():
                    y = f(factor * x)
                if not bool(torch.isfinite(y).all()):
                    raise InputError(
                        f"it gives NaN or infinity when its {what} is multiplied by {c:g}", where=str(x.dtype),
                        remedy="find the operation that overflows (a power, an exp, a product of branches)",
                    )  # fmt: skip
                squares, sizes = squares + float(y.double().square().sum()), sizes + y.numel()
                if rounds and c in read:
                    norm = jacobian_norm(f, factor * x, rounds, start=starts[i], key=f"sensitivity {i}")
                    starts[i] = norm.direction
                    norms.append(norm)
            change = max(norm.change for norm in norms) if norms else None
            found.append(Point(c, sqrt(squares / sizes), tuple(norm.value for norm in norms), change))
    return found


def by_input(c: float) -> AbstractContextManager[float]:
    """Scale the input."""
    return nullcontext(c)


def by_parameters(parameters: Sequence[Tensor]) -> Scaling:
    """Scale these parameters in place; they are put back, bit for bit, when the context ends."""

    @contextmanager
    def scaled(c: float) -> Iterator[float]:
        kept = [p.detach().clone() for p in parameters]
        try:
            with torch.no_grad():
                for p in parameters:
                    p.mul_(c)
            yield 1.0
        finally:
            with torch.no_grad():
                for p, before in zip(parameters, kept, strict=True):
                    p.copy_(before)

    return scaled


def exponent(scales: Sequence[float], values: Sequence[float]) -> Exponent | None:
    """The slope over the last `FITTED` points; None where fewer than three of them are above 0."""
    points = [(log2(c), log2(v)) for c, v in zip(scales, values, strict=True) if v > 0][-FITTED:]
    if len(points) < 3:
        return None
    n = len(points)
    mx, my = (sum(p[i] for p in points) / n for i in (0, 1))
    spread = sum((x - mx) ** 2 for x, _ in points)
    slope = sum((x - mx) * (y - my) for x, y in points) / spread
    left = sum((y - my - slope * (x - mx)) ** 2 for x, y in points)
    return Exponent(slope, sqrt(left / (n - 2) / spread), n)


def size_exponent(points: Sequence[Point]) -> Exponent | None:
    """How the map's RMS grows with the scale."""
    return exponent([p.scale for p in points], [p.rms for p in points])


def sensitivity_exponent(points: Sequence[Point]) -> Exponent | None:
    """How the sensitivity grows: the median of the slopes at single states, and their range.

    Where a softmax sharpens, sensitivity falls at most states and rises near ties, so that the range matters; where
    nothing saturates all states agree.
    """
    points = [p for p in points if p.sensitivity]
    scales = [p.scale for p in points]
    states = range(len(points[0].sensitivity) if points else 0)
    slopes = [s for i in states if (s := exponent(scales, [p.sensitivity[i] for p in points])) is not None]
    if not slopes:
        return None
    middle = sorted(slopes, key=lambda s: s.value)
    chosen = middle[(len(middle) - 1) // 2]
    return replace(chosen, low=middle[0].value, high=middle[-1].value)


def plateau_ratio(points: Sequence[Point]) -> float | None:
    """RMS at the last scale over that at the one before: 1 on a plateau; None where the map is zero."""
    return points[-1].rms / points[-2].rms if points[-2].rms > 0 else None
