"""Figures as frozen values: which rows, along what, one line for what. The pages draw them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Figure:
    """A picture of a study's results.

    `curves`: the mean of a measure along the column `x`, one line for each value of the column `series`, with the range
    over seeds. `heat`: layer × other of a measure at the last step of the first seed, one map for each value of
    `series`. `bars`: the value at the last step for each value of `x` and `series`.
    """

    name: str
    title: str
    measure: str
    kind: Literal["curves", "heat", "bars"] = "curves"
    x: str = "step"
    series: str = "variant"
    where: Mapping[str, object] = field(default_factory=dict)  # column → its value, or a tuple of values
    caption: str = ""
    log_x: bool = False

    def select(self, frame: "pl.DataFrame") -> "pl.DataFrame":
        """The rows that it shows; pairs of layers count where they are adjacent, but for heat maps."""
        import polars as pl

        wanted: list[Any] = [pl.col("measure") == self.measure, pl.col("value").is_not_null()]
        for column, value in self.where.items():
            wanted.append(pl.col(column).is_in(value) if isinstance(value, tuple) else pl.col(column) == value)
        if self.kind != "heat":
            wanted.append(pl.col("adjacent").fill_null(value=True))
        return frame.filter(*wanted)

    def data(self, frame: "pl.DataFrame") -> "pl.DataFrame":
        """The numbers that are drawn: mean over layers by seed, then mean, low and high over seeds."""
        import polars as pl

        rows = self.select(frame)
        if self.kind == "heat":
            final = rows.filter(
                pl.col("step").fill_null(0) == pl.col("step").fill_null(0).max().over(self.series),
                pl.col("seed").fill_null(0) == pl.col("seed").fill_null(0).min().over(self.series),
            )
            return final.select(self.series, "layer", "other", "value").sort(self.series, "layer", "other")
        if self.kind == "bars" and "step" not in (self.x, self.series):
            rows = rows.filter(pl.col("step").fill_null(0) == pl.col("step").fill_null(0).max().over("run"))
        by_seed = rows.group_by(self.series, self.x, "seed").agg(pl.col("value", "null").mean())
        found = by_seed.group_by(self.series, self.x).agg(
            pl.col("value").mean(), low=pl.col("value").min(), high=pl.col("value").max(), null=pl.col("null").mean(),
            seeds=pl.col("seed").n_unique(),
        )  # fmt: skip
        return found.sort(self.series, self.x)
