"""Verdicts: decided from the results, kept as a small file beside the data of the figures."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drillcore.runs import atomic_path, write_text
from drillcore.study.claims import Verdict
from drillcore.study.errors import StudyError
from drillcore.study.spec import Study

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Decided:
    """A claim with its verdict."""

    name: str
    text: str
    published: str
    verdict: Verdict


def verify(study: Study, results: "pl.DataFrame") -> tuple[Decided, ...]:
    """Decide every claim of a study; a verdict whose numbers are not finite is inconclusive."""
    return tuple(Decided(c.name, c.text, c.published, _finite(c.decide(results))) for c in study.claims)


def _finite(verdict: Verdict) -> Verdict:
    if all(isfinite(x) for x in (verdict.value, verdict.low, verdict.high) if x is not None):
        return verdict
    return Verdict("inconclusive", threshold=verdict.threshold, n=verdict.n, how="not a finite number")


def save_verdicts(
    folder: Path, study: Study, results: "pl.DataFrame", decided: Sequence[Decided], made: Mapping[str, Any]
) -> list[Path]:
    """Write `verdicts.json`, with the provenance `made`, and the figures' numbers, `figures.parquet`, atomically."""
    import polars as pl

    shape = {"runs": results["run"].n_unique(), "rows": len(results)}
    facts = {"study": study.name, "title": study.title, **shape, "provenance": dict(made)}
    text = json.dumps(facts | {"verdicts": [asdict(d) for d in decided]}, indent=1, ensure_ascii=False, allow_nan=False)
    written = [folder / "verdicts.json"]
    write_text(written[0], text + "\n")
    if study.figures:
        parts = [f.data(results).with_columns(figure=pl.lit(f.name)) for f in study.figures]
        written.append(folder / "figures.parquet")
        with atomic_path(written[1]) as temporary:
            pl.concat(parts, how="diagonal_relaxed").write_parquet(temporary)
    return written


def load_verdicts(path: Path) -> tuple[str, tuple[Decided, ...]]:
    """Title and verdicts of a file that `save_verdicts` wrote.

    Raises:
        StudyError: the file is not one.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        decided = tuple(Decided(**{**d, "verdict": Verdict(**d["verdict"])}) for d in found["verdicts"])
        return str(found["title"] or found["study"]), decided
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise StudyError(
            f"{path} is not a file of verdicts ({error}); write it with `study verify --publish`"
        ) from error
