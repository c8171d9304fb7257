"""A study whose cell leaves a trace of every call, fails where told to, and can be slow."""

import os
import signal
import time
from pathlib import Path

from drillcore.study import Axis, Claim, Figure, Preset, Study, Task
from drillcore.study.claims import at_least
from drillcore.table import Row

TRACES = Path(os.environ.get("COUNTING_TRACES", "."))


def cell(task: Task) -> None:
    """Squares of the axis x, one part of rows for each half."""
    name = "-".join(f"{run['x']}.{run['seed']}" for run in task.runs)
    with (TRACES / name).open("a") as file:
        file.write("called\n")
    if os.environ.get("COUNTING_FAILS") == name:
        raise ValueError(f"{name} was told to fail")
    if os.environ.get("COUNTING_DIES") == name and not (TRACES / "died").exists():
        (TRACES / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    task.progress(0.5)
    time.sleep(float(os.environ.get("COUNTING_SLEEPS", "0")))
    task.rows(
        [
            Row(
                run=run.id, seed=run["seed"], step=step, measure="square", value=float(run["x"]) ** 2 + run["seed"] / 10
            )
            for run in task.runs
            for step in (0, 1)
        ]
    )


def _claim(frame):  # type: ignore[no-untyped-def]
    rows = frame.filter(frame["x"] == 3, frame["step"] == 1)
    return at_least({row["seed"]: row["value"] for row in rows.iter_rows(named=True)}, 8.0)


study = Study(
    name="counting",
    title="Squares",
    axes=(Axis("x", (1, 2, 3)), Axis("seed", (0, 1), role="nuisance"), Axis("size", (10,), role="fixed")),
    cell=cell,
    presets={"quick": Preset(({"x": (1, 2, 3), "seed": (0, 1)}, {"x": (3,), "seed": (0, 1)}))},
    claims=(Claim("nine", "the square of three is at least eight", "9", _claim),),
    figures=(
        Figure("by-x", "Squares", "square", kind="bars", x="x", series="measure"),
        Figure("by-step", "Squares", "square", x="step", series="x"),
    ),
    stack=("seed",),
    cost=lambda task: 30.0 * len(task.runs),
)
