"""Write a checkpoint anew with some tensors multiplied: shard by shard, the whole folder at once or not at all."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from drillcore.weights.gauge import Change
from drillcore.weights.source import InputError

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".ckpt")


@dataclass(frozen=True)
class Stored:
    """A tensor that was changed and what storing it cost: largest error relative to its largest number."""

    change: Change
    error: float


def rewrite(
    folder: Path, out: Path, changes: Mapping[str, Change], config: Mapping[str, Any], *, float32_gains: bool,
    tolerance: float, advance: Callable[[int], None] = lambda nbytes: None,
) -> list[Stored]:  # fmt: skip
    """Write `out` from the safetensors in `folder`; one shard is held at a time.

    Args:
        folder: the checkpoint; it is only read.
        out: a folder that is not there yet.
        changes: tensor → its change.
        config: the contents of the new config.json.
        float32_gains: store changed gains and shifts in float32.
        tolerance: the largest relative error of a stored tensor.
        advance: told the bytes of every shard.

    Raises:
        InputError: `out` exists; no safetensors; an error above `tolerance`. Nothing is left behind.
        OSError: the disk is full, or `out` cannot be written.
    """
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise InputError("holds no safetensors", where=folder, remedy="save the model as safetensors first")
    if out.exists():
        raise InputError("is there already", where=out, remedy="give another --out, or move it away")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as made:
        place = Path(made) / "checkpoint"
        place.mkdir()
        stored: list[Stored] = []
        for shard in shards:
            stored += _shard(shard, place / shard.name, changes, float32_gains)
            advance(shard.stat().st_size)
        _within(stored, tolerance)
        _copy_others(folder, place)
        (place / "config.json").write_text(json.dumps(dict(config), indent=2, ensure_ascii=False), encoding="utf-8")
        _resize_index(place)
        place.replace(out)
    return stored


def _shard(shard: Path, out: Path, changes: Mapping[str, Change], float32_gains: bool) -> Iterator[Stored]:
    tensors: dict[str, Tensor] = {}
    with safe_open(shard, framework="pt") as file:
        metadata = file.metadata()
        for name in file.keys():  # noqa: SIM118 (not a mapping)
            tensor = file.get_tensor(name)
            change = changes.get(name)
            if change is not None:
                tensor, error = changed(tensor, change, float32=float32_gains and tensor.dim() == 1)
                yield Stored(change, error)
            tensors[name] = tensor.contiguous()
    save_file(tensors, out, metadata=metadata)


def changed(tensor: Tensor, change: Change, *, float32: bool = False) -> tuple[Tensor, float]:
    """The tensor after the change, in its dtype (or float32), and the largest relative error of what is stored.

    The error is that of the effective numbers (1 + w for a zero-centred gain), relative to the largest of them.
    """
    offset = 1.0 if change.zero_centered else 0.0
    wanted = (tensor.double() + offset) * change.factor
    stored = (wanted - offset).to(torch.float32 if float32 and tensor.element_size() < 4 else tensor.dtype)
    largest = float(wanted.abs().max()) if wanted.numel() else 0.0
    error = float((stored.double() + offset - wanted).abs().max()) / largest if largest > 0 else 0.0
    return stored, error


def _within(stored: list[Stored], tolerance: float) -> None:
    if not stored:
        return
    worst = max(stored, key=lambda s: s.error)
    if not worst.error <= tolerance:
        raise InputError(
            f"{worst.change.tensor} would be stored with a relative error of {worst.error:.2g}, above the tolerance of "
            f"{tolerance:g}", where="--tolerance",
            remedy="store the gains in float32 (--float32-gains), take a smaller k, or allow more",
        )  # fmt: skip


def _copy_others(folder: Path, place: Path) -> None:
    for path in folder.iterdir():
        if path.suffix in _WEIGHTS or path.name == "config.json":
            continue
        if path.is_dir():
            shutil.copytree(path, place / path.name, ignore=shutil.ignore_patterns(*(f"*{s}" for s in _WEIGHTS)))
        else:
            shutil.copy2(path, place / path.name)


def _resize_index(place: Path) -> None:
    """The index states the bytes of all tensors, which gains in float32 change."""
    for path in place.glob("*.index.json"):
        index = json.loads(path.read_text(encoding="utf-8"))
        total = sum(shard.stat().st_size for shard in place.glob("*.safetensors"))
        index["metadata"] = {**index.get("metadata", {}), "total_size": total}
        path.write_text(json.dumps(index, indent=2), encoding="utf-8")
