"""Rescaled checkpoints against transformers: the same logits, a smaller stream, and refusals with their reason."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.measures.reaching import certificates_of
from tests.weights.tiny import CASES
from torch import Tensor, nn

import drillcore
from drillcore.cli.app import run as command
from drillcore.progress import Step
from drillcore.table import Row, Table
from drillcore.weights import InputError
from drillcore.weights.gauge import Change
from drillcore.weights.rewrite import changed

IDS = torch.randint(3, 40, (2, 7), generator=torch.Generator().manual_seed(0))
EXACT = ("llama", "llama tied", "gpt2", "granite", "mixtral", "phi3", "starcoder2", "t5", "gptj", "gemma",
         "falcon 40b")  # fmt: skip
NEAR = ("bloom", "deepseek_v3", "gemma2", "gemma3_text", "glm4", "qwen3")  # norms that do not read the stream share ε


def saved(name: str, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    torch.manual_seed(1)
    model = CASES[name].build()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.ndim == 1:  # gains and shifts that are not all alike
                p.add_(0.2 * torch.rand_like(p))
            elif "embed" in key or "wte" in key:
                p.mul_(5)
    model.to(dtype).save_pretrained(folder)
    return folder


def loaded(folder: Path, dtype: torch.dtype = torch.float32) -> nn.Module:
    config = transformers.AutoConfig.from_pretrained(folder)
    cls = getattr(transformers, config.architectures[0])
    return cls.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


def logits(model: Any) -> Tensor:
    more = {"decoder_input_ids": IDS} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        found: Tensor = model(input_ids=IDS, **more).logits.float()
    return found


def peaks(model: nn.Module) -> dict[tuple[str | None, int | None], float]:
    rows = drillcore.signal(model, tokens=IDS, backward=False, sensitivity=False).rows
    return {(r.stack, r.site): r.value or 0.0 for r in rows.where(measure="stream.max_abs", subset="all")}


def fingerprint(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


@pytest.mark.parametrize("name", EXACT + NEAR)
def test_the_logits_stay_and_the_stream_shrinks(name: str, tmp_path: Path) -> None:
    folder = saved(name, tmp_path / "before")
    untouched = fingerprint(folder)
    made = drillcore.rescale(folder, tmp_path / "after", k=16)
    before, after = loaded(folder), loaded(made.out)
    expected = logits(before)
    near = 1e-4 if name in EXACT else 5e-3
    torch.testing.assert_close(logits(after), expected, rtol=near, atol=near * float(expected.abs().max()))
    for place, peak in peaks(after).items():
        assert peak == pytest.approx(peaks(before)[place] / 16, rel=2e-3)
    assert made.gauge.exact_eps == (name in EXACT)
    assert fingerprint(folder) == untouched


def test_a_tied_head_gets_its_scale_from_the_final_norm(tmp_path: Path) -> None:
    folder = saved("llama tied", tmp_path / "before")
    made = drillcore.rescale(folder, tmp_path / "after", k=8)
    before, after = load_file(folder / "model.safetensors"), load_file(made.out / "model.safetensors")
    assert torch.equal(after["model.embed_tokens.weight"] * 8, before["model.embed_tokens.weight"])
    assert torch.equal(after["model.norm.weight"], before["model.norm.weight"] * 8)
    assert torch.equal(after["model.layers.0.mlp.down_proj.weight"] * 8, before["model.layers.0.mlp.down_proj.weight"])
    assert torch.equal(after["model.layers.0.mlp.up_proj.weight"], before["model.layers.0.mlp.up_proj.weight"])
    eps = [json.loads((f / "config.json").read_text())["rms_norm_eps"] for f in (folder, made.out)]
    assert eps[1] == pytest.approx(eps[0] / 64)


def overflowing(folder: Path) -> Path:
    """A Gemma 3 whose output gains are so large that its stream leaves fp16."""
    torch.manual_seed(2)
    model = CASES["gemma3_text"].build()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "post_feedforward_layernorm" in name or "post_attention_layernorm" in name:
                p.fill_(29_999.0)
    model.save_pretrained(folder)
    return folder


def test_a_gemma_that_overflows_fp16_fits_afterwards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = overflowing(tmp_path / "before")
    reference = logits(loaded(folder))
    assert not bool(torch.isfinite(logits(loaded(folder, torch.float16))).all())
    seen = drillcore.signal(loaded(folder), tokens=IDS, backward=False, sensitivity=False)
    assert [o.dtype for o in seen.overflows] == ["fp16"]
    seen.save(tmp_path / "seen")
    out = tmp_path / "after"
    assert command(["rescale", str(folder), "--signal", str(tmp_path / "seen"), "--out", str(out)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "The stream is divided by 4" in said or "The stream is divided by 8" in said
    assert "relative error of at most" in said
    half = logits(loaded(out, torch.float16))
    assert bool(torch.isfinite(half).all())
    assert float((half - reference).norm() / reference.norm()) < 0.02
    torch.testing.assert_close(logits(loaded(out)), reference, rtol=1e-3, atol=1e-4 * float(reference.abs().max()))


def test_without_a_text_the_bound_of_the_weights_is_enough_for_every_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = overflowing(tmp_path / "before"), tmp_path / "after"
    assert command(["rescale", str(folder), "--out", str(out)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "no input takes it above" in said
    state = load_file(folder / "model.safetensors")
    bound, divided = (certificates_of(s, loaded(f).config.to_dict())[""] for s, f in
                      ((state, folder), (load_file(out / "model.safetensors"), out)))  # fmt: skip
    assert (bound.verdict, divided.divisor) == ("may overflow", 1.0)
    made = drillcore.rescale(folder, tmp_path / "again")
    assert (made.k, made.peak) == (bound.divisor, bound.bound("stream"))
    assert made.k / 2 * 65504 < (made.peak or 0.0) < made.k * 65504
    assert not made.still
    assert divided.bound("stream") == pytest.approx((made.peak or 0.0) / made.k, rel=1e-3)
    assert bool(torch.isfinite(logits(loaded(out, torch.float16))).all())


def test_parts_that_the_division_leaves_as_they_are_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved("llama", tmp_path / "before")
    state = load_file(folder / "model.safetensors")
    state["model.layers.1.self_attn.q_proj.weight"] *= 1e4
    state["model.layers.0.mlp.down_proj.weight"] *= 1e4
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    assert command(["rescale", str(folder), "--out", str(tmp_path / "after")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "The attention logits may still leave" in said
    assert "attention of layer 1" in said
    assert "branch outputs may" not in said  # they are divided with the stream


def test_a_branch_under_a_norm_is_not_divided_with_the_stream(tmp_path: Path) -> None:
    """Gemma's output norms stand between the branch and the stream: a branch that overflows still does."""
    folder = overflowing(tmp_path / "before")
    state = load_file(folder / "model.safetensors")
    key = "model.layers.0.mlp.down_proj.weight"
    bound = certificates_of(state, loaded(folder).config.to_dict())[""].bound("branch outputs") or 1.0
    state[key] *= 1.5 * 65504 / bound
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    made = drillcore.rescale(folder, tmp_path / "after")
    assert made.k >= 4
    assert [(p.part, p.layer) for p in made.still] == [("branch outputs", 0)]


def test_where_the_stream_has_no_bound_the_remedy_is_said(tmp_path: Path) -> None:
    folder = saved("falcon 40b", tmp_path / "before")
    with pytest.raises(InputError, match="'falcon' has not been checked") as told:
        drillcore.rescale(folder, tmp_path / "after")
    assert "drillcore signal" in str(told.value)


def test_k_is_the_smallest_power_of_two_that_is_enough(tmp_path: Path) -> None:
    folder = saved("llama", tmp_path / "before")
    for i, (peak, k) in enumerate(((100.0, 1), (32_000.0, 1), (33_000.0, 2), (65_504.0 * 8, 16))):
        assert drillcore.rescale(folder, tmp_path / f"after{i}", peak=peak).k == k
    rows = Table((Row(measure="stream.max_abs", site=0, value=10.0), Row(measure="add.max_abs", site=0, value=1e5),
                  Row(measure="stream.rms", site=0, subset="all", value=2.0)))  # fmt: skip
    rows.save(tmp_path / "rows.parquet")
    made = drillcore.rescale(folder, tmp_path / "seen", signal=tmp_path / "rows.parquet", scale_eps=False)
    assert (made.k, made.peak) == (4, 1e5)
    assert made.eps_errors == {0: pytest.approx(15 * made.gauge.eps / 8)}


def test_a_residual_step_is_folded_into_the_branches_and_out_again(tmp_path: Path) -> None:
    folder = tmp_path / "before"
    torch.manual_seed(1)
    CASES["granite"].build().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "residual_multiplier": 0.25}))
    expected = logits(loaded(folder))
    folded = drillcore.rescale(folder, tmp_path / "folded", residual_step=1.0)
    assert (folded.k, loaded(folded.out).config.residual_multiplier) == (1.0, 1.0)
    torch.testing.assert_close(logits(loaded(folded.out)), expected, rtol=1e-5, atol=1e-5)
    again = drillcore.rescale(folded.out, tmp_path / "again", residual_step=0.25)
    for name, tensor in load_file(folder / "model.safetensors").items():
        assert torch.equal(load_file(again.out / "model.safetensors")[name], tensor)
    with pytest.raises(InputError, match="no residual step"):
        drillcore.rescale(saved("llama", tmp_path / "llama"), tmp_path / "x", residual_step=0.5)


def test_shards_are_written_one_by_one(tmp_path: Path) -> None:
    folder = tmp_path / "before"
    CASES["llama"].build().save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    seen: list[Step] = []
    made = drillcore.rescale(folder, tmp_path / "after", k=4, progress=seen.append)
    assert len(seen) == len(list(folder.glob("*.safetensors")))
    torch.testing.assert_close(logits(loaded(made.out)), logits(loaded(folder)), rtol=1e-4, atol=1e-4)


REFUSED = {"olmo2": "not linear", "bert": "norms stand on the stream", "opt 350m": "norms stand on the stream",
           "olmo": "no final norm", "vit": "without a norm"}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_not_be_exact_is_refused(name: str, tmp_path: Path) -> None:
    folder = saved(name, tmp_path / "before")
    with pytest.raises(InputError, match=REFUSED[name]):
        drillcore.rescale(folder, tmp_path / "after", k=4)
    assert not (tmp_path / "after").exists()


def test_bad_input_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = saved("llama", tmp_path / "before")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"k": 3}, "no power of two"), ({"k": 0}, "no power of two"),
        ({"signal": tmp_path / "none"}, "is not there"), ({"k": 4, "residual_step": 0}, "above 0"),
        ({"k": 4, "norm_placement": "sideways"}, "no norm placement"), ({"k": 4, "norm_placement": "post"}, "post"),
    ]  # fmt: skip
    for options, message in cases:
        with pytest.raises(InputError, match=message):
            drillcore.rescale(folder, tmp_path / "after", **options)
    with pytest.raises(InputError, match="one file"):
        drillcore.rescale(folder / "model.safetensors", tmp_path / "after", k=4)
    state = load_file(folder / "model.safetensors")
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "config.json").write_bytes((folder / "config.json").read_bytes())
    save_file({**state, "model.layers.0.adapter.weight": torch.ones(3)}, tmp_path / "strange" / "model.safetensors")
    with pytest.raises(InputError, match="not understood"):
        drillcore.rescale(tmp_path / "strange", tmp_path / "after", k=4)
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError, match="is there already"):
        drillcore.rescale(folder, tmp_path / "there", k=4)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["before", "strange", "there"]


def test_gains_that_half_precision_cannot_hold_are_refused_or_kept_in_float32(tmp_path: Path) -> None:
    folder = saved("gemma2", tmp_path / "before", torch.bfloat16)
    with pytest.raises(InputError, match="--float32-gains"):
        drillcore.rescale(folder, tmp_path / "after", k=64)
    assert not (tmp_path / "after").exists()
    made = drillcore.rescale(folder, tmp_path / "after", k=64, float32_gains=True)
    assert made.worst is not None
    assert made.worst.error < 1e-6
    expected = logits(loaded(folder))
    torch.testing.assert_close(logits(loaded(made.out)), expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_the_error_of_storing_is_that_of_the_effective_numbers() -> None:
    gain = torch.tensor([0.53, 1.0], dtype=torch.bfloat16)
    stored, error = changed(gain, Change("g", 1 / 64, "gain", zero_centered=True))
    effective = (1 + stored.double()) * 64
    assert error == pytest.approx(float((effective - (1 + gain.double())).abs().max()) / 2.0)
    assert error > 0.001
    exact, none = changed(torch.tensor([3.0, 5.0], dtype=torch.bfloat16), Change("w", 1 / 64, "down"))
    assert none == 0.0
    assert exact.tolist() == [3 / 64, 5 / 64]
    _, lost = changed(torch.tensor([1.0, 6e-8], dtype=torch.float16), Change("w", 1 / 64, "down"))
    assert lost > 0
