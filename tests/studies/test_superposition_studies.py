"""The superposition studies: claims on rows made by hand, agreement with a published run, and real cells."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from drillcore.data.published import published
from drillcore.studies import (
    superposition_density,
    superposition_gallery,
    superposition_large,
    superposition_llm,
    superposition_small,
)  # fmt: skip
from drillcore.studies.superposition_cell import ranks, weights_of
from drillcore.studies.superposition_results import (
    Band,
    exponents,
    holds_curve,
    holds_one_run,
    slope,
    tail_slope,
)  # fmt: skip
from drillcore.study import Study, done
from drillcore.study.spec import tasks

WIDTHS = (10, 15, 25, 39, 63, 100)
STRONG, WEAK = -0.5556, 0.5556


def rows(measure: str, value: Any, **changed: Any) -> pl.DataFrame:
    """Rows at every width and seed; `value` is a function of the width."""
    key = {"measure": measure, "features": 1000, "alpha": 0.0, "gamma": STRONG, "family": "power", "density": 1.0,
           "step": 20_000, "subset": "all", **changed}  # fmt: skip
    told = "-".join(map(str, key.values()))
    return pl.DataFrame([{**key, "m": m, "seed": s, "run": f"{told}-{m}-{s}", "value": value(m) * (1 + 0.01 * s)}
                         for m in WIDTHS for s in range(5)])  # fmt: skip


def decided(study: Study, name: str, *frames: pl.DataFrame) -> str:
    (claim,) = (c for c in study.claims if c.name == name)
    return claim.decide(pl.concat(frames)).outcome


small = superposition_small.study


def test_exponents_are_slopes_and_need_every_width() -> None:
    frame = rows("loss.test", lambda m: 3 * m**-0.9)
    assert list(exponents(frame, gamma=STRONG).values()) == pytest.approx([0.9] * 5)
    less = frame.filter((pl.col("m") != 25) | (pl.col("seed") != 2))
    assert sorted(exponents(less, gamma=STRONG)) == [0, 1, 3, 4]
    assert slope({8: 1.0, 16: 0.0}) == float("inf")


def test_exact_tail_has_the_slopes_of_the_note() -> None:
    for alpha, value in {1.0: 0.295, 1.5: 0.607, 2.0: 1.021}.items():
        assert tail_slope("power", 1000, alpha, WIDTHS) == pytest.approx(value, abs=2e-3)


def test_strong_claims_are_judged_both_ways() -> None:
    flat = rows("loss.test", lambda m: 3 / m)
    assert decided(small, "c-strong-flat", flat) == "supported"
    assert decided(small, "c-strong-flat", rows("loss.test", lambda m: m**-0.6)) == "refuted"
    assert decided(small, "c-strong-half", flat) == "not-run"
    weak = rows("loss.test", lambda m: 1 - m / 2000, gamma=WEAK)
    assert decided(small, "c-robust", flat, weak) == "supported"
    assert decided(small, "c-robust", weak, rows("loss.test", lambda m: m**-0.1)) == "refuted"


def test_weak_claims_are_judged_against_the_exact_tail() -> None:
    loss, theory = (rows(name, lambda m: 1 - m / 2000, gamma=WEAK) for name in ("loss.test", "loss.weak_represented"))
    assert decided(small, "a-weak-tail", loss, theory) == "supported"
    assert decided(small, "a-weak-tail", rows("loss.test", lambda m: 2.0, gamma=WEAK), theory) == "refuted"
    skewed = rows("loss.test", lambda m: m**-1.021, gamma=WEAK, alpha=2.0)
    assert decided(small, "b-weak-exponent", skewed) == "supported"
    flat = rows("loss.test", lambda m: 1.0, gamma=WEAK, alpha=2.0)
    assert decided(small, "b-weak-exponent", flat) == "refuted"


def test_frames_are_counted_where_they_could_fit() -> None:
    few = rows("superposition.phi_1", lambda m: m * m / 2000, alpha=1.0)
    assert decided(small, "d-frames", few) == "supported"
    assert decided(small, "d-frames", rows("superposition.phi_1", lambda m: 3 * m * m / 2000, alpha=1.0)) == "refuted"


def test_one_published_run_is_held_by_the_interval_of_a_further_one() -> None:
    ours = dict(enumerate((0.268, 0.270, 0.272, 0.269, 0.271)))
    band = Band.of(ours)
    assert band is not None
    assert band.high - band.mean == pytest.approx(2.776 * 0.00158 * 1.2**0.5, rel=1e-2)
    assert holds_one_run(ours, 0.274).outcome == "supported"
    assert holds_one_run(ours, 0.276).outcome == "refuted"
    assert holds_one_run(ours, 0.276, error=0.003).outcome == "supported"
    assert holds_one_run({0: 1.0}, 1.0).outcome == "not-run"
    frame = rows("loss.test", lambda m: 0.27 if m == 63 else 1.0, alpha=0.5)
    assert decided(small, "z-official-test", frame) == "supported"


def test_a_published_curve_names_the_points_that_are_outside() -> None:
    ours = {s: 1 + 0.01 * s for s in range(5)}
    verdict = holds_curve([(f"p{i}", 1.02, ours) for i in range(30)] + [("far", 3.0, ours)])
    assert verdict.outcome == "supported"
    assert "far: 3" in verdict.how
    assert verdict.n == 31
    assert holds_curve([(f"p{i}", 3.0, ours) for i in range(6)]).outcome == "refuted"
    assert holds_curve([("p", 1.0, {})]).outcome == "not-run"


def test_published_tables_are_the_ones_of_the_figures() -> None:
    assert published("toy_small_mean_sq_overlap_strong_rows_vs_m", alpha=0.0, m=10.0)[0]["times_m"] == 1.0046
    assert len(published("toy_large_n10240_loss_vs_m", distribution="linear", regime="strong")) == 8


def test_large_and_density_claims_are_judged() -> None:
    large = superposition_large.study
    strong = rows("loss.test", lambda m: 9 / m, gamma=-1.0, family="exponential")
    weak = rows("loss.test", lambda m: 1.0 + 0 * m, gamma=0.1, family="exponential")
    assert decided(large, "a-exponential", strong) == "supported"
    assert decided(large, "b-exponential", strong, weak) == "supported"
    assert decided(large, "a-power", strong) == "not-run"
    density = superposition_density.study
    three = [rows("loss.test", lambda m, d=d: d**1.1 / m, density=d, alpha=1.0) for d in (1.0, 2.621, 5.053)]
    assert decided(density, "a-linear", *three) == "supported"
    assert decided(density, "b-more", *three) == "supported"
    assert decided(density, "d-robust", *three) == "supported"


def run(study: Study, changed: dict[str, tuple[str, ...]], root: Path) -> pl.DataFrame:
    for task in tasks(study, study.runs("quick", changed), root / "tasks", 1):
        task.folder.begin()
        study.cell(task)
        task.folder.finish({})
    return done.results(study, root)


SHORT = {"features": ("40",), "m": ("8",), "steps": ("60",), "batch": ("64",), "seed": ("0", "1")}


@pytest.mark.parametrize("study", [superposition_small.study, superposition_density.study, superposition_large.study])
def test_a_cell_trains_keeps_its_weights_and_measures(study: Study, tmp_path: Path) -> None:
    first = str(study.axis("density").values[1 if study.name.endswith("density") else 0])
    frame = run(study, {**SHORT, "gamma": ("-0.5556", "0.5556"), "alpha": ("1.0",), "density": (first,)}, tmp_path)
    runs = frame["run"].n_unique()
    last = frame.filter(pl.col("measure") == "loss.test", pl.col("step") == 60)
    assert len(last) == runs
    assert last["stderr"].min() > 0
    start = frame.filter(pl.col("measure") == "loss.test", pl.col("step") == 0)
    assert last["value"].mean() < start["value"].mean()
    norms = frame.filter(pl.col("measure") == "superposition.norm_by_rank", pl.col("run") == frame["run"][0])
    assert len(norms) == len(ranks(40))
    folders = list((tmp_path / "tasks").iterdir())
    kept = weights_of(folders[0])
    assert kept["W"].shape[1:] == (40, 8)
    assert torch.isfinite(kept["W"]).all()


def test_a_task_that_was_trained_is_only_measured_again(tmp_path: Path) -> None:
    study = superposition_small.study
    first = run(study, {**SHORT, "gamma": ("-0.5556",), "alpha": ("1.0",)}, tmp_path)
    kept = next((tmp_path / "tasks").glob("*/weights.safetensors"))
    before = kept.stat().st_mtime_ns
    again = run(study, {**SHORT, "gamma": ("-0.5556",), "alpha": ("1.0",)}, tmp_path)
    assert kept.stat().st_mtime_ns == before
    assert again.sort("measure", "seed", "step").equals(first.sort("measure", "seed", "step"))


def test_the_gallery_draws_its_features(tmp_path: Path) -> None:
    study = superposition_gallery.study
    frame = run(study, {"steps": ("40",), "batch": ("32",), "seed": ("0",), "features": ("5",), "m": ("2",),
                        "present": ("1.0", "0.1"), "importance": ("0.9",)}, tmp_path)  # fmt: skip
    drawn = {figure.name: figure.data(frame) for figure in study.figures}
    assert len(drawn["gram"]) == 2 * 25
    assert drawn["rows"].height == 2 * 10
    assert not drawn["each"].is_empty()


def test_heads_of_the_four_families_are_surveyed_and_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers as t

    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 300}
    opt = {**sizes, "hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 32}
    configs = {
        "facebook/opt-125m": t.OPTConfig(**opt),
        "openai-community/gpt2": t.GPT2Config(vocab_size=300, n_embd=48, n_layer=1, n_head=4),
        "Qwen/Qwen2.5-0.5B": t.Qwen2Config(**sizes, hidden_size=64, intermediate_size=64, num_key_value_heads=2),
        "EleutherAI/pythia-70m": t.GPTNeoXConfig(**sizes, hidden_size=24, intermediate_size=48),
    }
    for name, config in configs.items():
        t.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "models" / name.split("/")[1])
    monkeypatch.setenv("DRILLCORE_MODELS", str(tmp_path / "models"))
    study = superposition_llm.study
    frame = run(study, {"model": tuple(configs)}, tmp_path / "out")
    found = {model: (m, value) for model, m, value in superposition_llm.heads(frame)}
    assert {m for m, _ in found.values()} == {32, 48, 64, 24}
    assert all(value * m == pytest.approx(1, abs=0.06) for m, value in found.values())
    assert decided(study, "b-random", frame) == "supported"
    assert decided(study, "z-agrees", frame) == "refuted"  # these are not the published models
    assert decided(study, "a-exponent", frame.filter(pl.col("model") == "openai-community/gpt2")) == "not-run"


def test_the_map_shows_exponents_and_means() -> None:
    frame = pl.concat([rows("loss.test", lambda m, a=a: m**-a, alpha=a) for a in (0.5, 1.0)])
    exponent, _ = (f for f in small.figures if f.kind == "map")
    drawn = exponent.data(frame.with_columns(adjacent=pl.lit(None, pl.Boolean)))
    assert dict(drawn.select("alpha", "value").iter_rows()) == pytest.approx({0.5: 0.5, 1.0: 1.0})
