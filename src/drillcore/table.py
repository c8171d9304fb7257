"""One table for every result: tidy rows beside their provenance.

A row says which number (`measure`), of what (`source`, `stack`, `layer`, `other`, `kind`, `expert`,
`subset`), its value and its doubt (`low`, `high`, `bound`, `stderr`, `n`), what chance alone would give
(`null`, `null_sd`), and, where there is no value, why (`status`, `reason`). Unused columns are null.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drillcore.runs import atomic_path

if TYPE_CHECKING:
    import polars as pl

OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number with its key, its doubt and its null. A row whose `status` is not "ok" has no value."""

    run: str | None = None
    source: str | None = None
    seed: int | None = None
    step: int | None = None
    stack: str | None = None
    layer: int | None = None
    site: int | None = None
    other: int | None = None  # the second layer of a pair
    adjacent: bool | None = None  # the pair is a layer and the next one of the kind that was read
    kind: str | None = None
    expert: int | None = None
    subset: str | None = None
    measure: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    bound: float | None = None  # a bound on the error of `value`
    stderr: float | None = None
    n: int | None = None
    null: float | None = None  # the mean under chance
    null_sd: float | None = None
    status: str = OK
    reason: str | None = None  # for a status other than "ok": why, and what to do
    unit: str | None = None


COLUMNS = tuple(f.name for f in fields(Row))
_INTEGERS = frozenset({"seed", "step", "layer", "site", "other", "expert", "n"})
_FLOATS = frozenset({"value", "low", "high", "bound", "stderr", "null", "null_sd"})


def _schema() -> dict[str, Any]:
    import polars as pl

    def dtype(name: str) -> Any:
        if name in _INTEGERS:
            return pl.Int64
        if name in _FLOATS:
            return pl.Float64
        return pl.Boolean if name == "adjacent" else pl.String

    return {name: dtype(name) for name in COLUMNS}


@dataclass(frozen=True)
class Table:
    """Rows and the provenance they share. Iterable, filterable, saved as parquet."""

    rows: tuple[Row, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def where(self, **keys: object) -> "Table":
        """Keep the rows whose columns equal the given values: ``table.where(measure="continuity.v1")``."""
        unknown = set(keys) - set(COLUMNS)
        if unknown:
            raise KeyError(f"no such column: {', '.join(sorted(unknown))}; the columns are {', '.join(COLUMNS)}")
        kept = tuple(r for r in self.rows if all(getattr(r, k) == v for k, v in keys.items()))
        return Table(kept, self.provenance)

    def values(self) -> list[float]:
        """Return the values of the rows that have one, in order."""
        return [r.value for r in self.rows if r.value is not None]

    @property
    def frame(self) -> "pl.DataFrame":
        """The rows as a polars data frame with every column of the schema."""
        import polars as pl

        columns = {name: [getattr(row, name) for row in self.rows] for name in COLUMNS}
        return pl.DataFrame(columns, schema=_schema())

    def save(self, path: Path) -> None:
        """Write the rows as parquet, atomically; the provenance travels in the file's metadata."""
        buffer = BytesIO()  # so that a full disk is an OSError: polars has an error of its own for it
        self.frame.write_parquet(buffer, metadata={"provenance": json.dumps(self.provenance)})
        with atomic_path(Path(path)) as temporary:
            temporary.write_bytes(buffer.getbuffer())

    @classmethod
    def load(cls, path: Path) -> "Table":
        """Read a table that `save` wrote."""
        import polars as pl

        frame = pl.read_parquet(path)
        metadata = pl.read_parquet_metadata(path)
        rows = (Row(**values) for values in frame.select(COLUMNS).iter_rows(named=True))
        return cls(tuple(rows), json.loads(metadata.get("provenance", "{}")))

    @classmethod
    def of(cls, rows: Iterable[Row], provenance: Mapping[str, Any] | None = None) -> "Table":
        """Collect rows into a table."""
        return cls(tuple(rows), provenance or {})
