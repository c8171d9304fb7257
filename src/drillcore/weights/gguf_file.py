"""GGUF files: mapped, dequantised one tensor (or slice) at a time, in the row order of the original checkpoint."""

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drillcore.weights.gguf_config import PERMUTED, gguf_config
from drillcore.weights.gguf_header import GgufHeader, GgufTensor, read_header, tensor_bytes
from drillcore.weights.source import Config, InputError, Note, TensorSpec

_PLAIN = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
          "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64}  # fmt: skip
_ROTATED = re.compile(r"blk\.(?P<layer>\d+)\.attn_(?P<side>[qk])\.(?:weight|bias)")


class Stored(NamedTuple):
    """A tensor of the file: its spec, its type in the gguf package, and its mapped bytes by rows."""

    spec: TensorSpec
    kind: Any
    data: np.ndarray[Any, np.dtype[np.uint8]]


class GgufSource:
    """A checkpoint in one GGUF file, or in the parts of a split one. The metadata is the configuration."""

    def __init__(
        self, files: Sequence[Path], *, label: str, given: Config | None = None, notes: Sequence[Note] = ()
    ) -> None:
        self.label = label
        self._gguf = _library(files[0])
        headers = {path: read_header(path) for path in files}
        self._stored = _all_stored(headers, self._gguf)
        unreadable = [s.spec for s in self._stored.values() if not self._decodes(s)]
        self.specs = {name: s.spec for name, s in self._stored.items() if s.spec not in unreadable}
        metadata = headers[files[0]].metadata
        # The names are GGUF's whatever the model was: a given configuration adds numbers, not a family.
        numbers = {key: value for key, value in (given or {}).items() if key != "model_type"}
        self.config = {**gguf_config(metadata, self.specs), **numbers}
        self._heads = _heads(metadata)
        self._check_heads(files[0])
        self.notes = (*notes, *self._own_notes(unreadable))

    def read(self, name: str, rows: slice | None = None) -> Tensor:
        """See `Source.read`; quantised blocks become float32."""
        stored = self._stored[name]
        order = self._row_order(name)
        data = stored.data
        if order is not None:
            data = data[order[rows or slice(None)]]
        elif rows is not None:
            data = data[rows]
        plain = _PLAIN.get(stored.kind.name)
        if plain is not None:
            return torch.from_numpy(data).view(plain)
        return torch.from_numpy(self._gguf.dequantize(data, stored.kind))

    def _decodes(self, stored: Stored) -> bool:
        """Whether the package can decode the tensor's type, tried on one row of zeros."""
        if stored.kind.name in _PLAIN:
            return True
        try:
            self._gguf.dequantize(np.zeros((1, stored.data.shape[-1]), np.uint8), stored.kind)
        except NotImplementedError:
            return False
        return True

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

    def _check_heads(self, path: Path) -> None:
        for name in self.specs:
            try:
                self._row_order(name)
            except (ValueError, TypeError, LookupError, ArithmeticError) as error:
                raise InputError(f"the metadata's numbers of heads do not fit {name} ({error})", where=path,
                                 remedy="download the file again, or convert the model again") from error  # fmt: skip

    def _own_notes(self, unreadable: Sequence[TensorSpec]) -> list[Note]:
        notes = [Note(spec.name, "skipped", f"quantised as {spec.dtype}, which the gguf package cannot decode",
                      "use a newer gguf package, or another quantisation of the model", spec)
                 for spec in unreadable]  # fmt: skip
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


def _all_stored(headers: Mapping[Path, GgufHeader], gguf: ModuleType) -> dict[str, Stored]:
    found: dict[str, Stored] = {}
    for path, header in headers.items():
        for tensor in header.tensors:
            if tensor.name in found:
                raise InputError(f"holds the tensor {tensor.name!r} twice", where=path,
                                 remedy="keep the parts of one model in the folder, or convert it again")  # fmt: skip
            found[tensor.name] = _stored(tensor, header, path, gguf)
        _refuse_overlaps(path, [(t.offset, found[t.name].data.nbytes, t.name) for t in header.tensors])
    return found


def _refuse_overlaps(path: Path, places: Sequence[tuple[int, int, str]]) -> None:
    for (start, size, name), (after, _, other) in pairwise(sorted(places)):
        if start + size > after:
            raise InputError(f"is damaged: the tensors {name!r} and {other!r} lie over each other", where=path,
                             remedy="download the file again and compare its size or checksum")  # fmt: skip


def _stored(tensor: GgufTensor, header: GgufHeader, path: Path, gguf: ModuleType) -> Stored:
    try:
        kind = gguf.GGMLQuantizationType(tensor.kind)
        data = tensor_bytes(header, tensor, *gguf.GGML_QUANT_SIZES[kind])
    except ValueError as error:
        raise InputError(f"is truncated or damaged, or newer than the gguf package ({error}); "
                         f"the file has {len(header.data)} bytes", where=path,
                         remedy="download the file again, or update the gguf package") from error  # fmt: skip
    plain = _PLAIN.get(kind.name)
    dtype = str(plain).removeprefix("torch.") if plain else kind.name.lower()
    return Stored(TensorSpec(tensor.name, tensor.shape, dtype, data.nbytes, path.name), kind, data)


def _heads(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Heads of q and k (a number, or one per layer) where the converter reordered their rows."""
    arch = metadata.get("general.architecture")
    heads = metadata.get(f"{arch}.attention.head_count")
    return {"q": heads, "k": metadata.get(f"{arch}.attention.head_count_kv", heads)} if arch in PERMUTED else {}
