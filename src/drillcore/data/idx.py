"""The IDX format of the MNIST files: magic number, sizes, bytes."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from drillcore.data.errors import DataError

Bytes = NDArray[np.uint8]


def read_idx(path: Path) -> Bytes:
    """An array of unsigned bytes from an IDX file, gzipped or not.

    Raises:
        DataError: the file is cut off, is not IDX, or holds another type.
    """
    return parse_idx(unpacked(path), str(path))


def unpacked(path: Path) -> bytes:
    """The contents of a file, unpacked where it is gzipped.

    Raises:
        DataError: there is no such file, or its gzip stream is broken.
    """
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is cut off or broken ({error}); fetch it again") from error


def parse_idx(content: bytes, name: str) -> Bytes:
    """The array in the contents of an IDX file."""
    if len(content) < 4 or content[:2] != b"\0\0":
        raise DataError(f"{name} is not an IDX file: it does not begin with two zero bytes")
    kind, dimensions = content[2], content[3]
    if kind != 8:
        raise DataError(f"{name} holds numbers of IDX type {kind}; only unsigned bytes (8) are read")
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DataError(f"{name} ends inside its header; fetch it again")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    values = np.frombuffer(content, np.uint8, offset=start)
    if values.size != np.prod(shape, dtype=np.int64):
        raise DataError(
            f"{name} should hold {' × '.join(map(str, shape))} bytes and holds {values.size}; fetch it again"
        )
    return values.reshape(shape).copy()  # its own memory: torch warns of arrays that cannot be written
