"""A law y = Σₖ cₖ xₖ^−aₖ + L₀, and the measured points that it is fitted to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from drillcore.errors import UserError

Array = np.ndarray[Any, np.dtype[np.float64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Labels = np.ndarray[Any, np.dtype[np.int64]]


class LawError(UserError):
    """Points that no law can be fitted to; says which and what to do."""


@dataclass(frozen=True)
class Law:
    """Powers of the columns `terms`, with offsets L₀.

    `offset` is "none", "shared" or one a "group"; `scale` says whether groups share the coefficients cₖ. `residual` is
    what is squared: the difference of the values ("linear") or of their logarithms ("log").
    """

    terms: tuple[str, ...]
    offset: Literal["none", "shared", "group"] = "shared"
    scale: Literal["shared", "group"] = "shared"
    residual: Literal["linear", "log"] = "linear"

    @property
    def exponents(self) -> tuple[str, ...]:
        """Names of the exponents."""
        return tuple(f"alpha_{name}" for name in self.terms)

    @property
    def range(self) -> tuple[float, float]:
        """Where exponents are looked for; beside an offset only a falling power has a meaning."""
        return (-8.0, 8.0) if self.offset == "none" else (0.01, 8.0)

    def __str__(self) -> str:
        told = [f"c_{name}/{name}^alpha_{name}" for name in self.terms]
        return " + ".join(
            [*told, *([] if self.offset == "none" else ["L0" if self.offset == "shared" else "L0[group]"])]
        )


@dataclass(frozen=True, eq=False)
class Sizes:
    """Measured points: y and each column x (n), the group of each, and the cluster that shares its errors (a model)."""

    y: Array
    x: Mapping[str, Array]
    group: Labels
    groups: tuple[str, ...] = ("all",)
    cluster: Labels | None = None
    clusters: tuple[str, ...] = ()

    @classmethod
    def of(cls, y: Sequence[float], x: Mapping[str, Sequence[float]], group: Sequence[str] = (),
           cluster: Sequence[str] = ()) -> "Sizes":  # fmt: skip
        """Check and label points.

        Raises:
            LawError: a value is missing or not above zero, there are too few points, or one size only.
        """
        columns = {"y": np.asarray(y, float), **{name: np.asarray(v, float) for name, v in x.items()}}
        for name, values in columns.items():
            bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
            if len(bad):
                raise LawError(
                    f"{name} is {values[bad[0]]:g} in row {bad[0] + 1} ({len(bad)} such rows): sizes and losses are "
                    "numbers above 0; take these rows out, or name another column"
                )
        for name in x:
            if len(np.unique(columns[name])) < 2:
                raise LawError(f"{name} has one value only: nothing can be said of how the loss falls with it")
        groups, clusters = tuple(dict.fromkeys(group)) or ("all",), tuple(dict.fromkeys(cluster))
        places = {name: i for i, name in enumerate(groups)}
        labels = np.array([places[g] for g in group] if group else np.zeros(len(columns["y"])), np.int64)
        at = {name: i for i, name in enumerate(clusters)}
        return cls(columns.pop("y"), columns, labels, groups, np.array([at[c] for c in cluster]) if cluster else None,
                   clusters)  # fmt: skip

    def __len__(self) -> int:
        return len(self.y)

    def take(self, kept: Labels | Mask) -> "Sizes":
        """The points `kept`, with their groups and clusters renumbered."""
        used, group = np.unique(self.group[kept], return_inverse=True)
        names = tuple(self.groups[i] for i in used)
        x = {name: values[kept] for name, values in self.x.items()}
        if self.cluster is None:
            return Sizes(self.y[kept], x, group, names)
        present, cluster = np.unique(self.cluster[kept], return_inverse=True)
        return Sizes(self.y[kept], x, group, names, cluster, tuple(self.clusters[i] for i in present))

    @cached_property
    def centres(self) -> dict[str, float]:
        """Geometric mean of each column: powers are formed of x over it, which keeps them near 1."""
        return {name: float(np.exp(np.log(values).mean())) for name, values in self.x.items()}

    @cached_property
    def members(self) -> Array:
        """Points × groups, 1 where a point is of the group."""
        found: Array = (self.group[:, None] == np.arange(len(self.groups))).astype(float)
        return found


def design(law: Law, data: Sizes, exponents: Array) -> Array:
    """Points × linear parameters at these exponents: a block of columns for each term, then the offsets."""
    scale = data.members if law.scale == "group" else np.ones((len(data), 1))
    blocks = [scale * ((data.x[name] / data.centres[name]) ** -a)[:, None]
              for name, a in zip(law.terms, exponents, strict=True)]  # fmt: skip
    if law.offset != "none":
        blocks.append(data.members if law.offset == "group" else np.ones((len(data), 1)))
    return np.concatenate(blocks, 1)


def linear_names(law: Law, data: Sizes) -> list[str]:
    """Names of the linear parameters, in the order of `design`."""
    many = law.scale == "group"
    names = [f"c_{t}[{g}]" if many else f"c_{t}" for t in law.terms for g in (data.groups if many else ("",))]
    if law.offset == "group":
        return [*names, *(f"L0[{g}]" for g in data.groups)]
    return [*names, "L0"] if law.offset == "shared" else names
