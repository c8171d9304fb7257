"""Threads of the numeric libraries, set before they start."""

import os


def use_threads(threads: int | None) -> None:
    """Settings that the numeric libraries read when they start.

    torch and NumPy bring a thread pool each, whose idle threads spin for the work of the other: they are told to sleep.
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    if threads is not None:
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"):
            os.environ[name] = str(max(1, threads))
