"""Verdicts kept as a small file, beside the data of the figures; what another day ran is added to what is there."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drillcore.runs import atomic_path, write_text
from drillcore.study.claims import Verdict
from drillcore.study.errors import StudyError
from drillcore.study.spec import Study
from drillcore.study.verify import Decided

if TYPE_CHECKING:
    import polars as pl


def save_verdicts(
    folder: Path, study: Study, results: "pl.DataFrame", decided: Sequence[Decided], made: Mapping[str, Any]
) -> list[Path]:
    """Write `verdicts.json`, with the provenance `made`, and the figures' numbers, `figures.parquet`, atomically."""
    shape = {"runs": results["run"].n_unique(), "rows": len(results)}
    facts = {"study": study.name, "title": study.title, **shape, "provenance": dict(made)}
    return _write(folder, facts | {"verdicts": [asdict(d) for d in decided]}, _drawn(study, results))


def publish(
    folder: Path, study: Study, results: "pl.DataFrame", decided: Sequence[Decided], made: Mapping[str, Any]
) -> list[Path]:
    """The same into a folder that may hold an earlier part of the study: what was not run this time stays as it is.

    A stored verdict is kept where its claim reads as it did; a line of a figure where this time has none. `earlier`
    says which claims rest on which runs.

    Raises:
        StudyError: the folder holds another study, or no file of verdicts.
    """
    stored = folder / "verdicts.json"
    if not stored.exists():
        return save_verdicts(folder, study, results, decided, made)
    known = {d.name: d for d in load_verdicts(stored)[1]}
    before = json.loads(stored.read_text(encoding="utf-8"))
    if before["study"] != study.name:
        raise StudyError(f"{stored} is of the study {before['study']}; publish into a folder of its own")
    kept = [d.name for d in decided if d.verdict.outcome == "not-run" and _stands(known.get(d.name), d)]
    facts = {"study": study.name, "title": study.title, "runs": results["run"].n_unique(), "rows": len(results)}
    earlier = [{**part, "claims": [c for c in part["claims"] if c in kept]} for part in before.get("earlier", [])]
    older = {name for part in earlier for name in part["claims"]}
    last = {name: before[name] for name in ("runs", "rows", "provenance")}
    earlier.append({**last, "claims": [name for name in kept if name not in older]})
    facts |= {"provenance": dict(made), "earlier": [part for part in earlier if part["claims"]]}
    verdicts = [asdict(known[d.name] if d.name in kept else d) for d in decided]
    return _write(folder, facts | {"verdicts": verdicts}, _with_stored(study, _drawn(study, results), folder))


def _stands(stored: Decided | None, now: Decided) -> bool:
    return stored is not None and stored.text == now.text and stored.verdict.outcome != "not-run"


def _drawn(study: Study, results: "pl.DataFrame") -> "dict[str, pl.DataFrame]":
    """Figure → its numbers."""
    return {figure.name: figure.data(results) for figure in study.figures}


def _with_stored(study: Study, drawn: "dict[str, pl.DataFrame]", folder: Path) -> "dict[str, pl.DataFrame]":
    """With the stored lines that were not drawn this time."""
    import polars as pl

    path = folder / "figures.parquet"
    stored = pl.read_parquet(path) if path.exists() else pl.DataFrame({"figure": []}, schema={"figure": pl.String})
    found = {}
    for figure in study.figures:
        now, before = drawn[figure.name], stored.filter(pl.col("figure") == figure.name).drop("figure")
        keys = figure.keys or [figure.x, figure.y]
        if len(before) and set(now.columns) <= set(before.columns):
            before = before.select(now.columns).cast(dict(now.schema))  # type: ignore[arg-type]
            now = pl.concat([before.join(now, on=keys, how="anti", nulls_equal=True), now])
        found[figure.name] = now
    return found


def _write(folder: Path, facts: Mapping[str, Any], drawn: "Mapping[str, pl.DataFrame]") -> list[Path]:
    import polars as pl

    written = [folder / "verdicts.json"]
    write_text(written[0], json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    if drawn:
        parts = [data.with_columns(figure=pl.lit(name)) for name, data in drawn.items()]
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
