"""A folder as people have it: configuration, index, shards, duplicates. Precedence decides, the rest is listed."""

import json
import os
from pathlib import Path
from typing import NamedTuple

from drillcore.weights.source import Config, InputError, Note

SAFETENSORS_INDEX = "model.safetensors.index.json"
TORCH_INDEX = "pytorch_model.bin.index.json"
_TORCH = (".bin", ".pt", ".pth", ".ckpt")
_NOT_WEIGHTS = ("training_args", "optimizer", "scheduler", "rng_state", "scaler", "trainer_state")


class Folder(NamedTuple):
    """The files that hold the weights, in which format, and what was set aside."""

    format: str  # "safetensors", "torch", "gguf" or "lora"
    files: list[Path]
    index_file: Path | None
    ignored: list[Note]


def read_config(path: Path | None) -> Config:
    """Read a config.json; a missing one is an empty configuration.

    Raises:
        InputError: the file is not JSON, or not an object.
    """
    if path is None or not path.exists():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"is not readable JSON: {error}", where=path, remedy="repair it or give --config FILE"
        ) from error
    if not isinstance(config, dict):
        raise InputError("is not a JSON object", where=path, remedy="repair it or give --config FILE")
    return config


def look_into(folder: Path) -> Folder:
    """Find the weights of a folder by precedence: adapter, index, single safetensors, shards, torch files, GGUF.

    Raises:
        InputError: there are no weights, or the folder cannot be read.
    """
    if not os.access(folder, os.R_OK | os.X_OK):
        raise InputError("cannot be read (no permission)", where=folder, remedy="check the permissions of the folder")
    files = sorted(p for p in folder.iterdir() if p.is_file())
    groups = _groups(files)
    for format_, chosen, index in groups:
        if chosen:
            rest = [p for _, others, _ in groups for p in others if p not in chosen]
            notes = [Note(p.name, "ignored", f"duplicate: {chosen[0].name} comes first") for p in dict.fromkeys(rest)]
            return Folder(format_, chosen, index, notes)
    here = ", ".join(p.name for p in files[:6]) or "nothing"
    raise InputError(
        f"holds no weights; it holds {here}", where=folder,
        remedy="give a folder or file with .safetensors, .bin, .pt or .gguf weights",
    )  # fmt: skip


def _groups(files: list[Path]) -> list[tuple[str, list[Path], Path | None]]:
    """Candidates in order of precedence."""
    by_name = {p.name: p for p in files}
    safe = [p for p in files if p.suffix == ".safetensors" and not p.name.startswith("adapter_model")]
    torch = [p for p in files if p.suffix in _TORCH and not p.name.startswith((*_NOT_WEIGHTS, "adapter_model"))]
    adapter = [p for p in files if p.stem == "adapter_model"][:1] if "adapter_config.json" in by_name else []
    index = by_name.get(SAFETENSORS_INDEX) or next(
        (p for p in files if p.name.endswith(".safetensors.index.json")), None
    )
    torch_index = by_name.get(TORCH_INDEX)
    single = [by_name["model.safetensors"]] if "model.safetensors" in by_name else []
    shards = [p for p in safe if "-of-" in p.name] or safe
    return [
        ("lora", adapter, None),
        ("safetensors", _indexed(index), index),
        ("safetensors", single, None),
        ("safetensors", shards, None),
        ("torch", _indexed(torch_index), torch_index),
        ("torch", torch, None),
        ("gguf", [p for p in files if p.suffix == ".gguf"], None),
    ]


def _indexed(index: Path | None) -> list[Path]:
    if index is None:
        return []
    from drillcore.weights.safetensors_files import read_index

    return [index.parent / shard for shard in sorted(set(read_index(index).values()))]
