"""Plan: width, depth and tokens that make the loss smallest for a number of parameters or floating-point operations.

The law is c_m/m^a + c_l/l^b + c_D/D^c + L₀ (arXiv 2602.05970), with N = 12 m² l parameters in the blocks and 6 N D
operations. For given N the best width has a closed form: m^(a + 2b) = a c_m (N/12)^b / (2 b c_l) (derived); and at the
best N for given operations, b c_l/l^b = c c_D/D^c (derived, by the envelope theorem).
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from drillcore.data.published import published
from drillcore.errors import UserError
from drillcore.intervals import Interval

RANGES = {"width": (576, 5120), "depth": (9, 47), "tokens": (2.45e8, 3.18e11), "parameters": (5.7e7, 1.6e10)}
_SHIPPED = "205 Chinchilla runs (our fit of the law of arXiv 2602.05970)"
_COSTS = 1.01  # a shape that loses less than a hundredth is as good


class PlanError(UserError):
    """A plan that cannot be made; says what to give instead."""


@dataclass(frozen=True)
class Coefficients:
    """One set of coefficients of the law."""

    a: float
    b: float
    c: float
    c_m: float
    c_l: float
    c_d: float
    floor: float

    def loss(self, m: float, l: float, tokens: float) -> float:  # noqa: E741 (the paper's letter)
        """The law."""
        found: float = self.c_m / m**self.a + self.c_l / l**self.b + self.c_d / tokens**self.c + self.floor
        return found

    def width(self, parameters: float) -> float:
        """The best width for so many parameters in the blocks."""
        of = self.a * self.c_m * (parameters / 12) ** self.b / (2 * self.b * self.c_l)
        return float(of ** (1 / (self.a + 2 * self.b)))

    def tokens(self, parameters: float) -> float:
        """The tokens at which more parameters and more tokens are worth the same."""
        depth = parameters / (12 * self.width(parameters) ** 2)
        worth = self.b * self.c_l / depth**self.b
        return float((self.c * self.c_d / worth) ** (1 / self.c))

    def parameters(self, flops: float) -> float:
        """The best number of parameters for so many operations: 6 N D rises with N, so that it is found by halving."""
        low, high = 0.0, 60.0  # ln N
        for _ in range(200):
            middle = (low + high) / 2
            n = math.exp(middle)
            low, high = (
                (middle, high) if math.log(6 * n) + math.log(self.tokens(n)) < math.log(flops) else (low, middle)
            )
        return math.exp((low + high) / 2)


@dataclass(frozen=True)
class Plan:
    """What to train, each number with its 95 % interval where the law has draws, and what to mind."""

    width: Interval
    depth: Interval
    tokens: Interval
    parameters: Interval
    flops: Interval
    loss: Interval
    as_good: tuple[float, float]  # widths/depths whose loss is less than 1 % above
    law: str
    warnings: tuple[str, ...]

    @property
    def numbers(self) -> dict[str, Interval]:
        """By name."""
        return {"width": self.width, "depth": self.depth, "parameters": self.parameters, "tokens": self.tokens,
                "flops": self.flops, "loss": self.loss}  # fmt: skip


def plan(*, params: float | None = None, flops: float | None = None, tokens: float | None = None,
         fit: Path | None = None) -> Plan:  # fmt: skip
    """Width, depth and tokens for a budget.

    Args:
        params: parameters in the blocks, 12·width²·depth, without embedding and head.
        flops: operations of the training, 6·params·tokens; parameters and tokens are then chosen together.
        tokens: tokens to train on, where params are given; by default as many as the law finds worth the same.
        fit: a fit.json of `drillcore fit --law sum --x WIDTH,DEPTH,TOKENS` instead of the shipped law.

    Raises:
        PlanError: not exactly one budget is given, it is no positive number, or the fit is another law.
    """
    given = [v for v in (params, flops) if v is not None]
    if len(given) != 1 or (flops is not None and tokens is not None):
        raise PlanError("give --params (and --tokens, if they are fixed) or --flops, one of the two")
    for value in (*given, tokens if tokens is not None else 1.0):
        if not 0 < value < math.inf:
            raise PlanError(f"a budget is a number above 0, not {value:g}")
    sets, law = _own(fit) if fit is not None else (_shipped(), _SHIPPED)
    found = [_numbers(c, params, flops, tokens) for c in sets]
    first = {name: _interval(name, found) for name in found[0]}
    return Plan(**first, as_good=_as_good(sets[0], found[0]), law=law,
                warnings=tuple(_warnings(found[0], shipped=fit is None)))  # fmt: skip


def _numbers(c: Coefficients, params: float | None, flops: float | None, tokens: float | None) -> dict[str, float]:
    n = params if params is not None else c.parameters(flops or 0.0)
    m = c.width(n)
    depth = n / (12 * m**2)
    d = tokens if tokens is not None else (flops / (6 * n) if flops is not None else c.tokens(n))
    return {"width": m, "depth": depth, "tokens": d, "parameters": n, "flops": 6 * n * d, "loss": c.loss(m, depth, d)}


def _interval(name: str, found: Sequence[dict[str, float]]) -> Interval:
    values = [one[name] for one in found]
    low, high = np.quantile(values[1:], [0.025, 0.975]) if len(values) > 1 else (math.nan, math.nan)
    return Interval(values[0], float(low), float(high), len(values) - 1)


def _as_good(c: Coefficients, best: dict[str, float]) -> tuple[float, float]:
    """The ratios width/depth between which the loss is less than 1 % above the best, by halving on both sides."""

    def ratio_at(side: float) -> float:
        return best["width"] / best["depth"] * math.exp(side)

    def good(side: float) -> bool:  # ln of the ratio over the best; N stays
        ratio = ratio_at(side)
        m = (best["parameters"] / 12 * ratio) ** (1 / 3)
        return c.loss(m, m / ratio, best["tokens"]) < _COSTS * best["loss"]

    return ratio_at(_last(good, -1.0)), ratio_at(_last(good, 1.0))


def _last(good: Callable[[float], bool], sign: float) -> float:
    near, far = 0.0, sign * 12.0
    for _ in range(60):
        middle = (near + far) / 2
        near, far = (middle, far) if good(middle) else (near, middle)
    return near


def _warnings(found: dict[str, float], *, shipped: bool) -> list[str]:
    told = []
    for name, (low, high) in RANGES.items() if shipped else ():
        value = found[name]
        if not low <= value <= high:
            told.append(f"{name} {value:.3g} lies outside what was fitted, {low:.3g} … {high:.3g}: an extrapolation")
    return told


def _shipped() -> list[Coefficients]:
    return [_of(row, "d_model", "n_layers", "num_tokens") for row in published("width_depth_data")]


def _of(row: dict[str, float], width: str, depth: str, tokens: str) -> Coefficients:
    a, b, c = (row[f"alpha_{name}"] for name in (width, depth, tokens))
    c_m, c_l, c_d = (row[f"c_{name}"] for name in (width, depth, tokens))
    return Coefficients(a, b, c, c_m, c_l, c_d, row["L0"])


def _own(path: Path) -> tuple[list[Coefficients], str]:
    try:
        told: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        one = told["fits"][0]
        width, depth, tokens = one["terms"]
        return [_of(one["parameters"], width, depth, tokens)], f"{path}: {one['law']}"
    except (OSError, json.JSONDecodeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise PlanError(
            f"{path} is not a fit of width, depth and tokens ({error}); make it by "
            "`drillcore fit TABLE --law sum --x WIDTH,DEPTH,TOKENS --residual log --out DIR`"
        ) from error
