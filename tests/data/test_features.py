"""Sparse samples against the dense draw, their moments and a test of fit."""

import numpy as np
import pytest
import torch
from scipy import stats

from drillcore.data.features import Active, FeatureBatches, frequencies
from drillcore.errors import UserError


def drawn(p: torch.Tensor, batch: int, steps: int, **more: float) -> list[Active]:
    batches = FeatureBatches((p,), batch, (0,), **more)  # type: ignore[arg-type]
    return [batches.at(step)[0][0] for step in range(steps)]


def shares(p: torch.Tensor, batch: int, steps: int, **more: float) -> torch.Tensor:
    return torch.stack([(x.dense() > 0).double().mean(0) for x in drawn(p, batch, steps, **more)]).mean(0)


@pytest.mark.parametrize(("family", "alpha", "density"), [("power", 1.0, 1.0), ("power", 2.0, 1.2),
                                                         ("exponential", 1.0, 1.0), ("linear", 1.0, 3.0)])  # fmt: skip
def test_every_feature_is_active_as_often_as_it_should(family: str, alpha: float, density: float) -> None:
    p = frequencies(family, 40, alpha=alpha, density=density, length=12)
    n = 512 * 60
    z = (shares(p, 512, 60) - p) / (p * (1 - p) / n).clamp_min(1e-12).sqrt()
    assert float(p.sum()) == pytest.approx(density)
    assert stats.chi2.sf(float(z.square().sum()), 40) > 1e-3


def test_cells_are_independent_as_in_the_dense_draw() -> None:
    p = frequencies("power", 30, alpha=1.0, density=2.0)
    ours = torch.cat([(x.dense() > 0).sum(1) for x in drawn(p, 500, 40)])
    dense = (torch.rand(20_000, 30, generator=torch.Generator().manual_seed(1)) < p).sum(1)
    table = np.array([np.bincount(counts.numpy(), minlength=9)[:9] for counts in (ours, dense)])
    table = table[:, table.sum(0) > 20]
    assert stats.chi2_contingency(table).pvalue > 1e-3
    together = torch.stack([(x.dense() > 0).double().T.corrcoef() for x in drawn(p, 2000, 10)]).mean(0)
    assert float((together - torch.eye(30)).abs().max()) < 6 / 20_000**0.5


def test_values_are_uniform_from_0_to_2() -> None:
    values = torch.cat([x.value for x in drawn(frequencies("power", 50), 1000, 10)])
    assert stats.kstest(values.numpy() / 2, "uniform").pvalue > 1e-3
    assert float(values.square().mean()) == pytest.approx(4 / 3, rel=0.05)


def test_a_feature_that_is_always_active() -> None:
    harmonic = sum(1 / i for i in range(1, 11))
    p = frequencies("power", 10, density=harmonic)
    assert float(p[0]) == 1.0
    assert float(shares(p, 64, 3)[0]) == 1.0


def test_empty_samples_are_a_count() -> None:
    (x,) = drawn(frequencies("power", 100, alpha=0.0), 4096, 1)
    assert x.filled / 4096 == pytest.approx(1 - (1 - 0.01) ** 100, abs=0.03)
    assert len(x.dense()) == 4096
    assert int((x.dense().sum(1) > 0).sum()) == x.filled
    assert torch.equal(x.sample.unique(), torch.arange(x.filled))


def test_correlation_leaves_frequencies_as_they_were() -> None:
    p = frequencies("power", 20, alpha=0.5, density=2.0)
    n = 512 * 80
    z = (shares(p, 512, 80, correlation=0.6, group=5) - p) / (p * (1 - p) / n).sqrt()
    assert float(z.abs().max()) < 4.5
    x = torch.cat([x.dense() > 0 for x in drawn(p, 512, 80, correlation=0.6, group=5)]).double().T.corrcoef()
    assert float(x[0, 1]) > 0.2
    assert abs(float(x[0, 7])) < 0.03


def test_batches_are_a_function_of_seed_step_and_stream() -> None:
    p = frequencies("power", 30)

    def of(**key: object) -> torch.Tensor:
        values = {"p": (p,), "batch": 32, "seeds": (0,), **key}
        return FeatureBatches(**values).at(5)[0][0].dense()  # type: ignore[arg-type]

    assert torch.equal(of(), of())
    assert torch.equal(of(p=(p, p), seeds=(0, 1)), of())
    assert not torch.equal(of(), of(stream="evaluation"))
    assert not torch.equal(of(), of(seeds=(1,)))


@pytest.mark.parametrize(("key", "told"), [
    ({"family": "zipf"}, "power, exponential, linear"), ({"density": 9.0}, "takes at most"), ({"n": 0}, "a feature"),
])  # fmt: skip
def test_bad_frequencies_are_refused(key: dict[str, object], told: str) -> None:
    with pytest.raises(UserError, match=told):
        frequencies(**{"family": "power", "n": 20, **key})  # type: ignore[arg-type]


def test_bad_correlation_is_refused() -> None:
    with pytest.raises(UserError, match="correlation"):
        FeatureBatches((frequencies("power", 5),), 8, (0,), correlation=1.0)
