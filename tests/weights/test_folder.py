"""Folders as people have them: which files are read, and that the others are listed."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from drillcore.weights import InputError, assign, open_source

INDEX, TORCH_INDEX = "model.safetensors.index.json", "pytorch_model.bin.index.json"
# Each file holds its own number, so that a read tells which file was chosen. In order of precedence.
LADDER = [
    ("indexed-a.safetensors", INDEX),
    ("model.safetensors", ""),
    ("model-00001-of-00001.safetensors", ""),
    ("other.safetensors", ""),
    ("indexed-b.bin", TORCH_INDEX),
    ("pytorch_model.bin", ""),
    ("pytorch_model-00001-of-00001.bin", ""),
    ("other.pt", ""),
    ("consolidated.safetensors", ""),
    ("consolidated.00.pth", ""),
]


def put(folder: Path, names: list[str]) -> None:
    for number, (name, index) in enumerate(LADDER):
        if name not in names:
            continue
        tensors = {"w.weight": torch.full((2, 2), float(number))}
        if name.endswith(".safetensors"):
            save_file(tensors, folder / name)
        else:
            torch.save(tensors, folder / name)
        if index:
            (folder / index).write_text(json.dumps({"weight_map": {"w.weight": name}}))


@pytest.mark.parametrize("first", range(len(LADDER)))
def test_precedence(tmp_path: Path, first: int) -> None:
    names = [name for name, _ in LADDER[first:]]
    put(tmp_path, names)
    source = open_source(tmp_path)
    assert source.read("w.weight")[0, 0] == first  # type: ignore[index]
    assert {n.name for n in source.notes} == set(names[1:])
    for note in source.notes:
        assert note.state == "ignored"
        assert note.detail == f"duplicate: {names[0]} comes first"
    entries = [e for e in assign(source).census.entries if e.state == "ignored"]
    assert {e.tensor for e in entries} == set(names[1:])


def test_what_a_trainer_leaves_is_not_weights(tmp_path: Path) -> None:
    put(tmp_path, ["pytorch_model.bin"])
    for name in ("optimizer.pt", "scheduler.pt", "training_args.bin", "rng_state.pth"):
        torch.save({"w.weight": torch.zeros(1)}, tmp_path / name)
    source = open_source(tmp_path)
    assert source.specs["w.weight"].file == "pytorch_model.bin"
    assert not source.notes


def test_an_adapter_folder_is_an_adapter(tmp_path: Path) -> None:
    put(tmp_path, ["model.safetensors"])
    factors = {
        "base_model.model.m.lora_A.weight": torch.ones(1, 3),
        "base_model.model.m.lora_B.weight": torch.ones(2, 1),
    }
    save_file(factors, tmp_path / "adapter_model.safetensors")
    torch.save(factors, tmp_path / "adapter_model.bin")
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 1, "lora_alpha": 1}')
    source = open_source(tmp_path)
    assert set(source.specs) == {"m.weight"}
    assert [n.name for n in source.notes] == ["adapter_model.bin", "model.safetensors"]
    assert {n.detail for n in source.notes} == {"duplicate: adapter_model.safetensors comes first"}


def test_an_index_of_torch_shards_that_were_not_downloaded_does_not_matter(tmp_path: Path) -> None:
    put(tmp_path, ["model.safetensors"])
    (tmp_path / TORCH_INDEX).write_text(json.dumps({"weight_map": {"w.weight": "pytorch_model-00001-of-00002.bin"}}))
    assert not open_source(tmp_path).notes


def test_an_absent_shard_is_missing(tmp_path: Path) -> None:
    save_file({"a.weight": torch.ones(2, 2)}, tmp_path / "model-00001-of-00003.safetensors")
    save_file({"b.weight": torch.ones(2, 2)}, tmp_path / "model-00003-of-00003.safetensors")
    (note,) = open_source(tmp_path).notes
    assert (note.name, note.state, note.remedy) == ("(shard 2 of 3)", "missing", "finish the download")


def test_a_shard_alone_can_be_named(tmp_path: Path) -> None:
    save_file({"a.weight": torch.ones(2, 2)}, tmp_path / "model-00001-of-00003.safetensors")
    assert set(open_source(tmp_path / "model-00001-of-00003.safetensors").specs) == {"a.weight"}


def test_configuration_beside_and_given(tmp_path: Path) -> None:
    put(tmp_path, ["model.safetensors"])
    (tmp_path / "config.json").write_text('{"hidden_size": 1}')
    (tmp_path / "other.json").write_text('{"hidden_size": 2}')
    for target in (tmp_path, tmp_path / "model.safetensors"):
        assert open_source(target).config["hidden_size"] == 1
        assert open_source(target, config=tmp_path / "other.json").config["hidden_size"] == 2


@pytest.mark.parametrize(("text", "said"), [("{", "is not readable JSON"), ("[1]", "is not a JSON object")])
def test_a_broken_configuration(tmp_path: Path, text: str, said: str) -> None:
    put(tmp_path, ["model.safetensors"])
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=rf"config\.json: {said}(.|\n)*give --config FILE"):
        open_source(tmp_path)


def test_config_that_is_a_folder_or_missing(tmp_path: Path) -> None:
    put(tmp_path, ["model.safetensors"])
    with pytest.raises(InputError, match=r"is a folder, not a configuration file(.|\n)*config\.json"):
        open_source(tmp_path, config=tmp_path)
    with pytest.raises(InputError, match=r"lost\.json: no such configuration file(.|\n)*--config"):
        open_source(tmp_path, config=tmp_path / "lost.json")
