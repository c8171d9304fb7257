"""Safetensors: one file and shards, against the tensors that were saved."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from drillcore.weights import InputError, open_source

TENSORS = {
    "a.weight": torch.randn(6, 4, generator=torch.Generator().manual_seed(1)),
    "b.weight": torch.arange(12.0).reshape(3, 4).to(torch.bfloat16),
    "c.weight": torch.tensor(2.5),
}


def test_one_file(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")
    source = open_source(tmp_path / "model.safetensors")
    assert set(source.specs) == set(TENSORS)
    for name, tensor in TENSORS.items():
        spec = source.specs[name]
        assert (spec.shape, spec.dtype) == (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        assert spec.nbytes == tensor.numel() * tensor.element_size()
        assert torch.equal(source.read(name), tensor)
    assert torch.equal(source.read("a.weight", slice(2, 5)), TENSORS["a.weight"][2:5])


@pytest.mark.parametrize("with_index", [True, False])
def test_shards(tmp_path: Path, with_index: bool) -> None:
    names = list(TENSORS)
    files = {"model-00001-of-00002.safetensors": names[:1], "model-00002-of-00002.safetensors": names[1:]}
    for file, held in files.items():
        save_file({n: TENSORS[n] for n in held}, tmp_path / file)
    if with_index:
        index = {"weight_map": {n: f for f, held in files.items() for n in held}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    source = open_source(tmp_path)
    assert {n: s.file for n, s in source.specs.items()} == {n: f for f, held in files.items() for n in held}
    assert all(torch.equal(source.read(n), t) for n, t in TENSORS.items())
    assert not source.notes


def test_index_file_itself_can_be_named(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "x.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(TENSORS, "x.safetensors")})
    )
    assert set(open_source(tmp_path / "model.safetensors.index.json").specs) == set(TENSORS)


def test_read_is_a_view_of_the_mapped_file(tmp_path: Path) -> None:
    """Two reads give the same memory, so that nothing was copied: the mapped page is seen by both."""
    save_file(TENSORS, tmp_path / "model.safetensors")
    source = open_source(tmp_path)
    whole, rows = source.read("a.weight"), source.read("a.weight", slice(1, 3))
    assert rows.untyped_storage().nbytes() >= whole.untyped_storage().nbytes()


def test_the_same_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "x.safetensors")
    save_file(TENSORS, tmp_path / "y.safetensors")
    with pytest.raises(InputError, match=r"in two shards: x\.safetensors and y\.safetensors"):
        open_source(tmp_path)


def test_the_index_decides_where_a_tensor_is_in_two_shards(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "x.safetensors")
    save_file({n: torch.zeros_like(t) for n, t in TENSORS.items()}, tmp_path / "y.safetensors")
    where = dict.fromkeys(TENSORS, "x.safetensors") | {"b.weight": "y.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    source = open_source(tmp_path)
    assert source.specs["b.weight"].file == "y.safetensors"
    assert not source.read("b.weight").any()
    assert torch.equal(source.read("a.weight"), TENSORS["a.weight"])


def test_an_index_that_names_a_lost_tensor(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "x.safetensors")
    where = dict.fromkeys([*TENSORS, "lost.weight"], "x.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    with pytest.raises(InputError, match=r"1 tensor\(s\) that the shards lack, first 'lost.weight'"):
        open_source(tmp_path)
