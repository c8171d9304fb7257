"""Probes: the measures of a survey, and those of coherence, taken while a model trains."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from drillcore.measures import MEASURES, coherence
from drillcore.measures.reading import KindReading
from drillcore.measures.replicas import read_replicas
from drillcore.measures.symmetry import symmetry_breaking
from drillcore.measures.trajectory import v1_path
from drillcore.table import Row

SPECTRAL = ("continuity.v1", "continuity.u1", "continuity.v_subspace", "continuity.u_subspace",
            "continuity.s2_weighted", "spectrum.effective_rank", "spectrum.sigma1", "spectrum.gap",
            "spectrum.angle_bound")  # fmt: skip


@dataclass(frozen=True)
class Replica:
    """Whose rows these are."""

    run: str
    seed: int


@dataclass
class LayersProbe:
    """Continuity of the layers' weights and coherence of their gradients, per replica.

    At `every` steps all pairs of layers and the path of v1 are kept, at other steps adjacent pairs. Measures that need
    whole spectra are taken at the steps of `spectra`; they cost three times as much as all others. The running sum of
    the gradients, the first weights and the vectors at step `reference` (the end of the first epoch) are its state.
    """

    weights: Sequence[nn.Parameter]  # one a layer, replicas × out × in
    replicas: Sequence[Replica]
    steps: Collection[int]
    every: Collection[int] = ()
    spectra: Collection[int] = ()
    reference: int = 0
    kind: str = "mlp"
    _sums: list[Tensor] = field(init=False)
    _first: list[Tensor] = field(init=False)
    _turned: Tensor | None = field(init=False, default=None)  # replicas × layers × in
    _bounds: Tensor | None = field(init=False, default=None)  # replicas × layers, of the errors of `_turned`

    def __post_init__(self) -> None:
        self._sums = [torch.zeros_like(W, requires_grad=False) for W in self.weights]
        self._first = [W.detach().clone() for W in self.weights]

    def due(self, step: int) -> bool:
        """See `training.Probe`."""
        return step in self.steps or step in self.every or step in self.spectra

    def after_backward(self, step: int) -> None:
        """Add this step's gradients to the running sums."""
        torch._foreach_add_(self._sums, self._gradients())

    def rows(self, step: int) -> Iterator[Row]:
        """Rows of every replica."""
        with torch.no_grad():
            weights = read_replicas(self.weights, self.kind, spectrum=step in self.spectra)
            gradients = read_replicas(self._gradients(), self.kind, key="gradients", rank=1, spectrum=False)
            sums = read_replicas(self._sums, self.kind, key="sums", rank=1, spectrum=False)
            if step == self.reference:
                self._turned = torch.stack([_leading(reading) for reading in weights])
                self._bounds = torch.stack([_bounds(reading) for reading in weights])
            for r, replica in enumerate(self.replicas):
                for row in self._of(r, step, weights[r], gradients[r], sums[r]):
                    yield replace(row, run=replica.run, seed=replica.seed, step=step)

    def _of(self, r: int, step: int, weights: KindReading, gradients: KindReading, sums: KindReading) -> Iterator[Row]:
        every = step in self.every
        for name in self._measures(step):
            yield from (row for row in MEASURES[name].rows(weights, name) if every or row.adjacent is not False)
        if every:
            yield from v1_path(weights, "continuity.v1_path")
        for side in ("v1", "u1"):
            yield from coherence.gradient_cosines(gradients, f"coherence.step_{side}", every=every)
            yield from coherence.gradient_cosines(sums, f"coherence.cumulative_{side}", every=every)
        yield from coherence.gradient_weight_gap(sums, weights, "coherence.gradient_weight_gap")
        yield from coherence.turned_to_gradient(sums, weights, "coherence.weight_to_gradient")
        if self._turned is not None and self._bounds is not None:
            yield from coherence.rotation(weights, self._turned[r], self._bounds[r], "coherence.rotation")
        yield from coherence.update_ratio(
            [W[r] for W in self.weights], [W[r] for W in self._first], self.kind, "coherence.update_ratio"
        )

    def _measures(self, step: int) -> list[str]:
        return [n for n in SPECTRAL if step in self.spectra or "spectrum" not in MEASURES[n].needs]

    def _gradients(self) -> list[Tensor]:
        return [W.grad for W in self.weights if W.grad is not None]

    def state(self) -> dict[str, Any]:
        """See `training.Probe`."""
        return {"sums": self._sums, "first": self._first, "turned": self._turned, "bounds": self._bounds}

    def restore(self, state: dict[str, Any]) -> None:
        """See `training.Probe`."""
        self._sums, self._first = state["sums"], state["first"]
        self._turned, self._bounds = state["turned"], state["bounds"]


class _Looking:
    """A probe that keeps nothing between two looks."""

    steps: Collection[int]

    def due(self, step: int) -> bool:
        """See `training.Probe`."""
        return step in self.steps

    def after_backward(self, step: int) -> None:
        """Nothing is summed."""

    def state(self) -> dict[str, Any]:
        """See `training.Probe`."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """See `training.Probe`."""


@dataclass
class HeldOutProbe(_Looking):
    """Loss and accuracy of every replica on held-out images."""

    model: nn.Module
    x: Tensor  # images × inputs
    y: Tensor  # images
    replicas: Sequence[Replica]
    steps: Collection[int]

    def rows(self, step: int) -> Iterator[Row]:
        """Mean cross-entropy and share of right answers."""
        with torch.no_grad():
            loss = torch.zeros(len(self.replicas), dtype=torch.float64)
            right = torch.zeros(len(self.replicas), dtype=torch.float64)
            for x, y in zip(torch.split(self.x, 1000), torch.split(self.y, 1000), strict=True):
                logits = self.model(x[None])
                wanted = y.expand(len(self.replicas), -1)
                loss += nn.functional.cross_entropy(logits.mT, wanted, reduction="none").double().sum(1)
                right += (logits.argmax(-1) == wanted).double().sum(1)
        n = len(self.y)
        for replica, total, correct in zip(self.replicas, loss.tolist(), right.tolist(), strict=True):
            row = partial(Row, run=replica.run, seed=replica.seed, step=step, n=n)
            yield row(measure="training.test_loss", value=total / n, unit="nat")
            yield row(measure="training.test_accuracy", value=correct / n, unit="1")


class Layered(Protocol):
    """A network whose blocks apply one activation, such as `models.ResidualMLP`."""

    def preactivations(self, x: Tensor) -> list[Tensor]:
        """What the activation of each block gets, replicas × batch × width."""
        ...


@dataclass
class SymmetryProbe(_Looking):
    """How far the activation is from commuting with rotations, on what it gets in each layer."""

    model: Layered
    activation: Callable[[Tensor], Tensor]
    x: Tensor  # images × inputs
    replicas: Sequence[Replica]
    steps: Collection[int]

    def rows(self, step: int) -> Iterator[Row]:
        """One number per replica and layer; 0 for an activation that commutes."""
        with torch.no_grad():
            for layer, z in enumerate(self.model.preactivations(self.x[None])):
                for replica, own in zip(self.replicas, z, strict=True):
                    yield Row(run=replica.run, seed=replica.seed, step=step, layer=layer, measure="symmetry.breaking",
                              value=symmetry_breaking(self.activation, own), n=len(self.x), unit="1")  # fmt: skip


def _leading(reading: KindReading) -> Tensor:
    return torch.stack([layer.triplets.v[:, 0] for layer in reading.layers])


def _bounds(reading: KindReading) -> Tensor:
    return torch.stack([layer.triplets.bound[0] for layer in reading.layers])
