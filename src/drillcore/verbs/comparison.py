"""Surveys of several checkpoints side by side: what their embeddings and heads pack."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import log
from pathlib import Path

from drillcore.data.published import published
from drillcore.errors import UserError
from drillcore.intervals import Interval, slope
from drillcore.progress import Progress, unwatched
from drillcore.runs import write_text
from drillcore.table import Row, Table
from drillcore.verbs.survey import Survey, survey
from drillcore.weights import InputError

_OVERLAP = "superposition.mean_sq_overlap"


@dataclass(frozen=True, slots=True)
class Packing:
    """One vocabulary matrix of one checkpoint: n vectors of length m. `head` says that logits are formed with it."""

    source: str
    kind: str
    head: bool
    n: int
    m: int
    overlap: float | None
    centred: float | None
    norm: float | None
    published: float | None  # of the paper, where it has a model of this name (arXiv 2505.10465, digitised by us)


@dataclass(frozen=True)
class Comparison:
    """Rows of all checkpoints told apart by `source`, a line for each matrix, and what could not be surveyed."""

    surveys: tuple[Survey, ...]
    packings: tuple[Packing, ...]
    failed: Mapping[str, str]  # checkpoint → why

    @property
    def rows(self) -> Table:
        """The rows of all checkpoints."""
        rows = tuple(row for found in self.surveys for row in found.rows)
        return Table(rows, {"surveys": [dict(found.provenance) for found in self.surveys]})

    @property
    def exponent(self) -> Interval | None:
        """Minus the slope of ln overlap on ln m over the heads, with its 95 % interval; None below three widths."""
        points = [(log(p.m), log(p.overlap)) for p in self.packings if p.head and p.overlap]
        if len({x for x, _ in points}) < 3:
            return None
        found = slope([x for x, _ in points], [y for _, y in points])
        return Interval(-found.value, -found.high, -found.low, found.n)

    def save(self, folder: Path) -> list[Path]:
        """Write rows.parquet and comparison.json into `folder`, each atomically."""
        rows, summary = Path(folder) / "rows.parquet", Path(folder) / "comparison.json"
        self.rows.save(rows)
        exponent = self.exponent
        told = {"packings": [asdict(p) for p in self.packings], "exponent": exponent and exponent._asdict(),
                "failed": dict(self.failed), **self.rows.provenance}  # fmt: skip
        write_text(summary, json.dumps(told, indent=1, ensure_ascii=False))
        return [rows, summary]


def compare(
    targets: Sequence[object], *, tokens: Path | None = None, text: Path | None = None, exact_max: bool = False,
    device: str = "cpu", progress: Progress = unwatched, begun: Callable[[object], None] = lambda _: None,
) -> Comparison:  # fmt: skip
    """Survey the superposition of embedding and head of several checkpoints.

    A checkpoint that cannot be used is named in `failed` and does not hide the others.

    Args:
        targets: files, folders, Hugging Face ids or live modules.
        tokens, text, exact_max, device, progress: as in `survey`; `text` is cut by each checkpoint's own tokenizer.
        begun: called with each target before its survey.

    Raises:
        InputError: there is no target, one is given twice, or none can be used.
    """
    if not targets:
        raise InputError("no checkpoint to compare", remedy="name two or more, or a .txt file that lists them")
    twice = [str(t) for i, t in enumerate(targets) if t in targets[:i]]
    if twice:
        raise InputError("is given twice", where=twice[0], remedy="name each checkpoint once")
    found, failed = [], dict[str, str]()
    for target in targets:
        begun(target)
        try:
            found.append(survey(target, measures=["superposition"], tokens=tokens, text=text, exact_max=exact_max,
                                device=device, progress=progress))  # fmt: skip
        except UserError as error:
            failed[str(target)] = str(error)
    if not found:
        told = "\n".join(failed.values())
        raise InputError(f"none of {len(targets)} checkpoints can be used:\n{told}")
    return Comparison(tuple(found), tuple(p for s in found for p in packings(s)), failed)


def listed(path: Path) -> list[str]:
    """Checkpoints from a text file, one a line; relative paths start at the file's folder. `#` begins a comment.

    Raises:
        InputError: the file names none.
    """
    lines = (line.split("#")[0].strip() for line in Path(path).read_text(encoding="utf-8").splitlines())
    found = [str(beside) if (beside := path.parent / line).exists() else line for line in lines if line]
    if not found:
        raise InputError("names no checkpoint", where=path, remedy="write one path or Hugging Face id a line")
    return found


def packings(survey: Survey) -> list[Packing]:
    """The vocabulary matrices of a survey."""
    groups: dict[tuple[str, str], dict[tuple[str, str], Row]] = {}
    for row in survey.rows:
        if row.measure.startswith("superposition."):
            key = (row.stack or "", row.kind or "")
            groups.setdefault(key, {})[row.measure, row.subset or ""] = row
    heads = {stack: "unembed" if (stack, "unembed") in groups else "embed" for stack, _ in groups}
    return [_packing(survey, f"{stack} {kind}".strip(), kind == heads[stack], rows)
            for (stack, kind), rows in groups.items()]  # fmt: skip


def _packing(survey: Survey, kind: str, head: bool, rows: Mapping[tuple[str, str], Row]) -> Packing:
    def value(measure: str, subset: str = "") -> float | None:
        row = rows.get((f"superposition.{measure}", subset))
        return row.value if row is not None else None

    source = str(survey.provenance["source"])
    m = int(value("m") or 0)
    known = published("llm_mean_sq_overlap", model=name_of(source), m_of_weight_matrix=m) if head else []
    return Packing(source, kind, head, int(value("n") or 0), m, value("mean_sq_overlap", "raw"),
                   value("mean_sq_overlap", "centred"), value("norm_mean"),
                   known[0]["mean_sq_overlap"] if known else None)  # fmt: skip


def name_of(source: str) -> str:
    """The last part of a path or id, as people name the model: "opt-125m" of facebook/opt-125m."""
    return Path(source).name
