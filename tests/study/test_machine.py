"""Running a study through the command line: what is missing is done, once; failures and deaths hide nothing."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import counting
import polars as pl
import pytest

from drillcore import study as machine
from drillcore.cli.app import run as command
from drillcore.study import StudyError

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
    assert drill("run", FILE, "--out", "out") == 0
    told = capsys.readouterr().out.replace("\n", " ")
    assert "counting: 6 runs in 3 tasks, 0 done; the rest takes about 3 min" in told
    assert f"drillcore study verify {FILE} --out out" in told.replace("  ", " ")
    assert calls(tmp_path) == ALL
    assert drill("run", FILE, "--out", "out") == 0
    assert "6 runs in 3 tasks, 3 done (" in capsys.readouterr().out
    assert calls(tmp_path) == ALL
    assert drill("verify", FILE, "--out", "out", "--publish", "published") == 0
    assert "supported" in capsys.readouterr().out
    stored = json.loads((tmp_path / "published" / "verdicts.json").read_text())
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
        (("verify", FILE), "holds no finished task of counting"),
        (("run", FILE, "--preset", "paper"), "no preset 'paper'"), (("run", FILE, "--set", "x"), "axis=value,value"),
        (("run", FILE, "--set", "y=1"), "no axis 'y'"), (("run", "empty.py"), "has no Study named `study`"),
    ],
)  # fmt: skip
def test_bad_words_are_answered(
    drill: Callable[..., int], words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.py").write_text("x = 1\n")
    assert drill(*words) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_an_axis_cannot_have_the_name_of_a_column(tmp_path: Path) -> None:
    from dataclasses import replace

    from drillcore.study import Axis, Preset, Run
    from drillcore.study.spec import task_of
    from drillcore.table import Row

    clashing = replace(counting.study, name="clash", axes=(Axis("layer", (1,)),), presets={"quick": Preset(({},))})
    task = task_of(clashing, (Run("clash", {"layer": 1}),), tmp_path / "tasks", 1)
    task.folder.begin()
    task.rows([Row(run=task.run.id, measure="m", value=1.0)])
    task.folder.finish({})
    with pytest.raises(StudyError, match="axis 'layer' has the name of a column"):
        machine.results(clashing, tmp_path)


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
