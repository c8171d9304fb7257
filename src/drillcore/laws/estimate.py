"""The least-squares fit of a law: exponents by many starts, everything linear solved exactly at each (projection)."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.optimize import least_squares, minimize_scalar, nnls

from drillcore.laws.law import Array, Law, LawError, Sizes, design, linear_names
from drillcore.seeds import seed_of

_GRID, _STARTS = 320, 24


@dataclass(frozen=True, eq=False)
class Solution:
    """A fitted law. `linear` belongs to sizes over their geometric mean; `value` gives what people write."""

    law: Law
    data: Sizes
    exponents: Array
    linear: Array

    @cached_property
    def names(self) -> list[str]:
        """Names of all parameters, exponents first."""
        return [*self.law.exponents, *linear_names(self.law, self.data)]

    @property
    def count(self) -> int:
        """Parameters."""
        return len(self.exponents) + len(self.linear)

    @cached_property
    def predicted(self) -> Array:
        """The law at the points."""
        return predict(self.law, self.data, self.exponents, self.linear)

    @cached_property
    def residuals(self) -> Array:
        """Measured less predicted, of values or logarithms as the law says."""
        if self.law.residual == "log":
            return np.log(self.data.y) - np.log(self.predicted)
        return self.data.y - self.predicted

    @property
    def ssr(self) -> float:
        """Sum of squared residuals."""
        return float(self.residuals @ self.residuals)

    @cached_property
    def factors(self) -> Array:
        """What makes linear parameters those of the table's units: for cₖ the centre to the power aₖ."""
        found, per = np.ones(len(self.linear)), len(self.data.groups) if self.law.scale == "group" else 1
        for i, (name, a) in enumerate(zip(self.law.terms, self.exponents, strict=True)):
            found[i * per : (i + 1) * per] = self.data.centres[name] ** a
        return found

    @property
    def values(self) -> dict[str, float]:
        """All parameters in the units of the table."""
        linear = (self.linear * self.factors).tolist()
        return dict(zip(self.names, [*self.exponents.tolist(), *linear], strict=True))


def predict(law: Law, data: Sizes, exponents: Array, linear: Array) -> Array:
    """The law at the points of `data`, whose centres the coefficients belong to."""
    found: Array = design(law, data, exponents) @ linear
    return found


def project(law: Law, data: Sizes, exponents: Array, weight: Array | None = None) -> tuple[Array, Array]:
    """The best linear parameters at these exponents, none below zero, and the weighted residuals."""
    A, y = design(law, data, exponents), data.y
    if weight is not None:
        A, y = A * weight[:, None], y * weight
    linear: Array = np.asarray(np.linalg.lstsq(A, y, rcond=None)[0], np.float64)
    if (linear < 0).any():
        linear = nnls(A, y)[0]
    return linear, y - A @ linear


def solve(law: Law, data: Sizes, *, weight: Array | None = None, start: Array | None = None,
          robust: bool = False) -> Solution:  # fmt: skip
    """Fit a law; with `start` only from these exponents.

    Args:
        weight: of each residual (n), 1 by default.
        robust: soft L1 loss beyond 1.35 robust deviations instead of squares, so that few points cannot decide.

    Raises:
        LawError: there are fewer points than parameters, or no start converged.
    """
    count = len(law.terms) + len(linear_names(law, data))
    if len(data) <= count:
        raise LawError(f"{len(data)} points cannot determine the {count} parameters of {law}; add sizes, share offsets "
                       "between groups, or fit fewer terms")  # fmt: skip
    if law.offset == "none" and law.residual == "log" and len(law.terms) == 1 and not robust:
        return _power(law, data, weight)
    candidates = [start] if start is not None else _starts(law, data, weight)
    found = [_polished(law, data, a, weight, robust) for a in candidates]
    good = [s for s in found if s is not None]
    if not good:
        raise LawError(
            f"no fit of {law} converged from {len(candidates)} starts; look at the points, or fit fewer terms"
        )
    return min(good, key=lambda s: _cost(s, weight))


def _cost(solution: Solution, weight: Array | None) -> float:
    r = solution.residuals if weight is None else solution.residuals * weight
    return float(r @ r)


def _power(law: Law, data: Sizes, weight: Array | None) -> Solution:
    """ln y = ln c − a ln x is linear: ordinary least squares."""
    (name,) = law.terms
    scale = data.members if law.scale == "group" else np.ones((len(data), 1))
    A = np.concatenate([-np.log(data.x[name] / data.centres[name])[:, None], scale], 1)
    w = np.ones(len(data)) if weight is None else weight
    found = np.asarray(np.linalg.lstsq(A * w[:, None], np.log(data.y) * w, rcond=None)[0], np.float64)
    return Solution(law, data, found[:1], np.exp(found[1:]))


def _starts(law: Law, data: Sizes, weight: Array | None) -> list[Array]:
    """Exponents from which to polish: the best of a fine grid for one, the ends of many descents for several."""
    low, high = law.range
    if len(law.terms) == 1:
        grid = np.geomspace(0.01, high, _GRID)
        if low < 0:
            grid = np.concatenate([-grid[::-1], grid])
        costs = [float((r := project(law, data, np.array([a]), weight)[1]) @ r) for a in grid]
        best = int(np.argmin(costs))
        near = grid[max(0, best - 1)], grid[min(len(grid) - 1, best + 1)]
        found = minimize_scalar(lambda a: float((r := project(law, data, np.array([a]), weight)[1]) @ r),
                                bounds=near, method="bounded", options={"xatol": 1e-10})  # fmt: skip
        return [np.array([found.x])]
    random = np.random.default_rng(seed_of("law starts", str(law), len(data)))
    drawn = np.exp(random.uniform(np.log(0.05), np.log(3), (_STARTS, len(law.terms))))
    ends = [
        least_squares(lambda a: project(law, data, a, weight)[1], a, bounds=(0.01, high), x_scale="jac") for a in drawn
    ]
    ranked = sorted(ends, key=lambda end: end.cost)
    return [end.x for end in ranked[:6]]


def _polished(law: Law, data: Sizes, exponents: Array, weight: Array | None, robust: bool) -> Solution | None:
    """All parameters together, where projection alone does not give the minimum of the residual asked for."""
    linear, _ = project(law, data, exponents, weight)
    begun = Solution(law, data, exponents, linear)
    if law.residual == "linear" and not robust:
        return begun
    k, w = len(exponents), np.ones(len(data)) if weight is None else weight
    floor = np.concatenate([np.full(k, law.range[0]), np.full(len(linear), 1e-12)])
    start = np.maximum(np.concatenate([exponents, linear]), floor * 1.0001 + 1e-9)

    def of(theta: Array) -> Solution:
        return Solution(law, data, theta[:k], theta[k:])

    loss: dict[str, Any] = {}
    if robust:
        r = of(start).residuals * w
        loss = {"loss": "soft_l1", "f_scale": max(1.35 * 1.4826 * float(np.median(np.abs(r))), 1e-12)}

    def slopes(theta: Array) -> Array:
        found: Array = -jacobian(of(theta)) * w[:, None]
        return found

    found = least_squares(lambda theta: of(theta).residuals * w, start, jac=slopes, bounds=(floor, np.inf),
                          x_scale="jac", max_nfev=4000, xtol=1e-12, ftol=1e-13, **loss)  # fmt: skip
    return of(found.x) if found.success else None


def jacobian(solution: Solution, *, units: bool = False) -> Array:
    """∂(predicted or its logarithm)/∂(exponents, linear), points × parameters; with `units` those of the table."""
    law, data = solution.law, solution.data
    A = design(law, data, solution.exponents)
    per = len(data.groups) if law.scale == "group" else 1
    columns = []
    for i, name in enumerate(law.terms):
        block = slice(i * per, (i + 1) * per)
        centre = 1.0 if units else data.centres[name]
        columns.append(-np.log(data.x[name] / centre) * (A[:, block] @ solution.linear[block]))
    J: Array = np.concatenate([np.stack(columns, 1), A / solution.factors if units else A], 1)
    return J / solution.predicted[:, None] if law.residual == "log" else J
