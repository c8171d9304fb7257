"""Fit: a scaling law to a table of sizes and losses, with every doubt that the data leave."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drillcore.intervals import Interval
from drillcore.laws import doubt
from drillcore.laws.estimate import Solution, solve
from drillcore.laws.law import Law, LawError, Sizes
from drillcore.runs import write_text
from drillcore.table import Row, Table

if TYPE_CHECKING:
    import polars as pl

LAWS = {"power": "y = c/x^α", "offset": "y = c/x^α + L₀", "sum": "y = Σ cₖ/xₖ^αₖ + L₀: Chinchilla, width–depth–data"}
_LOOSE = 0.5  # relative half-width of an exponent's interval beyond which it is not quoted
Say = Callable[[str], None]


@dataclass(frozen=True)
class Exponent:
    """One exponent with its intervals. `status` is "ok" or "not-identifiable", and then `reason` says what is missing.

    `interval` is the one to quote, by `how`; `textbook` is the error that holds offsets and coefficient fixed.
    """

    name: str
    value: float
    interval: Interval
    how: str
    jacobian: float
    textbook: float
    profile: doubt.Profile
    bootstrap: Interval | None
    status: str = "ok"
    reason: str = ""


@dataclass(frozen=True)
class Fit:
    """A fitted law: parameters in the table's units, exponents with their doubt, and how they depend on the groups."""

    label: str
    law: Law
    solution: Solution
    exponents: tuple[Exponent, ...]
    errors: Mapping[str, float]
    flat: tuple[str, ...]
    without: Mapping[str, Mapping[str, float]]  # column → label → exponent without it
    alone: Mapping[str, Mapping[str, float]]
    hold_out: doubt.HoldOut | None
    warnings: tuple[str, ...] = ()

    @property
    def mean_square_error(self) -> float:
        """Of the residuals that were squared."""
        return self.solution.ssr / len(self.solution.data)

    def rows(self) -> list[Row]:
        """Parameters, leave-one-out and hold-out as rows; `subset` is the label of the fit or what was left out."""
        n, found = len(self.solution.data), []
        quoted = {e.name: e for e in self.exponents}
        for name, value in self.solution.values.items():
            e = quoted.get(name)
            ends = (e.interval.low, e.interval.high) if e else (None, None)
            found.append(Row(source=self.label, measure=f"law.{name}", value=value, low=ends[0], high=ends[1], n=n,
                             stderr=self.errors[name]))  # fmt: skip
        for kind, tables in (("without", self.without), ("alone", self.alone)):
            for column, values in tables.items():
                for label, value in values.items():
                    row = Row(
                        source=self.label, measure=f"law.exponent_{kind}", subset=f"{column}={label}", value=value
                    )
                    lost = replace(row, value=None, status="not-identifiable", reason="too few points")
                    found.append(row if math.isfinite(value) else lost)
        return found

    def as_json(self) -> dict[str, Any]:
        """Everything as plain values; infinite ends of intervals are null."""

        def plain(e: Exponent) -> dict[str, Any]:
            ends = {"low": _finite(e.interval.low), "high": _finite(e.interval.high)}
            return {"name": e.name, "value": e.value, **ends, "how": e.how, "jacobian_error": _finite(e.jacobian),
                    "textbook_error": _finite(e.textbook), "profile": [_finite(e.profile.low), _finite(e.profile.high)],
                    "bootstrap": e.bootstrap and [e.bootstrap.low, e.bootstrap.high], "status": e.status,
                    "reason": e.reason}  # fmt: skip

        tables = {"without": self.without, "alone": self.alone}
        return {"label": self.label, "law": str(self.law), "terms": list(self.law.terms), "residual": self.law.residual,
                "n": len(self.solution.data), "mean_square_error": self.mean_square_error,
                "parameters": self.solution.values, "standard_errors": {k: _finite(v) for k, v in self.errors.items()},
                "exponents": [plain(e) for e in self.exponents], "flat_directions": list(self.flat),
                **{name: {c: {k: _finite(v) for k, v in t.items()} for c, t in table.items()}
                   for name, table in tables.items()},
                "hold_out": self.hold_out and vars(self.hold_out), "warnings": list(self.warnings)}  # fmt: skip


@dataclass(frozen=True)
class Fits:
    """The fits of one table, one for each value of `each`."""

    fits: tuple[Fit, ...]
    source: str
    published: Mapping[str, str] = field(default_factory=dict)  # label → what the paper says

    def save(self, folder: Path) -> list[Path]:
        """Write rows.parquet and fit.json into `folder`, each atomically."""
        rows, summary = Path(folder) / "rows.parquet", Path(folder) / "fit.json"
        Table.of([row for fit in self.fits for row in fit.rows()], {"source": self.source}).save(rows)
        told = {"source": self.source, "published": dict(self.published), "fits": [f.as_json() for f in self.fits]}
        write_text(summary, json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False))
        return [rows, summary]


def fit(
    table: "Path | str | pl.DataFrame", *, x: Sequence[str], y: str, law: str = "offset", group: Sequence[str] = (),
    cluster: str | None = None, each: Sequence[str] = (), residual: str | None = None, own_scale: bool = False,
    robust: bool = False, draws: int = 2000, say: Say = lambda _: None,
) -> Fits:  # fmt: skip
    """Fit a scaling law and say what the data leave open.

    Args:
        table: a CSV or parquet file, or a data frame.
        x: columns of sizes, one for each power of the law.
        y: column of losses (or of whatever falls or grows).
        law: a key of `LAWS`.
        group: columns whose combinations have an offset (or with "power" a coefficient) of their own.
        cluster: column whose values share their errors, such as the model; the bootstrap draws these. Rows by default.
        each: columns; a fit of its own for each combination of their values.
        residual: "linear" or "log"; log for "power", linear otherwise.
        own_scale: groups have coefficients of their own.
        robust: soft L1 loss, so that few points cannot decide.
        draws: of the bootstrap.
        say: told what is being done.

    Raises:
        LawError: the table or its columns cannot be used, or no fit converged.
    """
    frame, source = _frame(table)
    _check(frame, law, x, [y, *x, *group, *each, *([cluster] if cluster else [])])
    if law not in LAWS:
        raise LawError(f"there is no law {law!r}; there are {', '.join(LAWS)}")
    offset = "none" if law == "power" else "group" if group else "shared"
    kind = Law(tuple(x), offset, "group" if own_scale or (law == "power" and group) else "shared",  # type: ignore[arg-type]
               residual or ("log" if law == "power" else "linear"))  # type: ignore[arg-type]  # fmt: skip
    parts = [("all", frame)] if not each else [
        (", ".join(map(str, key)), part) for key, part in frame.group_by(list(each), maintain_order=True)
    ]  # fmt: skip
    return Fits(
        tuple(_fit(label, part, kind, x, y, group, cluster, robust, draws, say) for label, part in parts), source
    )


def _fit(label: str, frame: "pl.DataFrame", law: Law, x: Sequence[str], y: str, group: Sequence[str],
         cluster: str | None, robust: bool, draws: int, say: Say) -> Fit:  # fmt: skip
    columns = {name: [str(v) for v in frame[name]] for name in (*group, *([cluster] if cluster else []))}
    crossed = [" × ".join(parts) for parts in zip(*(columns[name] for name in group), strict=True)] if group else []
    data = Sizes.of(frame[y].to_list(), {name: frame[name].to_list() for name in x}, crossed,
                    columns[cluster] if cluster else ())  # fmt: skip
    say(f"{label}: {law}, {len(data)} points")
    found = solve(law, data, robust=robust)
    flat = tuple(doubt.flat_directions(found))
    exponents = tuple(_exponent(found, name, flat, draws, say) for name in law.exponents)
    many = {name: labels for name, labels in columns.items() if name in group and len(set(labels)) > 1}
    return Fit(
        label, law, found, exponents, doubt.standard_errors(found), flat,
        {name: doubt.left_out(law, data, labels) for name, labels in many.items()},
        {name: doubt.alone(law, data, labels) for name, labels in many.items()}, doubt.hold_out(law, data),
        tuple(_warnings(found, exponents, cluster)),
    )  # fmt: skip


def _exponent(found: Solution, name: str, flat: Sequence[str], draws: int, say: Say) -> Exponent:
    data, value = found.data, float(found.exponents[found.law.exponents.index(name)])
    jacobian = doubt.standard_errors(found)[name]
    profile = doubt.profile(found, name)
    clusters = len(data.clusters) or len(data)
    drawn = None
    if clusters >= doubt.FEWEST_CLUSTERS:
        slow = len(found.law.terms) > 1 or found.law.residual == "log"
        say(f"{name}: bootstrap over {clusters} {'clusters' if data.clusters else 'rows'}")
        drawn = doubt.bootstrap(found.law, data, name, draws=min(draws, 200) if slow else draws, solution=found)
    # Errors that rows of one model share make every interval but that of the clusters too short.
    by_profile = Interval(value, profile.low, profile.high, len(data))
    interval, how = (
        (drawn, f"bootstrap over {clusters} clusters") if drawn and data.clusters else (by_profile, "profile")
    )
    half = max(interval.high - value, value - interval.low)
    reason = ""
    if any(name in direction for direction in flat):
        reason = f"the data do not tell {next(d for d in flat if name in d)} apart; vary them independently"
    elif not math.isfinite(half):
        reason = (
            f"no value of it {'above' if math.isinf(interval.high) else 'below'} can be excluded; measure more sizes"
        )
    elif half > _LOOSE * abs(value) and half > 0.1:
        reason = (
            f"its interval is {half / abs(value):.0%} of its value; measure a wider range of sizes, or more of them"
        )
    return Exponent(name, value, interval, how, jacobian, doubt.textbook_error(found), profile, drawn,
                    "not-identifiable" if reason else "ok", reason)  # fmt: skip


def _warnings(found: Solution, exponents: Sequence[Exponent], cluster: str | None) -> list[str]:
    told, data = [], found.data
    for name in found.law.terms:
        values = data.x[name]
        if values.max() / values.min() < 4:
            told.append(f"{name} spans a factor of {values.max() / values.min():.2g} only: an exponent needs more")
    for e in exponents:
        if e.textbook == e.textbook and e.interval.high - e.interval.low > 2 * 1.96 * 2 * e.textbook:
            told.append(f"{e.name}: the textbook error {e.textbook:.3g} is less than half of what the data leave open")
    if len(data.groups) > 1 and cluster is None:
        told.append("rows of one model share their errors; name their column with --cluster for an honest interval")
    return told


def _frame(table: Any) -> tuple["pl.DataFrame", str]:
    import polars as pl

    if isinstance(table, pl.DataFrame):
        return table, "data frame"
    path = Path(table)
    if not path.is_file():
        raise LawError(f"there is no file {path}; give a CSV or parquet table, or --example")
    try:
        found = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path, infer_schema_length=None)
    except pl.exceptions.PolarsError as error:
        raise LawError(f"{path} is not a table that can be read: {str(error).splitlines()[0]}") from error
    return found, str(path)


def _check(frame: "pl.DataFrame", law: str, x: Sequence[str], columns: Sequence[str]) -> None:
    if not x:
        raise LawError("no column of sizes is named; give --x")
    if law != "sum" and len(x) > 1:
        raise LawError(f"the law {law!r} has one column of sizes, not {len(x)}; use --law sum")
    for name in columns:
        if name not in frame.columns:
            raise LawError(f"the table has no column {name!r}; it has {', '.join(frame.columns)}")
    for name in (columns[0], *x):
        if not frame[name].dtype.is_numeric():
            raise LawError(f"the column {name!r} holds {frame[name].dtype}, not numbers")
    for name in columns:
        if frame[name].null_count():
            row = frame[name].is_null().arg_max()
            raise LawError(f"{name} is empty in row {(row or 0) + 1}; take such rows out, or name another column")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def fit_example(name: str, **options: Any) -> Fits:
    """Fit one of the tables that come with drillcore, as arXiv 2505.10465 does: "llm-losses" or "toy-large".

    Raises:
        LawError: there is no such example.
    """
    if name == "llm-losses":
        found = fit(_shipped("llm_losses"), x=["m"], y="loss_nats_per_token", law="offset", group=["family", "dataset"],
                    cluster="model_id", **options)  # fmt: skip
        return Fits(found.fits, "losses of 27 models (arXiv 2505.10465, digitised)", {"all": "0.91 ± 0.04"})
    if name == "toy-large":
        import polars as pl

        frame = pl.read_csv(_shipped("toy_large_n10240_loss_vs_m"))
        late = pl.col("distribution") != "exponential"  # the published fits of the others start at m = 32
        frame = frame.filter(pl.col("regime") == "strong", ~late | (pl.col("m") >= 32))
        found = fit(frame, x=["m"], y="loss_sum_over_n", law="power", each=["distribution"], **options)
        told = {"exponential": "1.01 ± 0.05", "power": "1.0 ± 0.1", "linear": "0.89 ± 0.05"}
        return Fits(found.fits, "toy models, n = 10240, strong (arXiv 2505.10465, digitised)", told)
    raise LawError(f"there is no example {name!r}; there are llm-losses and toy-large")


def _shipped(name: str) -> Path:
    return Path(str(resources.files("drillcore.data.published").joinpath(f"{name}.csv")))
