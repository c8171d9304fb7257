"""Open what a person names: a file, a folder, a hub id or a live module."""

from pathlib import Path

from drillcore.weights.folder import look_into, read_config
from drillcore.weights.safetensors_files import SafetensorsSource, read_index
from drillcore.weights.source import InputError, Source


def open_source(target: object, *, config: Path | None = None) -> Source:
    """Open a checkpoint without reading a weight.

    Args:
        target: a file, a folder, a Hugging Face id, or a live ``torch.nn.Module``.
        config: a config.json to use instead of the one beside the weights.

    Raises:
        InputError: there is nothing to open; says what to do.
    """
    path = Path(str(target))
    if path.is_dir():
        return _folder(path, config)
    if path.is_file():
        return _file(path, config)
    raise InputError("no such file or folder", where=target)


def _folder(path: Path, config_path: Path | None) -> Source:
    found = look_into(path)
    config = read_config(config_path or path / "config.json")
    if found.format == "safetensors":
        index = read_index(found.index_file) if found.index_file else None
        return SafetensorsSource(found.files, label=str(path), config=config, notes=found.ignored, index=index)
    raise InputError(f"format {found.format} is not yet opened", where=path)


def _file(path: Path, config_path: Path | None) -> Source:
    config = read_config(config_path or path.parent / "config.json")
    return SafetensorsSource([path], label=str(path), config=config)
