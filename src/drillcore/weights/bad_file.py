"""What can be wrong with a file before any format has a say: permission, emptiness, a pointer instead of the bytes."""

import json
import os
from pathlib import Path

from drillcore.weights.source import InputError

_LFS = b"version https://git-lfs"
_AGAIN = "download the file again and compare its size or checksum"


def check_file(path: Path) -> None:
    """Refuse a file that cannot hold weights, whatever its format.

    Raises:
        InputError: it cannot be read, is empty, is a Git-LFS pointer or a web page.
    """
    if not os.access(path, os.R_OK):
        raise InputError("cannot be read (no permission)", where=path, remedy="check the permissions of the file")
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=path,
                         remedy="check the path and its permissions") from error  # fmt: skip
    if not head:
        raise InputError("is empty (0 bytes)", where=path, remedy="download the file again")
    if head.startswith(_LFS):
        raise InputError("is a Git-LFS pointer, not the weights", where=path,
                         remedy="run `git lfs pull` in the repository, or download the file again")  # fmt: skip
    if head.lstrip().lower().startswith((b"<!doctype html", b"<html")):
        raise InputError("is a web page, not the weights", where=path,
                         remedy="download the file again, logged in if the model asks for it")  # fmt: skip


def safetensors_fault(path: Path, error: Exception) -> InputError:
    """Say what is wrong with a file that safetensors refuses."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length + 8 > size:
            return InputError(f"is truncated: {size} bytes, its header alone claims {length + 8}", where=path,
                              remedy=f"{_AGAIN}; if it never was safetensors, rename it")  # fmt: skip
        header = file.read(length)
    try:
        end = max((entry["data_offsets"][1] for name, entry in json.loads(header).items() if name != "__metadata__"),
                  default=0)  # fmt: skip
    except (ValueError, TypeError, KeyError, AttributeError):
        return InputError(f"has a damaged header ({error})", where=path, remedy=_AGAIN)
    if end + length + 8 > size:
        return InputError(f"is truncated: {size} bytes, its header claims {end + length + 8}", where=path,
                          remedy=_AGAIN)  # fmt: skip
    return InputError(f"is damaged ({error})", where=path, remedy=_AGAIN)
