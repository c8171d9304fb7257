"""Functions that the engines' tests run: each leaves a trace of being called, and the tests read the traces."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path


def count(folder: str, name: str) -> int:
    """One more file for this name, with this process and its parent in it; how many there are."""
    for i in range(100):
        try:
            with (Path(folder) / f"{name}.{i}").open("x") as file:
                file.write(f"{os.getpid()} {os.getppid()}\n")
        except FileExistsError:
            continue
        return i + 1
    raise RuntimeError("called too often")


def write(folder: str, name: str) -> None:
    count(folder, name)
    print("wrote", name, os.environ["OMP_NUM_THREADS"])
    (Path(folder) / f"{name}.done").touch()


def place(folder: str, name: str) -> None:
    """Where and with what a job runs, written to a file named as the caller's folder would have it."""
    Path(f"{name}.txt").write_text(f"{Path.cwd()} {os.environ.get('DRILLCORE_TRIED')} {os.environ.get('A_TOKEN')}")


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


def hold(folder: str, name: str) -> None:
    """Idempotent, and not done before the test lets it: a file `go`."""
    if (Path(folder) / f"{name}.done").exists():
        return
    count(folder, name)
    while not (Path(folder) / "go").exists():
        time.sleep(0.05)
    (Path(folder) / f"{name}.done").touch()


def until(true: Callable[[], bool]) -> None:
    for _ in range(1200):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("waited for a minute")


def calls(folder: Path, name: str) -> list[tuple[int, int]]:
    """(process, its parent) of each time that a job was begun."""
    texts = [path.read_text().split() for path in sorted(folder.glob(f"{name}.[0-9]"))]
    return [(int(words[0]), int(words[1])) for words in texts if len(words) == 2]


def gone(process: int) -> bool:
    """Whether a process has ended; it may still be named, until its parent asks."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
