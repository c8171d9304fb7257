"""Running a study through the command line: what is missing is done, once; failures and deaths hide nothing."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import counting
import polars as pl
import pytest

import drillcore.study.machine as study_machine
from drillcore import study as machine
from drillcore.cli import study_screen
from drillcore.cli.app import run as command
from drillcore.engine import Outcome
from drillcore.study import Axis, Decided, Run, Study, StudyError, Verdict
from drillcore.study.reference import BUILT_IN, TITLES, load
from drillcore.study.spec import task_of
from drillcore.table import Row

FILE = str(Path(counting.__file__))


@pytest.fixture
def drill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    traces = tmp_path / "traces"
    traces.mkdir()
    monkeypatch.setenv("COUNTING_TRACES", str(traces))
    monkeypatch.chdir(tmp_path)
    return lambda *words: command(["study", *words])


def calls(folder: Path) -> dict[str, int]:
    return {p.name: len(p.read_text().splitlines()) for p in (folder / "traces").iterdir() if p.name != "died"}


ALL = {"1.0-1.1": 1, "2.0-2.1": 1, "3.0-3.1": 1}


def test_run_verify_report_and_again(
    drill: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert drill("run", FILE, "--out", "out", "--workers", "2") == 0
    told = capsys.readouterr().out
    assert "counting: 6 runs in 3 tasks, 0 done; the rest takes about 2 min" in told.replace("\n", " ")
    for verb in ("verify", "report"):
        assert f"drillcore study {verb} {FILE} --out out\n" in told
    assert calls(tmp_path) == ALL
    assert drill("run", FILE, "--out", "out") == 0
    assert "6 runs in 3 tasks, 3 done (" in capsys.readouterr().out
    assert calls(tmp_path) == ALL
    assert drill("verify", FILE, "--out", "out", "--publish", "published") == 0
    assert "supported" in capsys.readouterr().out
    stored = json.loads((tmp_path / "published" / "verdicts.json").read_text())
    assert stored["provenance"]["versions.polars"] == pl.__version__
    assert stored["verdicts"][0]["verdict"] | {"low": 0, "high": 0} == {
        "outcome": "supported", "value": pytest.approx(9.05), "low": 0, "high": 0, "threshold": "≥ 8", "n": 2,
        "how": "Student t over seeds",
    }  # fmt: skip
    figures = pl.read_parquet(tmp_path / "published" / "figures.parquet")
    assert figures.filter(pl.col("figure") == "by-x")["value"].to_list() == pytest.approx([1.05, 4.05, 9.05])
    assert drill("table", ".") == 0
    assert "| the square of three is at least eight | 9 | 9.05 [" in capsys.readouterr().out
    assert drill("report", FILE, "--out", "out") == 0
    assert "Squares" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_a_task_that_fails_is_told_and_the_others_are_done(
    drill: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COUNTING_FAILS", "2.0-2.1")
    assert drill("run", FILE, "--out", "out") == 1
    told = capsys.readouterr().err
    assert "ValueError: 2.0-2.1 was told to fail" in told
    assert "x=2" in told
    assert "1 of 3 tasks failed" in told
    monkeypatch.delenv("COUNTING_FAILS")
    assert drill("run", FILE, "--out", "out") == 0
    assert calls(tmp_path) == {**ALL, "2.0-2.1": 2}


def test_a_worker_that_is_killed_is_replaced(
    drill: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNTING_DIES", "3.0-3.1")
    assert drill("run", FILE, "--out", "out") == 0
    assert calls(tmp_path) == {**ALL, "3.0-3.1": 2}


@pytest.mark.slow
def test_the_whole_run_killed_goes_on_where_it_was(drill: Callable[..., int], tmp_path: Path) -> None:
    words = [sys.executable, "-c", "from drillcore.cli.app import main; main()", "study", "run", FILE, "--out", "out",
             "--workers", "1"]  # fmt: skip
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(words, env={**os.environ, "COUNTING_SLEEPS": "3"}, start_new_session=True, **quiet)
    for _ in range(300):
        if len(list((tmp_path / "out").glob("tasks/*/DONE"))) == 1 and len(calls(tmp_path)) == 2:
            break
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert drill("run", FILE, "--out", "out") == 0
    found = calls(tmp_path)
    assert sorted(found.values()) == [1, 1, 2]
    assert len(machine.results(counting.study, tmp_path / "out")) == 12


def test_a_task_is_done_by_one_process_at_a_time(drill: Callable[..., int], tmp_path: Path) -> None:
    (task,) = machine.plan(FILE, "quick", tmp_path, changed={"x": ("1",)}).missing
    task.folder.begin()
    with (task.folder.path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StudyError, match="another process is doing the task"):
            machine.work(FILE, [dict(r.axes) for r in task.runs], str(tmp_path / "tasks"), 1)
    machine.work(FILE, [dict(r.axes) for r in task.runs], str(tmp_path / "tasks"), 1)
    assert task.folder.done


def test_results_hold_the_axes_of_every_run(drill: Callable[..., int], tmp_path: Path) -> None:
    drill("run", FILE, "--out", "out", "--set", "x=2,3")
    frame = machine.results(counting.study, tmp_path / "out")
    assert frame.select("x", "seed", "step", "value").sort("x", "seed", "step").rows() == [
        pytest.approx((x, s, t, x * x + s / 10)) for x in (2, 3) for s in (0, 1) for t in (0, 1)
    ]
    assert set(frame["run"]) == {r.id for r in counting.study.runs("quick") if r["x"] > 1}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "continuty-mlp"), "did you mean continuity-mlp?"), (("show", "nothing"), "there are continuity-mlp"),
        (("run", "nowhere.py"), "there is no file nowhere.py"),
        (("verify", FILE), f"no finished task of counting; first: drillcore study run {FILE} --out study-counting"),
        (("report", FILE, "--out", "o"), f"first: drillcore study run {FILE} --out o"),
        (("run", FILE, "--threads", "0"), "one thread at least, not 0"),
        (("run", FILE, "--workers", "0"), "--workers is 1 or more, not 0"),
        (("table", "."), "holds no NAME/verdicts.json"),
        (("run", FILE, "--preset", "paper"), "no preset 'paper'"), (("run", FILE, "--set", "x"), "axis=value,value"),
        (("run", FILE, "--set", "y=1"), "no axis 'y'"), (("run", "empty.py"), "has no Study named `study`"),
    ],
)  # fmt: skip
def test_bad_words_are_answered(
    drill: Callable[..., int], words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.py").write_text("x = 1\n")
    assert drill(*words) == 2
    assert said.replace(" ", "") in "".join(capsys.readouterr().err.split())  # a terminal folds long paths


def finish(folder: Path, made: Study, *points: dict[str, object], rows: bool = True, threads: int = 1) -> None:
    """A finished task, as `work` leaves it; the value of its rows tells how many runs it had."""
    task = task_of(made, tuple(Run(made.name, axes) for axes in points), folder / "tasks", threads)  # type: ignore[arg-type]
    task.folder.begin()
    if rows:
        task.rows([Row(run=r.id, seed=r["seed"], measure="m", value=float(len(points))) for r in task.runs])
    task.folder.finish({"threads": threads, "versions": {"torch": f"2.{threads}"}})


def test_a_run_of_two_tasks_counts_once(tmp_path: Path) -> None:
    point = {"x": 1, "seed": 0, "size": 10}
    finish(tmp_path, counting.study, point)
    finish(tmp_path, counting.study, point, {**point, "seed": 1}, threads=2)
    frame = machine.results(counting.study, tmp_path)
    assert sorted(frame.select("seed", "value").rows()) == [(0, 2.0), (1, 2.0)]
    assert machine.provenance(counting.study, tmp_path) == {"threads": [1, 2], "versions.torch": ["2.1", "2.2"]}


def test_what_is_done_is_told_for_each_preset(tmp_path: Path) -> None:
    finish(tmp_path, counting.study, {"x": 2, "seed": 0, "size": 10}, {"x": 2, "seed": 1, "size": 10})
    (found,) = machine.coverage(counting.study, tmp_path)
    assert (found.preset, found.done, [(r["x"], r["seed"]) for r in found.missing]) == (
        "quick", 2, [(1, 0), (1, 1), (3, 0), (3, 1)],
    )  # fmt: skip


def test_tasks_of_other_studies_of_other_axes_and_without_rows_are_not_results(tmp_path: Path) -> None:
    point = {"x": 1, "seed": 0, "size": 10}
    finish(tmp_path, replace(counting.study, name="other"), point)
    finish(tmp_path, counting.study, {"x": 1, "seed": 0})
    with pytest.raises(
        StudyError, match=r"holds no finished task of counting; first: drillcore study run counting --out"
    ):
        machine.results(counting.study, tmp_path)
    finish(tmp_path, counting.study, point, rows=False)
    with pytest.raises(StudyError, match="that wrote a row"):
        machine.results(counting.study, tmp_path)
    finish(tmp_path, counting.study, {**point, "x": 2})
    assert machine.results(counting.study, tmp_path)["x"].to_list() == [2]


def test_a_task_that_was_finished_just_before_it_could_be_locked_is_not_done_again(
    drill: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (task,) = machine.plan(FILE, "quick", tmp_path, changed={"x": ("1",)}).missing
    words = (FILE, [dict(r.axes) for r in task.runs], str(tmp_path / "tasks"), 1)
    alone = study_machine._alone

    @contextmanager
    def late(folder: Path) -> Iterator[None]:
        monkeypatch.setattr(study_machine, "_alone", alone)
        machine.work(*words)
        with alone(folder):
            yield

    monkeypatch.setattr(study_machine, "_alone", late)
    machine.work(*words)
    assert calls(tmp_path) == {"1.0-1.1": 1}


@pytest.mark.parametrize(("workers", "seconds"), [(1, 90.0), (2, 50.0), (3, 40.0), (9, 40.0)])
def test_the_cost_is_that_of_workers_that_take_one_task_after_the_other(
    tmp_path: Path, workers: int, seconds: float
) -> None:
    todo = machine.plan(FILE, "quick", tmp_path)
    costs = {1: 30.0, 2: 40.0, 3: 20.0}
    made = replace(todo, study=replace(todo.study, cost=lambda task: costs[task.runs[0]["x"]]))
    assert made.seconds(workers) == seconds
    assert replace(todo, study=replace(todo.study, cost=None)).seconds(workers) is None


def test_brackets_of_a_log_are_shown_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    todo = machine.plan(FILE, "quick", tmp_path)
    study_screen.show_end(todo, [(todo.missing[0], Outcome("x", "failed: [/red] list[int] [bold]", 1.0))])
    assert "failed: [/red] list[int] [bold]" in capsys.readouterr().err
    odd = replace(counting.study, title="of [/b]", about="[red]", axes=(*counting.study.axes, Axis("k", ("[/]",))))
    study_screen.show_study(odd)
    study_screen.show_verdicts(odd, [Decided("c", "[/c]", "[/p]", Verdict("refuted", how="[/h]"))])
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("of [/b]", "[red]", "[/]", "[/c]", "[/p]", "[/h]"))


def test_bars_of_a_claim_do_not_break_the_markdown_table(tmp_path: Path) -> None:
    decided = [Decided("c", "mean |cos| is small", "0.05", Verdict("supported", 0.1, 0.0, 0.2, "≤ 1", 3, ""))]
    frame = pl.DataFrame({"run": ["a"]})
    machine.save_verdicts(tmp_path / "s", replace(counting.study, figures=()), frame, decided, {})
    line = study_screen.markdown([tmp_path / "s" / "verdicts.json"]).splitlines()[-1]
    assert line == r"| mean \|cos\| is small | 0.05 | 0.1 [0, 0.2], n = 3 | supported |"


def test_listing_loads_nothing_heavy_and_says_the_titles() -> None:
    code = (
        "import sys; from drillcore.cli.app import run; run(['study', 'list'])\n"
        "print({'torch', 'numpy', 'polars', 'scipy', 'ray'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("set()\n")
    assert list(BUILT_IN) == list(TITLES)
    for name, title in TITLES.items():
        assert load(name).title == title
        assert name in done.stdout


def test_list_and_show(drill: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert drill("list") == 0
    assert "continuity-mlp" in capsys.readouterr().out
    assert drill("show", FILE) == 0
    shown = capsys.readouterr().out
    assert "the square of three is at least eight" in shown
    assert "nuisance" in shown


def test_the_example_of_the_documentation_is_short_and_works(
    drill: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = Path(__file__).parent.parent.parent / "docs" / "my_study.py"
    assert len(example.read_text().splitlines()) <= 30
    assert drill("run", str(example), "--set", "seed=0,1") == 0
    assert drill("verify", str(example)) == 0
    assert "supported" in capsys.readouterr().out
    assert (tmp_path / "study-my_study" / "verdicts.json").exists()
