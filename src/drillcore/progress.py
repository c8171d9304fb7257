"""How far a long work has come."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """`done` of `total` (bytes, passes or parts) is finished; it is at `what`."""

    what: str
    done: int
    total: int


Progress = Callable[[Step], None]


def unwatched(step: Step) -> None:
    """The progress that nobody looks at."""
