"""Hugging Face ids: a cache as huggingface_hub lays it out, and a hub that is not there."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from drillcore.weights import InputError, open_source

WEIGHTS = {"a.weight": torch.ones(2, 3)}


def snapshot(cache: Path, name: str, commit: str, *, weights: bool = True) -> Path:
    folder = cache / f"models--{name.replace('/', '--')}" / "snapshots" / commit
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"hidden_size": 3}')
    if weights:
        blob = folder.parent.parent / "blobs" / commit
        blob.parent.mkdir(exist_ok=True)
        save_file(WEIGHTS, blob)
        (folder / "model.safetensors").symlink_to(blob)
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home" / "hub"


@pytest.mark.parametrize("variable", ["HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"])
def test_cached_model(cache: Path, monkeypatch: pytest.MonkeyPatch, variable: str, tmp_path: Path) -> None:
    if variable != "HF_HOME":
        cache = tmp_path / "elsewhere"
        monkeypatch.setenv(variable, str(cache))
    snapshot(cache, "org/name", "abc")
    source = open_source("org/name")
    assert (source.label, source.config["hidden_size"]) == ("org/name", 3)
    assert torch.equal(source.read("a.weight"), WEIGHTS["a.weight"])


def test_the_cache_is_where_huggingface_hub_puts_it(cache: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    folder = snapshot(cache, "org/name", "abc")
    (folder.parent.parent / "refs").mkdir()
    (folder.parent.parent / "refs" / "main").write_text("abc")
    found = hub.snapshot_download("org/name", cache_dir=cache, local_files_only=True)
    assert Path(found) == folder


def test_main_decides_among_snapshots(cache: Path) -> None:
    snapshot(cache, "gpt2", "zzz")
    folder = snapshot(cache, "gpt2", "abc")
    (folder / "config.json").write_text('{"hidden_size": 5}')
    (folder.parent.parent / "refs").mkdir()
    (folder.parent.parent / "refs" / "main").write_text("abc")
    assert open_source("gpt2").config["hidden_size"] == 5


def test_a_folder_here_comes_before_the_cache(cache: Path, tmp_path: Path) -> None:
    snapshot(cache, "org/name", "abc")
    (tmp_path / "org" / "name").mkdir(parents=True)
    save_file({"other": torch.zeros(1, 2)}, tmp_path / "org" / "name" / "model.safetensors")
    assert set(open_source("org/name").specs) == {"other"}


@pytest.mark.parametrize("stored", ["model.safetensors", "pytorch_model.bin"])
def test_download_asks_for_safetensors_first(cache: Path, monkeypatch: pytest.MonkeyPatch, stored: str) -> None:
    hub = pytest.importorskip("huggingface_hub")
    snapshot(cache, "org/name", "abc", weights=False)  # only the configuration is in the cache
    asked = []

    def download(name: str, *, cache_dir: Path, allow_patterns: list[str], **_: Any) -> str:
        folder = Path(cache_dir) / "models--org--name" / "snapshots" / "abc"
        asked.append(allow_patterns)
        if f"*{Path(stored).suffix}" in allow_patterns:
            torch.save(WEIGHTS, folder / stored) if stored.endswith("bin") else save_file(WEIGHTS, folder / stored)
        return str(folder)

    monkeypatch.setattr(hub, "snapshot_download", download)
    assert torch.equal(open_source("org/name").read("a.weight"), WEIGHTS["a.weight"])
    assert "*.safetensors" in asked[0]
    assert not any("bin" in pattern for pattern in asked[0])
    assert len(asked) == (1 if stored == "model.safetensors" else 2)


def test_offline_and_not_in_the_cache(cache: Path) -> None:
    pytest.importorskip("huggingface_hub")  # HF_HUB_OFFLINE is set for all tests
    with pytest.raises(
        InputError, match=r"org/name: no such file or folder, not in the cache \(.*home/hub\)(.|\n)*network"
    ):
        open_source("org/name")


def test_without_huggingface_hub_the_extra_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"needs huggingface_hub(.|\n)*pip install 'drillcore\[hf\]'"):
        open_source("org/name")


def test_a_path_that_is_not_there_gets_near_names(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "models" / "llama-base").mkdir(parents=True)
    with pytest.raises(
        InputError, match=r"models/lama-base: no such file or folder\n.*did you mean models/llama-base\?"
    ):
        open_source("models/lama-base")  # the folder models is here, so this is no id
    with pytest.raises(InputError, match=r"no such file or folder\n.*the folder /nowhere/at/all does not exist"):
        open_source("/nowhere/at/all/model")
