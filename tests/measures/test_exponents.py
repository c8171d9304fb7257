"""Exponents of planted powers, and sweeps that leave nothing behind."""

import pytest
import torch
from torch import Tensor

from drillcore.measures.exponents import (
    INPUT_SCALES,
    PARAMETER_SCALES,
    by_input,
    by_parameters,
    exponent,
    plateau_ratio,
    sensitivity_exponent,
    size_exponent,
    sweep,
)
from drillcore.weights import InputError

pytestmark = pytest.mark.usefixtures("one_thread")


def states(n: int = 3) -> list[Tensor]:
    return [torch.randn(4, 6, generator=torch.Generator().manual_seed(i), dtype=torch.float64) for i in range(n)]


@pytest.mark.parametrize("power", [1.0, 2.0, 3.0])
def test_a_power_of_the_input(power: float) -> None:
    points = sweep(lambda x: x.abs() ** power, states(), INPUT_SCALES, by_input)
    assert size_exponent(points).value == pytest.approx(power, abs=1e-9)
    assert size_exponent(points).stderr < 1e-9
    slope = sensitivity_exponent(points)
    assert slope.value == pytest.approx(power - 1, abs=1e-3)
    assert slope.low <= slope.value <= slope.high
    # sqrt of the mean of squares, by hand
    x = torch.stack(states())
    assert points[4].rms == pytest.approx(float((x.abs() ** power).square().mean().sqrt()))


def test_parameters_are_swept_together_and_put_back_bit_for_bit() -> None:
    A, B = (torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(9)) / 3 for _ in range(2))
    kept = A.clone(), B.clone()

    def f(x: Tensor) -> Tensor:
        return x @ A @ B

    points = sweep(f, states(), PARAMETER_SCALES, by_parameters([A, B]))
    assert size_exponent(points).value == pytest.approx(2)
    assert sensitivity_exponent(points).value == pytest.approx(2, abs=1e-3)
    assert plateau_ratio(points) == pytest.approx(4)
    assert torch.equal(A, kept[0])
    assert torch.equal(B, kept[1])


def test_a_plateau_and_a_map_of_zeros() -> None:
    flat = sweep(torch.tanh, [s + 3 for s in states()], INPUT_SCALES, by_input, rounds=0)
    assert size_exponent(flat).value == pytest.approx(0, abs=1e-3)
    none = sweep(lambda x: 0 * x, states(), INPUT_SCALES, by_input, rounds=0)
    assert size_exponent(none) is None
    assert plateau_ratio(none) is None


def test_the_scale_at_which_it_breaks_is_told() -> None:
    with pytest.raises(InputError, match=r"input is multiplied by 8"):
        sweep(lambda x: torch.where(x.abs().max() > 10, x * float("nan"), x), [torch.full((2, 2), 2.0)],
              INPUT_SCALES, by_input)  # fmt: skip


def test_only_the_upper_part_is_fitted_and_its_scatter_is_told() -> None:
    scales = [1.0, 2, 4, 8, 16, 32]
    bent = exponent(scales, [5, 5, 4, 8, 16, 32])
    assert bent.value == pytest.approx(1)
    rough = exponent(scales, [5, 5, 4, 10, 14, 32])
    assert rough.stderr > 0.05
    assert exponent(scales, [0, 0, 0, 0, 1, 2]) is None
