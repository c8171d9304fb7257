"""The survey end to end on other formats: LoRA deltas, experts, a live module, fused matrices."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy.optimize import linear_sum_assignment

import drillcore


def lora(folder: Path, layers: int = 3, d: int = 40, rank: int = 2) -> list[torch.Tensor]:
    """A LoRA folder on q of every layer; returns the merged deltas."""
    g = torch.Generator().manual_seed(0)
    tensors, deltas = {}, []
    for i in range(layers):
        A, B = torch.randn(rank, d, generator=g), torch.randn(d, rank, generator=g)
        stem = f"base_model.model.model.layers.{i}.self_attn.q_proj"
        tensors |= {f"{stem}.lora_A.weight": A, f"{stem}.lora_B.weight": B}
        deltas.append(4 / rank * (B @ A).double())
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": 4}))
    return deltas


def test_a_lora_delta_is_surveyed_alone(tmp_path: Path) -> None:
    deltas = lora(tmp_path)
    result = drillcore.survey(tmp_path, rank=2)
    assert not result.census.left_out  # an adapter owes nothing of the base
    spectra = [torch.linalg.svd(W) for W in deltas]
    for i in range(2):
        (row,) = result.rows.where(measure="continuity.v1", layer=i, adjacent=True)
        assert row.value == pytest.approx(abs(float(spectra[i][2][0] @ spectra[i + 1][2][0])), abs=1e-4)
        (row,) = result.rows.where(measure="spectrum.sigma1", layer=i)
        assert row.value == pytest.approx(float(spectra[i][1][0]), rel=1e-5)


def experts(folder: Path, layers: int = 2, count: int = 4, d: int = 24, f: int = 16) -> dict[str, list[torch.Tensor]]:
    """A Mixtral-named checkpoint with nothing but experts: (count × out × in) per layer and kind."""
    g = torch.Generator().manual_seed(1)
    shapes = {"w1": (f, d), "w3": (f, d), "w2": (d, f)}
    made: dict[str, list[torch.Tensor]] = {name: [] for name in shapes}
    tensors = {}
    for i in range(layers):
        for name, shape in shapes.items():
            made[name].append(torch.randn(count, *shape, generator=g))
            for e in range(count):
                key = f"model.layers.{i}.block_sparse_moe.experts.{e}.{name}.weight"
                tensors[key] = made[name][-1][e].clone()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "mixtral", "num_local_experts": count}))
    return made


@pytest.mark.parametrize(("kind", "name", "side"), [("gate", "w1", "v"), ("down", "w2", "u")])
def test_experts_are_stacked_for_the_headline_and_matched_in_detail(
    tmp_path: Path, kind: str, name: str, side: str
) -> None:
    made = experts(tmp_path)
    table = drillcore.survey(tmp_path, rank=2, kinds=[kind]).rows
    facing = [W.flatten(0, 1) if side == "v" else W.transpose(1, 2).flatten(0, 1) for W in made[name]]
    lead = [torch.linalg.svd(W.double())[2][0] for W in facing]
    (row,) = table.where(measure=f"continuity.{side}1", kind=kind)
    assert row.value == pytest.approx(abs(float(lead[0] @ lead[1])), abs=1e-4)
    each = [torch.stack([torch.linalg.svd(M.double())[2][0] for M in (W if side == "v" else W.transpose(1, 2))])
            for W in made[name]]  # fmt: skip
    cosines = (each[0] @ each[1].T).abs().numpy()
    (mean,) = table.where(measure="continuity.expert_mean", kind=kind)
    assert mean.value == pytest.approx(float(cosines.mean()), abs=1e-4)
    (matched,) = table.where(measure="continuity.expert_matched", kind=kind)
    rows, columns = linear_sum_assignment(cosines, maximize=True)
    assert matched.value == pytest.approx(float(cosines[rows, columns].mean()), abs=1e-4)
    assert matched.null is not None
    assert abs(matched.value - matched.null) < 4 * (matched.null_sd or 0.0)  # random experts: nothing to match


def test_planted_experts_are_matched_through_a_permutation(tmp_path: Path) -> None:
    """Each expert keeps its own direction but not its number: the mean is low, the matching is not."""
    g = torch.Generator().manual_seed(4)
    directions = torch.linalg.qr(torch.randn(24, 8, generator=g))[0].T
    tensors = {}
    for i, order in enumerate((range(8), [2, 3, 1, 0, 6, 7, 5, 4])):
        for e, which in enumerate(order):
            noise = 0.05 * torch.randn(16, 24, generator=g)
            W = 3 * torch.outer(torch.randn(16, generator=g), directions[which]) + noise
            tensors[f"model.layers.{i}.block_sparse_moe.experts.{e}.w1.weight"] = W
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "mixtral"}')
    table = drillcore.survey(tmp_path).rows
    (mean,) = table.where(measure="continuity.expert_mean")
    (matched,) = table.where(measure="continuity.expert_matched")
    assert mean.value is not None
    assert mean.value < 0.35
    assert matched.value is not None
    assert matched.null is not None
    assert matched.value > 0.98
    assert matched.value > matched.null + 2 * (matched.null_sd or 0.0)


def test_a_live_module_and_its_file_give_the_same_rows(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra [hf] is not installed")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=48, n_layer=3, n_head=4, vocab_size=90, n_positions=16)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(tmp_path)
    live, filed = drillcore.survey(model), drillcore.survey(tmp_path)
    assert live.census.count()["split"] == filed.census.count()["split"] == 3
    theirs = {(r.measure, r.kind, r.layer, r.site, r.other, r.subset): r.value for r in filed.rows}
    for row in live.rows:
        expected = theirs[row.measure, row.kind, row.layer, row.site, row.other, row.subset]
        assert (row.value is None) == (expected is None)
        if row.value is not None:
            assert np.isclose(row.value, float(expected or 0.0), rtol=1e-4, atol=1e-5), row
