"""The machine: which tasks a preset needs, which are done, and doing the rest through an engine."""

import fcntl
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drillcore.engine import Job, Outcome
from drillcore.runs import write_text
from drillcore.study.reference import load
from drillcore.study.spec import Run, Study, StudyError, Task, task_of, tasks

if TYPE_CHECKING:
    import polars as pl

Engine = Callable[[Sequence[Job]], Iterator[Outcome]]
_LIBRARIES = ("drillcore", "torch", "numpy", "scipy", "polars")


@dataclass(frozen=True)
class Plan:
    """The tasks of a preset in a folder, told apart by whether they are done."""

    study: Study
    reference: str
    out: Path
    done: tuple[Task, ...]
    missing: tuple[Task, ...]

    @property
    def seconds(self) -> float | None:
        """Expected work of what is missing, in seconds of one worker; None where the study does not say."""
        return None if self.study.cost is None else sum(self.study.cost(task) for task in self.missing)

    @property
    def runs(self) -> int:
        """Runs in all tasks."""
        return sum(len(task.runs) for task in (*self.done, *self.missing))


def plan(
    reference: str, preset: str, out: Path, *, threads: int = 1, changed: Mapping[str, tuple[str, ...]] | None = None
) -> Plan:
    """Expand a preset into tasks and see which are done; nothing is started.

    Raises:
        StudyError: unknown study, preset, axis or value.
    """
    study = load(reference)
    found = tasks(study, study.runs(preset, changed), out / "tasks", threads)
    done = tuple(task for task in found if task.folder.done)
    return Plan(study, reference, out, done, tuple(task for task in found if not task.folder.done))


def run(todo: Plan, engine: Engine) -> Iterator[tuple[Task, Outcome]]:
    """Do what is missing and yield each task with its outcome; a task that fails does not hide the others."""
    by_name = {task.folder.path.name: task for task in todo.missing}
    jobs = [
        Job(
            name, work,
            (todo.reference, [dict(r.axes) for r in task.runs], str(todo.out / "tasks"), task.threads),
            todo.out / "logs" / f"{name}.txt",
        )
        for name, task in by_name.items()
    ]  # fmt: skip
    for outcome in engine(jobs):
        yield by_name[outcome.name], outcome


def work(reference: str, axes: Sequence[Mapping[str, Any]], root: str, threads: int) -> None:
    """Do one task, in the process of an engine; a task that is done is left alone."""
    study = load(reference)
    task = task_of(study, tuple(Run(study.name, dict(a)) for a in axes), Path(root), threads)
    if task.folder.done:
        return
    task.folder.begin()
    share = task.folder.path / "progress"
    with _alone(task.folder.path):
        study.cell(Task(task.runs, task.folder, threads, partial(_tell, share)))
        task.folder.finish(_provenance(study, threads))
    share.unlink(missing_ok=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder against another process; the lock ends with the process, however that ends."""
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StudyError(f"another process is doing the task in {folder}; wait for it, or end it") from error
        yield


def progress(task: Task) -> float:
    """The share of a task that is done, as its process says."""
    if task.folder.done:
        return 1.0
    try:
        return float((task.folder.path / "progress").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0.0


def results(study: Study, out: Path) -> "pl.DataFrame":
    """Rows of all tasks that are done, with a column for every axis.

    Raises:
        StudyError: nothing is done yet, or an axis has the name of a column.
    """
    import json

    import polars as pl

    folders = [path for path in sorted((out / "tasks").glob("*")) if (path / "DONE").exists()]
    if not folders:
        raise StudyError(f"{out} holds no finished task of {study.name}; first: drillcore study run {study.name}")
    frames, points = [], []
    for path in folders:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        if config["study"] != study.name:
            continue
        frames += [pl.read_parquet(part) for part in sorted((path / "rows").glob("part-*.parquet"))]
        points += [{"run": Run(study.name, axes).id, **axes} for axes in config["runs"]]
    rows, axes = pl.concat(frames), pl.DataFrame(points, infer_schema_length=None).unique("run")
    clash = (set(rows.columns) & set(axes.columns)) - {"run", "seed"}
    if clash:
        raise StudyError(f"axis {sorted(clash)[0]!r} has the name of a column of the table; give it another")
    return rows.drop("seed").join(axes, on="run") if "seed" in axes.columns else rows.join(axes, on="run")


def _tell(path: Path, share: float) -> None:
    """Write the share that is done; a hundredth at a time, since it is read for a progress bar."""
    now = f"{share:.2f}"
    if not path.exists() or path.read_text(encoding="utf-8") != now:
        write_text(path, now)


def _provenance(study: Study, threads: int) -> dict[str, Any]:
    from importlib.metadata import version  # a tenth of a second, and only workers need it

    return {
        "study": study.name, "threads": threads, "python": platform.python_version(), "machine": platform.machine(),
        "versions": {name: version(name) for name in _LIBRARIES},
    }  # fmt: skip
