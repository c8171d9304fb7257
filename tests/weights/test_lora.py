"""LoRA folders, against the merge formula W + scale·B·A of the paper and of PEFT's definition, written plainly."""

import json
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from drillcore.linalg.factored import Product
from drillcore.weights import InputError, assign, open_source
from drillcore.weights.layout import read_weight

LAYER = "base_model.model.model.layers.0."
Q, UP = "self_attn.q_proj", "mlp.up_proj"


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def factors(module: str, out: int, into: int, rank: int = 2, seed: int = 0) -> dict[str, Tensor]:
    return {f"{module}.lora_A.weight": random(rank, into, seed=seed),
            f"{module}.lora_B.weight": random(out, rank, seed=seed + 1)}  # fmt: skip


def adapter(folder: Path, tensors: dict[str, Tensor], *, binary: bool = False, **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 6, **config}))
    if binary:
        torch.save(tensors, folder / "adapter_model.bin")
    else:
        save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def full(matrix: Any) -> Tensor:
    """The product, formed: what the source never does."""
    assert isinstance(matrix, Product)
    return matrix.left @ matrix.right


def merged(base: Tensor, tensors: dict[str, Tensor], module: str, scale: float) -> Tensor:
    return base + scale * tensors[f"{module}.lora_B.weight"] @ tensors[f"{module}.lora_A.weight"]


@pytest.mark.parametrize("binary", [False, True])
def test_the_delta_is_what_merging_adds(tmp_path: Path, binary: bool) -> None:
    tensors = factors(LAYER + Q, 8, 6) | factors(LAYER + UP, 10, 6, seed=5)
    source = open_source(adapter(tmp_path / "a", tensors, binary=binary))
    assert {n: s.shape for n, s in source.specs.items()} == {
        "model.layers.0.self_attn.q_proj.weight": (8, 6), "model.layers.0.mlp.up_proj.weight": (10, 6)
    }  # fmt: skip
    base = random(8, 6, seed=9)
    delta = full(source.read("model.layers.0.self_attn.q_proj.weight"))
    assert torch.allclose(base + delta, merged(base, tensors, LAYER + Q, 6 / 2))
    part = source.read("model.layers.0.self_attn.q_proj.weight", slice(2, 5))
    assert torch.allclose(full(part), delta[2:5])
    assert source.specs["model.layers.0.self_attn.q_proj.weight"].nbytes == 4 * (2 * 6 + 8 * 2)


def test_adapter_file_itself_and_named_adapters(tmp_path: Path) -> None:
    tensors = {name.replace(".weight", ".default.weight"): t for name, t in factors(LAYER + Q, 8, 6).items()}
    folder = adapter(tmp_path / "a", tensors)
    assert set(open_source(folder / "adapter_model.safetensors").specs) == {"model.layers.0.self_attn.q_proj.weight"}


def test_scales(tmp_path: Path) -> None:
    """`use_rslora` divides by √r; the patterns match the end of a module's name, or a regular expression."""
    names = [f"base_model.model.model.layers.{i}.{m}" for i in (0, 1) for m in (Q, UP)]
    ranks = [4, 2, 3, 2]  # layer 0 q by its full name; layer 1 q by the pattern of all q
    tensors: dict[str, Tensor] = {}
    for i, (name, rank) in enumerate(zip(names, ranks, strict=True)):
        tensors |= factors(name, 6, 6, rank, seed=10 * i)
    patterns = {"rank_pattern": {"model.layers.0.self_attn.q_proj": 4, "q_proj": 3},
                "alpha_pattern": {r"layers\.1\.mlp\.(up|gate)_proj": 32}}  # fmt: skip
    for rslora in (False, True):
        source = open_source(adapter(tmp_path / "a", tensors, use_rslora=rslora, **patterns))
        for name, rank, alpha in zip(names, ranks, [6, 6, 6, 32], strict=True):
            expected = merged(torch.zeros(6, 6), tensors, name, alpha / (sqrt(rank) if rslora else rank))
            found = full(source.read(name.removeprefix("base_model.model.") + ".weight"))
            assert torch.allclose(found, expected, atol=1e-5), name


def test_a_pattern_matches_whole_words_only(tmp_path: Path) -> None:
    tensors = factors(LAYER + Q, 6, 6)
    source = open_source(adapter(tmp_path / "a", tensors, alpha_pattern={"proj": 100}))
    assert torch.allclose(full(source.read("model.layers.0.self_attn.q_proj.weight")),
                          merged(torch.zeros(6, 6), tensors, LAYER + Q, 3.0))  # fmt: skip


def test_fused_conv1d_is_split_by_role(tmp_path: Path) -> None:
    """GPT-2 stores in × out; the delta of c_attn is cut into q, k and v on the left factor."""
    module = "base_model.model.transformer.h.0.attn.c_attn"
    tensors = factors(module, 12, 4)
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text('{"model_type": "gpt2", "n_head": 2, "n_embd": 4}')
    folder = adapter(tmp_path / "a", tensors, fan_in_fan_out=True, base_model_name_or_path=str(tmp_path / "base"))
    source = open_source(folder)
    assert source.specs["transformer.h.0.attn.c_attn.weight"].shape == (4, 12)
    delta = 3.0 * tensors[f"{module}.lora_B.weight"] @ tensors[f"{module}.lora_A.weight"]
    assert torch.allclose(full(source.read("transformer.h.0.attn.c_attn.weight")), delta.T, atol=1e-6)
    for i, kind in enumerate("qkv"):
        (weight,) = assign(source).of(kind)
        assert weight.shape == (4, 4)
        assert torch.allclose(full(read_weight(source, weight)), delta[4 * i : 4 * i + 4], atol=1e-6)


def test_embedding(tmp_path: Path) -> None:
    """PEFT adds (B·A)ᵀ to an embedding: A is r × tokens, B is width × r."""
    stem = "base_model.model.model.embed_tokens"
    tensors = {f"{stem}.lora_embedding_A": random(2, 9, seed=1), f"{stem}.lora_embedding_B": random(4, 2, seed=2),
               f"{stem}.base_layer.weight": random(9, 4, seed=3)}  # fmt: skip
    source = open_source(adapter(tmp_path / "a", tensors))
    assert source.specs["model.embed_tokens.weight"].shape == (9, 4)
    expected = 3.0 * (tensors[f"{stem}.lora_embedding_B"] @ tensors[f"{stem}.lora_embedding_A"]).T
    assert torch.allclose(full(source.read("model.embed_tokens.weight")), expected, atol=1e-6)
    assert "saved beside their delta" in source.notes[0].detail


@pytest.mark.parametrize("name", ["base_model.model.lm_head.weight", "base_model.model.lm_head.modules_to_save.weight",
                                  "base_model.model.lm_head.modules_to_save.default.weight"])  # fmt: skip
def test_modules_saved_whole(tmp_path: Path, name: str) -> None:
    head = random(9, 6, seed=3)
    source = open_source(adapter(tmp_path / "a", factors(LAYER + Q, 8, 6) | {name: head}, modules_to_save=["lm_head"]))
    assert torch.equal(source.read("lm_head.weight"), head)  # type: ignore[arg-type]
    (note,) = source.notes
    assert (note.name, note.state) == ("(lm_head.weight)", "recognised")
    assert "not a delta" in note.detail


def test_the_base_decides_the_family(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 1}')
    folder = adapter(tmp_path / "a", factors(LAYER + Q, 8, 6), base_model_name_or_path="org/not-here")
    assert dict(open_source(folder).config) == {}
    assert assign(open_source(folder)).census.decided_by == "tensor names"
    assert assign(open_source(folder, base=base)).census.decided_by == "model_type"
    assert assign(open_source(folder, config=base / "config.json")).census.decided_by == "model_type"


def test_refused_by_name(tmp_path: Path) -> None:
    good = factors(LAYER + Q, 8, 6)
    cases: list[tuple[dict[str, Tensor], dict[str, Any], str]] = [
        (good, {"use_dora": True}, "is a DoRA adapter"),
        (good | {LAYER + Q + ".lora_magnitude_vector": torch.ones(8)}, {}, "is a DoRA adapter"),
        (good, {"peft_type": "IA3"}, "PEFT adapter of type IA3"),
        (good, {"target_parameters": ["mlp.experts.gate_up_proj"]}, "bare parameters"),
    ]
    for tensors, config, said in cases:
        with pytest.raises(InputError, match=rf"{said}(.|\n)*merge_and_unload"):
            open_source(adapter(tmp_path / "a", tensors, **config))


def test_what_does_not_fit_is_listed(tmp_path: Path) -> None:
    lonely = {f"{LAYER}{UP}.lora_A.weight": random(2, 6, seed=1)}
    wrong = factors(LAYER + "self_attn.k_proj", 8, 6, rank=3)
    conv = {f"{LAYER}conv.lora_A.weight": torch.ones(2, 3, 1, 1), f"{LAYER}conv.lora_B.weight": torch.ones(4, 2, 1, 1)}
    bias = {f"{LAYER}{Q}.lora_B.bias": torch.ones(8)}
    source = open_source(adapter(tmp_path / "a", factors(LAYER + Q, 8, 6) | lonely | wrong | conv | bias))
    assert set(source.specs) == {"model.layers.0.self_attn.q_proj.weight"}
    details = {note.name: note.detail for note in source.notes}
    assert "other factor" in details[f"{LAYER}{UP}.lora_A.weight"]
    assert "configuration says rank 2, the factors have 3 and 3" in details[f"{LAYER}self_attn.k_proj.lora_B.weight"]
    assert "convolution" in details[f"{LAYER}conv.lora_A.weight"]
    assert details[f"{LAYER}{Q}.lora_B.bias"] == "bias of a LoRA factor"
    assert len(details) == 6
