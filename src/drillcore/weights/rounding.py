"""How coarsely a checkpoint stores its numbers."""

import re
from math import inf

import torch

from drillcore.linalg.triplets import roundoff

_BLOCK_BITS = re.compile(r"(?:i?q|tq)(\d)_\w+")  # GGUF: q4_k, q8_0, iq3_xxs, tq2_0
_FOUR_BIT_FLOATS = frozenset({"mxfp4", "nvfp4"})


def rounding(dtype: str) -> float:
    """Relative rounding error of numbers stored as `dtype` (the words of `TensorSpec`); infinite where unknown.

    Floats: half their eps, that of 8-bit floats too. Blocks of b-bit integers: one step, 2^(1−b) of the largest number
    of the block. Relative to a typical number the error is of that size: it is about a third of a step, and the largest
    of 32 Gaussian numbers is two to three times a typical one. 4-bit floats, with one bit of mantissa: 2^−2.
    """
    if dtype in _FOUR_BIT_FLOATS:
        return 2.0**-2
    if found := _BLOCK_BITS.fullmatch(dtype):
        return 2.0 ** (1 - int(found[1]))
    kind = getattr(torch, dtype, None)
    return roundoff(kind) if isinstance(kind, torch.dtype) and kind.is_floating_point else inf
