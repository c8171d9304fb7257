"""The sets that hold what a model can reach: extremes that are attained, and images that nothing leaves."""

from math import inf, sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from drillcore.measures.stability.extent import Ellipsoid, Extent, Region, around_zero, either, product

ROUND = 1e-5  # float32 products and their rounding upwards


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def points(extent: Extent, n: int = 400, seed: int = 0) -> Tensor:
    """Random members, n × d: many of them on the border."""
    if isinstance(extent, Ellipsoid):
        x = random(n, len(extent.gain), seed=seed) * random(n, 1, seed=seed + 1).exp()
        x[: n // 4, 1:] *= 1e-3  # one entry takes all
        x -= x.mean(1, keepdim=True) if extent.centred else 0
        return x / x.square().mean(1, keepdim=True).sqrt() * extent.gain + extent.shift
    y = 2 * torch.rand(n, len(extent.centre), generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1
    y[: n // 2] = y[: n // 2].sign()
    parts = (y * extent.spread).reshape(n, len(extent.radii), -1)
    longest = parts.norm(dim=2, keepdim=True).clamp_min(1e-30)
    return extent.centre + (parts * (extent.radii[None, :, None] / longest).clamp_max(1)).reshape(n, -1)


def holds(region: Region, x: Tensor) -> bool:
    """Every row of x lies in the region, in all that it says of itself."""
    y, room = x - region.centre, 1 + ROUND
    parts = y.reshape(len(y), len(region.radii), -1).norm(dim=2)
    return bool(
        (y.abs() <= region.spread * room + 1e-12).all() and (parts <= region.radii * room + 1e-12).all()
        and (x.norm(dim=1) <= region.norm * room).all() and (x.abs() <= region.entries * room + 1e-12).all()
        and x.abs().max() <= region.largest * room
    )  # fmt: skip


def ellipsoid(d: int, *, centred: bool, seed: int = 0) -> Ellipsoid:
    return Ellipsoid(random(d, seed=seed), random(d, seed=seed + 1), centred)


def a_region(d: int, parts: int = 1, seed: int = 0) -> Region:
    radii = random(parts, seed=seed + 2).abs() * sqrt(d / parts) / 2
    return Region(random(d, seed=seed), random(d, seed=seed + 1).abs(), radii)


@given(st.booleans(), st.integers(2, 40), st.integers(0, 99))
def test_what_a_norm_gives_lies_in_its_ellipsoid(centred: bool, d: int, seed: int) -> None:
    made = ellipsoid(d, centred=centred, seed=seed)
    x = random(50, d, seed=seed + 7) * 10
    if centred:
        y = functional.layer_norm(x, (d,), made.gain, made.shift, eps=0)
    else:
        y = functional.rms_norm(x, (d,), made.gain, eps=0) + made.shift
    assert holds(made.region, y)


@pytest.mark.parametrize("centred", [False, True])
def test_the_largest_entry_is_attained(centred: bool) -> None:
    """√d |γ_j| + |β_j| by one entry that takes all; √(d − 1) where the mean is taken out (closed form)."""
    made = ellipsoid(9, centred=centred)
    j = int((made.gain.abs() * sqrt(8 if centred else 9) + made.shift.abs()).argmax())
    u = torch.zeros(9, dtype=torch.float64)
    u[j] = float((made.gain[j] * made.shift[j]).sign())
    u -= u.mean() if centred else 0
    x = u / u.square().mean().sqrt() * made.gain + made.shift
    assert made.largest == pytest.approx(float(x.abs().max()), rel=1e-12)


def test_the_image_of_an_ellipsoid_is_attained_in_every_entry() -> None:
    """max of (W(γ ⊙ u) + Wβ + b)_i over ‖u‖ = √d is √d ‖W_i ⊙ γ‖ + (Wβ + b)_i."""
    made, W, b = ellipsoid(24, centred=False), random(10, 24, seed=5), random(10, seed=6)
    image = made.image(W, b, inf)
    for i in range(10):
        u = W[i] * made.gain
        x = u / u.norm() * sqrt(24) * made.gain + made.shift
        reached = float(W[i] @ x + b[i])
        assert float(image.centre[i] + image.spread[i]) == pytest.approx(reached, rel=ROUND)
        assert float(image.centre[i] + image.spread[i]) >= reached


@given(st.booleans(), st.integers(0, 99), st.sampled_from([1, 4]))
def test_no_member_leaves_the_image(as_ellipsoid: bool, seed: int, parts: int) -> None:
    W, b = random(13, 24, seed=seed + 3).float(), random(13, seed=seed + 4).float()
    made = ellipsoid(24, centred=bool(seed % 2), seed=seed) if as_ellipsoid else a_region(24, parts, seed)
    x = points(made, seed=seed)
    assert holds(made.region if isinstance(made, Ellipsoid) else made, x)
    sigma = float(torch.linalg.matrix_norm(W.double(), 2))
    for above in (sigma * (1 + 1e-12), inf):
        assert holds(made.image(W, b, above), x @ W.double().T + b.double())


def test_the_images_entries_and_length_are_attained_by_a_region() -> None:
    """A box is attained at a corner, a ball along the leading vector (closed forms)."""
    W = random(6, 20)
    box, ball = torch.full((20,), 0.3, dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64)
    wide = torch.full((20,), 9.0, dtype=torch.float64)
    corner = Region(torch.zeros(20).double(), box, ball * 100).image(W, None, inf)
    torch.testing.assert_close(corner.spread, 0.3 * W.abs().sum(1), rtol=ROUND, atol=0)
    sigma = float(torch.linalg.matrix_norm(W, 2))
    turned = Region(torch.zeros(20).double(), wide, ball).image(W, None, sigma)
    assert turned.radius == pytest.approx(0.5 * sigma)
    torch.testing.assert_close(turned.spread, 0.5 * W.norm(dim=1), rtol=ROUND, atol=0)


def test_bfloat16_and_long_rows_are_rounded_upwards() -> None:
    """float32 sums never fall below the exact ones, by float64."""
    W = random(3, 60_000).bfloat16()
    made = Region(torch.zeros(60_000).double(), torch.rand(60_000).double(), torch.tensor([1e9]).double())
    assert bool((made.image(W, None, inf).spread >= W.double().abs() @ made.spread).all())
    norm = Ellipsoid(torch.rand(60_000).double(), torch.zeros(60_000).double(), False)
    exact = sqrt(60_000) * (W.double() * norm.gain).norm(dim=1)
    assert bool((norm.image(W, None, inf).spread >= exact).all())


@given(st.integers(0, 99), st.floats(0.1, 3))
def test_sums_products_and_alternatives(seed: int, step: float) -> None:
    a, b = a_region(12, 3, seed), a_region(12, 1, seed + 40)
    x, y = points(a, seed=seed), points(b, seed=seed + 1)
    assert holds(a.plus(b, step), x + step * y)
    assert holds(product(a, b), x * y)
    assert holds(either([a, b]), torch.cat([x, y]))
    assert holds(around_zero(a.entries, a.norm), x)


def test_the_length_of_a_product_is_attained() -> None:
    """Two boxes of ones: their product is all ones, of length √12."""
    box = around_zero(torch.ones(12).double(), sqrt(12))
    assert product(box, box).norm == pytest.approx(sqrt(12))
    assert holds(product(box, box), torch.ones(1, 12).double())


def test_heads_mix_tokens_each_in_its_own_way() -> None:
    """Two value heads of three numbers, each shared by two query heads: a convex mix of tokens, drawn apart."""
    values = a_region(6, 1, seed=3)
    tokens = points(values, 30).reshape(30, 2, 3)
    shares = torch.softmax(5 * random(200, 4, 30, seed=9), dim=2)
    mixed = torch.einsum("nht,thc->nhc", shares, tokens.repeat_interleave(2, dim=1)).reshape(200, 12)
    assert holds(values.heads(2, 2), mixed)
