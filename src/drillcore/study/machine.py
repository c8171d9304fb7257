"""The machine: which tasks a preset needs, which are done, and doing the rest through an engine."""

import fcntl
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from heapq import heapreplace
from pathlib import Path
from typing import Any

from drillcore.engine import Job, Outcome
from drillcore.runs import write_text
from drillcore.study.errors import StudyError
from drillcore.study.reference import load
from drillcore.study.spec import Run, Study, Task, task_of, tasks

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

    def seconds(self, workers: int) -> float | None:
        """When `workers` that take one task after the other should be through; None where the study does not say."""
        if self.study.cost is None:
            return None
        ends = [0.0] * workers
        for task in self.missing:
            heapreplace(ends, ends[0] + self.study.cost(task))
        return max(ends)

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
    if threads < 1:
        raise StudyError(f"a task needs one thread at least, not {threads}")
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
    task.folder.begin()
    share = task.folder.path / "progress"
    with _alone(task.folder.path):
        if task.folder.done:  # asked under the lock: who held it before may have finished just now
            return
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
