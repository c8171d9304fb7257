"""The sketched norm of a sum of outer products against the whole sum in float64."""

import pytest
import torch
from torch import Tensor

from drillcore.linalg.gram_sketch import GramSketch


def sketched(rows: Tensor, key: str, mean: Tensor | None = None) -> tuple[float, float]:
    sketch = GramSketch(rows.shape[1], key)
    for block in rows.split(130):
        sketch.first(block.contiguous())
    for block in rows.split(77):
        sketch.second(block.contiguous())
    return sketch.squared_norm(mean, len(rows))


def exact(rows: Tensor) -> float:
    return float((rows.double().T @ rows.double()).square().sum())


def random_rows(n: int, m: int, decay: float) -> Tensor:
    scale = torch.arange(1, m + 1).pow(-decay)
    return torch.randn(n, m, generator=torch.Generator().manual_seed(n)) * scale + 0.3 * scale


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_the_error_is_what_it_says_it_is(decay: float) -> None:
    rows = random_rows(900, 300, decay)
    truth = exact(rows)
    z = [(value - truth) / stderr for value, stderr in (sketched(rows, f"key {i}") for i in range(40))]
    assert abs(sum(z) / 40) < 4 / 40**0.5
    assert 0.6 < (sum(x * x for x in z) / 40) ** 0.5 < 1.6
    value, stderr = sketched(rows, "key")
    assert stderr < 0.01 * value


def test_a_steep_spectrum_is_exact_to_float32() -> None:
    rows = random_rows(900, 300, 1.5)
    assert sketched(rows, "key")[0] == pytest.approx(exact(rows), rel=1e-5)


def test_a_mean_is_subtracted_after_the_passes() -> None:
    rows = random_rows(900, 300, 0.5)
    mean = rows.double().mean(0)
    value, stderr = sketched(rows, "key", mean)
    assert value == pytest.approx(exact(rows.double() - mean), abs=4 * stderr)
    assert exact(rows) - value > 100 * stderr


def test_a_space_no_wider_than_the_sketch_is_exact() -> None:
    rows = random_rows(200, 20, 0.5)
    value, stderr = sketched(rows, "key")
    assert value == pytest.approx(exact(rows), rel=1e-5)
    assert stderr < 1e-6 * value
