"""The survey as a function: selection, left-outs, streaming and memory."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import drillcore
from conftest import SMALL
from drillcore.cli.app import run as command
from drillcore.table import Table
from drillcore.verbs.selection import select
from drillcore.weights import InputError
from synthetic import Shapes, write
from tests.measures.reaching import bounds, reaching


def test_rows_census_and_provenance(small: Path, tmp_path: Path) -> None:
    steps = []
    result = drillcore.survey(small, progress=steps.append)
    assert steps[-1].done == steps[-1].total > 0
    assert [s.done for s in steps] == sorted(s.done for s in steps)
    files = sum(p.stat().st_size for p in small.glob("*.safetensors"))
    assert 0 < files - result.census.nbytes < 20_000  # the headers
    assert result.provenance["settings"]["rank"] == 8
    assert {"torch", "numpy"} <= set(result.provenance["versions"])
    rows, summary = result.save(tmp_path / "out")
    assert Table.load(rows).rows == result.rows.rows
    data = json.loads(summary.read_text(encoding="utf-8"))
    assert {line["kind"]: line["verdict"] for line in data["summary"]}["down"] == "shared output space"
    assert len(data["census"]["entries"]) == len(result.census.entries)


def test_the_digest_sees_a_change_of_bytes(small: Path, tmp_path: Path) -> None:
    def digest(folder: Path) -> str:
        return drillcore.survey(folder, measures=["v1"], kinds=["q"]).provenance["digest"]

    for folder in ("a", "b"):
        write(tmp_path / folder, SMALL)
    assert digest(tmp_path / "a") == digest(tmp_path / "b") == digest(small)
    write(tmp_path / "b", SMALL, seed=1)
    assert digest(tmp_path / "a") != digest(tmp_path / "b")


def test_selection() -> None:
    assert select(["v1"]).needs == frozenset()
    assert "continuity.u1_without_ones" in select(["continuity.v1"]).names
    assert select(["spectrum"]).needs == {"spectrum"}
    assert not select(["spectrum"]).superposition
    assert select(["superposition"]).names == ()
    assert select(None).superposition
    with pytest.raises(InputError, match="no measure called 'v2'"):
        select(["v2"])


def test_kinds_layers_and_measures_restrict(small: Path) -> None:
    result = drillcore.survey(small, kinds=["q", "down"], layers=[1, 2, 3], measures=["v1", "superposition"])
    blocks = {(r.kind, r.layer) for r in result.rows if r.measure == "continuity.v1"}
    assert blocks == {(kind, layer) for kind in ("q", "down") for layer in (1, 2)}
    packed = {(r.kind, r.layer) for r in result.rows if r.measure == "superposition.mean_sq_overlap"}
    assert packed == {(kind, layer) for kind in ("q", "down") for layer in (1, 2, 3)}
    for bad, match in (({"kinds": ["gate_up"]}, "no matrix of kind"), ({"layers": [9]}, "no layer 9")):
        with pytest.raises(InputError, match=match):
            drillcore.survey(small, **bad)


def test_one_bad_tensor_is_named_and_the_others_are_surveyed(small: Path, tmp_path: Path) -> None:
    for path in small.iterdir():
        tensors = load_file(path) if path.suffix == ".safetensors" else None
        if tensors is None:
            (tmp_path / path.name).write_bytes(path.read_bytes())
            continue
        for name in tensors:
            if name in ("model.layers.2.mlp.up_proj.weight", "lm_head.weight"):
                tensors[name][3, 5] = float("nan")
        save_file(tensors, tmp_path / path.name)
    result = drillcore.survey(tmp_path)
    left_out = sorted(e.tensor for e in result.census.left_out)
    assert left_out == ["lm_head.weight", "model.layers.2.mlp.up_proj.weight"]
    assert all("NaN" in e.detail and e.remedy for e in result.census.left_out)
    up = result.rows.where(kind="up", measure="continuity.v1")
    assert {(r.layer, r.other) for r in up} == {(0, 1), (0, 3), (1, 3)}
    assert [r.adjacent for r in up if (r.layer, r.other) == (1, 3)] == [True]  # the next layer that has the kind
    whole = drillcore.survey(small)
    assert len(result.rows.where(kind="q")) == len(whole.rows.where(kind="q"))


def test_nothing_measurable_is_an_error(tmp_path: Path) -> None:
    bad = torch.full((8, 8), float("nan"))
    save_file({"model.layers.0.self_attn.q_proj.weight": bad}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="no matrix could be measured"):
        drillcore.survey(tmp_path, measures=["v1"])
    save_file({"model.norm.weight": torch.ones(8)}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="nothing to measure"):
        drillcore.survey(tmp_path)


_PEAK = """
import sys, threading, time, drillcore
from pathlib import Path
peak, stop = 0, threading.Event()
def watch():
    global peak
    while not stop.is_set():
        line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("RssAnon"))
        peak = max(peak, int(line.split()[1]) // 1024)
        time.sleep(0.002)
thread = threading.Thread(target=watch); thread.start()
drillcore.survey(sys.argv[1], measures=["v1", "u1", "v_subspace", "gram_v"])
stop.set(); thread.join(); print(peak)
"""


def peak_megabytes(folder: Path) -> int:
    # A fixed threshold keeps large buffers out of the heap, whose holes would hide what is really held.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}
    words = [sys.executable, "-c", _PEAK, str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    return int(done.stdout)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="RssAnon is read from /proc")
def test_peak_memory_does_not_grow_with_the_number_of_layers(tmp_path: Path) -> None:
    """Twelve more layers are 90 MB more of bf16 weights (180 MB in float32); the peak may grow by the rows only."""
    shapes = {layers: Shapes(512, 2048, 8, 4, 100, layers) for layers in (4, 16)}
    peaks = {}
    for layers, shape in shapes.items():
        write(tmp_path / str(layers), shape, embeddings=False)
        peaks[layers] = peak_megabytes(tmp_path / str(layers))
    assert peaks[16] - peaks[4] < 25


def test_no_thread_is_left_behind(small: Path) -> None:
    before = threading.active_count()
    drillcore.survey(small, measures=["v1"], kinds=["q"])
    assert threading.active_count() == before


def test_the_real_model_cannot_overflow_and_stays_below_its_bounds(minilm: Path) -> None:
    """Random tokens, all of them at once and one of them over and over: every part is below what the survey allows."""
    model = transformers.AutoModel.from_pretrained(minilm, attn_implementation="eager").eval()
    (certificate,) = (found := drillcore.survey(minilm)).certificates
    assert (certificate.verdict, found.placements[""].norm_placement) == ("cannot overflow", "post")
    generator = torch.Generator().manual_seed(0)
    with reaching(model) as seen, torch.no_grad():
        model(input_ids=torch.randint(0, 30_522, (4, 96), generator=generator))
        model(input_ids=torch.full((1, 96), 1012))
    allowed = bounds({"": certificate})
    shares = {place: reached / allowed[place] for place, reached in seen.largest.items()}
    assert {place[1] for place in shares} == {p.part for p in certificate.parts}
    assert 0.001 < max(shares.values()) <= 1


def test_a_certificate_needs_the_whole_checkpoint(small: Path) -> None:
    assert not drillcore.survey(small, layers=[0, 1]).certificates
    assert not drillcore.survey(small, kinds=["q", "k"]).certificates
    assert not drillcore.survey(small, measures=["v1"]).certificates
    only = drillcore.survey(small, measures=["stability"])
    assert len(only.certificates) == 1
    assert {r.measure.partition(".")[0] for r in only.rows} == {"stability"}


def test_bounds_are_the_same_with_leading_and_with_all_singular_values(tmp_path: Path) -> None:
    """Lanczos gives an upper bound that is a little above the norm of the whole spectrum: never below."""
    source = tmp_path / "wide"
    write(source, Shapes(width=640, hidden=1536, heads=4, kv_heads=2, vocab=300, layers=2))
    whole, leading = (
        drillcore.survey(source, measures=m).certificates[0] for m in (["stability", "spectrum"], ["stability"])
    )
    assert whole.parts
    for a, b in zip(whole.parts, leading.parts, strict=True):
        assert (a.bound or 0.0) <= (b.bound or 0.0) * (1 + 1e-6)
        assert (b.bound or 0.0) < 1.5 * (a.bound or 0.0)


def test_the_command_says_what_fp16_can_hold(
    minilm: Path, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["survey", str(minilm), "--out", str(tmp_path / "a")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Stability: post norms (by model type), layer norm" in said
    assert "attention logits cannot overflow" in said
    stored = json.loads((tmp_path / "a" / "survey.json").read_text())
    assert stored["placements"][0]["norm_placement"] == "post"
    assert stored["certificates"][0]["verdict"] == "cannot overflow"
    assert command(["survey", str(small), "--out", str(tmp_path / "b"), "--norm-placement", "post"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "what to do: `drillcore signal` measures it on a text" in said
    assert command(["survey", str(small), "--out", str(tmp_path / "c"), "--norm-placement", "sideways"]) == 2
    assert "no norm placement" in capsys.readouterr().err
