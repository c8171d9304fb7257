"""Gauge transformations of a residual network: exact where the theory says so, and only there."""

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from drillcore.measures.symmetry import (
    function_change,
    layer_rotations,
    random_rotation,
    regauged,
    symmetry_breaking,
)
from drillcore.models.activations import Activation
from drillcore.models.residual_mlp import ResidualMLP, Shape, Start

DEPTH, WIDTH = 5, 24


def network(activation: Activation, scale: float = 1.0, residual: bool = True) -> tuple[ResidualMLP, Tensor]:
    shape = Shape(activation, residual, depth=DEPTH, width=WIDTH, inputs=30)
    model = ResidualMLP(shape, (Start(0, scale, law="xavier"),), torch.float64)
    return model, torch.randn(40, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def output(model: ResidualMLP, x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    with torch.no_grad():
        for parameter, W in zip(model.W, weights, strict=True):
            parameter.copy_(W[None])
        return model(x[None])[0]


def change(activation: Activation, *, scale: float = 1.0, residual: bool = True) -> float:
    model, x = network(activation, scale, residual)
    before = [W[0].detach().clone() for W in model.W]
    rotations = layer_rotations(DEPTH, WIDTH, "test")
    return function_change(partial(output, model, x), before, regauged(before, rotations, residual=residual))


def test_rotating_every_layer_leaves_a_linear_residual_network_unchanged() -> None:
    assert change(Activation("none")) < 1e-12


def test_and_one_without_residuals() -> None:
    assert change(Activation("none"), residual=False) < 1e-12
    assert change(Activation("radial"), residual=False) < 1e-12  # it commutes with every rotation


@pytest.mark.parametrize("name", ["relu", "gelu", "silu", "tanh"])
def test_it_changes_a_network_whose_activation_knows_its_axes(name: str) -> None:
    assert change(Activation(name)) > 0.1


def test_for_radial_the_rotations_by_layer_are_only_nearly_a_symmetry() -> None:
    # Where ‖Wx‖ is large tanh saturates and the activation is almost the identity.
    assert change(Activation("radial"), scale=1.0) > 1e-3
    assert change(Activation("radial", radius=0.01)) < 1e-6


@pytest.mark.parametrize("name", ["none", "radial"])
def test_one_rotation_for_all_layers_is_exact_for_radial_too(name: str) -> None:
    model, x = network(Activation(name))
    before = [W[0].detach().clone() for W in model.W]
    R = random_rotation(WIDTH, "global")
    reference = output(model, x, before)
    after = regauged(before, [R] * (DEPTH + 1))
    with torch.no_grad():
        model.embed.copy_(R @ model.embed)
        model.head.copy_(model.head @ R.T)
    torch.testing.assert_close(output(model, x, after), reference, rtol=1e-11, atol=1e-12)


def test_rotations_are_rotations_and_named() -> None:
    R = random_rotation(9, "a")
    torch.testing.assert_close(R @ R.T, torch.eye(9, dtype=torch.float64), atol=1e-13, rtol=0)
    assert torch.equal(R, random_rotation(9, "a"))
    assert not torch.equal(R, random_rotation(9, "b"))
    with pytest.raises(ValueError, match="5 layers need 6 rotations"):
        regauged([R] * 5, [R] * 5)


def test_the_index_is_zero_for_what_rotates_and_grows_with_the_blend() -> None:
    x = torch.randn(2000, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert symmetry_breaking(Activation("none"), x) < 1e-12
    assert symmetry_breaking(Activation("radial"), x) < 1e-12
    found = [symmetry_breaking(Activation("radial", blend=b), x) for b in (0.1, 0.3, 1.0)]
    assert found == sorted(found)
    # relu(x) = (x + |x|)/2: the linear half commutes, the other half is what differs.
    half = lambda z: z.abs() / 2  # noqa: E731
    size = float((half(x).square().sum() / torch.relu(x).square().sum()).sqrt())
    assert found[-1] == pytest.approx(symmetry_breaking(half, x) * size, rel=1e-9)


def test_rotations_are_uniform() -> None:
    """Without its signs, the Q of Householder's QR leans to one side: its mean trace is not zero."""
    traces = torch.stack([random_rotation(3, "uniform", i).trace() for i in range(600)])
    assert abs(float(traces.mean())) < 4 * float(traces.std()) / 600**0.5
    assert float(traces.square().mean()) == pytest.approx(1, abs=0.25)  # E tr² = 1 over the orthogonal group
