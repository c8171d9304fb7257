"""Where a table comes from: configuration, versions, checkpoint digest, machine."""

import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from drillcore.weights import Source

_SAMPLE = 1 << 16


def provenance(source: Source, settings: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Everything that is needed to tell whether two surveys may be compared."""
    identity = {
        "source": source.label,
        "digest": digest(source),
        "digest_kind": "blake2b of the index, the file sizes and 64 samples of 64 KiB of each file",
    }
    return circumstances(settings, seconds, identity)


def circumstances(settings: Mapping[str, Any], seconds: float, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, versions and machine, with what was measured (`identity`) between."""
    return {
        "drillcore": version("drillcore"),
        "settings": dict(settings),
        **identity,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        "versions": {name: version(name) for name in ("torch", "numpy", "scipy", "safetensors", "polars")},
        "python": sys.version.split()[0],
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }


def digest(source: Source) -> str:
    """A fast fingerprint of a checkpoint: names, shapes, dtypes, file sizes and samples of the bytes."""
    state = blake2b(digest_size=16)
    for spec in source.specs.values():
        state.update(f"{spec.name}|{spec.shape}|{spec.dtype}\n".encode())
    place = Path(source.label)
    folder = place if place.is_dir() else place.parent
    for name in sorted({spec.file for spec in source.specs.values() if spec.file}):
        path = folder / name
        if path.is_file():
            _sample(path, state)
    return state.hexdigest()


def _sample(path: Path, state: "blake2b") -> None:
    size = path.stat().st_size
    state.update(f"{path.name}|{size}\n".encode())
    with path.open("rb") as file:
        for i in range(64):
            file.seek(size * i // 64)
            state.update(file.read(_SAMPLE))
