"""Jobs on Ray: one machine or a cluster that shares a disk (extra `ray`)."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from drillcore.engine.job import RETRIES, Job, Outcome, tail
from drillcore.engine.local import call, environment, thread_settings
from drillcore.errors import UserError

_OBJECT_STORE = 80 * 2**20  # results are files: Ray's own store carries nothing
_TRIES_OF_A_NODE = 10


class EngineError(UserError):
    """An engine is not there, or cannot be reached."""


def run_ray(jobs: Sequence[Job], *, threads: int, address: str | None = None) -> Iterator[Outcome]:
    """Run the jobs on a Ray cluster, as many at once as it has cores, and yield outcomes as they come.

    A job whose worker or node dies is started again elsewhere; what it has written before it goes on from. Each job
    runs in a fresh process, so that its libraries start with `threads` threads.

    Raises:
        EngineError: Ray is not installed, or no cluster answers at `address`.
    """
    ray = _ray()
    mine = not ray.is_initialized()
    if mine:
        _connect(ray, address)
    try:
        remote = ray.remote(num_cpus=threads, max_retries=_TRIES_OF_A_NODE)(_in_process)
        started = time.monotonic()
        waiting = {remote.options(name=job.name).remote(job, threads): job for job in jobs}
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1)
            job = waiting.pop(ready[0])
            try:
                error = ray.get(ready[0])
            except ray.exceptions.RayError as lost:
                error = f"{type(lost).__name__}: {str(lost).splitlines()[0]}; the end of {job.log}:\n{tail(job.log)}"
            yield Outcome(job.name, error, time.monotonic() - started)
    finally:
        if mine:
            ray.shutdown()


def _in_process(job: Job, threads: int) -> str | None:
    """Run the job in a child of the Ray worker; None, or what went wrong."""
    import multiprocessing

    job.log.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(RETRIES + 1):
        process = multiprocessing.get_context("spawn").Process(target=call, args=(job.fn, job.args, job.log))
        with environment(thread_settings(threads)):
            process.start()
        process.join()
        if process.exitcode == 0:
            return None
        if process.exitcode is not None and process.exitcode > 0:
            return f"failed; the end of {job.log}:\n{tail(job.log)}"
    return f"killed by a signal, {RETRIES + 1} times; the end of {job.log}:\n{tail(job.log)}"


def _connect(ray: Any, address: str | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": "error"}
    if address is None:
        ray.init(include_dashboard=False, _node_ip_address="127.0.0.1", object_store_memory=_OBJECT_STORE, **quiet)
        return
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, ValueError) as error:
        raise EngineError(
            f"no Ray cluster answers at {address} ({error}); start one with `ray start --head`"
        ) from error


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise EngineError("the engine `ray` needs the extra: pip install 'drillcore[ray]'") from error
    return ray
