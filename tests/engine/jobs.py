"""Functions that the engines' tests run: each leaves a trace of being called."""

import os
import signal
import time
from pathlib import Path


def count(folder: str, name: str) -> int:
    """One more file for this name; how many there are."""
    for i in range(100):
        try:
            (Path(folder) / f"{name}.{i}").touch(exist_ok=False)
        except FileExistsError:
            continue
        return i + 1
    raise RuntimeError("called too often")


def write(folder: str, name: str) -> None:
    count(folder, name)
    print("wrote", name, os.environ["OMP_NUM_THREADS"])
    (Path(folder) / f"{name}.done").touch()


def fail(folder: str, name: str) -> None:
    count(folder, name)
    raise ValueError(f"{name} cannot be done")


def die_once(folder: str, name: str) -> None:
    if count(folder, name) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    (Path(folder) / f"{name}.done").touch()


def die(folder: str, name: str) -> None:
    count(folder, name)
    os.kill(os.getpid(), signal.SIGKILL)


def slow(folder: str, name: str, seconds: float) -> None:
    """Idempotent: what was done is not done again."""
    if (Path(folder) / f"{name}.done").exists():
        return
    count(folder, name)
    time.sleep(seconds)
    (Path(folder) / f"{name}.done").touch()
