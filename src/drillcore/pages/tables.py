"""The tables of the page: what has no number and why, and the census as compact data."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drillcore.pages.rows import Kind, spans
from drillcore.table import OK, Row

if TYPE_CHECKING:
    from drillcore.weights import Census


@dataclass(frozen=True)
class StatusGroup:
    """Rows that share a measure, a status and a reason."""

    measure: str
    status: str
    reason: str
    count: int
    kinds: tuple[str, ...]
    layers: str


def status_groups(rows: Iterable[Row]) -> list[StatusGroup]:
    """Every row whose status is not "ok", in groups; the largest group of a measure first."""
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row.status != OK:
            groups[row.measure, row.status, row.reason or ""].append(row)
    found = [_group(key, members) for key, members in groups.items()]
    return sorted(found, key=lambda g: (g.measure, g.status, -g.count, g.reason))


def _group(key: tuple[str, str, str], members: list[Row]) -> StatusGroup:
    kinds = dict.fromkeys(Kind(r.stack or "", r.kind or "").label for r in members)
    layers = spans(x for r in members for x in (r.layer, r.other) if x is not None)
    return StatusGroup(*key, len(members), tuple(kinds), layers)


def census_data(census: "Census") -> dict[str, Any]:
    """Entries as lists, those left out first: tensor, state, detail, remedy, shape, dtype, bytes, file."""
    left_out = {e.tensor for e in census.left_out}
    ordered = sorted(census.entries, key=lambda e: e.tensor not in left_out)
    entries = [
        [e.tensor, e.state, e.detail, e.remedy, " × ".join(map(str, e.shape)), e.dtype, e.nbytes, e.file]
        for e in ordered
    ]
    return {"entries": entries, "left_out": sorted({e.state for e in census.left_out})}


def parameters(census: "Census") -> int:
    """Numbers in the tensors of the checkpoint, each tensor once."""
    total = 0
    for entry in census.entries:
        if entry.state not in ("missing", "ignored", "tied") and entry.shape:
            count = 1
            for side in entry.shape:
                count *= side
            total += count
    return total


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested provenance as lines of name and value; settings left at None are "default"."""
    lines: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            lines += flat(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            lines.append((prefix + name, ", ".join(map(str, value))))
        else:
            lines.append((prefix + name, "default" if value is None else str(value)))
    return lines
