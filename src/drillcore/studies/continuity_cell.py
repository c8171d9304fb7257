"""One task of the study `continuity-mlp`: residual MLPs that differ in their numbers, trained side by side."""

from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from drillcore.data.batches import Batches
from drillcore.data.mnist import Images, mnist, mnist_subset
from drillcore.models.activations import Activation
from drillcore.models.residual_mlp import ResidualMLP, Shape, Start, losses
from drillcore.study import Run, Task
from drillcore.training import Optim, Training, train
from drillcore.verbs.watch import HeldOutProbe, LayersProbe, Replica, SymmetryProbe

VARIANTS = {
    "Res+ReLU": Shape(Activation("relu")),
    "NoRes+ReLU": Shape(Activation("relu"), residual=False),
    "Res+None": Shape(Activation("none")),
    "Res+GELU": Shape(Activation("gelu")),
    "Res+SiLU": Shape(Activation("silu")),
    "Res+Tanh": Shape(Activation("tanh")),
    "Res+Radial": Shape(Activation("radial")),
    "Res+None+LN": Shape(Activation("none"), norm="layernorm"),
    "Res+ReLU+LN": Shape(Activation("relu"), norm="layernorm"),
    "Res+None+RMS": Shape(Activation("none"), norm="rmsnorm"),
}
OPTIMISERS = {
    "adam": Optim(lr=1e-3),
    "adam-b0": Optim(lr=1e-4, betas=(0.0, 0.0)),  # sign descent: no second moment that could align anything
    "momentum": Optim("sgd", lr=0.01, momentum=0.9),
    "sgd": Optim("sgd", lr=0.05),
}
BATCH = 128
EARLY = (10, 30, 100, 200)  # beside every `probe_every` steps: continuity sets in within the first epoch


def shape_of(run: Run) -> Shape:
    """The network of a run."""
    shape = VARIANTS[run["variant"]]
    activation = replace(shape.activation, radius=run["radius"], blend=run["blend"])
    return replace(shape, activation=activation, form=run["form"], depth=run["depth"])


def cell(task: Task) -> None:
    """Train the runs of a task, which share everything but seed and scale of the start."""
    torch.set_num_threads(task.threads)
    first, runs = task.runs[0], task.runs
    starts = tuple(Start(run["seed"], run["init_scale"], run["law"]) for run in runs)
    model = ResidualMLP(shape_of(first), starts)
    learn, held_out = images(first["data"])
    batches = Batches(learn.images, learn.labels, BATCH, tuple(run["seed"] for run in runs), shift=first["shift"])
    steps, every = first["steps"], first["probe_every"]
    seen = {*range(0, steps + 1, every), *(s for s in EARLY if s < every), steps}
    replicas = [Replica(run.id, run["seed"]) for run in runs]
    five = {0, every, steps // 4 // every * every, steps // 2 // every * every, steps}
    layers = LayersProbe(list(model.W), replicas, seen, every=five, spectra=five, reference=every)
    x, y = flat(held_out, batches)
    symmetry = SymmetryProbe(model, model.shape.activation, x[:BATCH], replicas, five)
    training = Training(
        model, OPTIMISERS[first["optimiser"]].over(model.parameters()), batches.at, losses, steps,
        (layers, HeldOutProbe(model, x, y, replicas, seen), symmetry), save_every=max(every, 250),
    )  # fmt: skip
    train(training, task.folder, lambda step: task.progress(step / steps))


@lru_cache(maxsize=2)
def images(name: str) -> tuple[Images, Images]:
    """Training and held-out images: "subset" ships with the package, "full" is found or fetched."""
    return (mnist_subset("train"), mnist_subset("test")) if name == "subset" else (mnist("train"), mnist("test"))


def flat(held_out: Images, batches: Batches) -> tuple[Tensor, Tensor]:
    """Held-out images as the network sees them, and their labels."""
    return batches.normalised(held_out.images), torch.from_numpy(held_out.labels).long()


def cost(task: Task) -> float:
    """Seconds of its process, from a step and replica of 16 layers (benchmarks/training.py); every core is at work."""
    return sum(float(run["steps"] * run["depth"]) * 0.026 / 16 for run in task.runs) / task.threads
