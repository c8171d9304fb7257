"""Named random streams: one seed per (words), so that no two purposes share randomness by accident."""

from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def seed_of(*words: object) -> int:
    """A 63-bit seed from words: the same words give the same seed on every machine and run."""
    digest = blake2b("\x1f".join(map(str, words)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*words: object, device: str = "cpu") -> "torch.Generator":
    """A generator on `device` for the stream named by `words`; kinds of device have streams of their own."""
    import torch

    return torch.Generator(device).manual_seed(seed_of(*words))
