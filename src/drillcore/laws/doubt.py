"""What the data leave open of a fit: errors, bootstrap, profile, groups left out, sizes held out, flat directions."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, nan, sqrt

import numpy as np
from scipy.special import fdtri, stdtrit

from drillcore.intervals import Interval
from drillcore.laws.estimate import Solution, jacobian, project, solve
from drillcore.laws.law import Array, Labels, Law, LawError, Mask, Sizes, design
from drillcore.seeds import seed_of

FEWEST_CLUSTERS = 15  # below, a percentile bootstrap is too short
_FLAT = 1e-5  # of a singular value against the largest
_FINE = 600


def standard_errors(solution: Solution) -> dict[str, float]:
    """√diag(s²(JᵀJ)⁻¹) with s² = SSR/(n − p), of all parameters together; infinite along flat directions."""
    J = jacobian(solution, units=True)
    size = np.linalg.norm(J, axis=0)
    size = np.where(size > 0, size, 1.0)
    _, s, V = np.linalg.svd(J / size, full_matrices=False)
    variance = solution.ssr / (len(solution.data) - solution.count)
    with np.errstate(divide="ignore"):
        found = np.sqrt(variance * ((V / np.where(s > 1e-12 * s[0], s, 0.0)[:, None]) ** 2).sum(0)) / size
    return dict(zip(solution.names, found.tolist(), strict=True))


def textbook_error(solution: Solution) -> float:
    """The error of an exponent that holds everything else fixed: of the slope of ln(y − L₀) on ln x, n − 3 degrees.

    As the official notebook of arXiv 2505.10465 quotes it; too small. Below an offset ln(y − L₀) counts as 0 there.
    """
    law, data = solution.law, solution.data
    if len(law.terms) != 1:
        return nan
    (name,) = law.terms
    power = (
        design(replace(law, offset="none"), data, solution.exponents)
        @ solution.linear[: len(data.groups) if law.scale == "group" else 1]
    )
    above = data.y - (solution.predicted - power)
    r = np.log(np.where(above > 0, above, 1.0)) - np.log(power)
    x = np.log(data.x[name])
    return sqrt(float(r @ r) / float(((x - x.mean()) ** 2).sum()) / max(1, len(data) - 3))


def flat_directions(solution: Solution) -> list[str]:
    """Combinations of parameters that the data hardly determine, in words."""
    J = jacobian(solution)
    size = np.linalg.norm(J, axis=0)
    size = np.where(size > 1e-10 * size.max(), size, 1.0)  # a term that vanished has an exponent that nobody sees
    _, s, V = np.linalg.svd(J / size, full_matrices=False)
    found = []
    for value, direction in zip(s, V, strict=True):
        if value < _FLAT * s[0]:
            main = np.argsort(-np.abs(direction))[:3]
            found.append(" with ".join(solution.names[i] for i in main if abs(direction[i]) > 0.2))
    return found


def bootstrap(law: Law, data: Sizes, name: str, *, draws: int = 2000, solution: Solution | None = None) -> Interval:
    """Percentile interval (95 %) of an exponent, drawing clusters (rows where there are none) with replacement.

    Raises:
        LawError: fewer than 15 clusters.
    """
    labels = np.arange(len(data)) if data.cluster is None else data.cluster
    k = int(labels.max()) + 1
    if k < FEWEST_CLUSTERS:
        raise LawError(f"a bootstrap over {k} clusters would be too short; it needs {FEWEST_CLUSTERS}")
    random = np.random.default_rng(seed_of("law bootstrap", str(law), k, draws))
    counts = random.multinomial(k, np.full(k, 1 / k), size=draws)[:, labels].astype(float)
    found = solution or solve(law, data)
    which = law.exponents.index(name)
    if len(law.terms) == 1 and law.residual == "linear" and law.scale == "shared":
        values = _many(law, data, counts)
    else:
        values = np.array(list(_one_by_one(law, data, counts, found, which)))
    low, high = np.quantile(values, [0.025, 0.975])
    return Interval(float(found.exponents[which]), float(low), float(high), k)


def _one_by_one(law: Law, data: Sizes, counts: Array, found: Solution, which: int) -> Iterator[float]:
    for w in counts:
        kept = w > 0
        try:
            start = None if len(law.terms) == 1 else found.exponents
            drawn = solve(law, data.take(kept), weight=np.sqrt(w[kept]), start=start)
        except LawError:
            continue  # a draw that leaves too few points has no estimate
        yield float(drawn.exponents[which])


def _many(law: Law, data: Sizes, counts: Array) -> Array:
    """The best exponent for each row of weights, for one power with shared coefficient, over a fine grid.

    At a fixed exponent the coefficient is Σ_g cov_g(z, y)/Σ_g var_g(z) over the groups that have an offset.
    """
    (name,) = law.terms
    grid = np.geomspace(0.02, law.range[1], _FINE)
    if law.offset == "none":
        grid = np.linspace(*law.range, _FINE * 2)
    M = data.members if law.offset == "group" else np.ones((len(data), 1))
    y, total = data.y, counts @ M
    safe = np.maximum(total, 1.0)
    wy, wyy = counts @ (M * y[:, None]), (counts * y**2).sum(1)
    centre = 0.0 if law.offset == "none" else 1.0
    syy = wyy - centre * (wy**2 / safe).sum(1)
    cost = np.empty((len(grid), len(counts)))
    for i, a in enumerate(grid):
        z = (data.x[name] / data.centres[name]) ** -a
        wz = counts @ (M * z[:, None])
        szz = (counts * z**2).sum(1) - centre * (wz**2 / safe).sum(1)
        szy = (counts * (z * y)).sum(1) - centre * (wz * wy / safe).sum(1)
        cost[i] = syy - np.maximum(szy, 0.0) ** 2 / np.maximum(szz, 1e-300)
    best = cost.argmin(0)
    return _between(grid, cost, best)


def _between(grid: Array, cost: Array, best: Labels) -> Array:
    """The minimum of a parabola through the best point of a grid and its neighbours."""
    i = np.clip(best, 1, len(grid) - 2)
    draws = np.arange(cost.shape[1])
    x0, x1, x2 = grid[i - 1], grid[i], grid[i + 1]
    y0, y1, y2 = cost[i - 1, draws], cost[i, draws], cost[i + 1, draws]
    top = (x1 - x0) ** 2 * (y1 - y2) - (x1 - x2) ** 2 * (y1 - y0)
    bottom = (x1 - x0) * (y1 - y2) - (x1 - x2) * (y1 - y0)
    inner = np.where(np.abs(bottom) > 0, x1 - 0.5 * top / np.where(bottom == 0, 1.0, bottom), x1)
    found: Array = np.where(best == i, np.clip(inner, x0, x2), grid[best])
    return found


@dataclass(frozen=True)
class Profile:
    """SSR of the best fit at each value of an exponent, and the values that a likelihood ratio does not exclude."""

    values: tuple[float, ...]
    ssr: tuple[float, ...]
    low: float
    high: float


def profile(solution: Solution, name: str, points: int = 61) -> Profile:
    """Hold one exponent, fit all else again. A side on which nothing is excluded is infinite (F of 1 and n − p)."""
    law, data = solution.law, solution.data
    which, best = law.exponents.index(name), solution.ssr
    bar = best * (1 + float(fdtri(1, len(data) - solution.count, 0.95)) / (len(data) - solution.count))
    centre = float(solution.exponents[which])
    low, high = law.range
    span = max(6 * standard_errors(solution)[name], 0.05) if np.isfinite(standard_errors(solution)[name]) else 4.0
    values = np.unique(
        np.clip(np.concatenate([np.linspace(centre - span, centre + span, points), [centre]]), low, high)
    )
    others = np.delete(solution.exponents, which)
    cost = [held(law, data, which, float(v), others) for v in values]
    inside = [v for v, c in zip(values, cost, strict=True) if c <= bar]
    ends = _edge(values, cost, bar, min(inside), -1), _edge(values, cost, bar, max(inside), 1)
    return Profile(tuple(values.tolist()), tuple(cost), *ends)


def held(law: Law, data: Sizes, which: int, value: float, others: Array) -> float:
    """The least SSR with exponent `which` held."""
    from scipy.optimize import least_squares

    def whole(rest: Array) -> Array:
        return np.insert(rest, which, value)

    def residual(rest: Array) -> Array:
        linear, r = project(law, data, whole(rest))
        if law.residual == "linear":
            return r
        return Solution(law, data, whole(rest), np.maximum(linear, 1e-12)).residuals

    if law.offset == "none" and law.residual == "log" and len(law.terms) == 1:
        x = np.log(data.x[law.terms[0]] / data.centres[law.terms[0]])
        r = np.log(data.y) + value * x
        scale = data.members if law.scale == "group" else np.ones((len(data), 1))
        r = r - scale @ np.linalg.lstsq(scale, r, rcond=None)[0]
    elif len(others):
        r = residual(least_squares(residual, others, bounds=(0.01, law.range[1])).x)
    else:
        r = residual(others)
    return float(r @ r)


def _edge(values: Array, cost: Sequence[float], bar: float, last: float, side: int) -> float:
    """Where the profile crosses the bar beyond `last`, by a straight line; infinite where it does not."""
    i = int(np.flatnonzero(values == last)[0])
    j = i + side
    if not 0 <= j < len(values):
        return side * inf
    share = (bar - cost[i]) / (cost[j] - cost[i])
    return float(values[i] + share * (values[j] - values[i]))


def left_out(law: Law, data: Sizes, labels: Sequence[str]) -> dict[str, float]:
    """Exponent (the first) without each label's points; NaN where the rest does not determine it."""
    return _by_label(law, data, labels, lambda mine: ~mine)


def alone(law: Law, data: Sizes, labels: Sequence[str]) -> dict[str, float]:
    """Exponent (the first) of each label's points alone; NaN where they do not determine it."""
    return _by_label(law, data, labels, lambda mine: mine)


def _by_label(law: Law, data: Sizes, labels: Sequence[str], pick: Callable[[Mask], Mask]) -> dict[str, float]:
    found, every = {}, np.array(labels)
    for label in dict.fromkeys(labels):
        try:
            found[label] = float(solve(law, data.take(pick(every == label))).exponents[0])
        except LawError:
            found[label] = nan
    return found


@dataclass(frozen=True)
class HoldOut:
    """Root mean square errors on sizes that were left out, of the law and of each group's value at its largest size."""

    sizes: int
    points: int
    law: float
    constant: float


def hold_out(law: Law, data: Sizes, share: float = 0.2) -> HoldOut | None:
    """Fit without the largest sizes of the first column and predict them; None where too few points would be left."""
    x = data.x[law.terms[0]]
    sizes = np.unique(x)
    k = max(1, round(share * len(sizes)))
    seen = x < sizes[-k]
    test = ~seen & np.isin(data.group, np.unique(data.group[seen]))
    if not test.any():
        return None
    train = data.take(seen)
    try:
        found = solve(law, train)
    except LawError:
        return None
    rest = data.take(test)
    at = {name: i for i, name in enumerate(train.groups)}
    place = np.array([at[rest.groups[g]] for g in rest.group])
    predicted = design(law, _as(train, rest, place), found.exponents) @ found.linear
    last = np.array([train.y[train.group == g][np.argmax(train.x[law.terms[0]][train.group == g])] for g in place])
    errors = [sqrt(float(((rest.y - p) ** 2).mean())) for p in (predicted, last)]
    return HoldOut(k, int(test.sum()), *errors)


def _as(train: Sizes, rest: Sizes, place: Labels) -> Sizes:
    """The points of `rest` with the groups and centres of `train`."""
    made = Sizes(rest.y, rest.x, place, train.groups)
    made.__dict__["centres"] = train.centres
    return made


def t_interval(solution: Solution, name: str) -> Interval:
    """Value ± t·(error of the whole Jacobian), n − p degrees of freedom."""
    value, error = solution.values[name], standard_errors(solution).get(name, nan)
    half = float(stdtrit(len(solution.data) - solution.count, 0.975)) * error
    return Interval(value, value - half, value + half, len(solution.data))
