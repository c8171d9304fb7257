"""The state of a training run on disk: whole and checked, or refused."""

import json
from hashlib import blake2b
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from drillcore.errors import UserError
from drillcore.runs import atomic_path, write_text

_KEPT = 2  # the one before the last stays until the next is safe


class CheckpointError(UserError):
    """A checkpoint cannot be used; the message names the file and what to do."""


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write the state after `step` steps; its digest is written last and makes it count.

    Raises:
        OSError: the disk is full or cannot be written; the checkpoint before stays.
    """
    path = folder / f"step-{step:08}.pt"
    with atomic_path(path) as temporary:
        torch.save(state, temporary)
        digest = _digest(temporary)
    write_text(folder / f"step-{step:08}.json", json.dumps({"step": step, "digest": digest}))
    for old in sorted(folder.glob("step-*.json"))[:-_KEPT]:
        old.unlink()
        old.with_suffix(".pt").unlink(missing_ok=True)


def load(folder: Path) -> tuple[int, dict[str, Any]] | None:
    """The newest state and its step; None where nothing was saved.

    Raises:
        CheckpointError: a file is not what was written. Nothing is trained over it.
    """
    marks = sorted(folder.glob("step-*.json"))
    if not marks:
        return None
    mark, path = marks[-1], marks[-1].with_suffix(".pt")
    remedy = f"delete {mark.name} and {path.name} to go on from the one before, or the folder to begin again"
    try:
        said = json.loads(mark.read_text(encoding="utf-8"))
        if _digest(path) != said["digest"]:
            raise CheckpointError(f"{path} is not what was written (its digest differs): {remedy}")
        return int(said["step"]), torch.load(path, weights_only=True)
    except (json.JSONDecodeError, KeyError, FileNotFoundError, UnpicklingError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}): {remedy}") from error


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        found = blake2b(digest_size=16)
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()
