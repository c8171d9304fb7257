"""8-bit floats with their scales: what the file stores as weight and scale is read as one matrix.

The value is stored weight × scale, whatever the scale is called: DeepSeek's `weight_scale_inv` is the inverse of the
factor used when quantising, so it multiplies here too, as does `weight_scale` of compressed-tensors. A scale covers
the tensor, a row, or a block (128 × 128, or `quantization_config.weight_block_size`).
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drillcore.weights.source import Config, InputError, Note, Source, TensorSpec

_SUFFIXES = ("_scale_inv", "_scale")  # of the tensor's whole name: X.weight_scale_inv, X.gate_up_proj_scale
_SIBLINGS = (".scale", ".scale_inv", ".weight_scale", ".weight_scale_inv", ".scale_weight")  # beside X.weight
_ACTIVATION = re.compile(r"[._](input|output|activation|act|q|k|v|q_proj|k_proj|v_proj|prob)[._]scale(_inv|_ub)?$")
_MARKERS = frozenset({"scaled_fp8"})
_BLOCK = 128
_NO_SCALE = "8-bit floats without a scale: what they stand for is not known"
_REMEDY = "download the scales too (names ending in _scale or _scale_inv), or use the bfloat16 checkpoint"


class Scale(NamedTuple):
    """The tensor that scales a weight, and the size of a block along each dimension of the weight."""

    name: str
    blocks: tuple[int, ...] | None  # None where its shape does not fit the weight's


class Float8Source:
    """A source whose 8-bit weights are read as float32, scaled; the specs keep what is stored."""

    def __init__(self, inner: Source) -> None:
        self._inner = inner
        self.label, self.config = inner.label, inner.config
        self._scales = _paired(inner.specs, inner.config)
        scales = {scale.name: name for name, scale in self._scales.items()}
        notes, self.specs = list(inner.notes), dict[str, TensorSpec]()
        for name, spec in inner.specs.items():
            if name in scales:
                notes.append(Note(name, "recognised", f"scale of {scales[name]}", spec=spec))
            elif _ACTIVATION.search(name) or name in _MARKERS:
                notes.append(Note(name, "recognised", "scale of activations", spec=spec))
            elif is_float8(spec) and (fault := self._fault(name)):
                notes.append(Note(name, "skipped", fault, _REMEDY, spec))
            else:
                self.specs[name] = spec
        self.notes: Sequence[Note] = tuple(notes)

    def read(self, name: str, rows: slice | None = None) -> Tensor:
        """See `Source.read`; 8-bit weights become float32."""
        tensor = self._inner.read(name, rows)
        assert isinstance(tensor, Tensor)
        found = self._scales.get(name)
        if found is None or found.blocks is None:
            return tensor
        scale = self._inner.read(found.name)
        assert isinstance(scale, Tensor)
        first = range(self.specs[name].shape[0])[rows or slice(None)]
        return _scaled(tensor.to(torch.float32), scale.to(torch.float32), found.blocks, first)

    def _fault(self, name: str) -> str:
        """Why a weight cannot be scaled; empty where it can."""
        scale = self._scales.get(name)
        if scale is None:
            return _NO_SCALE
        shape = list(self._inner.specs[scale.name].shape)
        return (
            "" if scale.blocks else f"8-bit floats whose scale {scale.name} has the shape {shape}, which does not fit"
        )


def is_float8(spec: TensorSpec) -> bool:
    """Whether the tensor holds 8-bit floats that need a scale."""
    return spec.dtype in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")


def _scaled(weight: Tensor, scale: Tensor, blocks: tuple[int, ...], first: range) -> Tensor:
    """Multiply in place. `first` are the indices of the first dimension that `weight` holds."""
    if scale.numel() == 1:
        return weight.mul_(scale.reshape(()))
    scale = scale.reshape(scale.shape + (1,) * (weight.ndim - scale.ndim))
    for dim, block in enumerate(blocks[:-1]):
        index = torch.tensor(first if dim == 0 else range(weight.shape[dim]), device=scale.device)
        scale = scale.index_select(dim, index // block)
    width = blocks[-1]
    for block in range(scale.shape[-1]):
        weight[..., block * width : (block + 1) * width] *= scale[..., block : block + 1]
    return weight


def _paired(specs: Mapping[str, TensorSpec], config: Config) -> dict[str, Scale]:
    configured = _configured_block(config)
    found = {}
    for name, spec in specs.items():
        scale = _scale_name(name, specs) if is_float8(spec) else None
        if scale:
            found[name] = Scale(scale, _blocks(spec.shape, specs[scale].shape, configured))
    return found


def _scale_name(name: str, specs: Mapping[str, TensorSpec]) -> str | None:
    stem = name.removesuffix(".weight")
    names = [*(name + s for s in _SUFFIXES), *(stem + s for s in _SIBLINGS if stem != name)]
    return next((n for n in names if n in specs and not is_float8(specs[n])), None)


def _configured_block(config: Config) -> tuple[int, ...] | None:
    quantisation = config.get("quantization_config")
    size = quantisation.get("weight_block_size") if isinstance(quantisation, Mapping) else None
    if size is None:
        return None
    if not isinstance(size, list | tuple) or not all(isinstance(s, int) and s > 0 for s in size):
        raise InputError(f"quantization_config.weight_block_size is {size!r}, not two sizes", where="config.json",
                         remedy="repair it, for example [128, 128]")  # fmt: skip
    return tuple(size)


def _blocks(
    shape: tuple[int, ...], scale: tuple[int, ...], configured: tuple[int, ...] | None
) -> tuple[int, ...] | None:
    """Size of a block along each dimension of a weight; None where the scale does not fit."""
    if all(count == 1 for count in scale):
        return shape
    if len(scale) > len(shape):
        return None
    counts = scale + (1,) * (len(shape) - len(scale))
    given = (None,) * (len(shape) - len(configured)) + configured if configured else (None,) * len(shape)
    sizes = [_block(*sizes) for sizes in zip(shape, counts, given, strict=True)]
    return tuple(s for s in sizes if s) if all(sizes) else None


def _block(size: int, count: int, configured: int | None) -> int | None:
    """Entries of a dimension of `size` that share one of `count` scales."""
    for block in (configured, size if count == 1 else None, 1, _BLOCK):
        if block and -(-size // block) == count:
            return block
    return size // count if count and size % count == 0 else None
