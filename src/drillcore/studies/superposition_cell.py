"""One task of the superposition studies: toy models of one n and m, trained side by side, then measured."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from drillcore.data.features import FeatureBatches, frequencies
from drillcore.measures.feature_packing import feature_rows, loss_rows
from drillcore.models.feature_autoencoder import FeatureAutoencoder, losses, losses_only
from drillcore.runs import atomic_path
from drillcore.study import Run, Task
from drillcore.table import Row
from drillcore.training import RowDecayAdam, Training, WarmUpCosine, train

FRESH = 100  # batches of a test loss
FIRST = 10**9  # their first step on a stream of their own


@dataclass(frozen=True)
class Rule:
    """How a model of m dimensions learns: peak rates of W and b, warm-up as a share of the steps, loss / (L/n)."""

    W: float
    b: float
    warm_up: float
    scale: float


def rule_of(name: str, m: int) -> Rule:
    """The paper's settings for its small (n = 1000) and large (n = 10240) models."""
    return Rule(1e-2, 1e-2, 0.1, 1.0) if name == "small" else Rule(0.02 * (8 / m) ** 0.25, 2 / m, 0.05, 100.0)


def cell(task: Task) -> None:
    """Train the runs of a task, which share n, m and length, keep their weights, and measure them."""
    torch.set_num_threads(task.threads)
    kept = task.folder.path / "weights.safetensors"
    model = model_of(task.runs)
    if kept.exists():
        model.load_state_dict(load_file(kept))
    else:
        _train(task, model.to(device()))
        model.cpu()
        with atomic_path(kept) as temporary:
            save_file(model.state_dict(), temporary)
    task.rows(row for i, run in enumerate(task.runs) for row in measured(run, model.W[i].detach(), model.b[i].detach()))


def device() -> str:
    """A GPU trains all replicas of a task at once; its samples are drawn there, from a stream of their own."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def model_of(runs: tuple[Run, ...]) -> FeatureAutoencoder:
    """The models of these runs as they start."""
    return FeatureAutoencoder(runs[0]["features"], runs[0]["m"], [run["seed"] for run in runs])


def frequencies_of(run: Run) -> Tensor:
    """How often each feature of a run is active."""
    return frequencies(run["family"], run["features"], alpha=run["alpha"], length=run["length"], density=run["density"])


def batches_of(runs: tuple[Run, ...], stream: str) -> FeatureBatches:
    """Fresh samples of each run; runs of equal frequencies share their law."""
    laws: dict[tuple[Any, ...], Tensor] = {}
    p = tuple(laws.setdefault((run["family"], run["alpha"], run["density"]), frequencies_of(run)) for run in runs)
    seeds = tuple(run["seed"] for run in runs)
    return FeatureBatches(p, runs[0]["batch"], seeds, stream, runs[0]["correlation"], device=device())


def _train(task: Task, model: FeatureAutoencoder) -> None:
    first, steps = task.runs[0], task.runs[0]["steps"]
    rule = rule_of(first["rule"], first["m"])
    decay = torch.tensor([run["gamma"] for run in task.runs])
    schedule = WarmUpCosine(steps, max(1, round(rule.warm_up * steps)))
    batches, weight = batches_of(task.runs, "training"), rule.scale / first["features"]
    training = Training(
        model, RowDecayAdam(model.W, [model.b], decay, (rule.W, rule.b), schedule), batches.at,
        lambda model, batch: losses(model, batch) * weight, steps,
        (FreshLossProbe(model, task.runs, {*range(0, steps, max(1, steps // 10)), steps}),),
        save_every=max(500, steps // 20),
    )  # fmt: skip
    train(training, task.folder, lambda step: task.progress(step / steps))


@dataclass
class FreshLossProbe:
    """The loss of frozen parameters on fresh batches of a stream of their own, with its standard error.

    Value and error are of L, summed over features, as published.
    """

    model: FeatureAutoencoder
    runs: tuple[Run, ...]
    steps: Collection[int]
    _batches: FeatureBatches = field(init=False)

    def __post_init__(self) -> None:
        self._batches = batches_of(self.runs, "evaluation")

    def due(self, step: int) -> bool:
        """See `training.Probe`."""
        return step in self.steps

    def after_backward(self, step: int) -> None:
        """Nothing is kept."""

    def rows(self, step: int) -> Iterator[Row]:
        """One row a replica."""
        found = torch.stack([losses_only(self.model, self._batches.at(FIRST + i)[0]) for i in range(FRESH)]).double()
        for run, mean, sd in zip(self.runs, found.mean(0).tolist(), found.std(0).tolist(), strict=True):
            yield Row(run=run.id, seed=run["seed"], step=step, measure="loss.test", value=mean,
                      stderr=sd / FRESH**0.5, n=FRESH)  # fmt: skip

    def state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing."""


def measured(run: Run, W: Tensor, b: Tensor) -> Iterator[Row]:
    """Rows of one trained model: geometry, what theory says of its loss, and its norms and biases by rank."""
    make = partial(Row, run=run.id, seed=run["seed"], step=run["steps"])
    yield from feature_rows(make, W)
    yield from loss_rows(make, W, b, frequencies_of(run))
    norms = W.norm(dim=1)
    for rank in ranks(len(W)):
        yield make(measure="superposition.norm_by_rank", site=rank + 1, value=float(norms[rank]))
        yield make(measure="superposition.bias_by_rank", site=rank + 1, value=float(b[rank]))


def ranks(n: int, most: int = 60) -> list[int]:
    """Ranks from 0, evenly in their logarithm."""
    return sorted({min(n, round(n ** (i / (most - 1)))) - 1 for i in range(most)})


def cost(task: Task) -> float:
    """Seconds of its process (benchmarks/superposition.py): a sample costs its product with W and a pass over y."""
    run = task.runs[0]
    step: float = run["batch"] * run["features"] * (0.7e-9 + 2.5e-11 * run["m"]) + 1.2e-3
    return len(task.runs) * float(run["steps"]) * step / task.threads


def weights_of(folder: Path) -> dict[str, Tensor]:
    """What the models of a finished task have learned: W replicas × n × m and b replicas × n, in the task's order."""
    found: dict[str, Tensor] = load_file(folder / "weights.safetensors")
    return found
