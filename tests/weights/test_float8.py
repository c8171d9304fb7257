"""8-bit floats, MXFP4 and packed integers, against the dequantisation written plainly."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from drillcore.weights import InputError, assign, open_source
from drillcore.weights.mxfp4 import unpack

Q = "model.layers.0.self_attn.q_proj"


def opened(folder: Path, tensors: dict[str, Tensor], config: str = "{}") -> Any:
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(config)
    return open_source(folder)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def by_blocks(weight: Tensor, scale: Tensor, rows: int, columns: int) -> Tensor:
    """The definition: every number times the scale of its block."""
    spread = torch.kron(scale, torch.ones(rows, columns))
    return weight.float() * spread[: weight.shape[0], : weight.shape[1]]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("ending", [".weight_scale_inv", ".weight_scale", ".scale", ".scale_weight"])
def test_one_scale_for_the_tensor(tmp_path: Path, ending: str, dtype: torch.dtype) -> None:
    weight, scale = random(6, 4).to(dtype), torch.tensor([0.37])
    source = opened(tmp_path, {f"{Q}.weight": weight, Q + ending: scale, f"{Q}.input_scale": torch.ones(1)})
    assert source.specs[f"{Q}.weight"].dtype == str(dtype).removeprefix("torch.")
    assert set(source.specs) == {f"{Q}.weight"}
    assert torch.equal(source.read(f"{Q}.weight"), weight.float() * 0.37)
    assert {(n.name, n.state, n.detail) for n in source.notes} == {
        (Q + ending, "recognised", f"scale of {Q}.weight"),
        (f"{Q}.input_scale", "recognised", "scale of activations"),
    }


@pytest.mark.parametrize(
    ("shape", "scales", "block", "config"),
    [
        ((256, 384), (2, 3), (128, 128), "{}"),
        ((200, 300), (2, 3), (128, 128), "{}"),  # the last blocks are not full
        ((12, 8), (3, 4), (4, 2), '{"quantization_config": {"weight_block_size": [4, 2]}}'),
        ((12, 8), (3, 1), (4, 8), "{}"),
        ((12, 8), (12, 1), (1, 8), "{}"),  # one per row
    ],
)
def test_blocks(
    tmp_path: Path, shape: tuple[int, int], scales: tuple[int, int], block: tuple[int, int], config: str
) -> None:
    weight, scale = random(*shape).to(torch.float8_e4m3fn), random(*scales, seed=1).abs() + 0.1
    source = opened(tmp_path, {f"{Q}.weight": weight, f"{Q}.weight_scale_inv": scale}, config)
    expected = by_blocks(weight, scale, *block)
    assert torch.equal(source.read(f"{Q}.weight"), expected)
    assert torch.equal(source.read(f"{Q}.weight", slice(5, 11)), expected[5:11])


def test_scale_per_row_as_a_vector(tmp_path: Path) -> None:
    weight, scale = random(6, 4).to(torch.float8_e4m3fn), random(6, seed=1)
    source = opened(tmp_path, {f"{Q}.weight": weight, f"{Q}.weight_scale": scale})
    assert torch.equal(source.read(f"{Q}.weight"), weight.float() * scale[:, None])


def test_scale_as_a_power_of_two(tmp_path: Path) -> None:
    weight = random(256, 128).to(torch.float8_e4m3fn)
    scale = torch.tensor([[127 - 3], [127 + 2]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    source = opened(tmp_path, {f"{Q}.weight": weight, f"{Q}.scale": scale})
    assert torch.equal(source.read(f"{Q}.weight"), by_blocks(weight, torch.tensor([[0.125], [4.0]]), 128, 128))


def test_experts(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.experts.gate_up_proj"
    weight, scale = random(3, 256, 128).to(torch.float8_e4m3fn), random(3, 2, 1, seed=1)
    source = opened(tmp_path, {name: weight, f"{name}_scale_inv": scale})
    expected = torch.stack([by_blocks(w, s, 128, 128) for w, s in zip(weight, scale, strict=True)])
    assert torch.equal(source.read(name), expected)
    assert torch.equal(source.read(name, slice(1, 2)), expected[1:2])


def test_without_its_scale_it_is_refused_by_name(tmp_path: Path) -> None:
    good, bad = f"{Q}.weight", "model.layers.1.self_attn.q_proj.weight"
    weights = {name: random(6, 4).to(torch.float8_e4m3fn) for name in (good, bad)}
    source = opened(tmp_path, weights | {f"{Q}.weight_scale": torch.ones(1)})
    (entry,) = assign(source).census.left_out
    assert (entry.tensor, entry.state) == (bad, "skipped")
    assert "without a scale" in entry.detail
    assert "download the scales too" in entry.remedy


def test_a_scale_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    weight = random(7, 5).to(torch.float8_e4m3fn)
    source = opened(tmp_path, {f"{Q}.weight": weight, f"{Q}.weight_scale": torch.ones(3, 2)})
    assert not source.specs
    notes = {n.name: n for n in source.notes}
    assert notes[f"{Q}.weight"].state == "skipped"
    assert "shape [3, 2], which does not fit" in notes[f"{Q}.weight"].detail


def test_a_broken_block_size_is_said(tmp_path: Path) -> None:
    weight = {f"{Q}.weight": random(6, 4).to(torch.float8_e4m3fn)}
    with pytest.raises(InputError, match="weight_block_size is 128, not two sizes"):
        opened(tmp_path, weight, '{"quantization_config": {"weight_block_size": 128}}')


def test_mxfp4_against_transformers(tmp_path: Path) -> None:
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    generator = torch.Generator().manual_seed(4)
    blocks = torch.randint(0, 256, (3, 6, 2, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(110, 140, (3, 6, 2), generator=generator, dtype=torch.uint8)
    expected = mxfp4.convert_moe_packed_tensors(blocks, scales)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    source = opened(tmp_path, {f"{name}_blocks": blocks, f"{name}_scales": scales})
    assert (source.specs[name].shape, source.specs[name].dtype) == (tuple(expected.shape), "mxfp4")
    assert source.specs[name].nbytes == blocks.numel()
    assert torch.equal(source.read(name), expected)
    assert torch.equal(source.read(name, slice(2, 3)), expected[2:3])
    assert [n.detail for n in source.notes] == [f"scale of {name}"]


def test_mxfp4_by_hand() -> None:
    blocks = torch.zeros(1, 16, dtype=torch.uint8)
    blocks[0, 0] = 0xF2  # low half 2 → 1, high half 15 → −6
    assert unpack(blocks, torch.tensor([128], dtype=torch.uint8))[:3].tolist() == [2.0, -12.0, 0.0]


PACKED = {
    "GPTQ": {"qweight": torch.zeros(2, 8, dtype=torch.int32), "qzeros": torch.zeros(1, 1, dtype=torch.int32),
             "scales": torch.ones(1, 8, dtype=torch.float16), "g_idx": torch.zeros(16, dtype=torch.int32)},
    "AWQ": {"qweight": torch.zeros(16, 1, dtype=torch.int32), "qzeros": torch.zeros(1, 1, dtype=torch.int32),
            "scales": torch.ones(1, 8, dtype=torch.float16)},
    "bitsandbytes": {"weight": torch.zeros(64, 1, dtype=torch.uint8), "weight.absmax": torch.ones(2),
                     "weight.quant_map": torch.ones(16),
                     "weight.quant_state.bitsandbytes__nf4": torch.zeros(90, dtype=torch.uint8)},
    "compressed-tensors": {"weight_packed": torch.zeros(8, 2, dtype=torch.int32), "weight_scale": torch.ones(8, 1),
                           "weight_shape": torch.tensor([8, 16])},
}  # fmt: skip


@pytest.mark.parametrize("method", PACKED)
@pytest.mark.parametrize("said", [True, False])
def test_packed_formats_are_named_and_never_read(tmp_path: Path, method: str, said: bool) -> None:
    config = json.dumps({"quantization_config": {"quant_method": method.lower()}}) if said else "{}"
    tensors = {f"{Q}.{part}": tensor for part, tensor in PACKED[method].items()}
    source = opened(tmp_path, tensors | {"model.norm.weight": torch.ones(8)}, config)
    assert set(source.specs) == {"model.norm.weight"}
    assert {n.name for n in source.notes} == set(tensors)
    for note in source.notes:
        assert note.state == "skipped"
        assert f"packed as {method}" in note.detail or (not said and method in note.detail)
        assert "dequantise it first" in note.remedy


def test_bitsandbytes_int8_and_plain_integers(tmp_path: Path) -> None:
    tensors = {f"{Q}.weight": torch.zeros(8, 8, dtype=torch.int8), f"{Q}.SCB": torch.ones(8),
               "model.layers.0.mlp.up_proj.weight": torch.zeros(8, 8, dtype=torch.int8),
               "position_ids": torch.zeros(1, 8, dtype=torch.int64)}  # fmt: skip
    source = opened(tmp_path, tensors)
    assert set(source.specs) == {"position_ids"}
    details = {n.name: n.detail for n in source.notes}
    assert "integers (int8)" in details["model.layers.0.mlp.up_proj.weight"]
    assert "8-bit" in details[f"{Q}.SCB"]


def test_everything_packed_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    source = opened(tmp_path, {f"{Q}.{part}": tensor for part, tensor in PACKED["GPTQ"].items()})
    with pytest.raises(InputError, match=r"holds no tensors that can be read(.|\n)*dequantise it first"):
        assign(source)
