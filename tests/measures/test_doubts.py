"""Nulls, bounds and statuses of continuity and spectra where the plain case does not hold."""

from math import sqrt
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import drillcore
from drillcore.linalg import operator
from drillcore.linalg.operator import as_operator
from drillcore.measures import continuity
from drillcore.measures.probes import cosine, sketch
from drillcore.measures.reading import KindReading, LayerReading, Options
from drillcore.measures.replicas import read_replicas
from drillcore.stats import gram_cosine, subspace_overlap
from drillcore.table import Row, Table


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def orthogonal(d: int, seed: int) -> Tensor:
    return torch.linalg.qr(gaussian(d, d, seed=seed))[0]


def survey_of(folder: Path, matrices: list[Tensor], **options: object) -> Table:
    tensors = {f"model.layers.{i}.mlp.up_proj.weight": W.contiguous() for i, W in enumerate(matrices)}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return drillcore.survey(folder, **options).rows  # type: ignore[arg-type]


@pytest.mark.parametrize("full", [True, False])
def test_gram_cosines_of_independent_layers_spread_as_their_null_says(full: bool) -> None:
    (reading,) = read_replicas([gaussian(1, 24, 16, seed=i) for i in range(400)], "W", rank=2, spectrum=full)
    if not full:
        layers = [LayerReading(r.layer, r.shape, r.triplets, sketch(as_operator(gaussian(24, 16, seed=r.layer))[0],
                               False, probes=512)) for r in reading.layers[:40]]  # fmt: skip
        reading = KindReading("", "W", "in", Options(), tuple(layers))
    rows = [r for r in continuity.gram_cosines(reading, "gram", "v") if r.value is not None]
    values = torch.tensor([r.value for r in rows], dtype=torch.float64)
    assert rows[0].null_sd == gram_cosine(16).sd
    assert float(values.std()) == pytest.approx(gram_cosine(16).sd, rel=0.12)
    assert all((r.stderr is None) == full for r in rows)


def test_gram_of_an_orthogonal_matrix_has_no_direction() -> None:
    Q, P = orthogonal(64, 1), orthogonal(64, 2)
    (reading,) = read_replicas([Q[None], P[None], gaussian(1, 64, 64)], "W")
    rows = list(continuity.gram_cosines(reading, "gram", "v"))
    assert [(r.value, r.status) for r in rows] == [(None, "isotropic")] * 2
    assert "multiple of the identity" in str(rows[0].reason)
    sketches = [sketch(as_operator(W)[0], False) for W in (Q, P, gaussian(64, 64), gaussian(64, 64))]
    assert cosine(sketches[0], sketches[1], "v") is None
    assert cosine(sketches[0], sketches[2], "u") is None
    same = cosine(sketches[2], sketches[3], "u")
    assert same
    assert 0.999 < same[0] <= 1


def test_gram_cosine_of_nearly_orthogonal_matrices_is_right() -> None:
    """Singular values 1 ± 1e-3: the traceless part is a millionth of the whole."""
    bases, s = (orthogonal(48, 1), orthogonal(48, 2)), 1 + 1e-3 * gaussian(48).double()
    pair = [(bases[0].double() * s), (bases[0].double() * s) @ bases[1].double()]
    grams = [W.float().double().T @ W.float().double() for W in (pair[0], pair[1])]
    G, H = (M - torch.eye(48, dtype=M.dtype) * M.trace() / 48 for M in grams)
    (reading,) = read_replicas([W.float()[None] for W in pair], "W")
    (row,) = continuity.gram_cosines(reading, "gram", "v")
    assert row.value == pytest.approx(float((G * H).sum() / (G.norm() * H.norm())), abs=1e-3)


def test_subspaces_of_a_thin_matrix_have_the_null_of_their_columns() -> None:
    values: list[float] = []
    for seed in range(60):
        (reading,) = read_replicas([gaussian(1, 4, 256, seed=2 * seed + i) for i in range(2)], "W", rank=8)
        (row,) = continuity.subspace_overlap_rows(reading, "subspace", "v")
        assert row.value is not None
        values.append(row.value)
    assert row.null == pytest.approx(4 / 256)
    assert row.null_sd == pytest.approx(subspace_overlap(256, 4).sd)
    assert sum(values) / 60 == pytest.approx(row.null, abs=4 * subspace_overlap(256, 4).sd / sqrt(60))


def test_layers_with_different_numbers_of_directions_say_so() -> None:
    (reading,) = read_replicas([gaussian(1, 4, 60), gaussian(1, 6, 60)], "W", rank=8)
    (row,) = continuity.subspace_overlap_rows(reading, "subspace", "v")
    assert (row.value, row.status) == (None, "ranks-differ")
    assert "4 and 6" in str(row.reason)


def test_the_overlap_bound_holds_where_the_gap_is_unknown() -> None:
    """k = 4 of equal singular values: the true leading subspace may be any other."""
    (reading,) = read_replicas([orthogonal(20, i)[None] for i in range(2)], "W", rank=4)
    assert reading.layers[0].triplets.subspace_bound == 2.0
    (row,) = continuity.subspace_overlap_rows(reading, "subspace", "v")
    assert row.bound == 1.0


def test_the_bound_of_a_cleaned_cosine_covers_the_float64_answer() -> None:
    """A vector that is nearly constant keeps little once the constant is taken out, and its error grows."""
    pairs = []
    for i in range(2):
        v = 1 + 0.02 * gaussian(40, seed=i).double()
        pairs.append(3 * torch.outer(gaussian(30, seed=i + 9).double() / 5, v / v.norm())
                     + 0.01 * gaussian(30, 40, seed=i + 20).double())  # fmt: skip
    (reading,) = read_replicas([W.bfloat16()[None] for W in pairs], "W")
    (row,) = continuity.cleaned_cosines(reading, "clean", "v", "ones")
    x, y = (torch.linalg.svd(W)[2][0] for W in pairs)
    x, y = x - x.mean(), y - y.mean()
    exact = abs(float(x @ y)) / float(x.norm() * y.norm())
    assert row.value is not None
    assert row.bound is not None
    assert abs(row.value - exact) <= row.bound
    plain = continuity.cosine_bound(reading.layers[0], reading.layers[1])
    assert row.bound > 5 * plain or row.bound == 1.0
    assert continuity.cosine_bound(reading.layers[0], reading.layers[1], (1.0, 1e-9)) == 1.0


def test_a_zero_matrix_has_no_direction_in_any_measure(tmp_path: Path) -> None:
    table = survey_of(tmp_path, [gaussian(30, 20), torch.zeros(30, 20), gaussian(30, 20, seed=1)])
    for measure in ("ones_u", "ones_v", "peak_u", "peak_v", "angle_bound", "effective_rank"):
        (row,) = table.where(measure=f"spectrum.{measure}", layer=1)
        assert (row.value, row.status) == (None, "zero-matrix"), measure
    for row in table.where(measure="continuity.s2_weighted"):
        assert row.status == "zero-matrix"
        assert "layer 1" in str(row.reason)


def test_a_pair_across_a_layer_left_out_is_compared_exactly(tmp_path: Path) -> None:
    W = [gaussian(30, 20, seed=i) for i in range(3)]
    expected = survey_of(tmp_path, [W[0], W[2]]).where(measure="continuity.s2_weighted").values()
    W[1][3, 3] = float("nan")
    table = survey_of(tmp_path, W)
    (row,) = table.where(measure="continuity.s2_weighted")
    assert (row.layer, row.other, row.adjacent) == (0, 2, True)
    assert [row.value] == pytest.approx(expected)
    assert all(r.stderr is None for r in table.where(measure="continuity.gram_v"))


def test_a_matrix_too_large_to_hold_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "_HELD_ELEMENTS", 1000)
    W = [gaussian(60, 40, seed=i) for i in range(2)]
    table = survey_of(tmp_path, W, spectrum="full")
    for measure in ("spectrum.effective_rank", "continuity.s2_weighted"):
        assert {r.status for r in table.where(measure=measure)} == {"too-large"}
    first = [float(torch.linalg.svdvals(M.double())[0]) for M in W]
    assert table.where(measure="spectrum.sigma1").values() == pytest.approx(first, rel=1e-5)


def test_stacked_experts_say_why_they_have_no_spectrum(tmp_path: Path) -> None:
    tensors = {f"model.layers.{i}.block_sparse_moe.experts.{e}.w1.weight": gaussian(24, 16, seed=10 * i + e)
               for i in range(2) for e in range(3)}  # fmt: skip
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "mixtral"}')
    table = drillcore.survey(tmp_path).rows
    found = [r for r in table if r.measure in ("spectrum.effective_rank", "continuity.s2_weighted")]
    assert {r.status for r in found} == {"stacked-experts"}
    assert not any("--spectrum" in str(r.reason) for r in found)


def test_the_mean_over_experts_that_agree_has_a_wider_null() -> None:
    """Three experts of a layer share most of a direction; both layers are turned at random."""
    values, rows = [], list[Row]()
    for seed in range(150):
        layers = []
        for i in range(2):
            v = gaussian(24, seed=1000 * i + seed)
            experts = [v + 0.3 * gaussian(24, seed=7 * seed + 10000 * i + e) for e in range(3)]
            found = [read_replicas([torch.outer(gaussian(9), x)[None]], "W")[0].layers[0].triplets for x in experts]
            layers.append(LayerReading(i, (9, 24), found[0], experts=tuple(found)))
        rows = list(continuity.expert_mean(KindReading("", "W", "in", Options(), tuple(layers)), "mean"))
        values.append(float(rows[0].value or 0.0))
    sample = torch.tensor(values)
    assert rows[0].null_sd == pytest.approx(float(sample.std()), rel=0.25)
