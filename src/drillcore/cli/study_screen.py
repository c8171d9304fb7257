"""What the study commands print."""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event, Thread

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from drillcore.cli.screen import show_paths
from drillcore.cli.terminal import ERRORS, OUT
from drillcore.engine import Outcome
from drillcore.study import Decided, Plan, Study, Task, load_verdicts
from drillcore.study.machine import progress

BAR = r"\|"  # in a cell of a Markdown table
_COLOURS = {"supported": "green", "refuted": "red", "inconclusive": "yellow", "not-run": "dim",
            "failed": "red"}  # fmt: skip

_LONG = 60  # characters: then it says which published points lie outside


def show_list(titles: Mapping[str, str]) -> None:
    """One line a study."""
    table = Table("study", "what it asks", box=None)
    for name, title in titles.items():
        table.add_row(name, escape(title))
    OUT.print(table)
    OUT.print("axes, presets and claims: drillcore study show NAME", highlight=False)


def show_study(study: Study) -> None:
    """Axes, presets and claims."""
    OUT.print(f"[bold]{escape(study.name)}[/bold]: {escape(study.title)}\n{escape(study.about)}\n")
    axes = Table("axis", "role", "values (the first is the default)", "", box=None)
    for axis in study.axes:
        axes.add_row(*map(escape, (axis.name, axis.role, ", ".join(map(str, axis.values)), axis.about)))
    OUT.print(axes)
    presets = Table("preset", "runs", "", "", box=None)
    for name, preset in study.presets.items():
        presets.add_row(*map(escape, (name, str(len(study.runs(name))), preset.about, preset.budget)))
    OUT.print(presets)
    claims = Table("claim", "", "published", box=None)
    for claim in study.claims:
        claims.add_row(*map(escape, (claim.name, claim.text, claim.published)))
    OUT.print(claims)


def show_plan(todo: Plan, workers: int) -> None:
    """What will be done and how long it should take."""
    tasks, seconds = len(todo.done) + len(todo.missing), todo.seconds(workers)
    line = f"{todo.study.name}: {todo.runs} runs in {tasks} tasks, {len(todo.done)} done"
    if todo.missing and seconds is not None:
        line += f"; the rest takes about {duration(seconds)}"
    OUT.print(escape(f"{line} ({workers} at once, in {todo.out})"), highlight=False)


def follow(todo: Plan, outcomes: Iterator[tuple[Task, Outcome]]) -> list[tuple[Task, Outcome]]:
    """Show progress while tasks are done; return those that failed."""
    failed, over = [], Event()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
               MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[left]}"))  # fmt: skip
    with Progress(*columns, console=ERRORS, disable=not todo.missing) as bar:
        line = bar.add_task("tasks", total=len(todo.missing), left="")
        watcher = Thread(target=_watch, args=(todo, bar, line, over), daemon=True)
        watcher.start()
        try:
            for task, outcome in outcomes:
                if outcome.error is not None:
                    failed.append((task, outcome))
                    bar.console.print(f"[red]failed[/red] {escape(_label(task))}")
        finally:
            over.set()
            watcher.join()
        bar.update(line, completed=len(todo.missing) - len(failed), left="")
    return failed


def _watch(todo: Plan, bar: Progress, line: object, over: Event) -> None:
    started, before = time.monotonic(), sum(progress(task) for task in todo.missing)
    while not over.wait(1.0):
        share = sum(progress(task) for task in todo.missing)
        gained = share - before  # what an earlier run had done took none of this one's time
        left = (time.monotonic() - started) * (len(todo.missing) - share) / gained if gained > 0.01 else 0.0
        bar.update(line, completed=share, left=f"{duration(left)} left" if left else "")  # type: ignore[arg-type]


def show_end(todo: Plan, failed: Sequence[tuple[Task, Outcome]]) -> None:
    """What failed, with the end of its log, and what to type next."""
    for task, outcome in failed:
        ERRORS.print(f"[red]failed[/red] {escape(_label(task))}\n{escape(outcome.error or '')}", highlight=False)
    if failed:
        ERRORS.print(f"{len(failed)} of {len(todo.missing)} tasks failed; the same command tries them again")
    for word, verb in (("next:", "verify"), ("     ", "report")):
        show_paths([f"{word} drillcore study {verb} {todo.reference} --out {todo.out}"])


def show_verdicts(study: Study, decided: Sequence[Decided]) -> None:
    """The claims with their verdicts."""
    table = Table(
        "claim",
        "published",
        "measured",
        "verdict",
        title=escape(study.title or study.name),
        box=None,
        padding=(0, 2, 1, 0),
    )
    absent = [d.name for d in decided if d.verdict.outcome == "not-run"]
    for d in decided:
        if d.verdict.outcome != "not-run":
            colour = _COLOURS[d.verdict.outcome]
            found = f"{measured(d)}\nclaimed {d.verdict.threshold}"
            claim = f"[bold]{escape(d.name)}[/bold] {escape(d.text)}"
            table.add_row(claim, escape(d.published), escape(found), f"[{colour}]{d.verdict.outcome}[/{colour}]")
    OUT.print(table)
    for d in decided:
        if d.verdict.low is not None and len(d.verdict.how) > _LONG:
            OUT.print(f"[bold]{escape(d.name)}[/bold]: {escape(d.verdict.how)}", highlight=False)
    if absent:
        OUT.print(f"not decided, their runs were not done (see the presets): {escape(', '.join(absent))}",
                      highlight=False)  # fmt: skip


def measured(decided: Decided) -> str:
    """Value and interval of a verdict in a few characters."""
    v = decided.verdict
    if v.value is None:
        return v.how
    if v.low is None or v.high is None:
        return f"{v.value:.3g} ({v.how})"
    return f"{v.value:.3g} [{v.low:.3g}, {v.high:.3g}], n = {v.n}"


def markdown(paths: Sequence[Path]) -> str:
    """Stored verdicts as Markdown: one table a study."""
    blocks = []
    for path in paths:
        title, decided = load_verdicts(path)
        lines = [
            f"**{path.parent.name}**: {title}",
            "",
            "| claim | published | measured | verdict |",
            "|---|---|---|---|",
        ]
        done = [d for d in decided if d.verdict.outcome != "not-run"]
        cells = [(d.text, d.published, measured(d), d.verdict.outcome) for d in done]
        lines += [f"| {' | '.join(cell.replace('|', BAR) for cell in row)} |" for row in cells]
        if len(done) < len(decided):
            lines += ["", f"{len(decided) - len(done)} claims wait for runs that were not done."]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def duration(seconds: float) -> str:
    """Seconds in words."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _label(task: Task) -> str:
    first = task.runs[0].axes
    same = [f"{k}={v}" for k, v in first.items() if all(run.axes[k] == v for run in task.runs)]
    return f"{task.folder.path.name} ({len(task.runs)} runs: {', '.join(same)})"
