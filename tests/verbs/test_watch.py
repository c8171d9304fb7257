"""Probes on a real training run against plain formulas."""

from math import asin, degrees
from pathlib import Path

import pytest
import torch
from torch import Tensor

from drillcore.measures.symmetry import symmetry_breaking
from drillcore.models.activations import Activation
from drillcore.models.residual_mlp import ResidualMLP, Shape, Start, losses
from drillcore.runs import RunFolder
from drillcore.stats import line_angle
from drillcore.table import Table
from drillcore.training import Optim, Training, train
from drillcore.verbs.watch import HeldOutProbe, LayersProbe, Replica, SymmetryProbe

SHAPE = Shape(Activation("relu"), depth=3, width=16, inputs=10, classes=3)
REPLICAS = (Replica("first", 0), Replica("second", 1))


def batch(step: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(step)
    x = torch.randn(2, 32, 10, generator=random)
    return x, x[..., :3].argmax(-1)


def watched(folder: Path, probes: bool = True) -> tuple[ResidualMLP, RunFolder]:
    model = ResidualMLP(SHAPE, (Start(0), Start(1)))
    x, y = batch(999)
    looking = (
        LayersProbe(model.W, REPLICAS, {0, 3, 6}, every={0, 6}, spectra={6}, reference=3),
        HeldOutProbe(model, x[0], y[0], REPLICAS, {0, 6}),
        SymmetryProbe(model, model.shape.activation, x[0], REPLICAS, {0, 6}),
    )
    training = Training(
        model, Optim().over(model.parameters()), batch, losses, 6, looking if probes else (), save_every=2
    )
    run = RunFolder(folder, "run")
    train(training, run)
    return model, run


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[ResidualMLP, Table]:
    model, run = watched(tmp_path_factory.mktemp("run"))
    return model, Table.of(row for part in run.parts() for row in Table.load(part))


def leading(W: Tensor) -> Tensor:
    return torch.linalg.svd(W.detach().double())[2][0]


def test_continuity_of_the_last_weights(seen: tuple[ResidualMLP, Table]) -> None:
    model, table = seen
    for r, replica in enumerate(REPLICAS):
        rows = table.where(run=replica.run, seed=replica.seed, step=6, measure="continuity.v1")
        pairs = {(row.layer, row.other): row.value for row in rows}
        assert set(pairs) == {(0, 1), (1, 2), (0, 2)}
        for (i, j), value in pairs.items():
            expected = abs(float(leading(model.W[i][r]) @ leading(model.W[j][r])))
            assert value == pytest.approx(expected, abs=1e-4)
        assert {row.adjacent for row in table.where(run=replica.run, step=3, measure="continuity.v1")} == {True}


def test_gradients_are_summed_from_the_first_step_and_the_last_is_that_of_the_next_batch(
    seen: tuple[ResidualMLP, Table],
) -> None:
    _, table = seen
    model = ResidualMLP(SHAPE, (Start(0), Start(1)))
    optimiser, sums = Optim().over(model.parameters()), [torch.zeros(2, 16, 16) for _ in range(3)]
    for step in range(7):
        optimiser.zero_grad()
        losses(model, *batch(step)).sum().backward()
        gradients = [W.grad.clone() for W in model.W if W.grad is not None]
        if step < 6:
            optimiser.step()
            sums = [s + g for s, g in zip(sums, gradients, strict=True)]
    for measure, layers in (("step", gradients), ("cumulative", sums)):
        (row,) = table.where(run="second", step=6, measure=f"coherence.{measure}_v1", layer=0, other=1)
        assert row.value == pytest.approx(abs(float(leading(layers[0][1]) @ leading(layers[1][1]))), abs=1e-4)
    ratio = [r.value for r in table.where(run="first", step=6, measure="coherence.update_ratio")]
    before = ResidualMLP(SHAPE, (Start(0), Start(1)))
    with torch.no_grad():
        expected = [float((a[0] - b[0]).norm() / b[0].norm()) for a, b in zip(model.W, before.W, strict=True)]
    assert ratio == pytest.approx(expected, rel=1e-5)


def test_whole_spectra_are_taken_where_they_are_asked_for(seen: tuple[ResidualMLP, Table]) -> None:
    model, table = seen
    assert {row.step for row in table.where(measure="continuity.s2_weighted")} == {6}
    assert {row.step for row in table.where(measure="continuity.v_subspace")} == {0, 3, 6}
    squares = torch.linalg.svdvals(model.W[1][0].detach().double()).square()
    shares = squares / squares.sum()
    (row,) = table.where(run="first", step=6, layer=1, measure="spectrum.effective_rank")
    assert row.value == pytest.approx(float((-(shares * shares.log()).sum()).exp()), rel=1e-5)


def test_rotation_is_measured_from_the_reference_on(seen: tuple[ResidualMLP, Table]) -> None:
    _, table = seen
    assert not table.where(step=0, measure="coherence.rotation")
    assert max(row.value for row in table.where(step=3, measure="coherence.rotation")) < 0.1  # type: ignore[type-var]
    assert min(row.value for row in table.where(step=6, measure="coherence.rotation")) > 0.1  # type: ignore[type-var]


def test_rotation_has_the_doubt_of_both_vectors(seen: tuple[ResidualMLP, Table]) -> None:
    _, table = seen
    for layer in range(3):
        sines = [table.where(run="first", step=s, layer=layer, measure="spectrum.angle_bound").rows[0].value
                 for s in (3, 6)]  # fmt: skip
        (row,) = table.where(run="first", step=6, layer=layer, measure="coherence.rotation")
        assert row.bound == pytest.approx(min(90.0, sum(degrees(asin(s or 0.0)) for s in sines)))
        assert row.null == pytest.approx(degrees(line_angle(16).mean))
        (aligned,) = table.where(run="first", step=6, layer=layer, measure="coherence.weight_to_gradient")
        assert aligned.bound is not None


def test_held_out_loss_and_accuracy(seen: tuple[ResidualMLP, Table]) -> None:
    model, table = seen
    x, y = batch(999)
    with torch.no_grad():
        logits = model(x[0][None])[1]
    (loss,) = table.where(run="second", step=6, measure="training.test_loss").values()
    assert loss == pytest.approx(float(torch.nn.functional.cross_entropy(logits, y[0])), rel=1e-5)
    (accuracy,) = table.where(run="second", step=6, measure="training.test_accuracy").values()
    assert accuracy == pytest.approx(float((logits.argmax(-1) == y[0]).float().mean()))


def test_breaking_of_symmetry_is_measured_on_what_the_activations_get(seen: tuple[ResidualMLP, Table]) -> None:
    model, table = seen
    x, _ = batch(999)
    with torch.no_grad():
        h = x[0] @ model.embed[1].T
        h = h + model.embed_bias[1]
        for layer in range(2):
            h = h + torch.relu(h @ model.W[layer][1].T)
        expected = symmetry_breaking(torch.relu, h @ model.W[2][1].T)
    (row,) = table.where(run="second", step=6, layer=2, measure="symmetry.breaking")
    assert row.value == pytest.approx(expected, rel=1e-4)


def test_the_path_of_v1_is_kept_where_all_pairs_are(seen: tuple[ResidualMLP, Table]) -> None:
    _, table = seen
    steps = {row.step for row in table.where(measure="continuity.v1_path")}
    assert steps == {0, 6}
    assert len(table.where(run="first", step=6, measure="continuity.v1_path")) == 2 * SHAPE.depth


def test_weights_are_the_same_to_the_bit_with_all_probes_and_with_none(
    seen: tuple[ResidualMLP, Table], tmp_path: Path
) -> None:
    alone, _ = watched(tmp_path, probes=False)
    for a, b in zip(seen[0].parameters(), alone.parameters(), strict=True):
        assert torch.equal(a, b)
