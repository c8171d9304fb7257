"""Rotations that are symmetries give zero, and others do not; zero starts and first gradients against closed forms."""

from math import sqrt

import pytest
import torch
from torch import Tensor

from drillcore.measures.first_gradients import Task, coherence_rows, stack_gradients
from drillcore.measures.gauge import inner_breaking, layer_breaking, stream_breaking
from drillcore.measures.zero_start import gradient_norm, gradient_ratio_at_zero, pooled_variance, relative_sensitivity
from drillcore.models.activations import Activation
from drillcore.models.blocks import VARIANTS, Design, Form, mlp_half
from drillcore.models.blocks.start import draw

pytestmark = pytest.mark.usefixtures("one_thread")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = normal(6, 16)


def two_matrices(activation: str):
    W1, W2 = normal(24, 16, seed=1) / 4, normal(16, 24, seed=2) / 5
    act = Activation(activation)
    return (lambda x: act(x @ W1.T) @ W2.T), W1, W2


def test_the_inner_rotation_is_exact_for_what_commutes_and_only_then() -> None:
    for name, exact in (("none", True), ("radial", True), ("relu", False), ("gelu", False)):
        f, W1, W2 = two_matrices(name)
        kept = W1.clone()
        change = inner_breaking(f, X, [W1], W2)
        assert change < 1e-12 if exact else change > 0.1
        assert torch.equal(W1, kept)


def test_turning_the_stream_is_exact_for_rmsnorm_and_not_for_layernorm_or_dyt() -> None:
    for kind, exact in (("rmsnorm", True), ("l2", True), ("layernorm", False), ("dyt", False)):
        half = draw(mlp_half(Design(16, Form("pre", kind))), "gauge").double()
        change = stream_breaking(half.velocity, X, [half.branch.up.weight], [half.branch.down.weight])
        assert change < 1e-10 if exact else change > 0.01


def test_a_single_matrix_has_the_gauge_of_the_linear_residual_net() -> None:
    W = normal(16, 16, seed=3) / 4
    for name, exact in (("none", True), ("relu", False), ("radial", False)):
        act = Activation(name)
        change = layer_breaking(lambda x, act=act: x + act(x @ W.T), X, W)
        assert change < 1e-12 if exact else change > 1e-3


def test_the_gradient_at_zero_is_steeper_by_the_slope_of_the_norm() -> None:
    """The last matrix's gradient behind a LayerNorm at a = 0 is that without the norm, projected, over √ε."""
    pre, peri = (VARIANTS[name].make(64, 48, 0).double() for name in ("pre-gelu", "peri-gelu"))
    peri.load_state_dict(pre.state_dict(), strict=False)
    x, p = normal(8, 64), normal(8, 64, seed=5)
    assert gradient_ratio_at_zero(pre.velocity, x, p, pre.branch.down.weight) == pytest.approx(1)
    kept = peri.branch.down.weight.detach().clone()
    here = gradient_norm(peri.velocity, x, p, peri.branch.down.weight)
    at_zero = gradient_ratio_at_zero(peri.velocity, x, p, peri.branch.down.weight) * here
    assert torch.equal(peri.branch.down.weight, kept)
    centred = p - p.mean(-1, keepdim=True)
    expected = gradient_norm(pre.velocity, x, centred, pre.branch.down.weight) / sqrt(1e-5)
    assert at_zero == pytest.approx(expected, rel=1e-9)
    # shared notes §2.8: ×311 against the branch without the norm (the projection takes a little from 316)
    assert at_zero / gradient_norm(pre.velocity, x, p, pre.branch.down.weight) == pytest.approx(311, rel=0.02)


def test_small_things() -> None:
    assert pooled_variance([X, 3 * X]) == pytest.approx(5 * float(X.var(-1, correction=0).mean()))
    assert relative_sensitivity(2.0, X, 4 * X) == pytest.approx(0.5)
    assert relative_sensitivity(2.0, X, 0 * X) is None
    assert gradient_norm(lambda x: x, X.requires_grad_(), X.detach(), normal(2, 2).requires_grad_()) == 0


def test_gradients_of_a_stack_are_autograds() -> None:
    steps = [VARIANTS["pre-gelu"].make(16, 4, k).double() for k in range(3)]
    module = VARIANTS["pre-gelu"].make(16, 4, 9).double()

    def step(k: int):
        module.load_state_dict(steps[k].state_dict())
        return module

    task = Task.drawn(2, 4, 16, X.detach())
    assert float(task.x.square().mean()) == pytest.approx(1, abs=0.5)
    found = stack_gradients(step, [module.branch.up.weight, module.branch.down.weight], task, 3)
    y = task.x
    for s in steps:
        y = s(y)
    task.loss(y).backward()
    for k, s in enumerate(steps):
        torch.testing.assert_close(found[0][k], s.branch.up.weight.grad)
        torch.testing.assert_close(found[1][k], s.branch.down.weight.grad)


def test_coherence_of_planted_directions_and_of_none() -> None:
    shared = normal(20, seed=7)
    planted = [10 * torch.outer(normal(30, seed=i), shared) + normal(30, 20, seed=50 + i) for i in range(5)]
    rows = coherence_rows(planted, "up", "vu")
    v = [r.value for r in rows if r.measure == "first_gradient.v1"]
    u = [r.value for r in rows if r.measure == "first_gradient.u1"]
    assert min(v) > 0.99
    assert sum(u) / len(u) < 0.5
    assert rows[0].null == pytest.approx(0.18, abs=0.02)  # E|cos| in 20 dimensions
