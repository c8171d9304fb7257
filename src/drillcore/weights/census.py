"""The census: every tensor of a checkpoint, each in exactly one line, with the reason where it is left out."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

State = Literal["used", "split", "tied", "recognised", "skipped", "unknown", "missing", "ignored"]

MEANING: dict[str, str] = {
    "used": "a matrix with a role",
    "split": "a fused matrix, cut into the matrices it holds",
    "tied": "a matrix whose bytes belong to another tensor",
    "recognised": "known, but not a matrix that is measured: norms, biases, buffers, scales",
    "skipped": "known or read, but left out for the reason given",
    "unknown": "no pattern of the family names it",
    "missing": "the family or the configuration promises it, the checkpoint lacks it",
    "ignored": "a duplicate or another format of the same weights",
}
LEFT_OUT = frozenset({"skipped", "unknown", "missing"})


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor (or missing tensor, or ignored file) of the census."""

    tensor: str
    state: State
    detail: str  # its role in words, or the reason
    remedy: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    nbytes: int = 0
    file: str = ""


@dataclass(frozen=True)
class Census:
    """All entries, in the order of the file. `family` was decided by `decided_by`."""

    entries: tuple[Entry, ...]
    family: str
    decided_by: str  # "model_type", "tensor names", "--roles" or "inferred"

    def count(self) -> dict[str, int]:
        """Number of entries by state."""
        return dict(Counter(e.state for e in self.entries))

    @property
    def meanings(self) -> dict[str, str]:
        """What each state that occurs here means, in words."""
        return {state: words for state, words in MEANING.items() if any(e.state == state for e in self.entries)}

    @property
    def left_out(self) -> tuple[Entry, ...]:
        """The entries whose numbers are not in the survey."""
        return tuple(e for e in self.entries if e.state in LEFT_OUT)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors; the sum over states, since each tensor has one entry."""
        return sum(e.nbytes for e in self.entries if e.state not in ("missing", "ignored", "tied"))

    def with_skipped(self, reasons: dict[str, tuple[str, str]]) -> "Census":
        """Turn the named tensors into skipped entries: name → (reason, remedy)."""
        return Census(tuple(self._skip(self.entries, reasons)), self.family, self.decided_by)

    @staticmethod
    def _skip(entries: Iterable[Entry], reasons: dict[str, tuple[str, str]]) -> Iterable[Entry]:
        for e in entries:
            if e.tensor not in reasons or e.state == "tied":
                yield e
                continue
            reason, remedy = reasons[e.tensor]
            yield Entry(e.tensor, "skipped", reason, remedy, e.shape, e.dtype, e.nbytes, e.file)
