"""Closed forms of the Hamiltonian against ascent, and finite, threshold or infinite by degree (shared notes §2.3)."""

from math import sqrt

import pytest
import torch
from torch import Tensor

from drillcore.measures.hamiltonian import ascend, box_value, ellipsoid_value, last_matrix_value
from drillcore.models.blocks import VARIANTS

D = 64


pytestmark = pytest.mark.usefixtures("one_thread")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


P, X = normal(D, seed=1), normal(8, D, seed=2)


def climbed(name: str, decay: float, **options):
    module = VARIANTS[name].make(D, 48, 0).double()
    gains = [] if module.branch_gain is None else [module.branch_gain]
    if gains:
        with torch.no_grad():
            gains[0].fill_(1.0)
    controls = [q for q in module.parameters() if q.dim() >= 2] + gains
    before = [q.detach().clone() for q in controls]
    found = ascend(lambda: module.velocity(X)[-1], controls, P, decay=decay, **options)
    assert all(torch.equal(q, b) for q, b in zip(controls, before, strict=True))
    return found


ONE = torch.ones(D, dtype=torch.float64)


@pytest.mark.parametrize("name", ["peri-gelu", "peri-swiglu", "peri-attention", "branch-out-swiglu"])
def test_an_output_norm_makes_it_finite_and_the_ascent_meets_the_closed_form(name: str) -> None:
    closed = ellipsoid_value(P, ONE, 0 * ONE, centred=True)
    for end in climbed(name, 0.0):
        assert end.outcome == "converged"
        assert end.value == pytest.approx(closed, rel=5e-3)
        assert end.value <= closed * (1 + 1e-9)  # a lower bound


def test_gains_and_shifts_and_a_box() -> None:
    """The maximiser of §2.3 put in by hand, and a linear programme's corners."""
    gain, shift = normal(D, seed=3), normal(D, seed=4)
    gp = gain * P
    u = -sqrt(D) * (gp - gp.mean()) / (gp - gp.mean()).norm()
    assert float((u * u).sum()) == pytest.approx(D)
    assert ellipsoid_value(P, gain, shift, centred=True) == pytest.approx(float(-P @ (shift + gain * u)))
    free = -sqrt(D) * gp / gp.norm()
    assert ellipsoid_value(P, gain, shift, centred=False) == pytest.approx(float(-P @ (shift + gain * free)))
    corner = shift + gain * -(gain * P).sign()
    assert box_value(P, gain, shift) == pytest.approx(float(-P @ corner))


def test_dyt_on_the_output_reaches_its_box() -> None:
    best = max(end.value for end in climbed("dyt-both-gelu", 0.0) if end.outcome == "converged")
    assert best == pytest.approx(box_value(P, ONE, 0 * ONE), rel=5e-3)


def test_degree_one_is_infinite_without_decay_and_has_its_closed_form_with_it() -> None:
    assert {end.outcome for end in climbed("sub-ln-gelu", 0.0)} == {"diverged"}
    hidden = sqrt(4 * D)  # of the inner norm's output
    for end in climbed("sub-ln-gelu", 0.1):
        assert end.outcome == "converged"
        assert end.value == pytest.approx(last_matrix_value(P, hidden, 0.1), rel=5e-3)


def test_degree_two_has_a_threshold_in_the_decay() -> None:
    """One ReLU unit: sup of a·b‖z‖‖p‖ − λ(a² + b²) is 0 up to λ = ‖z‖‖p‖/2 and infinite below (‖z‖ = √d)."""
    threshold = sqrt(D) * float(P.norm()) / 2
    assert {end.outcome for end in climbed("pre-relu", 0.9 * threshold)} == {"diverged"}
    assert {end.outcome for end in climbed("pre-relu", 1.1 * threshold)} == {"collapsed"}
    assert {end.outcome for end in climbed("pre-gelu", 0.0)} == {"diverged"}


@pytest.mark.parametrize("name", ["pre-swiglu", "layerscale-gelu"])
def test_degree_three_is_infinite_for_every_decay_from_a_large_enough_start(name: str) -> None:
    assert climbed(name, 30.0)[-1].outcome == "diverged"
    small, large = climbed(name, 3000.0, starts=(0.01, 3000.0))
    assert (small.outcome, large.outcome) == ("collapsed", "diverged")
