"""A Hugging Face id: the local cache first, then the hub. The cache is read without huggingface_hub."""

import difflib
import os
import re
from pathlib import Path

from drillcore.weights.folder import look_into
from drillcore.weights.source import InputError

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_SAFE = ["config.json", "adapter_config.json", "*.safetensors", "*.safetensors.index.json"]
_TORCH = ["*.bin", "*.bin.index.json"]
_ELSEWHERE = ["*/*", "consolidated*", "training_args*", "optimizer*"]  # other formats and what is not weights


def find_model(name: str) -> Path:
    """The folder of a model that is named by its id, from the cache or the hub.

    Raises:
        InputError: it is neither a path nor an id, or the model is not to be had; says why and what is near.
    """
    cached = cached_model(name)
    if cached is not None and _has_weights(cached):
        return cached
    parent = Path(name).expanduser().parent
    if not _ID.fullmatch(name) or "/" not in name or parent.is_dir():
        raise InputError("no such file or folder", where=name, remedy=_near(Path(name).expanduser()))
    return _download(name)


def cached_model(name: str) -> Path | None:
    """The snapshot of a model in the local cache; None where there is none."""
    if not _ID.fullmatch(name):
        return None
    repository = _cache() / f"models--{name.replace('/', '--')}"
    main = repository / "refs" / "main"
    snapshots = sorted(p for p in (repository / "snapshots").glob("*") if p.is_dir())
    if main.is_file():
        named = repository / "snapshots" / main.read_text(encoding="utf-8").strip()
        snapshots = [p for p in snapshots if p == named] or snapshots
    return snapshots[-1] if snapshots else None


def _cache() -> Path:
    """Where huggingface_hub keeps its cache, by the same variables in the same order."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser()
    caches = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"))
    home = Path(os.environ.get("HF_HOME", caches / "huggingface"))
    return home.expanduser() / "hub"


def _has_weights(folder: Path) -> bool:
    try:
        look_into(folder)
    except InputError:
        return False
    return True


def _download(name: str) -> Path:
    """Fetch configuration and safetensors, or PyTorch files where there are no safetensors."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise InputError(
            "no such file or folder; to fetch a model of this name from the Hugging Face hub, drillcore needs "
            "huggingface_hub", where=name, remedy="pip install 'drillcore[hf]', or download the model yourself",
        ) from error  # fmt: skip
    try:
        folder = Path(snapshot_download(name, cache_dir=_cache(), allow_patterns=_SAFE, ignore_patterns=_ELSEWHERE))
        if not any(folder.glob("*.safetensors")):
            snapshot_download(name, cache_dir=_cache(), allow_patterns=_TORCH, ignore_patterns=_ELSEWHERE)
    except (OSError, ValueError) as error:  # every error of huggingface_hub is one of the two
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"no such file or folder, not in the cache ({_cache()}), and not to be had from the hub: {reason}",
            where=name, remedy="check the name, the network and, for a gated model, `hf auth login`",
        ) from error  # fmt: skip
    return folder


def _near(path: Path) -> str:
    """What to do about a path that is not there: names that are near it."""
    folder = path.parent
    if not folder.is_dir():
        return f"the folder {folder} does not exist either; check the path"
    names = sorted(p.name for p in folder.iterdir())
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(str(folder / n) for n in near)}?" if near else "check the path"
