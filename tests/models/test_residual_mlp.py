"""The stacked residual MLP against a plain float64 transcription, and against one replica alone."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from drillcore.models.activations import NAMES, Activation
from drillcore.models.residual_mlp import ResidualMLP, Shape, Start, losses
from drillcore.training import Optim

SMALL = {"depth": 3, "width": 12, "inputs": 20, "classes": 4}
SHAPES = [
    Shape(**SMALL), Shape(Activation("none"), norm="layernorm", **SMALL), Shape(Activation("radial"), **SMALL),
    Shape(Activation("tanh"), norm="rmsnorm", **SMALL), Shape(Activation("relu"), residual=False, **SMALL),
    Shape(Activation("gelu"), form="two", **SMALL),
]  # fmt: skip


def batch(replicas: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(replicas, 16, 20, generator=random, dtype=torch.float64).to(dtype)
    return x, torch.randint(0, 4, (replicas, 16), generator=random)


def transcription(model: ResidualMLP, r: int, x: Tensor) -> Tensor:
    """One replica, sample by sample, in the words of the paper."""
    shape, out = model.shape, []
    for sample in x:
        h = model.embed[r] @ sample + model.embed_bias[r, 0]
        for layer in range(shape.depth):
            z = h
            if shape.norm == "layernorm":
                z = functional.layer_norm(h, h.shape, model.gain[layer][r, 0], model.shift[layer][r, 0], eps=1e-5)
            elif shape.norm == "rmsnorm":
                z = functional.rms_norm(h, h.shape, model.gain[layer][r, 0], eps=1e-5)
            z = model.W[layer][r] @ z
            name = shape.activation.name
            if name == "radial":
                z = z * torch.tanh(torch.sqrt((z * z).sum()))
            elif name != "none":
                z = {"relu": functional.relu, "gelu": functional.gelu, "tanh": torch.tanh}[name](z)
            if shape.form == "two":
                z = model.W2[layer][r] @ z
            h = h + z if shape.residual else z
        out.append(model.head[r] @ h + model.head_bias[r, 0])
    return torch.stack(out)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s.activation.name}-{s.norm}-{s.form}-{s.residual}")
def test_the_forward_pass_is_the_transcription(shape: Shape) -> None:
    model = ResidualMLP(shape, (Start(0), Start(1, law="xavier", scale=2.0)), torch.float64)
    x, _ = batch(2)
    with torch.no_grad():
        for r in range(2):
            torch.testing.assert_close(model(x)[r], transcription(model, r, x[r]), rtol=1e-12, atol=1e-12)


def trained(starts: tuple[Start, ...], x: Tensor, y: Tensor, steps: int, optim: Optim, dtype: torch.dtype) \
        -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    model = ResidualMLP(Shape(**SMALL), starts, dtype)
    optimiser = optim.over(model.parameters())
    gradients: list[Tensor] = []
    for _ in range(steps):
        optimiser.zero_grad()
        losses(model, x, y).sum().backward()
        gradients = gradients or [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimiser.step()
    return gradients, [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("optim", [Optim(), Optim("sgd", 0.01, momentum=0.9), Optim("sgd", 0.1)], ids=str)
def test_a_stack_trains_as_its_replicas_do_alone(optim: Optim) -> None:
    starts = (Start(0), Start(1), Start(2, scale=0.5))
    x, y = batch(3)
    first, stacked = trained(starts, x, y, 100, optim, torch.float64)
    for r, start in enumerate(starts):
        alone_first, alone = trained((start,), x[r : r + 1], y[r : r + 1], 100, optim, torch.float64)
        for ours, theirs in zip(stacked, alone, strict=True):
            torch.testing.assert_close(ours[r], theirs[0], rtol=1e-9, atol=1e-9)
        for ours, theirs in zip(first, alone_first, strict=True):
            torch.testing.assert_close(ours[r], theirs[0], rtol=1e-10, atol=1e-12)


def test_gradients_of_a_float32_stack_equal_the_single_runs() -> None:
    starts = (Start(0), Start(1))
    x, y = batch(2, torch.float32)
    stacked, _ = trained(starts, x, y, 1, Optim(), torch.float32)
    for r, start in enumerate(starts):
        alone, _ = trained((start,), x[r : r + 1], y[r : r + 1], 1, Optim(), torch.float32)
        for ours, theirs in zip(stacked, alone, strict=True):
            assert float((ours[r] - theirs[0]).norm()) <= 1e-5 * float(theirs[0].norm())


def test_the_start_depends_on_seed_law_and_scale_only() -> None:
    shape = Shape(depth=2, width=200)
    model = ResidualMLP(shape, (Start(0), Start(0, scale=4.0), Start(1), Start(0, law="xavier"), Start(0, law="torch")))
    W = model.W[1].detach()
    torch.testing.assert_close(W[1], 4 * W[0])
    assert not torch.equal(W[0], W[2])
    assert float(W[0].std()) == pytest.approx(0.02, rel=0.02)
    assert float(W[3].std()) == pytest.approx((2 / 400) ** 0.5, rel=0.02)
    assert float(W[4].abs().max()) <= 200**-0.5
    assert float(W[4].std()) == pytest.approx((1 / 600) ** 0.5, rel=0.02)
    assert torch.equal(model.embed[0], model.embed[1])
    assert not torch.equal(model.W[0][0], model.W[1][0])


@pytest.mark.parametrize("name", NAMES)
def test_activations_rotate_exactly_when_they_say_so(name: str) -> None:
    act = Activation(name)
    random = torch.Generator().manual_seed(1)
    x = torch.randn(5, 8, generator=random, dtype=torch.float64)
    Q = torch.linalg.qr(torch.randn(8, 8, generator=random, dtype=torch.float64))[0]
    turned = (act(x @ Q) - act(x) @ Q).abs().max()
    assert (float(turned) < 1e-12) == act.rotates


def test_blend_and_bias_break_the_symmetry() -> None:
    x = torch.tensor([[3.0, -4.0]])
    radial = x * torch.tanh(torch.tensor(5.0))
    torch.testing.assert_close(Activation("radial", blend=0.25)(x), 0.75 * radial + 0.25 * torch.tensor([[3.0, 0.0]]))
    torch.testing.assert_close(Activation("none", bias=1.0)(x), x + 1)
    torch.testing.assert_close(Activation("radial", radius=10.0)(x), x * torch.tanh(torch.tensor(0.5)))
    assert not Activation("radial", blend=0.25).rotates
    with pytest.raises(ValueError, match="no activation 'swish'; there are relu"):
        Activation("swish")
