"""The same jobs on the real Ray: two nodes of one core each on this machine; workers and nodes die.

Processes are ended by their numbers, which the jobs write: a machine may run another Ray.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jobs
import pytest
from jobs import calls, gone, until

from drillcore.engine import Job, Outcome
from drillcore.engine.ray_engine import EngineError, run_ray

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes started elsewhere than the study, without its variables."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    from ray._private import services
    from ray.cluster_utils import Cluster

    # Ray answers a loopback address with that of the network card; here all of it stays on loopback.
    monkeypatch.setattr(services, "node_ip_address_from_perspective", lambda address=None: "127.0.0.1")
    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "node_ip_address": "127.0.0.1"}
    made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        made.second = made.add_node(**node)
        made.wait_for_nodes()
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PYTHONPATH", _with_jobs())
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def _with_jobs() -> str:
    return os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])


def made(folder: Path, *wanted: tuple[Any, ...]) -> list[Job]:
    return [Job(name, fn, (str(folder), name, *rest), folder / "logs" / f"{name}.txt") for name, fn, *rest in wanted]


def errors(found: Iterator[Outcome]) -> dict[str, str | None]:
    return {outcome.name: outcome.error for outcome in found}


@pytest.mark.slow
def test_jobs_errors_and_killed_processes(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRILLCORE_TRIED", "passed")
    monkeypatch.setenv("A_TOKEN", "secret")
    wanted = made(
        tmp_path, ("a", jobs.write), ("bad", jobs.fail), ("unlucky", jobs.die_once), ("doomed", jobs.die),
        ("place", jobs.place), ("slow", jobs.slow, 1.0),
    )  # fmt: skip
    began = time.time()
    found = {outcome.name: outcome for outcome in run_ray(wanted, threads=1, address=cluster.address)}
    assert {name for name, outcome in found.items() if outcome.error} == {"bad", "doomed"}
    assert set(found) == {job.name for job in wanted}
    assert "ValueError: bad cannot be done" in str(found["bad"].error)
    assert "killed by a signal, 3 times" in str(found["doomed"].error)
    assert (tmp_path / "logs" / "a.txt").read_text() == "wrote a 1\n"
    assert [len(calls(tmp_path, name)) for name in ("bad", "unlucky", "doomed")] == [1, 2, 3]
    assert (tmp_path / "place.txt").read_text() == f"{tmp_path} passed None"
    ended = (tmp_path / "slow.done").stat().st_mtime
    assert (
        1.0 <= found["slow"].seconds < ended - began - 1.0
    )  # its own seconds, not those in which it waited for a core


@pytest.mark.slow
def test_a_killed_worker_and_a_lost_node_lose_nothing_and_repeat_nothing_done(cluster: Any, tmp_path: Path) -> None:
    wanted = made(tmp_path, ("first", jobs.write), *((name, jobs.hold) for name in ("x", "y", "z")))
    running = run_ray(wanted, threads=1, address=cluster.address)
    first = next(running)
    assert (first.name, first.error) == ("first", None)

    def begun() -> list[tuple[int, int]]:
        return [call for name in ("x", "y", "z") for call in calls(tmp_path, name)]

    until(lambda: len(begun()) == 2)  # one on each node
    process, worker = begun()[0]
    os.kill(worker, signal.SIGKILL)
    until(lambda: len(begun()) == 3 and gone(process))
    before = [pair for pair in begun() if not gone(pair[0])]
    assert len(before) == 2
    cluster.remove_node(cluster.second)
    until(lambda: sum(not gone(p) for p, _ in before) == 1)
    (tmp_path / "go").touch()
    assert errors(running) == {"x": None, "y": None, "z": None}
    assert all((tmp_path / f"{name}.done").exists() for name in ("first", "x", "y", "z"))
    assert len(begun()) == 3 + 2  # three jobs; one met the killed worker, one the lost node
    assert len(calls(tmp_path, "first")) == 1
    assert errors(run_ray(wanted[1:], threads=1, address=cluster.address)) == {"x": None, "y": None, "z": None}
    assert len(begun()) == 5


@pytest.mark.slow
def test_what_the_nodes_lack_is_said(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match=r"no node of the Ray cluster has 2 cores, only up to 1"):
        next(run_ray([], threads=2, address=cluster.address))
    running = run_ray(made(tmp_path, ("a", jobs.write)), threads=1, address=cluster.address)
    monkeypatch.setattr(Path, "cwd", lambda: Path("/not/on/the/node"))
    assert "the folder /not/on/the/node is not on" in str(next(running).error)
    assert not (tmp_path / "a.done").exists()


@pytest.mark.slow
def test_without_an_address_a_ray_of_its_own_runs_on_loopback_and_is_ended(tmp_path: Path) -> None:
    """In a process of its own: where Ray listens is decided when it is imported."""
    code = (
        "import sys, jobs\nfrom pathlib import Path\nfrom drillcore.engine import Job\n"
        "from drillcore.engine.ray_engine import run_ray\n"
        "job = Job('a', jobs.write, (sys.argv[1], 'a'), Path(sys.argv[1], 'a.txt'))\n"
        "running = run_ray([job], threads=1)\nprint(next(running).error)\n"
        "import ray\nprint(ray.get_runtime_context().gcs_address.rpartition(':')[0])\n"
        "running.close()\nprint(ray.is_initialized())\n"
    )
    settings = {**os.environ, "PYTHONPATH": _with_jobs(), "RAY_ADDRESS": "127.0.0.1:1"}  # not meant, and not asked
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=settings,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.split() == ["None", "127.0.0.1", "False"]


def test_no_cluster_is_said_at_once() -> None:
    with pytest.raises(EngineError, match=r"no Ray cluster that we can join at 127\.0\.0\.1:1 .*refused"):
        next(run_ray([], threads=1, address="127.0.0.1:1"))


def test_a_missing_ray_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EngineError, match=r"pip install 'drillcore\[ray\]'"):
        next(run_ray([], threads=1))
