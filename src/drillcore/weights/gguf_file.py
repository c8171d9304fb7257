"""GGUF files: mapped, dequantised one tensor (or slice) at a time, in the row order of the original checkpoint."""

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drillcore.weights.bad_file import check_file
from drillcore.weights.gguf_config import PERMUTED, gguf_config
from drillcore.weights.source import Config, InputError, Note, TensorSpec

_PLAIN = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
          "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64"}  # fmt: skip
_ROTATED = re.compile(r"blk\.(?P<layer>\d+)\.attn_(?P<side>[qk])\.(?:weight|bias)")
_DAMAGE = (ValueError, IndexError, KeyError, OverflowError, TypeError)


class GgufSource:
    """A checkpoint in one GGUF file, or in the parts of a split one. The metadata is the configuration."""

    def __init__(
        self, files: Sequence[Path], *, label: str, given: Config | None = None, notes: Sequence[Note] = ()
    ) -> None:
        self.label = label
        self._gguf = _library(files[0])
        readers = {path.name: _opened(path, self._gguf) for path in files}
        self._tensors = {t.name: t for reader in readers.values() for t in reader.tensors}
        everything = {t.name: _spec(t, file) for file, reader in readers.items() for t in reader.tensors}
        unreadable = {name: spec for name, spec in everything.items() if not self._decodes(name)}
        self.specs = {name: spec for name, spec in everything.items() if name not in unreadable}
        metadata = _metadata(next(iter(readers.values())))
        # The names are GGUF's whatever the model was: a given configuration adds numbers, not a family.
        numbers = {key: value for key, value in (given or {}).items() if key != "model_type"}
        self.config = {**gguf_config(metadata, self.specs), **numbers}
        self._heads = self._heads_by_layer(metadata)
        self.notes = (*notes, *self._own_notes(unreadable))

    def read(self, name: str, rows: slice | None = None) -> Tensor:
        """See `Source.read`; quantised blocks become float32."""
        stored = self._tensors[name]
        order = self._row_order(name)
        data = stored.data
        if order is not None:
            data = data[order[rows or slice(None)]]
        elif rows is not None:
            data = data[rows]
        kind = stored.tensor_type.name
        if kind == "BF16":
            return torch.from_numpy(data).view(torch.bfloat16)
        return torch.from_numpy(data if kind in _PLAIN else self._gguf.dequantize(data, stored.tensor_type))

    def _decodes(self, name: str) -> bool:
        """Whether the library can dequantise the tensor's type, tried on one row of zeros."""
        stored = self._tensors[name]
        if stored.tensor_type.name in _PLAIN:
            return True
        try:
            self._gguf.dequantize(np.zeros((1, stored.data.shape[-1]), np.uint8), stored.tensor_type)
        except NotImplementedError:
            return False
        return True

    def _heads_by_layer(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Heads of q and k (a number, or one per layer) where the converter reordered their rows."""
        arch = metadata.get("general.architecture")
        heads = metadata.get(f"{arch}.attention.head_count")
        return {"q": heads, "k": metadata.get(f"{arch}.attention.head_count_kv", heads)} if arch in PERMUTED else {}

    def _row_order(self, name: str) -> np.ndarray[Any, np.dtype[np.intp]] | None:
        """Where each row of the original lies in the file; None where nothing was moved."""
        found = _ROTATED.fullmatch(name)
        heads = self._heads.get(found["side"]) if found else None
        if found and isinstance(heads, list):
            heads = heads[int(found["layer"])]
        if not heads:
            return None
        rows = self.specs[name].shape[0]
        # The converter turns the two halves of a head, on which RoPE acts in pairs, into neighbours.
        return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(rows)

    def _own_notes(self, unreadable: Mapping[str, TensorSpec]) -> list[Note]:
        notes = [Note(name, "skipped", f"quantised as {spec.dtype}, which the gguf package cannot decode",
                      "use a newer gguf package, or another quantisation of the model", spec)
                 for name, spec in unreadable.items()]  # fmt: skip
        moved = sum(self._row_order(name) is not None for name in self.specs)
        if moved:
            notes.append(Note("(attn_q, attn_k)", "recognised",
                              f"rows of {moved} tensors put back into the order before the conversion to GGUF, "
                              "which interleaves the halves of each head for RoPE"))  # fmt: skip
        return notes


def _library(path: Path) -> ModuleType:
    try:
        return import_module("gguf")
    except ImportError as error:
        raise InputError("is a GGUF file, and the package gguf is not installed", where=path,
                         remedy="pip install 'drillcore[gguf]'") from error  # fmt: skip


def _opened(path: Path, gguf: ModuleType) -> Any:
    check_file(path)
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise InputError("is not a GGUF file (its first bytes are not 'GGUF')", where=path,
                             remedy="download the file again; if it has another format, rename it")  # fmt: skip
    try:
        reader = gguf.GGUFReader(path, "c")  # private pages: torch wants an array that it could write to
    except _DAMAGE as error:
        raise InputError(f"is truncated or damaged ({error}); the file has {path.stat().st_size} bytes", where=path,
                         remedy="download the file again and compare its size or checksum") from error  # fmt: skip
    if reader.byte_order == "S":
        raise InputError("is a GGUF file of the other byte order", where=path,
                         remedy="turn it with gguf's script gguf_convert_endian.py")  # fmt: skip
    return reader


def _spec(stored: Any, file: str) -> TensorSpec:
    kind = stored.tensor_type.name
    shape = tuple(int(n) for n in reversed(stored.shape.tolist()))  # ggml counts the fastest dimension first
    return TensorSpec(stored.name, shape, _PLAIN.get(kind, kind.lower()), int(stored.n_bytes), file)


def _metadata(reader: Any) -> dict[str, Any]:
    """The metadata without the vocabulary, whose lists are long and say nothing of the weights."""
    return {key: field.contents() for key, field in reader.fields.items() if not key.startswith("tokenizer.")}
