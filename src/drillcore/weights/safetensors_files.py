"""Safetensors: one file, or shards with or without an index. Nothing is read before `read`."""

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from drillcore.weights.bad_file import check_file, safetensors_fault
from drillcore.weights.source import Config, InputError, Note, TensorSpec

_DTYPES = {
    "F64": ("float64", 8), "F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2),
    "F8_E4M3": ("float8_e4m3fn", 1), "F8_E5M2": ("float8_e5m2", 1), "F8_E8M0": ("float8_e8m0fnu", 1),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 1), "F8_E5M2FNUZ": ("float8_e5m2fnuz", 1), "C64": ("complex64", 8),
    "I64": ("int64", 8), "I32": ("int32", 4), "I16": ("int16", 2), "I8": ("int8", 1), "U8": ("uint8", 1),
    "U16": ("uint16", 2), "U32": ("uint32", 4), "U64": ("uint64", 8), "BOOL": ("bool", 1),
}  # fmt: skip


class SafetensorsSource:
    """A checkpoint in safetensors files; each tensor is a view of the mapped file."""

    def __init__(
        self, files: Sequence[Path], *, label: str, config: Config, notes: Sequence[Note] = (),
        index: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.label, self.config, self.notes = label, config, tuple(notes)
        self._open = {path.name: _opened(path) for path in files}
        self.specs = _specs(self._open, index)

    def read(self, name: str, rows: slice | None = None) -> Tensor:
        """See `Source.read`."""
        handle = self._open[self.specs[name].file]
        try:
            tensor: Tensor = handle.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise InputError(f"tensor {name!r} cannot be read: {error}", where=self.label) from error
        return tensor if rows is None else tensor[rows]


def _opened(path: Path) -> Any:
    check_file(path)
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise safetensors_fault(path, error) from error
    except OSError as error:
        raise InputError(f"cannot be opened ({error.strerror or error})", where=path,
                         remedy="check the path and its permissions") from error  # fmt: skip


def _specs(handles: Mapping[str, Any], index: Mapping[str, str] | None) -> dict[str, TensorSpec]:
    specs: dict[str, TensorSpec] = {}
    for file, handle in handles.items():
        for name in handle.offset_keys():
            if index is not None and index.get(name, file) != file:
                continue
            if name in specs:
                raise InputError(f"tensor {name!r} is in two shards: {specs[name].file} and {file}",
                                 remedy="keep the shards of one model in the folder")  # fmt: skip
            part = handle.get_slice(name)
            dtype, size = _DTYPES.get(part.get_dtype(), (str(part.get_dtype()).lower(), 1))
            shape = tuple(part.get_shape())
            specs[name] = TensorSpec(name, shape, dtype, size * prod(shape), file)
    lost = sorted(set(index or ()) - specs.keys())
    if lost:
        raise InputError(f"the index names {len(lost)} tensor(s) that the shards lack, first {lost[0]!r}",
                         remedy="download the shards again")  # fmt: skip
    return specs
