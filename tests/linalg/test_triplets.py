"""Leading triplets against closed forms, planted spectra and LAPACK in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drillcore.linalg import NonFiniteError, Product, leading_triplets
from drillcore.linalg.operator import DenseOperator
from drillcore.stats import abs_cos, subspace_overlap

# (out, in): tall, wide, square, short side below and above the switch to the Gram matrix.
SHAPES = [(900, 600), (600, 900), (700, 700), (2000, 96), (96, 2000), (1400, 640), (300, 300)]


def planted(out: int, into: int, s: torch.Tensor, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """W = U diag(s) Vᵀ with random orthonormal factors, in float64."""
    g = torch.Generator().manual_seed(seed)
    U = torch.linalg.qr(torch.randn(out, len(s), generator=g, dtype=torch.float64))[0]
    V = torch.linalg.qr(torch.randn(into, len(s), generator=g, dtype=torch.float64))[0]
    return (U * s) @ V.T, U, V


def gaussian(out: int, into: int, seed: int) -> torch.Tensor:
    return torch.randn(out, into, generator=torch.Generator().manual_seed(seed))


def cosines(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    return (A.double() * B.double()).sum(0).abs()


@pytest.mark.parametrize(("out", "into"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_planted_spectrum(out: int, into: int, dtype: torch.dtype) -> None:
    rank = min(out, into)
    s = torch.arange(1, rank + 1, dtype=torch.float64) ** -0.5
    exact, U, V = planted(out, into, s)
    found = leading_triplets(exact.to(dtype), 4, key="planted")
    assert found.status == "ok"
    store = torch.finfo(dtype).eps
    assert torch.allclose(found.s, s[:4], rtol=4 * store + 1e-5)
    sine = (1 - torch.minimum(cosines(found.u, U[:, :4]), cosines(found.v, V[:, :4])).square()).clamp_min(0).sqrt()
    # float32 unit vectors are themselves known to about 1e-3 in this measure of sine (√(2·eps))
    assert (sine <= found.bound + 1e-3).all()
    assert found.identifiable.all()
    assert torch.allclose(found.gap_below, (s[:4] - s[1:5]), rtol=0.05)


@pytest.mark.parametrize(("out", "into"), [(640, 1400), (1024, 1024), (2000, 96)])
def test_flat_gaussian_spectrum_agrees_with_lapack(out: int, into: int) -> None:
    W = gaussian(out, into, 3)
    U, s, Vh = torch.linalg.svd(W.double(), full_matrices=False)
    found = leading_triplets(W, 8, key="flat")
    assert torch.allclose(found.s, s[:8], rtol=1e-5)
    assert cosines(found.u, U[:, :8]).min() > 0.9999
    assert cosines(found.v, Vh[:8].T).min() > 0.9999
    assert (found.residual <= 1e-5 * s[0] + 1e-6).all()


@pytest.mark.parametrize(("out", "into"), [(4096, 1024), (1024, 4096), (1024, 1024), (256, 1024)])
def test_independent_gaussians_meet_the_null_with_one_seed(out: int, into: int) -> None:
    """A start shared by two matrices must not show in converged vectors (randomised SVD fails this ten-fold)."""
    k = 8
    a, b = (leading_triplets(gaussian(out, into, seed), k, key="the same key") for seed in (11, 12))
    for x, y in ((a.v, b.v), (a.u, b.u)):
        null = subspace_overlap(x.shape[0], k)
        overlap = float((x.T @ y).square().sum() / k)
        assert abs(overlap - null.mean) < 5 * null.sd
        one = abs_cos(x.shape[0])
        assert float(cosines(x, y).mean()) < one.mean + 5 * one.sd / k**0.5


def test_null_test_would_see_an_unconverged_start() -> None:
    """The oracle above can fail: two steps from a shared start do show alignment."""
    g = torch.Generator().manual_seed(0)
    start = torch.randn(1024, 8, generator=g)
    bases = []
    for seed in (11, 12):
        W = gaussian(4096, 1024, seed)
        bases.append(torch.linalg.qr(W.T @ (W @ start))[0])
    null = subspace_overlap(1024, 8)
    assert float((bases[0].T @ bases[1]).square().sum() / 8) > null.mean + 20 * null.sd


def test_the_bound_of_a_subspace_may_exceed_one() -> None:
    """Only the last gap is small: the subspace is off by more than one right angle could be."""
    s = torch.cat([torch.full((2,), 1.0), torch.full((58,), 0.999)]).double()
    W, U, _ = planted(80, 60, s)
    found = leading_triplets(W.bfloat16(), 2, key="flat")
    sines = torch.linalg.svdvals(found.u.double() - U[:, :2] @ (U[:, :2].T @ found.u.double()))
    assert float(sines.norm()) > 1  # the bound of 1 was not a bound
    assert float(sines.norm()) <= found.subspace_bound <= 2**0.5 + 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2048, 2050), (3, 5)])
def test_the_frobenius_norm_is_not_below_the_largest_singular_value(shape: tuple[int, int], dtype: torch.dtype) -> None:
    for W in (torch.full(shape, 0.0371), torch.full(shape, 0.1), gaussian(*shape, 1)):
        held = DenseOperator(W.to(dtype).float())
        exact = float(held.W.double().norm())
        assert held.frobenius == pytest.approx(exact, rel=3e-7)


def test_a_float64_matrix_is_held_in_float32_and_has_its_rounding() -> None:
    W = torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))
    bounds = [float(leading_triplets(M, 1, key="held").bound[0]) for M in (W, W.float())]
    assert bounds[0] == bounds[1] >= 2.0**-24 * W.norm() / 3 * 2 * 3**0.5


@pytest.mark.parametrize("side", [700, 1000])
def test_repeated_value_is_found_and_said(side: int) -> None:
    s = torch.arange(1, side + 1, dtype=torch.float64) ** -0.5
    s[1] = s[0]
    W, _, _ = planted(side, side, s)
    found = leading_triplets(W.float(), 3, key="repeated")
    assert torch.allclose(found.s, s[:3], rtol=1e-5)
    assert found.identifiable.tolist() == [False, False, True]
    assert float(found.bound[0]) == 1.0


def test_hidden_copy_in_a_stack_is_said() -> None:
    """Exactly block-diagonal copies: the Krylov space of one vector holds only one copy of each value."""
    side = 600
    s = torch.arange(1, side + 1, dtype=torch.float64) ** -0.7
    block, _, _ = planted(side, side, s)
    W = torch.block_diag(block.float(), block.float())
    found = leading_triplets(W, 2, key="copies")
    assert not found.identifiable.any()


def test_clustered_values_are_unidentifiable() -> None:
    s = torch.ones(600, dtype=torch.float64) * 0.1
    s[0], s[1] = 1.0, 1.0 - 1e-6
    W, _, _ = planted(800, 600, s)
    found = leading_triplets(W.float(), 2, key="cluster")
    assert not bool(found.identifiable[0])
    assert found.subspace_bound < 1e-2  # the plane is known although its two vectors are not


def test_low_rank_and_identity() -> None:
    W, U, _ = planted(900, 700, torch.tensor([3.0, 2.0], dtype=torch.float64))
    found = leading_triplets(W.float(), 4, key="low rank")
    assert torch.allclose(found.s[:2], torch.tensor([3.0, 2.0], dtype=torch.float64), rtol=1e-5)
    assert float(found.s[2:].max()) < 1e-5
    assert cosines(found.u[:, :2], U).min() > 0.99999
    identity = leading_triplets(torch.eye(700), 3, key="eye")
    assert torch.allclose(identity.s, torch.ones(3, dtype=torch.float64), rtol=1e-5)
    assert not identity.identifiable.any()


def test_zero_and_tiny_matrices() -> None:
    zero = leading_triplets(torch.zeros(20, 30), 4, key="zero")
    assert zero.status == "zero"
    assert not zero.identifiable.any()
    one = leading_triplets(torch.tensor([[2.0]]), 8, key="one")
    assert one.s.tolist() == [2.0]
    row = leading_triplets(torch.tensor([[3.0, 4.0]]), 8, key="row")
    assert float(row.s[0]) == pytest.approx(5.0)
    assert bool(row.identifiable[0])  # nothing competes with an only value


def test_full_spectrum_agrees_with_lapack() -> None:
    W = gaussian(600, 900, 5)
    U, s, Vh = torch.linalg.svd(W.double(), full_matrices=False)
    found = leading_triplets(W, 3, key="full", full=True)
    assert found.spectrum is not None
    assert found.full_v is not None
    assert found.full_u is not None
    assert torch.allclose(found.spectrum, s, rtol=1e-6)
    assert cosines(found.full_v[:, :500], Vh[:500].T).min() > 0.999
    assert cosines(found.full_u[:, :500], U[:, :500]).min() > 0.999


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_non_finite_is_refused(bad: float, dtype: torch.dtype) -> None:
    W = gaussian(64, 700, 1).to(dtype)
    W[17, 300] = bad
    with pytest.raises(NonFiniteError):
        leading_triplets(W, 1, key="bad")


def test_large_finite_values_are_not_called_infinite() -> None:
    W = gaussian(64, 64, 1) * 1e17
    found = leading_triplets(W, 1, key="large")
    assert float(found.s[0]) == pytest.approx(float(torch.linalg.svdvals(W.double())[0]), rel=1e-5)


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="k must be"):
        leading_triplets(torch.eye(3), 0, key="x")
    with pytest.raises(ValueError, match="tol"):
        leading_triplets(torch.eye(3), 1, tol=0.0, key="x")


def test_product_is_never_formed_and_agrees() -> None:
    left, right = gaussian(500, 4, 1), gaussian(4, 300, 2)
    U, s, Vh = torch.linalg.svd(left.double() @ right.double(), full_matrices=False)
    found = leading_triplets(Product(left, right), 3, key="lora")
    assert torch.allclose(found.s, s[:3], rtol=1e-6)
    assert cosines(found.u, U[:, :3]).min() > 0.99999
    assert cosines(found.v, Vh[:3].T).min() > 0.99999


def test_stacked_matrices_equal_their_concatenation(monkeypatch: pytest.MonkeyPatch) -> None:
    from drillcore.linalg import operator

    blocks = [gaussian(400, 640, i) for i in range(4)]
    whole = leading_triplets(torch.cat(blocks), 4, key="stack")
    monkeypatch.setattr(operator, "_HELD_ELEMENTS", 1000)
    stacked = leading_triplets([b.bfloat16().float() for b in blocks], 4, key="stack")
    assert torch.allclose(whole.s, stacked.s, rtol=1e-3)
    exact = leading_triplets(blocks, 4, key="stack")
    assert torch.allclose(whole.s, exact.s, rtol=1e-5)
    assert cosines(whole.v, exact.v).min() > 0.9999


@pytest.mark.parametrize("limit", [1000, 1 << 27])
@pytest.mark.parametrize("turned", [False, True])
def test_gain_multiplies_the_input_side(turned: bool, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from drillcore.linalg import operator

    monkeypatch.setattr(operator, "_HELD_ELEMENTS", limit)
    W, gain = gaussian(620, 560, 4), torch.linspace(0.1, 3.0, 560)
    stored = W.T.contiguous().T if turned else W
    found = leading_triplets(stored, 2, key="gain", gain=gain)
    expected = torch.linalg.svdvals((W * gain).double())
    assert torch.allclose(found.s, expected[:2], rtol=1e-5)


def test_unconverged_is_said() -> None:
    found = leading_triplets(gaussian(900, 900, 2), 8, key="short", max_steps=12)
    assert found.status == "not-converged"
    assert float(found.residual[-1]) > 1e-5 * float(found.s[0])


small = st.integers(2, 24)


@given(small, small, st.integers(0, 5), st.floats(0.01, 100))
def test_invariances(out: int, into: int, seed: int, scale: float) -> None:
    """Scaling scales s; permuting rows permutes u; a rotation of the input turns v."""
    W = gaussian(out, into, seed)
    base = leading_triplets(W, 2, key="a")
    scaled = leading_triplets(W * scale, 2, key="a")
    assert torch.allclose(scaled.s, base.s * scale, rtol=1e-5)
    order = torch.randperm(out, generator=torch.Generator().manual_seed(seed))
    turn = torch.linalg.qr(gaussian(into, into, seed + 1))[0]
    moved = leading_triplets(W[order] @ turn, 2, key="b")
    assert torch.allclose(moved.s, base.s, rtol=1e-4)
    if bool(base.identifiable[0]) and float(base.bound[0]) < 1e-3:
        assert float(cosines(moved.u[:, :1], base.u[order][:, :1])) == pytest.approx(1, abs=1e-3)
        assert float(cosines(moved.v[:, :1], (turn.T @ base.v)[:, :1])) == pytest.approx(1, abs=1e-3)


@given(small, small, st.integers(0, 20))
def test_the_certificate_holds(out: int, into: int, seed: int) -> None:
    """The true angle is within the bound, for float32 storage of a float64 matrix."""
    exact = torch.randn(out, into, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    found = leading_triplets(exact.float(), 2, key="c")
    U, _, Vh = torch.linalg.svd(exact, full_matrices=False)
    for ours, true in ((found.u, U), (found.v, Vh.T)):
        x = ours[:, 0].double() / ours[:, 0].double().norm()
        sine = float((x - true[:, 0] * (true[:, 0] @ x)).norm())
        assert sine <= float(found.bound[0]) + 1e-7


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_agrees_with_the_cpu() -> None:
    W = gaussian(900, 700, 1)
    here, there = (leading_triplets(W.to(d), 4, key="device") for d in ("cpu", "cuda"))
    assert torch.allclose(here.s, there.s, rtol=1e-5)
    assert cosines(here.v, there.v.cpu()).min() > 0.9999


@pytest.mark.parametrize(("scale", "words"), [(1e-40, "too small"), (1e-25, "too small"), (1e25, "too large")])
@pytest.mark.parametrize("shape", [(40, 30), (400, 300)])
def test_numbers_whose_products_leave_float32_are_refused(scale: float, words: str, shape: tuple[int, int]) -> None:
    W = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * scale
    with pytest.raises(NonFiniteError, match=f"{words} for float32"):
        leading_triplets(W.float(), 2, key="range")


@pytest.mark.parametrize("scale", [1e-10, 1e10])
def test_small_and_large_numbers_are_no_fault(scale: float) -> None:
    W = torch.randn(60, 50, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found, whole = leading_triplets((W * scale).float(), 2, key="scale"), torch.linalg.svdvals(W)[:2]
    assert torch.allclose(found.s / scale, whole, rtol=1e-5)
