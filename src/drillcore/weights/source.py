"""A source: names, shapes and bytes of a checkpoint, known before a weight is read.

Each format is one class with `specs` (the index) and `read` (the bytes). A source never guesses what a tensor
means: that is the work of `drillcore.weights.assign`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from drillcore.errors import UserError
from drillcore.linalg.factored import Matrix

Config = Mapping[str, Any]


class InputError(UserError):
    """The input cannot be used: what is wrong, where, and what to do. Shown without a traceback."""

    def __init__(self, what: str, *, where: object = "", remedy: str = "") -> None:
        self.what, self.where, self.remedy = what, str(where), remedy
        parts = [what if not self.where else f"{self.where}: {what}"]
        super().__init__("\n".join([*parts, *([f"What to do: {remedy}"] if remedy else [])]))


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What is known of a tensor without reading it."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # as stored, in torch's words: "bfloat16", "float8_e4m3fn"
    nbytes: int  # as stored
    file: str = ""
    delta: bool = False  # a change to the matrix of this name, as an adapter holds: the model's others are elsewhere


@dataclass(frozen=True, slots=True)
class Note:
    """Something of the checkpoint that is not offered as a tensor, and why (a line of the census)."""

    name: str
    state: str  # as in `drillcore.weights.census`
    detail: str
    remedy: str = ""
    spec: TensorSpec | None = None


class Source(Protocol):
    """Names, shapes and bytes. `read` gives a tensor in its stored dtype (dequantised where it was packed)."""

    @property
    def label(self) -> str:
        """What to call it: the path, the hub id or the class of the module."""
        ...

    @property
    def config(self) -> Config:
        """The contents of config.json, or an empty mapping."""
        ...

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Every tensor on offer, by name, in the order of the file."""
        ...

    @property
    def notes(self) -> Sequence[Note]:
        """What is not on offer and why: duplicates, scales, packed integers."""
        ...

    def read(self, name: str, rows: slice | None = None) -> Matrix:
        """Read one tensor, or the rows `rows` of its first dimension, without a copy where the format allows.

        Raises:
            InputError: the bytes cannot be read or decoded.
        """
        ...
