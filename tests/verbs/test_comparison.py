"""Several checkpoints side by side: planted overlaps, token frequency, tables, page, and what goes wrong."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import drillcore
from drillcore.cli.app import run
from drillcore.measures.frequency import strata
from drillcore.pages.compare_page import overlap_figure, render
from drillcore.verbs.comparison import Comparison, listed

N = 400


def checkpoint(folder: Path, name: str, m: int, shared: float = 0.0, rare: int = 0) -> Path:
    """A llama of no layers to speak of: rows with a common direction, the last `rare` of them almost one row."""
    random = torch.Generator().manual_seed(m)
    W = torch.randn(N, m, generator=random) / m**0.5
    W[:, 0] += shared
    if rare:
        W[-rare:] = W[-1] + 0.01 * torch.randn(rare, m, generator=random)
    path = folder / name
    path.mkdir(parents=True)
    save_file({"model.embed_tokens.weight": W, "model.layers.0.self_attn.q_proj.weight": torch.eye(m)},
              path / "model.safetensors")  # fmt: skip
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": m, "vocab_size": N,
                                                  "num_attention_heads": 2, "tie_word_embeddings": True}))  # fmt: skip
    return path


def brute(path: Path, kept: slice = slice(None)) -> float:
    from safetensors.torch import load_file

    W = load_file(path / "model.safetensors")["model.embed_tokens.weight"].double()[kept]
    units = W / W.norm(dim=1, keepdim=True)
    above = torch.triu_indices(len(W), len(W), 1)
    return float((units @ units.T).square()[tuple(above)].mean())


def test_overlaps_fall_with_width_and_the_common_direction_is_taken_out(tmp_path: Path) -> None:
    paths = [checkpoint(tmp_path, f"m{m}", m, shared=0.0) for m in (8, 16, 32, 64)]
    found = drillcore.compare([str(p) for p in paths])
    for path, packing in zip(paths, found.packings, strict=True):
        assert packing.overlap == pytest.approx(brute(path), rel=1e-5)
        assert packing.head
    assert found.exponent is not None
    assert found.exponent.value == pytest.approx(1.0, abs=0.05)
    tilted = drillcore.compare([str(checkpoint(tmp_path, "tilted", 32, shared=1.0))]).packings[0]
    assert tilted.overlap is not None
    assert tilted.centred is not None
    assert tilted.overlap > 5 * tilted.centred


def test_rare_tokens_that_share_a_direction_are_found(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, "rare", 16, rare=100)
    counts = np.zeros(N, np.int64)
    counts[:300] = np.arange(300, 0, -1)
    np.save(tmp_path / "ids.npy", np.repeat(np.arange(N), counts))
    rows = drillcore.survey(str(path), measures=["superposition"], tokens=tmp_path / "ids.npy").rows
    found = {row.subset: row.value for row in rows if row.measure == "superposition.mean_sq_overlap"}
    assert found["unseen"] == pytest.approx(brute(path, slice(300, N)), rel=1e-5)
    assert found["rank 1-100"] == pytest.approx(brute(path, slice(0, 100)), rel=1e-5)
    assert found["rank 101-"] == pytest.approx(brute(path, slice(100, 300)), rel=1e-5)
    assert next(r.value for r in rows if r.measure == "tokens.seen") == 300


def test_strata_hold_every_token_once_by_falling_count() -> None:
    counts = np.random.default_rng(0).integers(0, 5, 3000)
    found = strata(counts, 3500)
    assert [s.name for s in found] == ["rank 1-100", "rank 101-1000", "rank 1001-", "unseen"]
    assert np.array_equal(np.sort(np.concatenate([s.ids for s in found])), np.arange(3500))
    lowest, highest = counts[found[0].ids].min(), counts[found[1].ids].max()
    assert lowest >= highest
    assert len(found[-1].ids) == 500 + int((counts == 0).sum())


def test_the_command_writes_rows_summary_and_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for m in (8, 16, 24):
        checkpoint(tmp_path, f"opt-{m}", m)
    listing = tmp_path / "models.txt"
    listing.write_text("# mine\nopt-8\nopt-16  # small\n\nopt-24\nnowhere\n")
    out = tmp_path / "out"
    assert run(["survey", str(listing), "--out", str(out)]) == 1
    told = capsys.readouterr()
    assert "opt-16" in told.out
    assert "falls as m^−" in told.out
    assert "nowhere" in told.err
    summary = json.loads((out / "comparison.json").read_text())
    assert len(summary["packings"]) == 3
    assert "nowhere" in next(iter(summary["failed"]))
    assert (out / "rows.parquet").exists()
    assert "opt-24" in (out / "report.html").read_text()


def test_published_models_stand_beside_those_of_their_name_and_width(tmp_path: Path) -> None:
    right, wrong = checkpoint(tmp_path / "a", "opt-125m", 768), checkpoint(tmp_path / "b", "opt-350m", 64)
    found = drillcore.compare([str(right), str(wrong)])
    assert [p.published for p in found.packings] == [0.1011, None]
    assert len(overlap_figure(found.packings)["data"][0]["x"]) == 25
    assert "0.101" in render(found)


@pytest.mark.parametrize(("arguments", "told"), [
    (["a", "b", "--rank", "4"], "several checkpoints"), (["a", "a"], "given twice"), ([], "no checkpoint"),
    (["a", "b"], "none of 2"),
])  # fmt: skip
def test_what_cannot_be_compared_is_told(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["survey", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_an_empty_list_and_two_sources_of_tokens_are_refused(tmp_path: Path) -> None:
    (tmp_path / "none.txt").write_text("# nothing\n")
    with pytest.raises(drillcore.InputError, match="names no checkpoint"):
        listed(tmp_path / "none.txt")
    path = checkpoint(tmp_path, "x", 8)
    with pytest.raises(drillcore.InputError, match="not both"):
        drillcore.survey(str(path), tokens=tmp_path / "t", text=tmp_path / "u")


def test_no_exponent_from_two_widths(tmp_path: Path) -> None:
    found = drillcore.compare([str(checkpoint(tmp_path, f"w{m}", m)) for m in (8, 16)])
    assert isinstance(found, Comparison)
    assert found.exponent is None
    assert "three widths" in render(found)


def test_the_head_is_the_matrix_that_forms_the_logits(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, "untied", 16)
    from safetensors.torch import load_file

    held = load_file(path / "model.safetensors")
    save_file({**held, "lm_head.weight": torch.randn(N, 16)}, path / "model.safetensors")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    found = drillcore.compare([str(path)]).packings
    assert {p.kind: p.head for p in found} == {"embed": False, "unembed": True}
