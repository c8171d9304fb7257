"""The path of v1 through the layers, on vectors whose plane is known."""

from math import cos, pi, sin

import pytest
import torch
from torch import Tensor

from drillcore.measures.replicas import read_replicas
from drillcore.measures.trajectory import sign_aligned, v1_path


def with_v1(vectors: Tensor) -> list[Tensor]:
    """One replica whose layers have these leading right vectors, each with an arbitrary sign of its own."""
    d = vectors.shape[1]
    noise = torch.randn(len(vectors), d, d, generator=torch.Generator().manual_seed(0)) * 1e-3
    return [
        (torch.outer(torch.ones(d), v) * (-1) ** i + n)[None]
        for i, (v, n) in enumerate(zip(vectors, noise, strict=True))
    ]


def turning(layers: int, d: int = 12) -> Tensor:
    """Unit vectors that turn by a twentieth of a circle a layer in the plane of the axes 2 and 7."""
    found = torch.zeros(layers, d)
    for i in range(layers):
        found[i, 2], found[i, 7] = cos(pi / 10 * i), sin(pi / 10 * i)
    return found


def test_a_turn_in_a_plane_is_seen_as_that_turn() -> None:
    (reading,) = read_replicas(with_v1(turning(6)), "mlp")
    rows = list(v1_path(reading, "continuity.v1_path"))
    points = torch.tensor([[r.value for r in rows if r.layer == i] for i in range(6)])
    assert [r.subset for r in rows if r.layer == 3] == ["1", "2"]
    assert points.norm(dim=1).tolist() == pytest.approx([1.0] * 6, abs=1e-3)
    angles = (points[1:] * points[:-1]).sum(1).acos()
    assert angles.tolist() == pytest.approx([pi / 10] * 5, abs=1e-2)


def test_independent_directions_do_not_fit_a_plane() -> None:
    vectors = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(1)))[0]
    (reading,) = read_replicas(with_v1(vectors), "mlp")
    squares = sum(r.value**2 for r in v1_path(reading, "continuity.v1_path") if r.value is not None)
    assert squares == pytest.approx(2.0, abs=0.05)  # of 12 orthogonal directions a plane holds two


def test_signs_follow_the_layer_before() -> None:
    vectors = turning(5) * torch.tensor([1.0, -1.0, -1.0, 1.0, -1.0])[:, None]
    assert torch.equal(sign_aligned(vectors), turning(5))


def test_a_zero_layer_has_no_point() -> None:
    layers = with_v1(turning(3))
    layers[1] = torch.zeros_like(layers[1])
    (reading,) = read_replicas(layers, "mlp", spectrum=False)
    assert {r.layer for r in v1_path(reading, "continuity.v1_path")} == {0, 2}
