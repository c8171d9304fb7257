"""A job is a function and where its output goes; an outcome is how it ended."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RETRIES = 2  # of a job whose process was killed; an error of its own is final
_SHOWN = 12  # last lines of a log


@dataclass(frozen=True)
class Job:
    """One call of a function that can be repeated: what it has done before is not done again.

    `fn` is a function of a module, `args` can be pickled, and all output goes to `log`.
    """

    name: str
    fn: Callable[..., None]
    args: tuple[Any, ...]
    log: Path


@dataclass(frozen=True)
class Outcome:
    """How a job ended: `error` is None, or says what happened with the last lines of the log."""

    name: str
    error: str | None
    seconds: float


def tail(log: Path) -> str:
    """The last lines of a log."""
    if not log.exists():
        return "(no output)"
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN:])
