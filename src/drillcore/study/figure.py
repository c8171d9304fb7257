"""Figures as frozen values: which rows, along what, one line for what. The pages draw them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from drillcore.intervals import student_t

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Figure:
    """A picture of a study's results.

    `curves`: a measure along the column `x`, one line for each value of the column `series`: mean over seeds with its
    95 % interval, beside what chance gives. `bars`: the same as points, at the last step of each run. `heat`: layer ×
    other of a measure at the last step of the first seed, one map for each value of `series`. `trajectories`: a path
    through two coordinates, rows of the measure with `subset` "1" and "2", in the order of the column `x`, at the last
    step of the first seed. `map`: the mean over seeds by the columns `x` and `y`, or with `slope` minus the
    least-squares slope of the value's logarithm on that of this column: the exponent of a power law. Other columns than
    the step are drawn at the last step of each run. `panels` names a column that gets a picture for each of its values.
    """

    name: str
    title: str
    measure: str
    kind: Literal["curves", "heat", "bars", "trajectories", "map"] = "curves"
    x: str = "step"
    series: str = "variant"
    where: Mapping[str, object] = field(default_factory=dict)  # column → its value, or a tuple of values
    caption: str = ""
    log_x: bool = False
    log_y: bool = False
    panels: str = ""
    y: str = ""
    slope: str = ""

    @property
    def keys(self) -> list[str]:
        """The columns that tell lines and panels apart, each once."""
        series = "" if self.kind == "map" else self.series
        return list(dict.fromkeys(name for name in (self.panels, series) if name))

    def select(self, frame: "pl.DataFrame") -> "pl.DataFrame":
        """The rows that it is about; pairs of layers count where they are adjacent, but for heat maps."""
        import polars as pl

        wanted: list[Any] = [pl.col("measure") == self.measure, pl.col("value").is_not_null()]
        for column, value in self.where.items():
            wanted.append(pl.col(column).is_in(value) if isinstance(value, tuple) else pl.col(column) == value)
        if self.kind != "heat":
            wanted.append(pl.col("adjacent").fill_null(value=True))
        return frame.filter(*wanted)

    def broken(self, frame: "pl.DataFrame") -> int:
        """How many of its rows are not drawn, their value being infinite or no number: runs that diverged."""
        return int((~self.select(frame)["value"].is_finite()).sum())

    def data(self, frame: "pl.DataFrame") -> "pl.DataFrame":
        """The numbers that are drawn."""
        import polars as pl

        rows = self.select(frame).filter(pl.col("value").is_finite())
        if self.kind == "heat":
            return (
                self._first_seed(rows).select(*self.keys, "layer", "other", "value").sort(*self.keys, "layer", "other")
            )
        if self.kind == "trajectories":
            return self._paths(self._first_seed(rows))
        if "step" not in (self.x, *self.keys):
            rows = rows.filter(_step() == _step().max().over("run"))
        return self._mapped(rows) if self.kind == "map" else self._averaged(rows)

    def _mapped(self, rows: "pl.DataFrame") -> "pl.DataFrame":
        """Mean over seeds of the mean, or of the exponent, by x and y."""
        import polars as pl

        keys = [*self.keys, self.x, self.y]
        found = pl.col("value").mean()
        if self.slope:
            rows = rows.filter(pl.col("value") > 0)
            across = pl.col(self.slope).log()
            found = (-pl.cov(across, pl.col("value").log()) / across.var()).alias("value")
        by_seed = rows.group_by([*keys, "seed"]).agg(found)
        return by_seed.group_by(keys).agg(pl.col("value").mean(), seeds=pl.len()).sort(keys)

    def _averaged(self, rows: "pl.DataFrame") -> "pl.DataFrame":
        """Mean over layers by seed, then mean and interval over seeds; null and its deviation for the same mean."""
        import polars as pl

        keys = list(dict.fromkeys([*self.keys, self.x]))
        chance = [pl.col("null").mean(), (pl.col("null_sd").pow(2).sum().sqrt() / pl.len()).alias("null_sd")]
        known = pl.col("null_sd").is_not_null().all().alias("known")  # one pair without a deviation leaves none
        by_seed = rows.group_by(list(dict.fromkeys([*keys, "seed"]))).agg(pl.col("value").mean(), *chance, known)
        found = by_seed.group_by(*keys).agg(pl.col("value"), *chance, pl.col("known").all(), seeds=pl.len()).sort(keys)
        over = [student_t(values) if len(values) > 1 else None for values in found["value"].to_list()]
        return found.with_columns(
            pl.col("value").list.mean(), pl.when("known").then("null_sd").alias("null_sd"),
            low=pl.Series([i and i.low for i in over], dtype=pl.Float64),
            high=pl.Series([i and i.high for i in over], dtype=pl.Float64),
        ).select(*keys, "value", "low", "high", "null", "null_sd", "seeds")  # fmt: skip

    def _first_seed(self, rows: "pl.DataFrame") -> "pl.DataFrame":
        import polars as pl

        seed = pl.col("seed").fill_null(0)
        last = rows.filter(_step() == _step().max().over(self.keys))
        return last.filter(seed == seed.min().over(self.keys))

    def _paths(self, rows: "pl.DataFrame") -> "pl.DataFrame":
        keys = list(dict.fromkeys([*self.keys, self.x]))
        first, second = (rows.filter(rows["subset"] == place).select(*keys, "value") for place in ("1", "2"))
        joined = first.join(second, on=keys)
        return joined.rename({"value": "first", "value_right": "second"}).sort(keys)


def _step() -> "pl.Expr":
    """Rows without a step count as of step 0."""
    import polars as pl

    return pl.col("step").fill_null(0)
