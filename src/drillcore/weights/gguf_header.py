"""The header of a GGUF file: metadata, and where each tensor lies. Format: ggml/docs/gguf.md, versions 2 and 3.

The reader of the gguf package builds arrays for every word of the vocabulary (half a minute for Llama 3's); this one
steps over them. Decoding quantised blocks is left to the package.
"""

import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from drillcore.weights.bad_file import check_file
from drillcore.weights.source import InputError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_ALIGNMENT = 32
_AGAIN = "download the file again and compare its size or checksum"


class GgufTensor(NamedTuple):
    """Where a tensor lies. `shape` counts the slowest dimension first, as torch does (the file has it reversed)."""

    name: str
    shape: tuple[int, ...]
    kind: int  # ggml's number of the type
    offset: int  # from the start of the file


class GgufHeader(NamedTuple):
    """What a file says of itself, and its mapped bytes (private pages, so that torch may take them as writable)."""

    metadata: dict[str, Any]  # without the vocabulary
    tensors: list[GgufTensor]
    data: np.memmap[Any, np.dtype[np.uint8]]


def read_header(path: Path) -> GgufHeader:
    """Read the header of a GGUF file.

    Raises:
        InputError: it is not GGUF, of an unknown version or the other byte order, truncated or damaged.
    """
    check_file(path)
    data = np.memmap(path, np.uint8, "c")
    if data[:4].tobytes() != b"GGUF":
        raise InputError("is not a GGUF file (its first bytes are not 'GGUF')", where=path,
                         remedy="download the file again; if it has another format, rename it")  # fmt: skip
    try:
        return _parsed(_Cursor(data.data), data, path)
    except (struct.error, ValueError, OverflowError, ZeroDivisionError, TypeError) as error:
        raise InputError(f"is truncated or damaged ({error}); the file has {len(data)} bytes", where=path,
                         remedy=_AGAIN) from error  # fmt: skip


def _parsed(cursor: "_Cursor", data: np.memmap[Any, np.dtype[np.uint8]], path: Path) -> GgufHeader:
    cursor.at = 4
    version = cursor.scalar("I")
    if version not in (2, 3):
        other = "of the other byte order" if version & 0xFFFF == 0 else f"of version {version}; 2 and 3 are known"
        raise InputError(f"is a GGUF file {other}", where=path,
                         remedy="convert the model again with a current llama.cpp")  # fmt: skip
    tensor_count, entry_count = cursor.scalar("Q"), cursor.scalar("Q")
    metadata = {}
    for _ in range(entry_count):
        key = cursor.text()
        value = cursor.value(cursor.scalar("I"), keep=not key.startswith("tokenizer."))
        if value is not None:
            metadata[key] = value
    found = list(_tensors(cursor, tensor_count))
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    start = -(-cursor.at // alignment) * alignment
    crooked = next((t.name for t in found if t.offset % alignment), None)
    if crooked is not None:
        raise ValueError(f"{crooked} does not lie at a multiple of {alignment} bytes")
    return GgufHeader(metadata, [t._replace(offset=start + t.offset) for t in found], data)


def _tensors(cursor: "_Cursor", count: int) -> Iterator[GgufTensor]:
    for _ in range(count):
        name = cursor.text()
        shape = [cursor.scalar("Q") for _ in range(cursor.scalar("I"))]
        yield GgufTensor(name, tuple(reversed(shape)), cursor.scalar("I"), cursor.scalar("Q"))


class _Cursor:
    """Reads little-endian values one after the other; past the end it raises struct.error or ValueError."""

    def __init__(self, view: memoryview) -> None:
        self._view, self.at = view, 0

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self._view, self.at)
        self.at += struct.calcsize(f"<{code}")
        return value

    def text(self) -> str:
        return str(self._bytes(self.scalar("Q")), "utf-8", "replace")

    def value(self, kind: int, *, keep: bool) -> Any:
        """One value of the metadata; None where it is only stepped over."""
        if kind == _STRING:
            text = self.text()
            return text if keep else None
        if kind == _ARRAY:
            return self._array(keep=keep)
        if kind not in _SCALARS:
            raise ValueError(f"unknown type {kind} in the metadata")
        return self.scalar(_SCALARS[kind])

    def _array(self, *, keep: bool) -> list[Any] | None:
        kind, count = self.scalar("I"), self.scalar("Q")
        if keep or kind == _ARRAY:
            values = [self.value(kind, keep=keep) for _ in range(count)]
            return values if keep else None
        if kind == _STRING:
            for _ in range(count):
                self.at += 8 + struct.unpack_from("<Q", self._view, self.at)[0]
        else:
            self.at += count * struct.calcsize(f"<{_SCALARS[kind]}")
        return None

    def _bytes(self, count: int) -> memoryview:
        if self.at + count > len(self._view):
            raise ValueError("a name runs past the end")
        self.at += count
        return self._view[self.at - count : self.at]


def tensor_bytes(header: GgufHeader, tensor: GgufTensor, block: int, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of a tensor, rows kept apart: `shape[:-1]` × bytes of a row of blocks (`size` bytes, `block` numbers).

    Raises:
        ValueError: the tensor does not lie within the file, or its rows are no whole blocks.
    """
    *lead, width = tensor.shape or (1,)
    if width % block:
        raise ValueError(f"rows of {tensor.name} ({width} numbers) are no whole blocks of {block}")
    count = prod(lead) * (width // block) * size
    if tensor.offset + count > len(header.data):
        raise ValueError(f"{tensor.name} ends at byte {tensor.offset + count}")
    return header.data[tensor.offset : tensor.offset + count].reshape(*lead, width // block * size).view(np.ndarray)
