"""Open what a person names: a file, a folder, a hub id or a live module."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import nn

from drillcore.weights.float8 import Float8Source, is_float8
from drillcore.weights.folder import TORCH_SUFFIXES, look_into, read_config, read_index
from drillcore.weights.gguf_file import GgufSource
from drillcore.weights.hub import cached_model, find_model
from drillcore.weights.live_module import ModuleSource
from drillcore.weights.lora import LoraSource, read_adapter_config
from drillcore.weights.mxfp4 import with_mxfp4
from drillcore.weights.packed import without_packed
from drillcore.weights.safetensors_files import SafetensorsSource
from drillcore.weights.source import Config, InputError, Note, Source
from drillcore.weights.torch_files import TorchSource

_FORMATS = {".safetensors": "safetensors", ".gguf": "gguf", **dict.fromkeys(TORCH_SUFFIXES, "torch")}


def open_source(target: object, *, config: Path | None = None, base: object = None) -> Source:
    """Open a checkpoint without reading a weight.

    Args:
        target: a file, a folder, a Hugging Face id, or a live ``torch.nn.Module``.
        config: a config.json to use instead of the one beside the weights.
        base: for a LoRA folder, the base model (folder or id) whose configuration counts.

    Raises:
        InputError: there is nothing to open, or it cannot be used; says what to do.
    """
    given = None if config is None else read_config(Path(config), required=True)
    if isinstance(target, nn.Module):
        return _decoded(ModuleSource(target, config=given))
    label = str(target)
    if not label:
        raise InputError("an empty name is no checkpoint", remedy="give a file, a folder or a Hugging Face id")
    if not label.isprintable() and any("\udc80" <= sign <= "\udcff" for sign in label):
        raise InputError("the name is not UTF-8", where=ascii(label), remedy="rename the file or folder")
    path = _expanded(label)
    if path.is_file() and path.stem == "adapter_model" and (path.parent / "adapter_config.json").exists():
        path = path.parent
    elif not path.exists():
        path = find_model(label)
    return _decoded(_file(path, given) if path.is_file() else _folder(path, label, given, base))


def _expanded(label: str) -> Path:
    try:
        return Path(label).expanduser()
    except RuntimeError as error:
        raise InputError("no such user", where=label, remedy="check the path") from error


def _decoded(source: Source) -> Source:
    """The source with what is packed or scaled made readable, or named where it cannot be."""
    source = without_packed(with_mxfp4(source))
    return Float8Source(source) if any(is_float8(spec) for spec in source.specs.values()) else source


def _folder(path: Path, label: str, given: Config | None, base: object) -> Source:
    found = look_into(path)
    if base is not None and found.format != "lora":
        raise InputError("a base was given, and this is no LoRA folder", where=label, remedy="leave --base out")
    if found.format == "lora":
        adapter = read_adapter_config(path)
        factors = _files(_FORMATS[found.files[0].suffix], found.files, label, {}, found.notes)
        return LoraSource(factors, adapter, config=_base_config(adapter, path, base) if given is None else given)
    if found.format == "gguf":
        return GgufSource(found.files, label=label, given=given, notes=found.notes)
    config = read_config(path / "config.json") if given is None else given
    index = read_index(found.index_file) if found.index_file else None
    return _files(found.format, found.files, label, config, found.notes, index)


def _file(path: Path, given: Config | None) -> Source:
    format_ = _FORMATS.get(path.suffix.lower())
    if path.name.endswith(".index.json"):
        index = read_index(path)
        files = [path.parent / shard for shard in sorted(set(index.values()))]
        return _files(_FORMATS.get(files[0].suffix, "torch"), files, str(path), _beside(path, given), index=index)
    if format_ is None:
        raise InputError(f"has a suffix that is not known ({path.suffix or 'none'})", where=path,
                         remedy=f"give a folder, or a file ending in {', '.join(_FORMATS)}")  # fmt: skip
    if format_ == "gguf":
        return GgufSource([path], label=str(path), given=given)
    return _files(format_, [path], str(path), _beside(path, given))


def _beside(path: Path, given: Config | None) -> Config:
    return read_config(path.parent / "config.json") if given is None else given


def _files(
    format_: str, files: list[Path], label: str, config: Config, notes: Sequence[Note] = (),
    index: Mapping[str, str] | None = None,
) -> Source:  # fmt: skip
    opened = TorchSource if format_ == "torch" else SafetensorsSource
    return opened(files, label=label, config=config, notes=notes, index=index)


def _base_config(adapter: Config, folder: Path, base: object) -> Config:
    """The configuration of a LoRA's base model: the one given, else the one that the adapter names, where it is here.

    Raises:
        InputError: the base that was given is not there.
    """
    named = str(adapter.get("base_model_name_or_path") or "")
    if base is None:
        place = next((p for p in (Path(named), folder / named) if named and p.is_dir()), None) or cached_model(named)
        return read_config(place / "config.json") if place else {}
    path = _expanded(str(base))
    place = path if path.exists() else find_model(str(base))
    return read_config(place / "config.json" if place.is_dir() else place.parent / "config.json")
