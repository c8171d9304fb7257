"""What several commands do with their options before they start."""

import os
from pathlib import Path

import drillcore

_MOST_THREADS = 1024


def use_threads(threads: int | None) -> None:
    """Settings that the numeric libraries read when they start.

    torch and NumPy bring a thread pool each, whose idle threads spin for the work of the other: they are told to sleep.
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    if threads is not None:
        if not 1 <= threads <= _MOST_THREADS:
            raise drillcore.InputError(f"is 1 to {_MOST_THREADS}, not {threads}", where="--threads",
                                       remedy="leave it out to use all cores")  # fmt: skip
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"):
            os.environ[name] = str(threads)


def check_folder(folder: Path) -> None:
    """Say before the work that the results could not be written after it; nothing is made yet."""
    place = next(p for p in (folder, *folder.absolute().parents) if os.path.lexists(p))
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        why = "is not a folder" if not place.is_dir() else "cannot be written (no permission)"
        raise drillcore.InputError(f"{place} {why}", where="--out", remedy="give another folder for the results")
