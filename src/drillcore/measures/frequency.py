"""Superposition by how frequent the tokens are: rare ones are often packed into a corner of their own."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from drillcore.data.token_counts import Counts, zipf_exponent
from drillcore.measures.row_blocks import RowBlocks, is_vocabulary, residual_rows
from drillcore.measures.superposition import packing
from drillcore.table import Row
from drillcore.weights.role import Weight
from drillcore.weights.source import Source

_EDGES = (0, 100, 1000, 10_000)  # ranks where a stratum begins
_KEPT = {f"superposition.{name}" for name in (
    "n", "norm_mean", "norm_median", "mean_sq_overlap", "mean_sq_overlap_x_m", "mean_sq_overlap_over_welch",
    "participation_ratio")}  # fmt: skip


@dataclass(frozen=True)
class Stratum:
    """Tokens of neighbouring ranks: the name of the subset, and their ids, rising."""

    name: str
    ids: "np.ndarray[Any, np.dtype[np.int64]]"


def strata(counts: Counts, n: int) -> list[Stratum]:
    """Tokens 0 … n − 1 by rank of their counts: 1–100, 101–1000, 1001–10000, rarer, and those that never occur.

    Of equal counts the smaller id comes first. Strata without a token are left out.
    """
    padded = np.zeros(n, np.int64)
    padded[: min(n, len(counts))] = counts[:n]
    order = np.argsort(-padded, kind="stable")
    seen = int((padded > 0).sum())
    ends = [*_EDGES[1:], n]
    found = [Stratum(f"rank {start + 1}-{end if end < n else ''}", np.sort(order[start : min(end, seen)]))
             for start, end in zip(_EDGES, ends, strict=True) if start < seen]  # fmt: skip
    return [s for s in (*found, Stratum("unseen", np.sort(order[seen:]))) if len(s.ids)]


def by_frequency(source: Source, weight: Weight, counts: Counts, *, device: str = "cpu") -> Iterator[Row]:
    """Norms and overlaps of a vocabulary's vectors by stratum, `subset` being "rank 1-100" or "rank 1-100, centred".

    Also `tokens.zipf_exponent`, and `tokens.seen`: how many of the vocabulary occur. A matrix that is no vocabulary has
    none.
    """
    if not is_vocabulary(weight):
        return
    role, rows = weight.role, residual_rows(source, weight)
    make = partial(Row, stack=role.stack, layer=role.layer, kind=role.kind, expert=role.expert)
    yield make(measure="tokens.seen", value=int((counts[: rows.n] > 0).sum()), n=int(counts.sum()), unit="tokens")
    yield make(measure="tokens.zipf_exponent", value=zipf_exponent(counts), n=int(counts.sum()))
    for stratum in strata(counts, rows.n):
        for row in packing(make, _of(rows, stratum), device=device):
            if row.measure in _KEPT:
                centred = ", centred" if row.subset == "centred" else ""
                yield replace(row, subset=stratum.name + centred)


def _of(rows: RowBlocks, stratum: Stratum) -> RowBlocks:
    """The stratum's vectors as blocks of their own; they are gathered slice by slice."""
    name = f"{rows.name} {stratum.name}"
    return RowBlocks(name, len(stratum.ids), rows.m, lambda start, stop: rows.gather(stratum.ids[start:stop]))
