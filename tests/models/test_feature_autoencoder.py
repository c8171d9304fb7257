"""The toy model: gradients by hand against dense autograd, in every regime of its errors."""

import pytest
import torch
from torch import Tensor

from drillcore.data.features import Active, FeatureBatches, frequencies
from drillcore.errors import UserError
from drillcore.models.feature_autoencoder import FeatureAutoencoder, losses, losses_only
from drillcore.models.sparse_gradients import found_stacked

SEEDS = (0, 1, 2)


def dense_losses(model: FeatureAutoencoder, batch: tuple[Active, ...]) -> Tensor:
    x = torch.stack([active.dense() for active in batch])
    squares = (model(x) - x).square()
    return (squares if model.importance is None else squares * model.importance).sum(2).mean(1)


def gradients(model: FeatureAutoencoder, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss.sum(), [model.W, model.b]))


def case(bias: float, importance: bool, n: int = 60, m: int = 7) -> tuple[FeatureAutoencoder, tuple[Active, ...]]:
    weights = 0.9 ** torch.arange(n) if importance else None
    model = FeatureAutoencoder(n, m, SEEDS, weights)
    model.b.data += bias
    p = [frequencies("power", n, alpha=a, density=d) for a, d in ((0.0, 1.0), (1.0, 3.0), (2.0, 0.5))]
    return model, FeatureBatches(tuple(p), 128, SEEDS).at(3)[0]


@pytest.mark.parametrize("importance", [False, True])
@pytest.mark.parametrize("bias", [0.0, -2.5])  # half of y above zero, and very few
def test_gradients_are_those_of_dense_autograd(bias: float, importance: bool) -> None:
    model, batch = case(bias, importance)
    expected = dense_losses(model, batch)
    loss = losses(model, batch)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(losses_only(model, batch), expected, rtol=1e-5, atol=1e-6)
    for found, wanted in zip(gradients(model, loss), gradients(model, expected), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("importance", [False, True])
def test_replicas_at_once_give_the_same(importance: bool) -> None:
    model, batch = case(-1.0, importance)
    expected = dense_losses(model, batch)
    found = found_stacked(model.W.detach(), model.b.detach(), batch, model.importance, gradients=True)
    torch.testing.assert_close(found.loss, expected, rtol=1e-5, atol=1e-6)
    for g, wanted in zip(found[1:], gradients(model, expected), strict=True):
        torch.testing.assert_close(g, wanted, rtol=1e-4, atol=1e-5)


def test_tiles_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = case(-1.0, importance=False)
    whole = gradients(model, losses(model, batch))
    monkeypatch.setattr("drillcore.models.sparse_gradients._TILE", 60 * 9)
    for tiled, g in zip(gradients(model, losses(model, batch)), whole, strict=True):
        torch.testing.assert_close(tiled, g, rtol=1e-5, atol=1e-6)


def test_a_batch_without_any_active_feature() -> None:
    model = FeatureAutoencoder(20, 3, (0,))
    batch = FeatureBatches((frequencies("power", 20, density=1e-9),), 16, (0,)).at(0)[0]
    assert batch[0].filled == 0
    expected = dense_losses(model, batch)
    loss = losses(model, batch)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients(model, loss)[1], gradients(model, expected)[1])


def test_replicas_do_not_mix_and_start_by_their_seed() -> None:
    model, alone = FeatureAutoencoder(30, 4, SEEDS), FeatureAutoencoder(30, 4, (1,))
    assert torch.equal(model.W[1], alone.W[0])
    assert torch.equal(model.b[1], alone.b[0])
    p = frequencies("power", 30)
    batch = FeatureBatches((p, p, p), 64, SEEDS).at(0)[0]
    mixed, single = gradients(model, losses(model, batch))[0][1], gradients(alone, losses(alone, batch[1:2]))[0][0]
    assert torch.equal(mixed, single)


def test_start_has_the_published_scale() -> None:
    model = FeatureAutoencoder(4000, 25, (3,))
    assert float(model.W.detach().norm(dim=2).square().mean()) == pytest.approx(1.0, rel=0.02)
    assert float(model.b.detach().var()) == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize(("n", "m"), [(10, 10), (10, 0)])
def test_refuses_dimensions_that_leave_nothing_to_pack(n: int, m: int) -> None:
    with pytest.raises(UserError, match="m < n"):
        FeatureAutoencoder(n, m, (0,))
