"""What a study is: axes, presets, a cell, claims, figures. All frozen."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

from drillcore.runs import RunFolder, hash_of
from drillcore.study.claims import Claim
from drillcore.study.errors import StudyError
from drillcore.study.figure import Figure
from drillcore.study.sound import check
from drillcore.table import Row, Table

Value = str | int | float | bool


@dataclass(frozen=True)
class Axis:
    """Something that runs differ in. `values[0]` is the default.

    Scientific axes are what is asked about, nuisance ones (seed, learning rate) are averaged over, fixed ones hold the
    size of the experiment; a preset may give a fixed axis any value.
    """

    name: str
    values: tuple[Value, ...]
    role: Literal["scientific", "nuisance", "fixed"] = "scientific"
    about: str = ""

    def own(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        """The values as the axis writes them: 1 where it has 1.0, since the hash of a run tells them apart."""
        return tuple(next((own for own in self.values if own == value), value) for value in values)


@dataclass(frozen=True)
class Preset:
    """Runs to be done: the union of products of values; an axis that a grid leaves out takes its default."""

    grids: tuple[Mapping[str, tuple[Value, ...]], ...]
    about: str = ""
    budget: str = ""


@dataclass(frozen=True)
class Run:
    """One point of the grid. Its id is the hash of the study's name and its axes."""

    study: str
    axes: Mapping[str, Value]

    @property
    def id(self) -> str:
        """Names the run in every row."""
        return hash_of({"study": self.study, **self.axes})

    def __getitem__(self, axis: str) -> Any:
        return self.axes[axis]


@dataclass(frozen=True)
class Task:
    """Runs that are done together, and where. They differ in the study's stacked axes only."""

    runs: tuple[Run, ...]
    folder: RunFolder
    threads: int = 1
    progress: Callable[[float], None] = field(default=lambda share: None, compare=False)

    @property
    def run(self) -> Run:
        """The only run of a study that stacks nothing."""
        (only,) = self.runs
        return only

    def rows(self, rows: Iterable[Row], part: int = 0) -> None:
        """Write rows as a part of the task's folder.

        Raises:
            StudyError: a row is of no run of this task, and would be lost.
        """
        table = Table.of(rows)
        strange = {row.run for row in table} - {run.id for run in self.runs}
        if strange:
            raise StudyError(f"rows of the run {strange.pop()!r}, which is not of this task; give Row(run=run.id, …)")
        table.save(self.folder.part(part))


@dataclass(frozen=True)
class Study:
    """A question, the runs that answer it, and what would count as an answer.

    Args:
        name: on the command line and in every run's hash.
        cell: does one task: trains or measures, and writes rows whose `run` is the id of their run. It may be killed
            and called again for the same folder.
        stack: axes along which runs are done together in one task.
        cost: expected seconds of a task in a process of its own, printed before the start.

    Raises:
        StudyError: a name is there twice, is taken by the table, or is that of no axis.
    """

    name: str
    axes: tuple[Axis, ...]
    cell: Callable[[Task], None]
    presets: Mapping[str, Preset]
    claims: tuple[Claim, ...] = ()
    figures: tuple[Figure, ...] = ()
    stack: tuple[str, ...] = ()
    title: str = ""
    about: str = ""
    cost: Callable[[Task], float] | None = None

    def __post_init__(self) -> None:
        check(self)

    def runs(self, preset: str, changed: Mapping[str, tuple[str, ...]] | None = None) -> list[Run]:
        """The runs of a preset, each once; `changed` replaces the values of axes in every grid (`--set`).

        Raises:
            StudyError: there is no such preset, axis or value.
        """
        if preset not in self.presets:
            raise StudyError(f"{self.name} has no preset {preset!r}; it has {', '.join(self.presets)}")
        replaced = {name: self._parsed(name, values) for name, values in (changed or {}).items()}
        found: dict[str, Run] = {}
        for grid in self.presets[preset].grids:
            values = [a.own(replaced.get(a.name) or grid.get(a.name) or a.values[:1]) for a in self.axes]
            for point in product(*values):
                run = Run(self.name, dict(zip((a.name for a in self.axes), point, strict=True)))
                found[run.id] = run
        return list(found.values())

    def axis(self, name: str) -> Axis:
        """The axis of that name.

        Raises:
            StudyError: there is none.
        """
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise StudyError(f"{self.name} has no axis {name!r}; it has {', '.join(a.name for a in self.axes)}")

    def _parsed(self, name: str, texts: tuple[str, ...]) -> tuple[Value, ...]:
        """Values of an axis from text: one of its own, or for a fixed or nuisance axis any of the same type."""
        axis = self.axis(name)
        own, kind = {str(v): v for v in axis.values}, type(axis.values[0])
        found: list[Value] = []
        for text in texts:
            if text in own:
                found.append(own[text])
            elif axis.role == "scientific" or kind is bool:
                raise StudyError(f"{name} has no value {text!r}; it has {', '.join(own)}")
            else:
                try:
                    found.append(kind(text))
                except ValueError as error:
                    raise StudyError(f"{name} takes values like {axis.values[0]!r}, not {text!r}") from error
        return tuple(found)


def tasks(study: Study, runs: Iterable[Run], root: Any, threads: int) -> list[Task]:
    """Group runs that agree in all but the stacked axes; membership and threads belong to a task's value."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        rest = {name: value for name, value in run.axes.items() if name not in study.stack}
        groups.setdefault(hash_of(rest), []).append(run)
    return [task_of(study, tuple(group), root, threads) for group in groups.values()]


def task_of(study: Study, runs: tuple[Run, ...], root: Any, threads: int) -> Task:
    """The task of these runs; its folder lies in `root`."""
    value = {"study": study.name, "runs": [dict(run.axes) for run in runs], "threads": threads}
    return Task(runs, RunFolder(root, value), threads)
