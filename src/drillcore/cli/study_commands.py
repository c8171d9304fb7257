"""The commands of `drillcore study`. Nothing heavy is imported before one of them runs."""

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

import drillcore
from drillcore import study as machine
from drillcore.cli import study_screen
from drillcore.cli.screen import show_paths
from drillcore.engine import run_local
from drillcore.engine.ray_engine import run_ray
from drillcore.study.reference import TITLES, load

study_app = App(name="study")

Name = Annotated[str, Parameter(help="A study of the package, or a Python file with a Study named `study`.")]
Out = Annotated[Path | None, Parameter(help="Folder of the runs; ./study-NAME by default.")]


@study_app.command(name="list")
def list_studies() -> None:
    """List the studies of the package."""
    study_screen.show_list(TITLES)


@study_app.command
def show(name: Name) -> None:
    """Show the axes, presets and claims of a study; nothing is run."""
    study_screen.show_study(load(name))


@study_app.command
def run(
    name: Name,
    *,
    preset: Annotated[str, Parameter(help="Which runs: quick or paper, or what `study show` lists.")] = "quick",
    set_: Annotated[
        list[str] | None,
        Parameter(name="--set", help="axis=value,value: replace the values of an axis; may be repeated.", negative=()),
    ] = None,
    engine: Annotated[
        Literal["local", "ray"], Parameter(help="Processes of this machine, or a Ray cluster.")
    ] = "local",
    address: Annotated[str | None, Parameter(help="Address of a Ray cluster, HOST:PORT; without it, one here.")] = None,
    workers: Annotated[int | None, Parameter(help="Tasks at once; as many as the cores allow by default.")] = None,
    threads: Annotated[int, Parameter(help="Threads of each task; they belong to the task's value.")] = 1,
    out: Out = None,
) -> int:
    """Do the runs of a preset that are missing. Killed at any moment, the same command goes on where it was.

    Examples:

    `drillcore study run continuity-mlp`

    `drillcore study run continuity-mlp --preset paper --set variant=Res+ReLU,Res+None --threads 2`
    """
    if workers is not None and workers < 1:
        raise machine.StudyError(f"--workers is 1 or more, not {workers}")
    folder = out or _folder(name)
    todo = machine.plan(name, preset, folder, threads=threads, changed=_changed(set_))
    count = workers or max(1, len(os.sched_getaffinity(0)) // threads)
    study_screen.show_plan(todo, count)
    chosen: Any = partial(run_local, workers=count, threads=threads)
    if engine == "ray":
        chosen = partial(run_ray, threads=threads, address=address)
    failed = study_screen.follow(todo, machine.run(todo, chosen))
    study_screen.show_end(todo, failed)
    return 1 if failed else 0


@study_app.command
def verify(
    name: Name,
    *,
    out: Out = None,
    publish: Annotated[
        Path | None, Parameter(help="Also write verdicts and figures' data here; what is there and was not run stays.")
    ] = None,
) -> int:
    """Decide the claims from what is done, beside the published values. A refuted claim is a result."""
    study, folder = load(name), out or _folder(name)
    results, made = machine.results(study, folder, name), machine.provenance(study, folder)
    decided = machine.verify(study, results)
    machine.save_verdicts(folder, study, results, decided, made)
    study_screen.show_verdicts(study, decided)
    if publish is not None:
        show_paths(machine.publish(publish, study, results, decided, made))
    return 1 if any(d.verdict.outcome == "failed" for d in decided) else 0


@study_app.command
def report(name: Name, *, out: Out = None) -> None:
    """Write one offline page with the verdicts and the figures."""
    study, folder = load(name), out or _folder(name)
    results = machine.results(study, folder, name)
    page = drillcore.study_report(
        study, results, machine.verify(study, results), folder / "report.html",
        covered=machine.coverage(study, folder), made=machine.provenance(study, folder),
    )  # fmt: skip
    show_paths([page])


@study_app.command
def table(results: Path) -> None:
    """Print the verdicts stored below a folder as a Markdown table; the README's is made so."""
    found = sorted(results.glob("*/verdicts.json"))
    if not found:
        raise machine.StudyError(f"{results} holds no NAME/verdicts.json; `study verify NAME --publish` writes one")
    print(study_screen.markdown(found))  # noqa: T201 (the output itself)


def _folder(name: str) -> Path:
    return Path(f"study-{Path(name).stem}")


def _changed(words: list[str] | None) -> dict[str, tuple[str, ...]]:
    changed = {}
    for word in words or []:
        axis, equals, values = word.partition("=")
        if not equals or not values:
            raise machine.StudyError(f"--set takes axis=value,value, not {word!r}")
        changed[axis] = tuple(value.strip() for value in values.split(","))
    return changed
