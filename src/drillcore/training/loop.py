"""The loop: a batch, its gradients, the probes, a step. It can be killed at any moment and goes on from its checkpoint.

A probe at step s sees the weights after s steps and the gradient of the next batch. Batches are a function of the step,
so nothing but the weights, the optimiser and the probes has a state.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from drillcore.runs import RunFolder
from drillcore.table import Row, Table
from drillcore.training import checkpoint


class Probe(Protocol):
    """Looks at a model while it trains and leaves it untouched."""

    def due(self, step: int) -> bool:
        """Whether `rows` is wanted at this step."""
        ...

    def after_backward(self, step: int) -> None:
        """Called at every step that changes the weights, when the gradients are there."""
        ...

    def rows(self, step: int) -> Iterable[Row]:
        """What is seen at this step; gradients of the next batch are there."""
        ...

    def state(self) -> dict[str, Any]:
        """Tensors and plain values to be saved."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Take a saved state."""
        ...


@dataclass
class Training:
    """A model, how it learns, and who looks on. `loss` gives one value per replica, of the model and a batch."""

    model: nn.Module
    optimiser: torch.optim.Optimizer
    batch: Callable[[int], tuple[Any, ...]]
    loss: Callable[..., Tensor]
    steps: int
    probes: tuple[Probe, ...] = ()
    save_every: int = 500


def train(training: Training, folder: RunFolder, advance: Callable[[int], None] = lambda _: None) -> None:
    """Train to the last step and leave the rows in the folder's parts; `advance` is told every step that is done.

    Raises:
        CheckpointError: the saved state cannot be used.
        OSError: rows or state cannot be written.
        FloatingPointError: the loss of a replica is not finite.
    """
    start = _resume(training, folder)
    rows: list[Row] = []
    for step in range(start, training.steps + 1):
        training.optimiser.zero_grad(set_to_none=True)
        loss = training.loss(training.model, *training.batch(step))
        torch.autograd.backward(loss.sum())
        rows += _look(training, step)
        if step == training.steps:
            break
        for probe in training.probes:
            probe.after_backward(step)
        training.optimiser.step()
        advance(step + 1)
        if (step + 1) % training.save_every == 0 and step + 1 < training.steps:
            _check(loss, step)
            _save(training, folder, step + 1, rows)
            rows = []
    _check(loss, training.steps)
    Table.of(rows).save(folder.part(training.steps + 1))


def _look(training: Training, step: int) -> list[Row]:
    with torch.no_grad():
        return [row for probe in training.probes if probe.due(step) for row in probe.rows(step)]


def _check(loss: Tensor, step: int) -> None:
    lost = [i for i, value in enumerate(loss.tolist()) if not abs(value) < float("inf")]
    if lost:
        raise FloatingPointError(f"the loss of replica {lost[0]} is not finite at step {step}: lower the learning rate")


def _save(training: Training, folder: RunFolder, step: int, rows: list[Row]) -> None:
    """Rows first: a checkpoint promises that every row before it is on disk; a part without one is written again."""
    Table.of(rows).save(folder.part(step))
    checkpoint.save(
        folder.checkpoint, step,
        {"model": training.model.state_dict(), "optimiser": training.optimiser.state_dict(),
         "probes": [probe.state() for probe in training.probes]},
    )  # fmt: skip


def _resume(training: Training, folder: RunFolder) -> int:
    found = checkpoint.load(folder.checkpoint)
    step = found[0] if found else 0
    if found:
        training.model.load_state_dict(found[1]["model"])
        training.optimiser.load_state_dict(found[1]["optimiser"])
        for probe, state in zip(training.probes, found[1]["probes"], strict=True):
            probe.restore(state)
    return step
