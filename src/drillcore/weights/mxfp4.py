"""MXFP4 as gpt-oss ships it: `X_blocks` (two 4-bit floats a byte) and `X_scales` (a power of two per 32 numbers).

The model's own parameter X is experts × in × out; the file packs it as experts × out × in. OCP Microscaling
Formats v1.0: the 4 bits are sign, two exponent bits, one mantissa bit; the scale is 2^(byte − 127).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from drillcore.weights.source import Note, Source, TensorSpec

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class Mxfp4Source:
    """A source whose packed pairs are offered under the name of the parameter that they hold, as bfloat16."""

    def __init__(self, inner: Source) -> None:
        self._inner = inner
        self.label, self.config = inner.label, inner.config
        self._pairs = _pairs(inner)
        notes, self.specs = list(inner.notes), dict[str, TensorSpec]()
        for name, spec in inner.specs.items():
            stem, ending = name.rpartition("_")[::2]
            if stem not in self._pairs:
                self.specs[name] = spec
            elif ending == "blocks":
                *lead, out, groups, half = spec.shape
                shape = (*lead, groups * half * 2, out)
                self.specs[stem] = replace(spec, name=stem, shape=shape, dtype="mxfp4")
            else:
                notes.append(Note(name, "recognised", f"scale of {stem}", spec=spec))
        self.notes: Sequence[Note] = tuple(notes)

    def read(self, name: str, rows: slice | None = None) -> Any:
        """See `Source.read`; packed pairs are unpacked, of a stack of experts only the `rows` asked for."""
        if name not in self._pairs:
            return self._inner.read(name, rows)
        stacked = len(self.specs[name].shape) == 3
        inner_rows = rows if stacked else None
        blocks, scales = (self._inner.read(f"{name}_{part}", inner_rows) for part in ("blocks", "scales"))
        assert isinstance(blocks, Tensor)
        assert isinstance(scales, Tensor)
        unpacked = unpack(blocks, scales).mT
        return unpacked if stacked or rows is None else unpacked[rows]


def with_mxfp4(source: Source) -> Source:
    """The source with its MXFP4 pairs on offer; itself where there are none."""
    return Mxfp4Source(source) if _pairs(source) else source


def unpack(blocks: Tensor, scales: Tensor) -> Tensor:
    """Bytes (… × groups × 16) and scales (… × groups) to bfloat16 (… × 32·groups), exactly."""
    values = torch.tensor([*_E2M1, *(-v for v in _E2M1)], dtype=torch.bfloat16, device=blocks.device)
    out = values.new_empty(*blocks.shape, 2)
    out[..., 0] = values[(blocks & 0x0F).int()]  # the low half of a byte comes first
    out[..., 1] = values[(blocks >> 4).int()]
    out = torch.ldexp(out, (scales.int() - 127)[..., None, None])
    return out.flatten(-3)


def _pairs(source: Source) -> set[str]:
    """Stems X with X_blocks (uint8, … × 16) and fitting X_scales."""
    stems = set()
    for name, spec in source.specs.items():
        scales = source.specs.get(name.removesuffix("_blocks") + "_scales")
        fits = scales is not None and scales.dtype == spec.dtype == "uint8" and scales.shape == spec.shape[:-1]
        if name.endswith("_blocks") and fits and spec.shape[-1] == 16 and len(spec.shape) in (3, 4):
            stems.add(name.removesuffix("_blocks"))
    return stems
