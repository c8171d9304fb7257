"""PyTorch files against the tensors that were saved; a pickle's code is never run."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from drillcore.weights import InputError, open_source
from drillcore.weights.torch_files import TorchSource

TENSORS = {
    "embed.weight": torch.randn(7, 4, generator=torch.Generator().manual_seed(2)),
    "layers.0.weight": torch.randn(4, 4, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16),
}


class Malicious:
    """A pickle of this runs code when it is loaded without care."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.victim,))


def check(source: Any, tensors: dict[str, torch.Tensor] = TENSORS) -> None:
    assert set(source.specs) == set(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(source.read(name), tensor)
        assert torch.equal(source.read(name, slice(1, 3)), tensor[1:3])
        assert source.specs[name].dtype == str(tensor.dtype).removeprefix("torch.")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "last.ckpt"])
def test_one_file(tmp_path: Path, name: str) -> None:
    torch.save(TENSORS, tmp_path / name)
    check(open_source(tmp_path / name))
    check(open_source(tmp_path))


def test_the_old_format_is_loaded_without_a_map(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "model.bin", _use_new_zipfile_serialization=False)
    check(open_source(tmp_path / "model.bin"))


@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("zipped", [True, False])
def test_shards(tmp_path: Path, with_index: bool, zipped: bool) -> None:
    files = {f"pytorch_model-0000{i + 1}-of-00002.bin": name for i, name in enumerate(TENSORS)}
    for file, name in files.items():
        torch.save({name: TENSORS[name]}, tmp_path / file, _use_new_zipfile_serialization=zipped)
    if with_index:
        index = {"weight_map": {name: file for file, name in files.items()}}
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    source = open_source(tmp_path)
    check(source)
    assert isinstance(source, TorchSource)
    assert len(source._held) == (2 if zipped else 1)  # of files that cannot be mapped only one is in memory


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict"])
def test_containers(tmp_path: Path, key: str) -> None:
    torch.save({key: TENSORS, "epoch": 3, "optimizer": {"lr": 0.1}}, tmp_path / "run.pt")
    source = open_source(tmp_path / "run.pt")
    check(source)
    assert [n.name for n in source.notes] == ["(run.pt: epoch)", "(run.pt: optimizer)"]


def test_shared_bytes_are_counted_once(tmp_path: Path) -> None:
    embed = TENSORS["embed.weight"]
    torch.save({"embed.weight": embed, "lm_head.weight": embed, "half.weight": embed[:3]}, tmp_path / "m.bin")
    source = open_source(tmp_path / "m.bin")
    assert set(source.specs) == {"embed.weight", "half.weight"}  # a part of it is a matrix of its own
    (note,) = source.notes
    assert (note.name, note.state, note.detail) == ("lm_head.weight", "tied", "shares the bytes of embed.weight")
    assert source.config["tie_word_embeddings"] is True


def test_code_in_a_pickle_is_not_run(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    for zipped in (True, False):
        torch.save({**TENSORS, "evil": Malicious(victim)}, tmp_path / "m.bin", _use_new_zipfile_serialization=zipped)
        with pytest.raises(InputError, match=r"m\.bin: holds more than tensors \(code: \S+\); nothing of it was run"):
            open_source(tmp_path / "m.bin")
        assert not victim.exists()
    torch.load(tmp_path / "m.bin", weights_only=False)  # the pickle does what it is feared to do
    assert victim.exists()


def test_a_whole_module_is_refused(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), tmp_path / "m.pt")
    with pytest.raises(InputError, match=r"code: torch\.nn\.modules\.linear\.Linear(.|\n)*save_model"):
        open_source(tmp_path / "m.pt")


def test_torchscript_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:  # what torch.jit.save writes beside the data
        archive.writestr("m/constants.pkl", b"")
    with pytest.raises(InputError, match="TorchScript archive, which holds code"):
        open_source(tmp_path / "m.pt")


@pytest.mark.parametrize(
    ("held", "said"), [([1, 2], "holds a list"), ({"epoch": 1}, "holds no tensors; its keys: epoch")]
)
def test_no_tensors(tmp_path: Path, held: Any, said: str) -> None:
    torch.save(held, tmp_path / "m.pt")
    with pytest.raises(InputError, match=said):
        open_source(tmp_path / "m.pt")
