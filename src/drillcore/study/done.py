"""What is done of a study: its rows with a column for every axis, how much of each preset, and with what."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drillcore.study.errors import StudyError
from drillcore.study.spec import Run, Study

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Finished:
    """A task that is done: its folder, its runs, and with what they were made."""

    folder: Path
    runs: tuple[Run, ...]
    threads: int
    provenance: Mapping[str, Any]


@dataclass(frozen=True)
class Coverage:
    """How much of a preset is done; `missing` are the runs that are not."""

    preset: str
    done: int
    missing: tuple[Run, ...]


def finished(study: Study, out: Path) -> list[Finished]:
    """Tasks that are done in the folder, of this study and with the axes that it has now.

    A run can be in two tasks (other threads, or more seeds beside it); the task with more runs then comes first.
    """
    found = [task for folder in sorted((out / "tasks").glob("*")) if (task := _task(study, folder)) is not None]
    return sorted(found, key=lambda task: (-len(task.runs), task.threads, task.folder.name))


def results(study: Study, out: Path, reference: str | None = None) -> "pl.DataFrame":
    """Rows of all tasks that are done, each run once, with a column for every axis.

    Raises:
        StudyError: nothing is done yet; it says what to type, with `reference` as the study's name.
    """
    import polars as pl

    frames, points = [], dict[str, dict[str, Any]]()
    for task in finished(study, out):
        new = {run.id: dict(run.axes) for run in task.runs if run.id not in points}
        parts = sorted((task.folder / "rows").glob("part-*.parquet"))
        frames += [pl.read_parquet(part).filter(pl.col("run").is_in(list(new))) for part in parts]
        points |= new
    if not frames:
        where = f"{out} holds no finished task of {study.name}" + ("" if not points else " that wrote a row")
        raise StudyError(f"{where}; first: drillcore study run {reference or study.name} --out {out}")
    axes = pl.DataFrame([{"run": run, **axes} for run, axes in points.items()], infer_schema_length=None)
    rows = pl.concat(frames)
    return (rows.drop("seed") if "seed" in axes.columns else rows).join(axes, on="run")


def coverage(study: Study, out: Path) -> tuple[Coverage, ...]:
    """How much of each preset is done."""
    done = {run.id for task in finished(study, out) for run in task.runs}
    found = []
    for preset in study.presets:
        runs = study.runs(preset)
        missing = tuple(run for run in runs if run.id not in done)
        found.append(Coverage(preset, len(runs) - len(missing), missing))
    return tuple(found)


def provenance(study: Study, out: Path) -> dict[str, Any]:
    """With what the tasks were made; what differs between them is a list of all that there was."""
    found: dict[str, list[Any]] = {}
    for task in finished(study, out):
        for name, value in _flat(task.provenance):
            values = found.setdefault(name, [])
            if value not in values:
                values.append(value)
    return {name: values[0] if len(values) == 1 else sorted(values, key=str) for name, values in found.items()}


def _task(study: Study, folder: Path) -> Finished | None:
    if not (folder / "DONE").exists():
        return None
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    names = {axis.name for axis in study.axes}
    if config["study"] != study.name or any(set(axes) != names for axes in config["runs"]):
        return None
    made = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    return Finished(folder, tuple(Run(study.name, axes) for axes in config["runs"]), config["threads"], made)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
