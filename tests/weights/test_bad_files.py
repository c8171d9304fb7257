"""Bad files: each is named, with what is wrong and what to do, and none is a traceback."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from drillcore.weights import InputError, assign, open_source

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
FORMATS = ["model.safetensors", "pytorch_model.bin", "model.gguf"]


def refused(target: Path, what: str, remedy: str) -> None:
    with pytest.raises(InputError) as caught:
        open_source(target)
    assert what in caught.value.what
    assert remedy in caught.value.remedy
    assert str(target) in caught.value.where
    assert str(caught.value) == f"{caught.value.where}: {caught.value.what}\nWhat to do: {caught.value.remedy}"


def saved(path: Path) -> bytes:
    tensors = {f"layers.{i}.weight": torch.ones(16, 16) * i for i in range(4)}
    save_file(tensors, path) if path.suffix == ".safetensors" else torch.save(tensors, path)
    return path.read_bytes()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("content", "what", "remedy"),
    [
        (POINTER, "is a Git-LFS pointer, not the weights", "git lfs pull"),
        (b"", "is empty (0 bytes)", "download the file again"),
        (b"<!DOCTYPE html><html>404</html>", "is a web page, not the weights", "download the file again"),
    ],
)
def test_what_is_no_weights_in_any_format(tmp_path: Path, name: str, content: bytes, what: str, remedy: str) -> None:
    (tmp_path / name).write_bytes(content)
    refused(tmp_path / name, what, remedy)
    refused_in_folder = pytest.raises(InputError, match=name)
    with refused_in_folder:
        open_source(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("keep", [5, 100, -100])
def test_truncated(tmp_path: Path, name: str, keep: int) -> None:
    data = saved(tmp_path / name)
    (tmp_path / name).write_bytes(data[:keep])
    refused(tmp_path / name, "truncated", "download the file again")


def test_truncated_says_how_many_bytes_are_there(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    data = saved(path)
    path.write_bytes(data[:-100])
    refused(path, f"is truncated: {len(data) - 100} bytes, its header claims {len(data)}", "checksum")


@pytest.mark.parametrize("length", [10**6, 2**62])
def test_header_too_large(tmp_path: Path, length: int) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{}" + b" " * 50)
    refused(path, f"is truncated: 60 bytes, its header alone claims {length + 8}", "rename it")


def test_damaged_header(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 10) + b"not json!!" + b" " * 50)
    refused(path, "has a damaged header", "download the file again")


def test_damaged_pickle(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"\x80\x02nonsense")
    with pytest.raises(InputError, match=r"model\.bin: "):
        open_source(path)


@pytest.mark.parametrize("index", ["model.safetensors.index.json", "pytorch_model.bin.index.json"])
def test_index_that_names_a_missing_shard(tmp_path: Path, index: str) -> None:
    (tmp_path / index).write_text(json.dumps({"weight_map": {"a": "x-00001.bin", "b": "x-00002.bin"}}))
    refused(tmp_path, "names 2 shard(s) that are not in the folder: x-00001.bin, x-00002.bin", "finish the download")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 3}}'])
def test_index_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    refused(tmp_path, "is not an index of shards", "download it again")


def test_empty_folder_and_folder_without_weights(tmp_path: Path) -> None:
    refused(tmp_path, "holds no weights; it holds nothing", ".safetensors")
    (tmp_path / "README.md").write_text("hello")
    refused(tmp_path, "holds no weights; it holds README.md", ".safetensors")


def test_unknown_suffix(tmp_path: Path) -> None:
    (tmp_path / "weights.npz").write_bytes(b"PK")
    refused(tmp_path / "weights.npz", "has a suffix that is not known (.npz)", ".safetensors")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", ""])
def test_no_permission(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so for root the answer of the system is put in its place."""
    saved(tmp_path / (name or "model.safetensors"))
    target = tmp_path / name if name else tmp_path
    if os.geteuid() == 0:
        access = os.access
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != target and access(path, mode))
    else:
        target.chmod(0)
    try:
        refused(target, "cannot be read (no permission)", "permissions")
    finally:
        target.chmod(0o700)


def test_an_error_while_opening_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path / "model.safetensors")

    def broken(self: Path, *_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "open", broken)
    refused(tmp_path / "model.safetensors", "cannot be read (Input/output error)", "permissions")


def build_nothing(folder: Path) -> None:
    save_file({"model.norm.weight": torch.ones(4)}, folder / "model.safetensors")


def build_scalar(folder: Path) -> None:
    save_file(
        {
            "logit_scale": torch.tensor(4.6),
            "model.layers.0.self_attn.q_proj.weight": torch.ones(4, 4),
            "model.layers.0.input_layernorm.weight": torch.tensor(1.0),
            "model.layers.0.mlp.up_proj.weight": torch.tensor(1.0),
        },
        folder / "model.safetensors",
    )


@pytest.mark.parametrize("build", [build_nothing, build_scalar])
def test_tensors_without_dimensions_are_in_the_census(tmp_path: Path, build: Callable[[Path], None]) -> None:
    build(tmp_path)
    source = open_source(tmp_path)
    entries = {e.tensor: e for e in assign(source).census.entries}
    assert set(source.specs) <= set(entries)
    if build is build_scalar:
        assert entries["logit_scale"].state == "unknown"
        assert entries["model.layers.0.mlp.up_proj.weight"].detail.endswith("its shape is []")


def test_a_safetensors_file_that_is_empty_of_tensors(tmp_path: Path) -> None:
    save_file({}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="holds no tensors that can be read"):
        assign(open_source(tmp_path))
