"""Jobs in processes of this machine: one fresh process each, so that a dead one takes nothing with it."""

import multiprocessing
import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from threading import Thread
from typing import Any

from drillcore.engine.job import RETRIES, Job, Outcome, tail


def run_local(jobs: Sequence[Job], *, workers: int, threads: int) -> Iterator[Outcome]:
    """Run the jobs, `workers` at a time with `threads` threads each, and yield outcomes as they come.

    A job whose process is killed from outside is tried again, twice; one that raises is not. When the caller stops
    (Ctrl-C), so do the processes.
    """
    if workers < 1 or threads < 1:
        raise ValueError(f"workers and threads are at least 1, got {workers} and {threads}")
    waiting, running = deque((job, 0) for job in jobs), list[_Running]()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(_Running(*waiting.popleft(), threads))
            ready = set(wait([r.process.sentinel for r in running]))
            for r in [r for r in running if r.process.sentinel in ready]:
                running.remove(r)
                code = r.end()
                if code is not None and code < 0 and r.attempt < RETRIES:
                    waiting.appendleft((r.job, r.attempt + 1))
                else:
                    yield r.outcome(code)
    finally:
        for r in running:
            r.process.terminate()
            r.process.join()


class _Running:
    """A job in its process."""

    def __init__(self, job: Job, attempt: int, threads: int) -> None:
        self.job, self.attempt, self.started = job, attempt, time.monotonic()
        job.log.parent.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(target=call, args=(job.fn, job.args, job.log), daemon=False)
        with environment(thread_settings(threads)):
            self.process.start()

    def end(self) -> int | None:
        self.process.join()
        return self.process.exitcode

    def outcome(self, code: int | None) -> Outcome:
        error = None
        if code:
            how = f"killed by signal {-code}, {self.attempt + 1} times" if code < 0 else "failed"
            error = f"{how}; the end of {self.job.log}:\n{tail(self.job.log)}"
        return Outcome(self.job.name, error, time.monotonic() - self.started)


def call(fn: Callable[..., None], args: tuple[Any, ...], log: Path) -> None:
    """Run a job's function with its output in the log; an error is written there and ends the process with 1."""
    Thread(target=_end_with_parent, daemon=True).start()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, sys.stdout.fileno())
    os.dup2(file, sys.stderr.fileno())
    try:
        fn(*args)
    except BaseException as error:  # noqa: BLE001 (the process ends here: whatever it was belongs in the log)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(130 if isinstance(error, KeyboardInterrupt) else 1)
    sys.stdout.flush()


def _end_with_parent() -> None:
    """A job must not outlive who started it, killed or not: the same job may soon be started again."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def thread_settings(threads: int) -> dict[str, str]:
    """What the numeric libraries of a fresh process read: threads, pools that sleep, memory that is kept for reuse.

    Buffers of a training step are freed and taken again at every step; the C library's defaults give them back to the
    kernel each time, which cost a sixth of a step.
    """
    counts = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    pools = {"OPENBLAS_THREAD_TIMEOUT": "4", "GOMP_SPINCOUNT": "0"}
    memory = {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(1 << 29)}  # the largest is 2²⁵
    return counts | pools | memory


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the processes that are started inside."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
