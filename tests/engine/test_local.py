"""Jobs in local processes: output, errors, deaths."""

import os
import subprocess
import sys
import time
from pathlib import Path

import jobs
import pytest

from drillcore.engine import Job, Outcome, run_local


def run(folder: Path, *wanted: tuple[str, object], workers: int = 2) -> dict[str, Outcome]:
    made = [Job(name, fn, (str(folder), name), folder / "logs" / f"{name}.txt") for name, fn in wanted]  # type: ignore[arg-type]
    return {o.name: o for o in run_local(made, workers=workers, threads=1)}


def test_output_goes_to_the_log_and_threads_are_set(tmp_path: Path) -> None:
    found = run(tmp_path, ("a", jobs.write), ("b", jobs.write), ("c", jobs.write))
    assert {name: o.error for name, o in found.items()} == {"a": None, "b": None, "c": None}
    assert (tmp_path / "logs" / "a.txt").read_text() == "wrote a 1\n"
    assert (tmp_path / "c.done").exists()


def test_an_error_is_told_with_its_log_is_not_repeated_and_hides_nothing(tmp_path: Path) -> None:
    found = run(tmp_path, ("bad", jobs.fail), ("good", jobs.write))
    assert found["good"].error is None
    assert found["bad"].error is not None
    assert "ValueError: bad cannot be done" in found["bad"].error
    assert str(tmp_path / "logs" / "bad.txt") in found["bad"].error
    assert len(list(tmp_path.glob("bad.*"))) == 1


def test_a_killed_process_is_tried_again(tmp_path: Path) -> None:
    found = run(tmp_path, ("unlucky", jobs.die_once), ("good", jobs.write))
    assert {o.error for o in found.values()} == {None}
    assert (tmp_path / "unlucky.done").exists()


def test_one_that_is_always_killed_is_given_up(tmp_path: Path) -> None:
    found = run(tmp_path, ("doomed", jobs.die), ("good", jobs.write))
    assert found["good"].error is None
    assert found["doomed"].error is not None
    assert found["doomed"].error.startswith("killed by signal 9, 3 times")
    assert len(list(tmp_path.glob("doomed.*"))) == 3


def test_processes_end_when_nobody_waits(tmp_path: Path) -> None:
    job = Job("sleeper", jobs.slow, (str(tmp_path), "sleeper", 600.0), tmp_path / "log.txt")
    quick = Job("quick", jobs.write, (str(tmp_path), "quick"), tmp_path / "log2.txt")
    outcomes = run_local([job, quick], workers=2, threads=1)
    assert next(outcomes).name == "quick"
    outcomes.close()  # type: ignore[attr-defined]
    assert not (tmp_path / "sleeper.done").exists()


def test_there_is_at_least_one_worker() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0 and 1"):
        list(run_local([], workers=0, threads=1))


@pytest.mark.slow
def test_jobs_end_when_who_started_them_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; import jobs; from drillcore.engine import Job, run_local\n"
        "if __name__ == '__main__':\n"
        "    folder = sys.argv[1]\n"
        "    job = Job('a', jobs.slow, (folder, 'a', 4.0), Path(folder) / 'log.txt')\n"
        "    list(run_local([job], workers=1, threads=1))\n"
    )
    (tmp_path / "start.py").write_text(script)
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen([sys.executable, str(tmp_path / "start.py"), str(tmp_path)],
                               env={**os.environ, "PYTHONPATH": paths})  # fmt: skip
    while not (tmp_path / "a.0").exists():
        time.sleep(0.05)
    process.kill()
    process.wait()
    time.sleep(5)
    assert not (tmp_path / "a.done").exists()
