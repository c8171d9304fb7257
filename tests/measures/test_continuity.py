"""Continuity and spectra against brute force in float64, planted answers and the real model's known values."""

from collections.abc import Mapping
from math import cos, sqrt
from pathlib import Path
from statistics import fmean

import pytest
import torch
from safetensors.torch import load_file, save_file

import drillcore
from conftest import SMALL
from drillcore.linalg.operator import as_operator
from drillcore.measures import MEASURES
from drillcore.measures.probes import Sketch, cosine, sketch
from drillcore.table import Row, Table
from drillcore.verbs.survey import Survey

FACES_OUT = ("o", "down")


@pytest.fixture(scope="module")
def surveyed(small: Path) -> Survey:
    return drillcore.survey(small, rank=4)


def weights(folder: Path, module: str) -> list[torch.Tensor]:
    """The matrices of one module over depth, in float64."""
    tensors: Mapping[str, torch.Tensor] = {}
    for path in folder.glob("*.safetensors"):
        tensors = {**tensors, **load_file(path)}
    return [tensors[f"model.layers.{i}.{module}.weight"].double() for i in range(SMALL.layers)]


def pairs(table: Table, kind: str, measure: str) -> dict[tuple[int, int], Row]:
    rows = table.where(kind=kind, measure=measure)
    return {(r.layer, r.other): r for r in rows if r.layer is not None and r.other is not None}


def adjacent_mean(table: Table, kind: str, measure: str) -> float:
    return fmean(table.where(kind=kind, measure=measure, adjacent=True).values())


@pytest.mark.parametrize("kind", ["q", "k", "v", "o", "gate", "up", "down"])
def test_planted_continuity_is_read(surveyed: Survey, kind: str) -> None:
    side = "u" if kind in FACES_OUT else "v"
    for (lower, upper), row in pairs(surveyed.rows, kind, f"continuity.{side}1").items():
        expected = abs(cos((upper - lower) * SMALL.angle))
        assert row.value == pytest.approx(expected, abs=0.01)  # bf16 storage of small matrices
        assert row.adjacent == (upper == lower + 1)
        assert row.bound is not None
        assert abs(row.value - expected) <= row.bound + 1e-6
    summary = next(s for s in surveyed.summary if s.kind == kind)
    assert summary.verdict == ("shared output space" if kind in FACES_OUT else "shared input space")
    assert getattr(summary, "v" if side == "u" else "u").word == "at chance"


@pytest.mark.parametrize(("kind", "module"), [("k", "self_attn.k_proj"), ("down", "mlp.down_proj")])
def test_every_pair_measure_by_brute_force(small: Path, surveyed: Survey, kind: str, module: str) -> None:
    matrices = weights(small, module)
    spectra = [torch.linalg.svd(W, full_matrices=False) for W in matrices]
    table = surveyed.rows
    for i in range(SMALL.layers):
        for j in range(i + 1, SMALL.layers):
            (U, s, Vh), (X, _, Yh) = spectra[i], spectra[j]
            expected = {
                "continuity.v1": abs(float(Vh[0] @ Yh[0])),
                "continuity.u1": abs(float(U[:, 0] @ X[:, 0])),
                "continuity.v_subspace": float((Vh[:4] @ Yh[:4].T).square().sum() / 4),
                "continuity.u_subspace": float((U[:, :4].T @ X[:, :4]).square().sum() / 4),
            }
            if j == i + 1:
                p = s.square() / s.square().sum()
                expected["continuity.s2_weighted"] = float((p * (Vh * Yh).sum(1).abs()).sum())
                expected["continuity.gram_v"] = traceless_cosine(matrices[i].T, matrices[j].T)
                expected["continuity.gram_u"] = traceless_cosine(matrices[i], matrices[j])
            for measure, value in expected.items():
                assert pairs(table, kind, measure)[i, j].value == pytest.approx(value, abs=2e-4), measure


def traceless_cosine(A: torch.Tensor, B: torch.Tensor) -> float:
    """Cosine of A Aᵀ and B Bᵀ without their traces."""
    grams = [M @ M.T for M in (A, B)]
    G, H = (M - torch.eye(len(M), dtype=M.dtype) * M.trace() / len(M) for M in grams)
    return float((G * H).sum() / (G.norm() * H.norm()))


def test_every_layer_measure_by_brute_force(small: Path, surveyed: Survey) -> None:
    for layer, W in enumerate(weights(small, "mlp.up_proj")):
        U, s, Vh = torch.linalg.svd(W, full_matrices=False)
        p = s.square() / s.square().sum()
        expected = {
            "spectrum.sigma1": float(s[0]),
            "spectrum.gap": float(s[0] / s[1]),
            "spectrum.stable_rank": float(s.square().sum() / s[0].square()),
            "spectrum.effective_rank": float((-(p * p.log()).sum()).exp()),
            "spectrum.ones_u": abs(float(U[:, 0].sum())) / sqrt(len(U)),
            "spectrum.ones_v": abs(float(Vh[0].sum())) / sqrt(Vh.shape[1]),
            "spectrum.peak_u": float(U[:, 0].square().max()),
            "spectrum.peak_v": float(Vh[0].square().max()),
        }
        for measure, value in expected.items():
            (row,) = surveyed.rows.where(kind="up", layer=layer, measure=measure)
            assert row.value == pytest.approx(value, rel=2e-3), measure
        sigmas = surveyed.rows.where(kind="up", layer=layer, measure="spectrum.sigma").values()
        assert sigmas == pytest.approx(s[:4].tolist(), rel=1e-4)


def test_probed_gram_cosine_is_unbiased_with_an_honest_error() -> None:
    g = torch.Generator().manual_seed(0)
    A, B = torch.randn(60, 80, generator=g), torch.randn(60, 80, generator=g)
    B = 0.7 * A + 0.5 * B
    exact = {"v": traceless_cosine(A.double().T, B.double().T), "u": traceless_cosine(A.double(), B.double())}
    for side, value in exact.items():
        one = cosine(*(sketch(as_operator(W)[0], False) for W in (A, B)), side)  # type: ignore[misc,arg-type]
        many = cosine(*(sketch(as_operator(W)[0], False, probes=4096) for W in (A, B)), side)  # type: ignore[misc,arg-type]
        assert one
        assert many
        assert many[0] == pytest.approx(value, abs=4 * many[1] + 1e-3)
        assert many[1] < one[1] / 8
        assert one[0] == pytest.approx(value, abs=5 * one[1])


def test_probes_of_a_turned_operator_are_those_of_the_matrix() -> None:
    W = torch.randn(30, 50, generator=torch.Generator().manual_seed(1))
    straight, turned = sketch(as_operator(W)[0], False), sketch(as_operator(W.T.contiguous())[0], True)
    assert isinstance(straight, Sketch)
    assert torch.allclose(straight.v, turned.v, atol=1e-3)
    assert torch.allclose(straight.u, turned.u, atol=1e-3)


def test_probed_gram_of_independent_gaussians_is_null(tmp_path: Path) -> None:
    """The raw Gram cosine of independent Gaussians is 0.5 to 0.8; the traceless one is 0."""
    table = survey_of(tmp_path, [torch.randn(96, 64, generator=torch.Generator().manual_seed(i)) for i in range(4)])
    for row in table.where(measure="continuity.gram_v"):
        assert row.value is not None
        assert abs(row.value) < max(0.06, 5 * (row.stderr or 0.0))


def survey_of(folder: Path, matrices: list[torch.Tensor], module: str = "mlp.up_proj", **options) -> Table:
    """Survey a llama-named checkpoint that has only the given matrices."""
    tensors = {f"model.layers.{i}.{module}.weight": W.contiguous() for i, W in enumerate(matrices)}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return drillcore.survey(folder, **options).rows


def verdict_of(folder: Path, matrices: list[torch.Tensor]):
    survey_of(folder, matrices)
    (summary,) = drillcore.survey(folder).summary
    return summary


def rank_one_plus_noise(v: torch.Tensor, seed: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    u = torch.randn(160, generator=g)
    return 3 * torch.outer(u / u.norm(), v / v.norm()) + 0.01 * torch.randn(160, len(v), generator=g)


def test_verdict_words(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(5)
    d, layers = 200, range(5)
    shared = torch.randn(d, generator=g)
    cases = {
        "shared input space": [rank_one_plus_noise(shared, i) for i in layers],
        "at chance": [rank_one_plus_noise(torch.randn(d, generator=g), i) for i in layers],
        "one-signed input space": [rank_one_plus_noise(1 + 0.7 * torch.randn(d, generator=g), i) for i in layers],
        "one-coordinate input space": [
            rank_one_plus_noise(20 * torch.eye(d)[7] + torch.randn(d, generator=g), i) for i in layers
        ],
    }
    for word, matrices in cases.items():
        folder = tmp_path / word
        folder.mkdir()
        assert verdict_of(folder, matrices).verdict == word


def test_folded_norms_multiply_the_readers(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(2)
    matrices = [torch.randn(80, 48, generator=g) for _ in range(3)]
    gains = [torch.rand(48, generator=g) * 3 for _ in range(3)]
    tensors = {f"model.layers.{i}.mlp.up_proj.weight": W for i, W in enumerate(matrices)}
    tensors |= {f"model.layers.{i}.post_attention_layernorm.weight": w for i, w in enumerate(gains)}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    for fold in (False, True):
        table = drillcore.survey(tmp_path, fold_norms=fold, measures=["spectrum", "continuity.gram_v"]).rows
        for i, (W, gain) in enumerate(zip(matrices, gains, strict=True)):
            expected = torch.linalg.svdvals((W * gain if fold else W).double())[0]
            (row,) = table.where(layer=i, measure="spectrum.sigma1")
            assert row.value == pytest.approx(float(expected), rel=1e-5)


def test_statuses(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(3)
    W = [torch.randn(40, 30, generator=g) for _ in range(4)]
    W[1] = torch.zeros(40, 30)
    table = survey_of(tmp_path, W)
    zero = [r for r in table.where(measure="continuity.v1") if r.status == "zero-matrix"]
    assert [(r.layer, r.other) for r in zero] == [(0, 1), (1, 2), (1, 3)]
    assert all(r.value is None and "layer 1" in str(r.reason) for r in zero)
    assert len(table.where(measure="continuity.v1").values()) == 3
    one = survey_of(tmp_path, W[:1])
    assert {r.status for r in one.where(measure="continuity.v1")} == {"one-layer"}
    differing = survey_of(tmp_path, [W[0], torch.randn(50, 30, generator=g)])
    assert {r.status for r in differing.where(measure="continuity.u1")} == {"shapes-differ"}
    assert {r.status for r in differing.where(measure="continuity.v1")} == {"ok"}


def test_needs_full_spectrum_is_said_and_can_be_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from drillcore.measures import reading

    monkeypatch.setattr(reading, "FULL_SIDE", 20)
    W = [torch.randn(40, 30, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    table = survey_of(tmp_path, W)
    for measure in ("continuity.s2_weighted", "spectrum.effective_rank"):
        rows = table.where(measure=measure)
        assert {r.status for r in rows} == {"needs-full-spectrum"}
        assert all("--spectrum full" in str(r.reason) for r in rows)
    assert all(r.stderr is not None for r in table.where(measure="continuity.gram_v"))
    full = drillcore.survey(tmp_path, spectrum="full").rows
    assert {r.status for r in full.where(measure="spectrum.effective_rank")} == {"ok"}


def test_every_measure_has_rows_and_a_null_or_a_unit(surveyed: Survey) -> None:
    measured = {r.measure for r in surveyed.rows}
    dense = {name for name in MEASURES if not name.startswith("continuity.expert")}
    assert dense <= measured
    assert all(r.source for r in surveyed.rows)
    assert all(r.kind for r in surveyed.rows if not r.measure.startswith("stability."))  # of a whole stack


KNOWN = {  # float32 full SVD of MiniLM, mean over the five adjacent pairs: v1, u1
    "q": (0.2937, 0.0511), "k": (0.2466, 0.0570), "v": (0.2075, 0.0502),
    "o": (0.0352, 0.3810), "up": (0.7244, 0.6109), "down": (0.0205, 0.5744),
}  # fmt: skip
KNOWN_SUBSPACES = {
    ("q", "v"): 0.383,
    ("up", "v"): 0.300,
    ("up", "u"): 0.063,
    ("down", "u"): 0.355,
    ("down", "v"): 0.0054,
}


def test_known_answers_of_minilm(minilm: Path) -> None:
    result = drillcore.survey(minilm, measures=["continuity", "spectrum"])
    for kind, (v1, u1) in KNOWN.items():
        assert adjacent_mean(result.rows, kind, "continuity.v1") == pytest.approx(v1, abs=1e-4)
        assert adjacent_mean(result.rows, kind, "continuity.u1") == pytest.approx(u1, abs=1e-4)
    for (kind, side), value in KNOWN_SUBSPACES.items():
        assert adjacent_mean(result.rows, kind, f"continuity.{side}_subspace") == pytest.approx(value, abs=5e-4)
    ones = fmean(result.rows.where(kind="up", measure="spectrum.ones_u").values())
    assert ones == pytest.approx(0.8, abs=0.05)
    words = {s.kind: (s.verdict, s.v.word, s.u.word) for s in result.summary}
    assert words["up"] == ("shared input space", "shared", "one-signed")
    assert words["down"][0] == words["o"][0] == "shared output space"
    assert not result.census.left_out
