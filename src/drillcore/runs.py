"""A run is a frozen value; its hash names its folder. Files are written to a temporary name and renamed.

A run's folder holds `config.json` (the value), `rows/part-*.parquet`, `checkpoint/`, `provenance.json` and, once all is
there, `DONE`. What is done is never done again, on one machine or on a cluster with a shared disk.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Give a temporary path in the folder of `path`; rename it to `path` when the block ends well.

    On any error, Ctrl-C included, the temporary file is removed and an older `path` stays as it was.

    Raises:
        OSError: the folder cannot be made or written, or the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a full disk is reported without a name
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` in UTF-8, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def plain(value: object) -> Any:
    """A value as JSON knows it: frozen dataclasses become objects with their class name, tuples lists, paths text.

    Raises:
        TypeError: a part of the value has no plain form, so that its hash could not be the same elsewhere.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {"type": type(value).__name__} | {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a run's value is made of numbers, text, sequences, mappings and dataclasses, not {value!r}")


def hash_of(value: object) -> str:
    """16 hexadecimal digits that name a value: equal on every machine, whatever the order of a mapping's keys."""
    text = json.dumps(plain(value), sort_keys=True, ensure_ascii=False, allow_nan=False)
    return blake2b(text.encode(), digest_size=8).hexdigest()


class RunFolder:
    """The folder of a run inside `root`, named by the hash of its value."""

    def __init__(self, root: Path, value: object) -> None:
        self.value, self.path = value, Path(root) / hash_of(value)

    def begin(self) -> None:
        """Make the folder and write `config.json`, unless they are there."""
        config = self.path / "config.json"
        if not config.exists():
            write_text(config, json.dumps(plain(self.value), indent=1, ensure_ascii=False))

    def part(self, index: int) -> Path:
        """Where the rows of the part `index` belong."""
        return self.path / "rows" / f"part-{index:08}.parquet"

    def parts(self) -> list[Path]:
        """The parts that are there, rising."""
        return sorted((self.path / "rows").glob("part-*.parquet"))

    @property
    def checkpoint(self) -> Path:
        """The folder of the state that training resumes from."""
        return self.path / "checkpoint"

    @property
    def done(self) -> bool:
        """Whether the run is finished."""
        return (self.path / "DONE").exists()

    def finish(self, provenance: Mapping[str, Any]) -> None:
        """Write `provenance.json` and then `DONE`."""
        write_text(self.path / "provenance.json", json.dumps(plain(provenance), indent=1, ensure_ascii=False))
        write_text(self.path / "DONE", "")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
