"""Roles: what a tensor does in the network, in the same words for files, live modules and our own models."""

from dataclasses import dataclass
from typing import Literal

Orientation = Literal["out_in", "in_out"]

# kind → (space it reads, space it writes). "residual" is the stream; a matrix faces it with that side.
KINDS: dict[str, tuple[str, str]] = {
    "embed": ("vocab", "residual"),
    "position": ("position", "residual"),
    "token_type": ("token_type", "residual"),
    "patch": ("pixels", "residual"),
    "unembed": ("residual", "vocab"),
    "q": ("residual", "head"),
    "k": ("residual", "head"),
    "v": ("residual", "head"),
    "o": ("head", "residual"),
    "cross_q": ("residual", "head"),
    "cross_k": ("residual", "head"),  # reads the encoder's output stream
    "cross_v": ("residual", "head"),
    "cross_o": ("head", "residual"),
    "q_a": ("residual", "latent"),  # multi-head latent attention: down to the latent …
    "kv_a": ("residual", "latent"),
    "q_b": ("latent", "head"),  # … and up to the heads
    "k_b": ("latent", "head"),
    "v_b": ("latent", "head"),
    "gate": ("residual", "hidden"),
    "up": ("residual", "hidden"),
    "down": ("hidden", "residual"),
    "shared_gate": ("residual", "hidden"),
    "shared_up": ("residual", "hidden"),
    "shared_down": ("hidden", "residual"),
    "router": ("residual", "experts"),
    "project_in": ("embedding", "residual"),
    "project_out": ("residual", "embedding"),
}

# Kinds whose rows are compared across layers; the others have one matrix per model.
SINGLE_KINDS = frozenset({"embed", "position", "token_type", "patch", "unembed", "project_in", "project_out"})


@dataclass(frozen=True, slots=True)
class Split:
    """The rows of one kind inside a fused matrix.

    The out axis is `groups` times `period` rows; the kind has rows `start` … `stop` of every period. This one
    form covers the contiguous layout (one group), per head (NeoX), grouped queries (Falcon) and interleaved
    gate/up (gpt-oss).
    """

    groups: int
    period: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of rows of the kind."""
        return self.groups * (self.stop - self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What a matrix does: where it stands, what it reads and writes, and how it lies in its tensor."""

    kind: str
    layer: int | None = None
    stack: str = ""  # "encoder", "decoder", "text", "vision"; empty where there is one
    reads: str
    writes: str
    orientation: Orientation = "out_in"
    split: Split | None = None
    tie: str | None = None  # the kind whose tensor this one shares
    expert: int | None = None
    stacked: bool = False  # the tensor's first dimension counts experts

    @property
    def faces(self) -> Literal["in", "out", ""]:
        """The side that faces the residual stream; empty for a matrix that touches it with neither side."""
        if self.reads == "residual":
            return "in"
        return "out" if self.writes == "residual" else ""


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix with a role: where it lies and its shape out × in after split and orientation."""

    tensor: str
    role: Role
    shape: tuple[int, int]
    dtype: str  # as stored
    nbytes: int  # of this matrix, as stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """A normalisation: its gain, the matrices it feeds and the side of the branch on which it stands.

    `side` is "in" (before a branch), "out" (on a branch's output, before the add), "post" (on the stream,
    after the add), "inner" (inside a branch: QK-norm, Sub-LN, latent norms).
    """

    tensor: str
    layer: int | None
    stack: str
    side: Literal["in", "out", "post", "inner"]
    feeds: tuple[str, ...]
    zero_centered: bool = False  # the effective gain is 1 + w
    bias: str | None = None
