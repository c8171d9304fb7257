"""The spectral norm of a Jacobian against a dense one, and the trace against its sum."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from drillcore.measures.sensitivity import Jacobian, jacobian_norm, jacobian_trace

pytestmark = pytest.mark.usefixtures("one_thread")


def inputs(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


W = inputs(30, 20, seed=1)


def squashed(x: Tensor) -> Tensor:
    return torch.tanh(x @ W.T)


def attended(x: Tensor) -> Tensor:
    return scaled_dot_product_attention(x[None], 2 * x[None], x[None], is_causal=True)[0]


def dense(f, x: Tensor) -> Tensor:
    J = torch.autograd.functional.jacobian(f, x)
    return J.reshape(-1, x.numel())


@pytest.mark.parametrize(("f", "x"), [(squashed, inputs(4, 20) * 0.2), (torch.sin, inputs(3, 2, 5))])
def test_it_is_the_largest_singular_value_of_the_dense_jacobian(f, x: Tensor) -> None:
    found = jacobian_norm(f, x, 1000, tol=1e-9)
    assert found.value == pytest.approx(float(torch.linalg.matrix_norm(dense(f, x), 2)), rel=1e-5)
    assert found.change < 1e-9
    assert found.rounds < 1000
    assert float(found.direction.norm()) == pytest.approx(1)


def test_attention_runs_where_the_fused_kernel_has_no_second_derivative() -> None:
    x = inputs(6, 8)
    steps = 1e-6 * torch.eye(48, dtype=torch.float64).view(48, 6, 8)
    J = torch.stack([(attended(x + h) - attended(x - h)).flatten() / 2e-6 for h in steps])
    norm = float(torch.linalg.matrix_norm(J, 2))
    assert jacobian_norm(attended, x, 2000, tol=1e-10).value == pytest.approx(norm, rel=1e-5)


def test_few_rounds_stay_below_and_say_how_far_they_moved() -> None:
    x = inputs(4, 20)
    values = [jacobian_norm(squashed, x, n, tol=0).value for n in (1, 3, 10, 100)]
    assert values == sorted(values)
    assert values[-1] <= float(torch.linalg.matrix_norm(dense(squashed, x), 2)) * (1 + 1e-12)
    first = jacobian_norm(squashed, x, 2, tol=0)
    assert first.change == pytest.approx(1 - values[0] / first.value)


def test_a_start_from_the_answer_is_done_in_two_rounds() -> None:
    x = inputs(4, 20)
    found = jacobian_norm(squashed, x, 1000, tol=1e-10)
    again = jacobian_norm(squashed, x, 1000, tol=1e-6, start=found.direction)
    assert again.rounds == 2
    assert again.value == pytest.approx(found.value, rel=1e-9)


def test_a_constant_map_has_none_and_a_broken_one_is_not_hidden() -> None:
    assert jacobian_norm(torch.zeros_like, inputs(3)).value == 0
    root = jacobian_norm(lambda x: (x - x).sqrt(), inputs(3))
    assert not torch.isfinite(torch.tensor(root.value))
    with pytest.raises(ValueError, match="needs a round"):
        jacobian_norm(squashed, inputs(2, 20), 0)


def test_the_trace_is_that_of_the_dense_jacobian() -> None:
    x, A = inputs(5, 20), inputs(20, 20, seed=2)
    exact = float(dense(lambda z: torch.tanh(z @ A), x).trace()) / x.numel()
    value, stderr = jacobian_trace(Jacobian(lambda z: torch.tanh(z @ A), x), 400)
    assert abs(value - exact) < 4 * stderr
    assert stderr < 0.1
    # a multiple of the identity has no variance
    assert jacobian_trace(Jacobian(lambda z: 0.7 * z, x), 3) == pytest.approx((0.7, 0), abs=1e-14)


def test_the_products_are_those_of_the_dense_jacobian() -> None:
    x = inputs(2, 20)
    J, exact = Jacobian(squashed, x), dense(squashed, x)
    v, u = inputs(2, 20, seed=3), inputs(2, 30, seed=4)
    torch.testing.assert_close(J.push(v).flatten(), exact @ v.flatten())
    torch.testing.assert_close(J.pull(u).flatten(), exact.T @ u.flatten())
    torch.testing.assert_close(J.y, squashed(x))
