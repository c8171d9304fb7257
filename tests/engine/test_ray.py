"""The same jobs on the real Ray: two nodes of one core each on this machine; workers and nodes die."""

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

from drillcore.engine import Job, Outcome
from drillcore.engine.ray_engine import EngineError, run_ray

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning",
                                                           "ignore::ResourceWarning")]  # fmt: skip


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    from ray._private import services
    from ray.cluster_utils import Cluster

    # Ray answers a loopback address with that of the network card; here all of it stays on loopback.
    monkeypatch.setattr(services, "node_ip_address_from_perspective", lambda address=None: "127.0.0.1")
    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "node_ip_address": "127.0.0.1"}
    made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    made.second = made.add_node(**node)
    made.wait_for_nodes()
    yield made
    ray.shutdown()
    made.shutdown()


def made(folder: Path, *wanted: tuple[Any, ...]) -> list[Job]:
    return [Job(name, fn, (str(folder), name, *rest), folder / "logs" / f"{name}.txt") for name, fn, *rest in wanted]


def outcomes(found: Iterator[Outcome]) -> dict[str, str | None]:
    return {outcome.name: outcome.error for outcome in found}


def test_jobs_errors_and_killed_processes(cluster: Any, tmp_path: Path) -> None:
    wanted = made(tmp_path, ("a", jobs.write), ("bad", jobs.fail), ("unlucky", jobs.die_once), ("doomed", jobs.die))
    found = outcomes(run_ray(wanted, threads=1, address=cluster.address))
    assert found["a"] is None
    assert found["unlucky"] is None
    assert "ValueError: bad cannot be done" in str(found["bad"])
    assert "killed by a signal" in str(found["doomed"])
    assert (tmp_path / "logs" / "a.txt").read_text() == "wrote a 1\n"
    assert len(list(tmp_path.glob("bad.*"))) == 1


def started(folder: Path, count: int) -> None:
    for _ in range(600):
        if len(list(folder.glob("*.0"))) >= count:
            return
        time.sleep(0.1)
    raise AssertionError("the jobs did not start")


def test_a_killed_worker_and_a_lost_node_lose_nothing_and_repeat_nothing_done(cluster: Any, tmp_path: Path) -> None:
    names = [f"job{i}" for i in range(6)]
    running = run_ray(made(tmp_path, *((n, jobs.slow, 3.0) for n in names)), threads=1, address=cluster.address)
    first = next(running)
    assert first.error is None
    workers = subprocess.run(["pgrep", "-f", "ray::job"], capture_output=True, text=True, check=False).stdout.split()
    os.kill(int(workers[0]), signal.SIGKILL)
    time.sleep(1.0)
    cluster.remove_node(cluster.second)
    rest = outcomes(running)
    assert set(rest) | {first.name} == set(names)
    assert set(rest.values()) == {None}
    assert all((tmp_path / f"{n}.done").exists() for n in names)
    assert not (tmp_path / f"{first.name}.1").exists()


def test_without_an_address_a_ray_of_its_own_is_started_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    assert outcomes(run_ray(made(tmp_path, ("a", jobs.write)), threads=1)) == {"a": None}
    assert not ray.is_initialized()


def test_a_missing_ray_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EngineError, match=r"pip install 'drillcore\[ray\]'"):
        next(run_ray([], threads=1))
