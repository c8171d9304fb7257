"""The probes of a check, one function each: they read the subject and give rows with the values that verdicts need."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, isnan, nan

import torch
from torch import Tensor

from drillcore.measures.exponents import (
    INPUT_SCALES,
    PARAMETER_SCALES,
    Exponent,
    Point,
    by_input,
    by_parameters,
    plateau_ratio,
    sensitivity_exponent,
    size_exponent,
    sweep,
)
from drillcore.measures.hamiltonian import Ascent, ascend, ellipsoid_value
from drillcore.measures.output_norm import bounds
from drillcore.measures.rollout import Backward, Growth, Moments, go_back, growth, roll_out
from drillcore.measures.sensitivity import Jacobian, Map, jacobian_norm, jacobian_trace
from drillcore.measures.stability_rules import LIMITS
from drillcore.measures.zero_start import gradient_ratio_at_zero, pooled_variance, relative_sensitivity
from drillcore.seeds import generator
from drillcore.table import Row
from drillcore.verbs.check_subject import FoundNorm, Subject

STATES = 3
SOFTMAX_STATES = 9  # without QK-norm sensitivity scatters over states
DIRECTIONS = 3
STARTS = (0.3, 3.0, 30.0)
ROUNDS = 30
STEPS = 80


@dataclass
class Evidence:
    """What the probes found, row by row, and the values that verdicts are made of."""

    rows: list[Row] = field(default_factory=list)
    exponents: dict[str, Exponent] = field(default_factory=dict)
    plateau: float | None = None
    resets: bool = False


def scales(subject: Subject, found: Evidence) -> Iterator[str]:
    """Probes 1 to 3: sweeps of the input, of all controls, of the last matrix and of the gains. Yields what it did."""
    p = subject.parameters
    unguarded = subject.mixes_tokens() and not subject.normed_queries()
    with subject.nominal():
        f: Map = subject.run
        if subject.is_map:
            whole = size_exponent(sweep(f, subject.states(STATES), INPUT_SCALES, by_input, rounds=0))
            found.resets = whole is not None and whole.value <= LIMITS.bounded
            f = f if found.resets else subject.velocity
        _note_sweep(found, sweep(f, subject.states(STATES), INPUT_SCALES, by_input, rounds=ROUNDS), "input", "s")
        yield "input scale"
        swept: tuple[tuple[str, str, list[Tensor], int, int], ...] = (
            ("all matrices", "all", p.controls, ROUNDS, SOFTMAX_STATES if unguarded else STATES),
            ("last matrix", "last", [p.last], ROUNDS, STATES),
            ("gains", "gain", [*p.gains.values()], 0, STATES),
        )  # fmt: skip
        for words, name, parameters, rounds, count in swept:
            if parameters:
                points = sweep(f, subject.states(count), PARAMETER_SCALES, by_parameters(parameters), rounds=rounds,
                               what=words)  # fmt: skip
                _note_sweep(found, points, words, name)
                found.plateau = plateau_ratio(points) if name == "all" else found.plateau
            else:
                found.rows.append(Row(measure=f"exponent.q_{name}", status="none", reason="it has no gains"))
            yield words


def _note_sweep(found: Evidence, points: Sequence[Point], what: str, name: str) -> None:
    for point in points:
        at = f"{what} × {point.scale:g}"
        found.rows.append(Row(measure=f"sweep.{name}.rms", subset=at, value=point.rms))
        if point.sensitivity:
            n = len(point.sensitivity)
            found.rows.append(Row(
                measure=f"sweep.{name}.sensitivity", subset=at, value=sorted(point.sensitivity)[n // 2], n=n,
                low=min(point.sensitivity), high=max(point.sensitivity),
            ))  # fmt: skip
    both = {"p" if name == "s" else "q": size_exponent(points)}
    if points[-1].sensitivity:
        both["j"] = sensitivity_exponent(points)
    for letter, exponent in both.items():
        key = f"{letter}_{name}"
        if exponent is None:
            found.rows.append(Row(measure=f"exponent.{key}", status="zero", reason="it is zero at too many scales"))
        else:
            found.exponents[key] = exponent
            found.rows.append(Row(measure=f"exponent.{key}", value=exponent.value, stderr=exponent.stderr,
                                  n=exponent.n, low=exponent.low, high=exponent.high))  # fmt: skip


def local(subject: Subject, found: Evidence, norms: Sequence[FoundNorm]) -> float | None:
    """Sensitivity and relative sensitivity as given, and probe 6: a last matrix of zeros. Gives the gradient ratio."""
    x, last = subject.x, subject.parameters.last
    norm = jacobian_norm(subject.velocity, x, ROUNDS)
    found.rows.append(Row(measure="sensitivity", value=norm.value, n=norm.rounds))
    with torch.no_grad():
        y = subject.velocity(x)
    kappa = relative_sensitivity(norm.value, x, y)
    found.rows.append(
        Row(measure="relative_sensitivity", value=kappa) if kappa is not None else
        Row(measure="relative_sensitivity", status="zero", reason="the branch is zero as given")
    )  # fmt: skip
    for i, one in enumerate(norms):
        found.rows.append(Row(measure="output_norm.variance", layer=i, value=pooled_variance([one.given])))
        found.rows.append(Row(measure="output_norm.eps", layer=i, value=one.eps))
    p = torch.randn(x.shape, generator=generator("zero start"), dtype=torch.float64).to(x)
    with subject.nominal():
        ratio = gradient_ratio_at_zero(subject.velocity, x, p, last)
    found.rows.append(
        Row(measure="zero_start.gradient_ratio", value=ratio) if ratio is not None else
        Row(measure="zero_start.gradient_ratio", status="zero", reason="the last matrix has no gradient as given")
    )  # fmt: skip
    return ratio


def hamiltonian(subject: Subject, found: Evidence, norms: Sequence[FoundNorm], decay: float) -> Iterator[str]:
    """Probe 4: ascents for random unit p from several starts, without decay and then with it.

    What is finite without decay is finite with it, and is not climbed again.
    """
    if found.resets:
        found.rows.append(Row(measure="hamiltonian", status="not-applicable",
                              reason="the norm acts on the state, so that there is no velocity to choose"))  # fmt: skip
        return
    d, controls, x = subject.target.width, subject.parameters.controls, subject.x
    with subject.nominal():
        for strength in dict.fromkeys((0.0, decay)):
            rows = []
            for i in range(DIRECTIONS):
                p = torch.randn(d, generator=generator("direction", i), dtype=torch.float64)
                p = (p / p.norm()).to(x)
                ends = ascend(lambda: subject.velocity(x)[0, -1], controls, p, decay=strength, starts=STARTS,
                              steps=STEPS, tol=1e-3, align=30)  # fmt: skip
                rows.append(outcome_row(ends, i, strength, _closed(p, norms)))
            found.rows += rows
            yield f"Hamiltonian, decay {strength:g}"
            if all(row.value is not None for row in rows):
                return


def _closed(p: Tensor, norms: Sequence[FoundNorm]) -> float | None:
    """The closed form without decay; of several norms the sum, an upper bound."""
    p = p.double()
    values = [ellipsoid_value(p, n.norm.gain, n.norm.shift, centred=n.norm.centred) for n in norms]
    return sum(values) if values else None


def outcome_row(ends: Sequence[Ascent], direction: int, decay: float, closed: float | None) -> Row:
    """What ascents of one direction from several starts say together: one that diverges decides."""
    row = Row(measure="hamiltonian", layer=direction, subset=f"decay {decay:g}", high=closed, n=len(ends))
    if any(end.outcome == "diverged" for end in ends):
        return replace(row, status="diverged", reason="the value grows without a limit: raise the decay, or put a norm "
                       "on the branch's output")  # fmt: skip
    settled = [end for end in ends if end.outcome == "converged"]
    if settled:
        best = max(settled, key=lambda end: end.value)
        return replace(row, value=best.value, bound=abs(best.value) * best.change)
    if all(end.outcome == "collapsed" for end in ends):
        return replace(row, value=0.0, reason="decay draws every start into the origin")
    best = max(ends, key=lambda end: end.value)
    return replace(row, status="not-converged", reason=f"{best.value:.4g} and rising after {best.steps} steps")


@dataclass(frozen=True)
class Stack:
    """What the roll-outs found. `carried` is ρ^K as given and `carried_large` with three times the weights, NaN where
    the stack overflows; `carry` is a^K."""

    inflated: Growth
    carried: float
    carried_large: float
    carry: float
    largest: float | None  # bound 5 at the last site, where the branch has output norms


def stack(subject: Subject, found: Evidence, norms: Sequence[FoundNorm]) -> Iterator[str | Stack]:
    """Probes 5, 7 and 8: roll-outs of fresh copies, as given, inflated by 3 % per half-step, and three times as large.

    Yields what it did, and last the result.
    """
    count = subject.target.copies
    x = _start(subject, found.resets)
    grown: dict[str, Growth] = {}
    carried: dict[str, float] = {}
    sites: list[Moments] = []
    for name, settings in {"as given": (1.0, 1.0), "inflated": (1.0, 1.03), "weights × 3": (3.0, 1.0)}.items():
        with subject.copies(*settings) as step:
            states = roll_out(step, x, count)
            if not bool(torch.isfinite(states[-1]).all()):
                states.pop()
                why = f"it leaves the number format after {len(states)} of {count} copies"
                found.rows.append(Row(measure="roll_out", subset=name, site=len(states), status="overflow", reason=why))
            moments = [Moments.of(state) for state in states]
            grown[name] = _note_growth(found, name, moments)
            sites = moments if name == "as given" else sites
            if name != "inflated":
                way = go_back(step, states)
                _note_way(found, name, way)
                carried[name] = way.carried if len(states) > count else nan
        yield f"roll-out, {name}"
    carry = _carry(subject, found, x)
    largest = _note_bounds(subject, found, norms, sites, x)
    yield Stack(grown["inflated"], carried["as given"], carried["weights × 3"], carry, largest)


def _start(subject: Subject, resets: bool) -> Tensor:
    """The state a roll-out starts from; a map that resets the state is applied once, since it never sees another."""
    x = subject.states(1, "roll-out")[0]
    if not resets:
        return x
    with torch.no_grad(), subject.copies() as step:
        return step(subject.target.copies)(x)


def _note_growth(found: Evidence, name: str, moments: Sequence[Moments]) -> Growth:
    for site, m in enumerate(moments):
        for measure, value in (("entry_variance", m.entry_variance), ("data_variance", m.data_variance),
                               ("mean_abs", m.mean_abs), ("rms", m.rms), ("largest", m.largest)):  # fmt: skip
            found.rows.append(Row(measure=f"roll_out.{measure}", subset=name, site=site, value=value))
    fit = growth([m.entry_variance for m in moments])
    none = Row(measure="growth", subset=name, status="not-fitted", reason="fewer than four finite, positive variances")
    found.rows.append(
        none if isnan(fit.value) else
        Row(measure="growth", subset=name, kind=fit.kind, value=fit.value, n=len(moments),
            unit="per copy" if fit.kind == "exponential" else "exponent of the variance")
    )  # fmt: skip
    return fit


def _note_way(found: Evidence, name: str, way: Backward) -> None:
    for layer, (value, stderr) in enumerate(zip(way.retention, way.stderr, strict=True)):
        row = Row(measure="retention", subset=name, layer=layer, value=value, stderr=stderr, n=2)
        found.rows.append(_finite(row))
    for site, value in enumerate(way.gradient):
        found.rows.append(_finite(Row(measure="gradient", subset=name, site=site, value=value)))
    found.rows.append(_finite(Row(measure="retention.power", subset=name, value=way.carried)))


def _finite(row: Row) -> Row:
    if row.value is not None and isfinite(row.value):
        return row
    return replace(row, value=None, stderr=None, status="overflow", reason="the gradient leaves the number format")


def _carry(subject: Subject, found: Evidence, x: Tensor) -> float:
    with subject.without_branch():
        a, stderr = jacobian_trace(Jacobian(subject.update, x), 4)
    found.rows.append(Row(measure="carry", value=a, stderr=stderr, n=4))
    return float(a**subject.target.copies) if a > 0 else 0.0


def _note_bounds(subject: Subject, found: Evidence, norms: Sequence[FoundNorm], sites: Sequence[Moments], x: Tensor) \
        -> float | None:  # fmt: skip
    if not norms or found.resets:
        found.rows.append(Row(measure="bound", status="not-applicable", reason="no norm on the branch's output was "
                              "found: nothing bounds the stream for all weights"))  # fmt: skip
        return None
    own = [one.norm for one in norms]
    largest = None
    step = subject.target.residual_step
    budget = step * sum(norm.budget for norm in own) * subject.target.copies
    found.rows.append(Row(measure="gain_budget", value=budget))
    for bound in bounds([own] * (len(sites) - 1), sites, x, step if not subject.is_map else 1.0):
        found.rows.append(Row(measure=f"bound.{bound.name}", site=bound.site, value=bound.measured, high=bound.bound))
        if bound.name == "largest":
            largest = bound.bound
    return largest
