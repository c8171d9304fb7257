"""Jobs on Ray: one machine or a cluster that shares a disk (extra `ray`)."""

import os
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from drillcore.engine.job import RETRIES, Job, Outcome, tail
from drillcore.engine.local import call, environment, thread_settings
from drillcore.errors import UserError

_OBJECT_STORE = 80 * 2**20  # results are files: Ray's own store carries nothing
_TRIES_OF_A_NODE = 10
_PATIENCE = 5.0  # seconds for a cluster to answer; Ray itself waits for minutes
# What a job elsewhere sees of the environment here. Not all of it: Ray shows it on its pages, and tokens may be in it.
_PASSED = ("PYTHONPATH", "HF_HOME", "HF_HUB_OFFLINE", "XDG_CACHE_HOME")
# A Ray of our own listens on 127.0.0.1 only. By default it listens on every interface, before 2.59 without a token.
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}


class EngineError(UserError):
    """An engine is not there, or cannot be reached."""


def run_ray(jobs: Sequence[Job], *, threads: int, address: str | None = None) -> Iterator[Outcome]:
    """Run the jobs on a Ray cluster, as many at once as it has cores, and yield outcomes as they come.

    Each job runs in a fresh process with `threads` threads, in the folder that is current here (the disk is shared) and
    with the variables of `_PASSED` and `DRILLCORE_…`. A job whose worker or node dies is started again elsewhere; what
    it has written before it goes on from. An error of its own is final. Only where Ray loses contact with a node that
    lives on can a job run twice at once; then both write the same files, each renamed into place, and the first DONE
    ends it.

    Raises:
        EngineError: Ray is not installed, no cluster answers at `address`, or no node of it has `threads` cores.
    """
    with environment(_LOOPBACK if address is None else {}):
        ray = _ray()  # reads the environment when it is imported
        mine = not ray.is_initialized()
        if mine:
            _connect(ray, address)
    try:
        _check_room(ray, threads)
        told = {"env_vars": _variables()}
        remote = ray.remote(num_cpus=threads, max_retries=_TRIES_OF_A_NODE, runtime_env=told)(_in_process)
        started, here = time.monotonic(), str(Path.cwd())
        waiting = {remote.options(name=job.name).remote(job, threads, here): job for job in jobs}
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1)
            job = waiting.pop(ready[0])
            try:
                error, seconds = ray.get(ready[0])
            except ray.exceptions.RayError as lost:
                error = f"{type(lost).__name__}: {str(lost).splitlines()[0]}; the end of {job.log}:\n{tail(job.log)}"
                seconds = time.monotonic() - started
            yield Outcome(job.name, error, seconds)
    finally:
        if mine:
            ray.shutdown()


def _in_process(job: Job, threads: int, here: str) -> tuple[str | None, float]:
    """Run the job in a child of the Ray worker; what went wrong, if anything, and the seconds it took."""
    import multiprocessing

    started = time.monotonic()
    if not Path(here).is_dir():
        return f"the folder {here} is not on {socket.gethostname()}: the nodes must share the disk", 0.0
    log = Path(here, job.log)
    log.parent.mkdir(parents=True, exist_ok=True)
    error = f"killed by a signal, {RETRIES + 1} times"
    for _ in range(RETRIES + 1):
        process = multiprocessing.get_context("spawn").Process(target=_call_in, args=(here, job.fn, job.args, log))
        with environment(thread_settings(threads)):
            process.start()
        process.join()
        if process.exitcode == 0:
            return None, time.monotonic() - started
        if process.exitcode is not None and process.exitcode > 0:
            error = "failed"
            break
    return f"{error}; the end of {job.log}:\n{tail(log)}", time.monotonic() - started


def _call_in(here: str, *job: Any) -> None:
    os.chdir(here)
    call(*job)


def _variables() -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if name in _PASSED or name.startswith("DRILLCORE_")}
    if "PYTHONPATH" in found:  # the worker looks into it before it is in our folder
        found["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, found["PYTHONPATH"].split(os.pathsep)))
    return found


def _check_room(ray: Any, threads: int) -> None:
    cores = max((node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]), default=0)
    if cores < threads:
        raise EngineError(f"no node of the Ray cluster has {threads} cores, only up to {cores:g}; use fewer --threads")


def _connect(ray: Any, address: str | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": "error"}
    if address is None:  # "local": never the cluster that someone else has started on this machine
        ray.init("local", include_dashboard=False, object_store_memory=_OBJECT_STORE, **quiet)
        return
    try:
        _knock(address)
        ray.init(address, **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        raise EngineError(
            f"no Ray cluster that we can join at {address} ({error}); start one with `ray start --head`, of the same "
            "versions of Ray and Python"
        ) from error


def _knock(address: str) -> None:
    """Raise OSError at once where nothing listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    if host and "/" not in host and port.isdigit():
        socket.create_connection((host, int(port)), _PATIENCE).close()


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise EngineError("the engine `ray` needs the extra: pip install 'drillcore[ray]'") from error
    return ray
