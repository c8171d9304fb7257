"""A folder as people have it: configuration, index, shards, duplicates. Precedence decides, the rest is listed."""

import json
import os
import re
from pathlib import Path
from typing import NamedTuple

from drillcore.weights.source import Config, InputError, Note

SAFETENSORS_INDEX = "model.safetensors.index.json"
TORCH_INDEX = "pytorch_model.bin.index.json"
TORCH_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
_NOT_WEIGHTS = ("training_args", "optimizer", "scheduler", "rng_state", "scaler", "trainer_state")
_CONFIG_REMEDY = "repair it or give --config FILE"


class Folder(NamedTuple):
    """The files that hold the weights, in which format, and what was set aside."""

    format: str  # "safetensors", "torch", "gguf" or "lora"
    files: list[Path]
    index_file: Path | None
    notes: list[Note]


def read_config(path: Path, *, required: bool = False) -> Config:
    """Read a config.json; a missing one is an empty configuration unless it is `required`.

    Raises:
        InputError: the file is missing (required), a folder, not JSON, or not an object.
    """
    if path.is_dir():
        example = f", for example {path / 'config.json'}" if required else " with --config FILE"
        raise InputError("is a folder, not a configuration file", where=path, remedy=f"give the file itself{example}")
    if not path.exists():
        if required:
            raise InputError("no such configuration file", where=path, remedy="check the path given with --config")
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"is not readable JSON: {error}", where=path, remedy=_CONFIG_REMEDY) from error
    if not isinstance(config, dict):
        raise InputError("is not a JSON object", where=path, remedy=_CONFIG_REMEDY)
    return config


def look_into(folder: Path) -> Folder:
    """Find the weights of a folder by precedence: adapter, index, single safetensors, shards, torch files, GGUF.

    Raises:
        InputError: there are no weights, it is not clear which are meant, or the folder cannot be read.
    """
    if not os.access(folder, os.R_OK | os.X_OK):
        raise InputError("cannot be read (no permission)", where=folder, remedy="check the permissions of the folder")
    files = sorted(p for p in folder.iterdir() if p.is_file())
    groups = _groups(files)
    for format_, chosen, index in groups:
        if chosen:
            _refuse_variants(format_, chosen)
            rest = [p for _, others, _ in groups for p in others if p not in chosen]
            notes = [Note(p.name, "ignored", f"duplicate: {chosen[0].name} comes first") for p in dict.fromkeys(rest)]
            return Folder(format_, chosen, index, [*notes, *_absent_shards(chosen)])
    lost = sorted(p.name for p in folder.iterdir() if p.is_symlink() and not p.exists())
    if lost:
        raise InputError(f"holds a link to a file that is not there: {lost[0]}", where=folder,
                         remedy="finish the download; a cache of the hub links to its blobs")  # fmt: skip
    here = ", ".join(p.name for p in files[:6]) or "nothing"
    raise InputError(
        f"holds no weights; it holds {here}", where=folder,
        remedy="give a folder or file with .safetensors, .bin, .pt or .gguf weights",
    )  # fmt: skip


def read_index(path: Path) -> dict[str, str]:
    """The map tensor → shard of an index file.

    Raises:
        InputError: it is not an index, or it names a shard that is not there.
    """
    try:
        index = dict(json.loads(path.read_text(encoding="utf-8"))["weight_map"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"is not an index of shards ({error})", where=path, remedy="download it again") from error
    if not all(isinstance(shard, str) for shard in index.values()):
        raise InputError("is not an index of shards (its weight_map names no files)", where=path,
                         remedy="download it again")  # fmt: skip
    outside = sorted({shard for shard in index.values() if Path(shard).name != shard})
    if outside:
        raise InputError(f"names a shard that is not a file of its folder: {outside[0]!r}", where=path,
                         remedy="keep the shards beside their index")  # fmt: skip
    missing = sorted({shard for shard in index.values() if not (path.parent / shard).is_file()})
    if missing:
        raise InputError(
            f"names {len(missing)} shard(s) that are not in the folder: {', '.join(missing[:3])}", where=path,
            remedy="finish the download, or remove the index to survey only the shards that are here",
        )  # fmt: skip
    return index


def _groups(files: list[Path]) -> list[tuple[str, list[Path], Path | None]]:
    """Candidates in order of precedence."""
    by_name = {p.name: p for p in files}
    models = [p for p in files if not p.name.startswith((*_NOT_WEIGHTS, "adapter_model"))]
    original = [p for p in models if p.name.startswith("consolidated")]  # the authors' format beside Hugging Face's
    safe = [p for p in models if p.suffix == ".safetensors" and p not in original]
    torch = [p for p in models if p.suffix in TORCH_SUFFIXES and p not in original]
    adapter = [p for p in files if p.stem == "adapter_model"] if "adapter_config.json" in by_name else []
    safe_index = _index(files, SAFETENSORS_INDEX, ".safetensors.index.json")
    # Beside safetensors the torch shards are often not downloaded: then their index is not consulted.
    torch_index = None if safe or safe_index else _index(files, TORCH_INDEX, ".bin.index.json")
    return [
        ("lora", adapter[-1:], None),  # .safetensors sorts after .bin
        ("lora", adapter[:-1], None),
        ("safetensors", _indexed(safe_index), safe_index),
        ("safetensors", [by_name["model.safetensors"]] if "model.safetensors" in by_name else [], None),
        ("safetensors", [p for p in safe if _SHARD.search(p.name)] or safe, None),
        ("safetensors", safe, None),
        ("torch", _indexed(torch_index), torch_index),
        ("torch", [by_name["pytorch_model.bin"]] if "pytorch_model.bin" in by_name else [], None),
        ("torch", [p for p in torch if _SHARD.search(p.name)] or torch, None),
        ("torch", torch, None),
        ("safetensors", [p for p in original if p.suffix == ".safetensors"], None),
        ("torch", [p for p in original if p.suffix in TORCH_SUFFIXES], None),
        ("gguf", [p for p in files if p.suffix == ".gguf"], None),
    ]


_SHARD = re.compile(r"-(\d+)-of-(\d+)\.")


def _index(files: list[Path], name: str, ending: str) -> Path | None:
    found = sorted((p for p in files if p.name.endswith(ending)), key=lambda p: p.name != name)
    return found[0] if found else None


def _indexed(index: Path | None) -> list[Path]:
    return [] if index is None else [index.parent / shard for shard in sorted(set(read_index(index).values()))]


def _absent_shards(files: list[Path]) -> list[Note]:
    """The shards that the names of the others promise."""
    numbers = [(int(m[1]), int(m[2])) for p in files if (m := _SHARD.search(p.name))]
    absent = sorted({n + 1 for n in range(max((total for _, total in numbers), default=0))} - {n for n, _ in numbers})
    return [
        Note(f"(shard {n} of {numbers[0][1]})", "missing", "the names of the other shards promise it",
             "finish the download")
        for n in absent
    ]  # fmt: skip


def _refuse_variants(format_: str, files: list[Path]) -> None:
    """Several GGUF files that are not one split file are the same model in several precisions."""
    whole = [p for p in files if not _SHARD.search(p.name)]
    if format_ == "gguf" and len(files) > 1 and whole:
        raise InputError(f"holds {len(files)} GGUF files: {', '.join(p.name for p in files[:4])}",
                         where=files[0].parent, remedy=f"name one of them, for example {files[0]}")  # fmt: skip
