"""Survey: read a checkpoint's weights once, streamed, and say what its layers share and what they pack."""

import json
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from drillcore.data.token_counts import Counts
from drillcore.measures import MEASURES
from drillcore.measures.frequency import by_frequency
from drillcore.measures.reading import Options, by_layer, read_kind
from drillcore.measures.stability import Certificate, Collector, certify, readers_first, stability_rows
from drillcore.measures.superposition import superposition
from drillcore.measures.verdict import KindSummary, summarise
from drillcore.progress import Progress, Step, unwatched
from drillcore.runs import write_text
from drillcore.table import Row, Table
from drillcore.verbs.provenance import provenance
from drillcore.verbs.selection import Selection, select
from drillcore.verbs.token_counts import token_counts
from drillcore.weights import Assignment, Census, InputError, Source, Weight, assign, open_source
from drillcore.weights.placement import Placement, placements
from drillcore.weights.role import SINGLE_KINDS

_DEVICES = "use cpu, or a CUDA device that torch sees, such as cuda:0"
_WIDEN = "widen --kinds, --layers or --measures; continuity is between layers, superposition of embedding and head"
_MAP = "`drillcore describe` lists its tensors and why they have no role; --roles FILE.toml gives them one"


@dataclass(frozen=True)
class Survey:
    """The result of a survey: rows, census, provenance, one summary line per kind, and per stack where its norms stand.

    `certificates` says what half precision can hold, by stack; empty where kinds, layers or measures were left out.
    """

    rows: Table
    census: Census
    provenance: Mapping[str, Any]
    summary: tuple[KindSummary, ...]
    placements: Mapping[str, Placement] = field(default_factory=dict)
    certificates: tuple[Certificate, ...] = ()

    def save(self, folder: Path) -> list[Path]:
        """Write rows.parquet and survey.json into `folder`, each atomically."""
        folder = Path(folder)
        rows, summary = folder / "rows.parquet", folder / "survey.json"
        self.rows.save(rows)
        write_text(summary, json.dumps(self.as_json(), indent=1, ensure_ascii=False))
        return [rows, summary]

    def as_json(self) -> dict[str, Any]:
        """Summary, placements, certificates, census and provenance as plain values."""
        census = {
            "family": self.census.family, "decided_by": self.census.decided_by, "count": self.census.count(),
            "bytes": self.census.nbytes, "entries": [asdict(e) for e in self.census.entries],
        }  # fmt: skip
        lines = [{**asdict(s), "verdict": s.verdict} for s in self.summary]
        placed = [asdict(placement) for placement in self.placements.values()]
        return {
            "summary": lines, "placements": placed, "certificates": [c.as_json() for c in self.certificates],
            "census": census, "provenance": dict(self.provenance),
        }  # fmt: skip


def survey(
    target: object, *, rank: int = 8, measures: Collection[str] | None = None, kinds: Collection[str] | None = None,
    layers: Collection[int] | None = None, spectrum: Literal["auto", "full"] = "auto", fold_norms: bool = False,
    exact_max: bool = False, tokens: Path | None = None, text: Path | None = None, roles: Path | None = None,
    config: Path | None = None, base: str | None = None, norm_placement: str | None = None, device: str = "cpu",
    progress: Progress = unwatched,
) -> Survey:  # fmt: skip
    """Survey a checkpoint from its weights alone.

    Args:
        target: a file, a folder, a Hugging Face id, or a live ``torch.nn.Module``.
        rank: dimension of the leading subspaces.
        measures: names or groups ("v1", "continuity.v1", "spectrum", "superposition", "stability"); all by default.
        kinds: restrict to these kinds; superposition is then measured for each of them. A certificate needs all.
        layers: restrict to these layers. A certificate needs all.
        spectrum: "full" computes every singular value of every matrix; "auto" where the short side is ≤ 2048.
        fold_norms: multiply the gain of the input norm into the matrices that it feeds.
        exact_max: the exact maximum overlap of vocabularies above 50,000 rows (slow).
        tokens: a file of token ids or counts; superposition of embedding and head is then also told by frequency.
        text: a text to count the tokens of instead, by the tokenizer.json beside the checkpoint.
        roles: a TOML file that gives the roles of an unknown family.
        config: a config.json to use instead of the one beside the weights.
        base: the base model of a LoRA folder, where its configuration is not found beside it.
        norm_placement: where the norms stand ("pre", "peri", …), if it cannot be decided.
        device: "cpu" or a CUDA device.
        progress: called after every matrix with bytes done and in all.

    Raises:
        InputError: the checkpoint or an option cannot be used; says what to do.
    """
    started = time.perf_counter()
    chosen = select(measures)
    _check_numbers(rank, device)
    source = open_source(target, config=config, base=base)
    assignment = assign(source, roles=roles)
    options = Options(rank=rank, needs=chosen.needs, spectrum=spectrum, fold_norms=fold_norms, device=device)
    placed = placements(source, assignment, given=norm_placement)
    counts = token_counts(target, tokens, text)
    run = _Run(source, assignment, chosen, options, kinds, layers, placed, counts, progress)
    rows, skipped = run.rows(exact_max)
    settings = {
        "rank": rank, "measures": sorted(measures) if measures else None, "kinds": sorted(kinds) if kinds else None,
        "layers": sorted(layers) if layers else None, "spectrum": spectrum, "fold_norms": fold_norms,
        "exact_max": exact_max, "tokens": str(tokens) if tokens else None, "text": str(text) if text else None,
        "roles": str(roles) if roles else None, "norm_placement": norm_placement, "device": device,
    }  # fmt: skip
    facts = provenance(source, settings, time.perf_counter() - started)
    table = Table(tuple(replace(r, source=source.label) for r in rows), facts)
    faces = {(w.role.stack, w.role.kind): w.role.faces for w in assignment.weights}
    summary = tuple(summarise(table, stack, kind, faces[stack, kind]) for stack, kind in run.block_kinds)
    census = assignment.census.with_skipped(skipped)
    return Survey(table, census, facts, summary, placed, run.certificates)


class _Run:
    """One pass over the chosen matrices, kind by kind, so that only one kind's records are held."""

    def __init__(
        self, source: Source, assignment: Assignment, chosen: Selection, options: Options,
        kinds: Collection[str] | None, layers: Collection[int] | None, placed: Mapping[str, Placement],
        counts: Counts | None, progress: Progress,
    ) -> None:  # fmt: skip
        self.source, self.assignment, self.chosen, self.options = source, assignment, chosen, options
        self.counts, self.placed = counts, placed
        self.certificates: tuple[Certificate, ...] = ()
        self.layers, self.progress = layers, progress
        for option, words in (("--kinds", kinds), ("--layers", layers)):
            if words is not None and not words:
                raise InputError("is empty", where=option, remedy="leave it out to survey everything")
        present = [p for p in assignment.kinds if kinds is None or p[1] in kinds]
        _check_kinds(kinds, assignment)
        _check_layers(layers, assignment)
        self.block_kinds = [p for p in present if p[1] not in SINGLE_KINDS] if chosen.names else []
        self.whole = chosen.stability and kinds is None and layers is None
        self.packed = self._packed(kinds) if chosen.superposition else []
        self.total = sum(w.nbytes for w in self._block_weights()) + sum(w.nbytes for w in self.packed)
        self.done = 0
        if not self.total:
            raise InputError("nothing to measure: no matrix is left by the census and the options", where=source.label,
                             remedy=_WIDEN if assignment.weights else _MAP)  # fmt: skip

    def _block_weights(self) -> list[Weight]:
        groups = (by_layer(self.assignment.of(kind, stack), self.layers) for stack, kind in self.block_kinds)
        return [w for group in groups for _, weights in group for w in weights]

    def _packed(self, kinds: Collection[str] | None) -> list[Weight]:
        wanted = ("embed", "unembed") if kinds is None else kinds
        chosen = [w for w in self.assignment.weights if w.role.kind in wanted and w.role.tie is None and w.role.faces]
        if self.layers is not None:
            chosen = [w for w in chosen if w.role.layer is None or w.role.layer in self.layers]
        return chosen

    def rows(self, exact_max: bool) -> tuple[list[Row], dict[str, tuple[str, str]]]:
        """All rows, and the tensors that could not be used with the reason and the remedy."""
        rows, skipped = self._block_rows()
        for weight in self.packed:
            found = superposition(self.source, weight, exact_max=exact_max, device=self.options.device)
            rows += found
            if self.counts is not None:
                rows += by_frequency(self.source, weight, self.counts, device=self.options.device)
            for fault in (r.reason for r in found if r.status == "non-finite"):
                skipped[weight.tensor] = (str(fault), "repair or retrain this tensor")
            self._advance(weight.role.kind)(weight.nbytes)
        if not any(r.value is not None for r in rows):
            first = "; ".join(f"{name} {fault}" for name, (fault, _) in list(skipped.items())[:3])
            raise InputError(f"no matrix could be measured, {len(skipped)} are left out: {first}"
                             + (" …" if len(skipped) > 3 else ""), where=self.source.label,
                             remedy="look at how it was trained or saved")  # fmt: skip
        return rows, skipped

    def _block_rows(self) -> tuple[list[Row], dict[str, tuple[str, str]]]:
        """Rows of the kinds in the layers; what writes to the stream is read last, as its bounds need the readers'."""
        by_kind: dict[tuple[str, str], list[Row]] = {}
        skipped: dict[str, tuple[str, str]] = {}
        collector = Collector(self.source, self.assignment, self.placed) if self.whole else None
        for stack, kind in readers_first(self.assignment, self.block_kinds):
            reading = read_kind(
                self.source, self.assignment, stack, kind, self.options, self.layers, self._advance(kind),
                observe=collector.observe if collector is not None else None,
            )  # fmt: skip
            skipped |= reading.skipped
            if reading.layers:
                names = self.chosen.names
                by_kind[stack, kind] = [row for name in names for row in MEASURES[name].rows(reading, name)]
        rows = [row for key in self.block_kinds for row in by_kind.get(key, ())]
        if collector is not None:
            self.certificates = certify(collector, self.placed)
            rows += stability_rows(self.source, self.assignment, self.placed, self.certificates)
        return rows, skipped

    def _advance(self, kind: str) -> Callable[[int], None]:
        def advance(nbytes: int) -> None:
            self.done += nbytes
            self.progress(Step(kind, self.done, self.total))

        return advance


def _check_numbers(rank: int, device: str) -> None:
    if rank < 1:
        raise InputError(f"a subspace needs a rank of at least 1, got {rank}", where="--rank",
                         remedy="leave it out for 8")  # fmt: skip
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise InputError(f"no device {device!r}", where="--device", remedy=_DEVICES)
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch asserts when it was built without the device
        raise InputError(f"no device {device!r}: {str(error).splitlines()[0]}", where="--device",
                         remedy=_DEVICES) from error  # fmt: skip


def _check_kinds(kinds: Collection[str] | None, assignment: Assignment) -> None:
    known = {kind for _, kind in assignment.kinds}
    unknown = sorted(set(kinds or ()) - known)
    if unknown:
        raise InputError(f"no matrix of kind {unknown[0]!r} in this checkpoint", where="--kinds",
                         remedy=f"it has {', '.join(sorted(known))}")  # fmt: skip


def _check_layers(layers: Collection[int] | None, assignment: Assignment) -> None:
    known = {w.role.layer for w in assignment.weights if w.role.layer is not None}
    unknown = sorted(set(layers or ()) - known)
    if unknown:
        raise InputError(f"no layer {unknown[0]} in this checkpoint", where="--layers",
                         remedy=f"it has layers {min(known)} to {max(known)}")  # fmt: skip
