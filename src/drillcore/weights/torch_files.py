"""PyTorch files (.bin, .pt, .pth, .ckpt): one, or shards with or without an index. Code in a pickle is never run."""

import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drillcore.weights.bad_file import check_file
from drillcore.weights.source import Config, InputError, Note, TensorSpec
from drillcore.weights.tied import settle_ties

_CONTAINERS = ("state_dict", "model_state_dict", "model", "module", "params", "ema")
_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"
# A damaged pickle or archive fails wherever the bytes first make no sense; a test flips bytes to find these.
_DAMAGE = (RuntimeError, OSError, EOFError, ValueError, LookupError, AttributeError, TypeError, AssertionError,
           ArithmeticError, MemoryError, struct.error, zipfile.BadZipFile)  # fmt: skip
_CONVERT = "save the weights alone where the model was made: safetensors.torch.save_model(model, FILE)"


class TorchSource:
    """A checkpoint in PyTorch files; each tensor is a view of the mapped file (zip format, torch 1.6 and later)."""

    def __init__(
        self, files: Sequence[Path], *, label: str, config: Config, notes: Sequence[Note] = (),
        index: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.label = label
        self._files = {path.name: path for path in files}
        self._held: dict[str, dict[str, Tensor]] = {}
        self.specs: dict[str, TensorSpec] = {}
        found = list(notes)
        for path in files:
            tensors, others = self._shard(path.name)
            wanted = {k: t for k, t in tensors.items() if index is None or index.get(k, path.name) == path.name}
            specs, tied, config = settle_ties(_specs(wanted, path.name, self.specs), wanted, config)
            self.specs.update(specs)
            found += [*others, *tied]
        self.config, self.notes = config, tuple(found)
        _nothing_lost(self.specs, found, index)

    def read(self, name: str, rows: slice | None = None) -> Tensor:
        """See `Source.read`."""
        tensor = self._shard(self.specs[name].file)[0][name].detach()
        return tensor if rows is None else tensor[rows]

    def _shard(self, file: str) -> tuple[dict[str, Tensor], list[Note]]:
        """The tensors of a shard. Mapped shards cost no memory and are kept; of the others only the last one is."""
        if file in self._held:
            return self._held[file], []
        path = self._files[file]
        loaded, mapped = load_pickle(path)
        tensors, notes = _tensors(loaded, path)
        if not mapped:
            self._held = {k: v for k, v in self._held.items() if _starts_with(self._files[k], _ZIP)}
        self._held[file] = tensors
        return tensors, notes


def load_pickle(path: Path) -> tuple[Any, bool]:
    """Load a PyTorch file without running code: (what it holds, whether it is mapped).

    Raises:
        InputError: the file holds code, is damaged, is not a PyTorch file, or cannot be read.
    """
    check_file(path)
    mapped = _starts_with(path, _ZIP)
    if not mapped and not _starts_with(path, _PICKLE):
        raise InputError("is not a PyTorch file, or is truncated (neither a zip archive nor a pickle)", where=path,
                         remedy="download the file again; if it has another format, rename it")  # fmt: skip
    try:
        if mapped and _is_torchscript(path):
            raise InputError("is a TorchScript archive, which holds code; nothing of it was run", where=path,
                             remedy=_CONVERT)  # fmt: skip
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected pickle protocol", UserWarning)  # read, or refused below
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped), mapped
    except pickle.UnpicklingError as error:
        raise InputError(f"holds more than tensors ({_first_line(error)}); nothing of it was run", where=path,
                         remedy=_CONVERT) from error  # fmt: skip
    except _DAMAGE as error:
        raise InputError(f"is truncated or damaged ({_first_line(error)})", where=path,
                         remedy="download the file again and compare its size or checksum") from error  # fmt: skip


def _starts_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


def _is_torchscript(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _first_line(error: Exception) -> str:
    """What was wrong, without torch's advice to load the file unsafely."""
    code = re.search(r"GLOBAL (\S+)", str(error))
    operand = re.search(r"Unsupported operand \d+", str(error))
    if code:
        return f"code: {code[1]}"
    return operand[0] if operand else (str(error).strip() or type(error).__name__).splitlines()[0][:160]


def _tensors(loaded: Any, path: Path) -> tuple[dict[str, Tensor], list[Note]]:
    """The state dict of a file, out of its container; what lies beside it is named."""
    notes: list[Note] = []
    while isinstance(loaded, Mapping) and not any(isinstance(v, Tensor) for v in loaded.values()):
        key = next((k for k in _CONTAINERS if isinstance(loaded.get(k), Mapping)), None)
        if key is None:
            break
        notes += [Note(f"({path.name}: {k})", "ignored", "beside the weights") for k in loaded if k != key]
        loaded = loaded[key]
    if not isinstance(loaded, Mapping):
        raise InputError(f"holds a {type(loaded).__name__}, not a dictionary of tensors", where=path, remedy=_CONVERT)
    tensors = {str(k): v for k, v in loaded.items() if isinstance(v, Tensor) and _holds_numbers(v)}
    if not tensors:
        keys = ", ".join(map(str, list(loaded)[:6])) or "nothing"
        raise InputError(f"holds no tensors; its keys: {keys}", where=path, remedy=_CONVERT)
    rest = [(str(k), v) for k, v in loaded.items() if str(k) not in tensors]
    return tensors, [*notes, *(_set_aside(k, v) for k, v in rest)]


def _holds_numbers(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_meta


def _set_aside(name: str, value: object) -> Note:
    if isinstance(value, Tensor):
        what = "on the meta device, without numbers" if value.is_meta else f"stored as {value.layout}"
        return Note(name, "skipped", f"a tensor {what.replace('torch.', '')}", _CONVERT)
    return Note(name, "ignored", f"a {type(value).__name__}, not a tensor")


def tensor_spec(name: str, tensor: Tensor, file: str = "") -> TensorSpec:
    """The spec of a tensor in memory or mapped."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorSpec(name, tuple(tensor.shape), dtype, tensor.numel() * tensor.element_size(), file)


def _specs(tensors: Mapping[str, Tensor], file: str, others: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    for name in tensors:
        if name in others:
            raise InputError(f"tensor {name!r} is in two shards: {others[name].file} and {file}",
                             remedy="keep the shards of one model in the folder, or give one file")  # fmt: skip
    return {name: tensor_spec(name, tensor, file) for name, tensor in tensors.items()}


def _nothing_lost(specs: Mapping[str, TensorSpec], notes: Sequence[Note], index: Mapping[str, str] | None) -> None:
    lost = sorted(set(index or ()) - specs.keys() - {note.name for note in notes})
    if lost:
        raise InputError(f"the index names {len(lost)} tensor(s) that the shards lack, first {lost[0]!r}",
                         remedy="download the shards again")  # fmt: skip
