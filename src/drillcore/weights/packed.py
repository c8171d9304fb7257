"""Packed integers (GPTQ, AWQ, bitsandbytes, …): named and left out, since their raw numbers are not the weights."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from drillcore.weights.source import Config, Note, Source, TensorSpec

# Names that belong to one packed matrix X, by the name that gives the format away.
_FORMATS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (".qweight", "GPTQ or AWQ", ("qweight", "qzeros", "scales", "g_idx", "perm")),
    (".weight_packed", "compressed-tensors",
     ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx", "weight_global_scale",
      "input_global_scale")),
    (".weight.absmax", "bitsandbytes 4-bit", ("weight", "weight.*")),
    (".SCB", "bitsandbytes 8-bit", ("weight", "SCB", "weight_format")),
    (".W_q", "HQQ", ("W_q", "meta", "scale", "zero")),
    (".weight._data", "quanto", ("weight._data", "weight._scale", "weight._shift")),
    (".codebooks", "AQLM", ("codes", "codebooks", "scales")),
    ("_blocks", "MXFP4", ("_blocks", "_scales")),
)  # fmt: skip
_WORDS = {"gptq": "GPTQ", "awq": "AWQ", "bitsandbytes": "bitsandbytes", "mxfp4": "MXFP4", "hqq": "HQQ", "aqlm": "AQLM",
          "modelopt": "ModelOpt", "compressed-tensors": "compressed-tensors", "quanto": "quanto"}  # fmt: skip
_SCALES = ("scale", "scales", "weight_scale", "weight_scale_2", "weight_scales", "weight_zero_point", "zero_point",
           "input_scale")  # fmt: skip
_FOUR_BIT = frozenset({"f4", "f6_e2m3", "f6_e3m2", "float4_e2m1fn_x2"})
_REMEDY = "survey the checkpoint it was made from, or dequantise it first (with transformers: model.dequantize())"


class PackedSource:
    """A source without its packed matrices: each of their tensors is a note that names the format."""

    def __init__(self, inner: Source, packed: Mapping[str, str]) -> None:
        self._inner = inner
        self.label, self.config = inner.label, inner.config
        self.specs = {name: spec for name, spec in inner.specs.items() if name not in packed}
        skipped = [Note(name, "skipped", f"packed as {packed[name]}: its raw numbers are not weights", _REMEDY, spec)
                   for name, spec in inner.specs.items() if name in packed]  # fmt: skip
        self.notes: Sequence[Note] = (*inner.notes, *skipped)

    def read(self, name: str, rows: slice | None = None) -> Any:
        """See `Source.read`."""
        return self._inner.read(name, rows)


def without_packed(source: Source) -> Source:
    """The source without packed matrices; itself where there are none."""
    packed = packed_names(source.specs, source.config)
    return PackedSource(source, packed) if packed else source


def packed_names(specs: Mapping[str, TensorSpec], config: Config) -> dict[str, str]:
    """Name → format of every tensor that belongs to a packed matrix."""
    said = _method(config)
    packed: dict[str, str] = {}
    for ending, words, parts in _FORMATS:
        for name in specs:
            members = _members(specs, name.removesuffix(ending), parts) if name.endswith(ending) else []
            if len(members) > 1:  # one alone is a name by coincidence
                packed |= dict.fromkeys(members, said or words)
    for name, spec in specs.items():
        if name not in packed and _is_integer_weight(spec):
            stem = name.removesuffix(".weight")
            packed |= dict.fromkeys([name, *_members(specs, stem, _SCALES)], said or f"integers ({spec.dtype})")
    return packed


def _members(specs: Mapping[str, TensorSpec], stem: str, parts: tuple[str, ...]) -> list[str]:
    names = []
    for part in parts:
        if part.endswith(".*"):
            names += [n for n in specs if n.startswith(f"{stem}.{part[:-1]}")]
        else:
            names.append(stem + part if part.startswith("_") else f"{stem}.{part}")
    return [n for n in names if n in specs]


def _is_integer_weight(spec: TensorSpec) -> bool:
    if spec.dtype in _FOUR_BIT:
        return True
    integer = re.fullmatch(r"q?u?int\d+(x\d)?", spec.dtype) is not None
    return integer and len(spec.shape) >= 2 and spec.name.endswith((".weight", "_proj"))


def _method(config: Config) -> str:
    quantisation = config.get("quantization_config")
    method = quantisation.get("quant_method", "") if isinstance(quantisation, Mapping) else ""
    return _WORDS.get(str(method).lower(), str(method))
