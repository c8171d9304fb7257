"""The study `superposition-toy-gallery`: the small pictures of Elhage and others, Toy Models of Superposition, 2022.

Values are uniform in 0 … 2 here and in 0 … 1 there, which changes the loss by a factor and nothing else: the model is
positively homogeneous in x and b.
"""

from collections.abc import Iterator
from functools import partial

import polars as pl
import torch
from torch import Tensor

from drillcore.data.features import FeatureBatches, frequencies
from drillcore.measures.feature_packing import feature_dimensionality, feature_rows
from drillcore.models.feature_autoencoder import FeatureAutoencoder, losses
from drillcore.studies.superposition_results import Values, by_seed
from drillcore.study import Axis, Claim, Figure, Preset, Run, Study, Task
from drillcore.study.claims import at_least, between
from drillcore.study.reference import TITLES
from drillcore.table import Row
from drillcore.training import RowDecayAdam, Training, WarmUpCosine, train

PRESENT = (1.0, 0.5, 0.3, 0.2, 0.1, 0.05, 0.03, 0.01)
SMALL, MANY = 5, 80
_SHOWN = 20  # features up to which W Wᵀ is drawn

AXES = (
    Axis("present", PRESENT, about="probability that a feature is active: 1 − sparsity"),
    Axis("importance", (0.9, 1.0), about="of feature i in the loss: this to the power i"),
    Axis("features", (SMALL, MANY), about="n"),
    Axis("m", (2, 20), about="dimensions"),
    Axis("seed", (0, 1, 2, 3, 4), role="nuisance"),
    Axis("batch", (1024,), role="fixed", about="samples a step"),
    Axis("steps", (8000,), role="fixed", about="fresh batches"),
)


def cell(task: Task) -> None:
    """Train the seeds and sparsities of one n and m side by side."""
    torch.set_num_threads(task.threads)
    first, runs = task.runs[0], task.runs
    n, steps = first["features"], first["steps"]
    weights = first["importance"] ** torch.arange(n)
    model = FeatureAutoencoder(n, first["m"], [run["seed"] for run in runs], weights)
    model.b.data.zero_()  # as there: from N(0, 1) some features never wake up
    p = tuple(frequencies("power", n, alpha=0.0, density=n * run["present"]) for run in runs)
    batches = FeatureBatches(p, first["batch"], tuple(run["seed"] for run in runs))
    optimiser = RowDecayAdam(model.W, [model.b], torch.zeros(len(runs)), (5e-3, 5e-3), WarmUpCosine(steps, steps // 20))
    training = Training(model, optimiser, batches.at, lambda model, x: losses(model, x) / n, steps, save_every=2000)
    train(training, task.folder, lambda step: task.progress(step / steps))
    task.rows(row for i, run in enumerate(runs) for row in _measured(run, model.W[i].detach()))


def _measured(run: Run, W: Tensor) -> Iterator[Row]:
    make = partial(Row, run=run.id, seed=run["seed"], step=run["steps"])
    yield from feature_rows(make, W)
    yield make(measure="superposition.represented", value=int((W.norm(dim=1) > 0.5).sum()), unit="features")
    for i, value in enumerate(feature_dimensionality(W).tolist()):
        yield make(measure="superposition.dimensionality", layer=i, value=value)
    if len(W) > _SHOWN:
        return
    for i, row in enumerate((W @ W.T).tolist()):
        yield from (make(measure="superposition.gram", layer=i, other=j, value=v) for j, v in enumerate(row))
    for i, (x, y) in enumerate(W[:, :2].tolist()):  # spokes: the origin between any two features
        for at, point in ((2 * i, (0.0, 0.0)), (2 * i + 1, (x, y))):
            yield from (make(measure="superposition.rows", layer=at, subset=str(k + 1), value=v)
                        for k, v in enumerate(point))  # fmt: skip


def _shown(frame: pl.DataFrame, present: float) -> Values:
    return by_seed(frame, "superposition.represented", features=SMALL, present=present)


def _median(frame: pl.DataFrame, present: float) -> Values:
    rows = frame.filter(pl.col("measure") == "superposition.dimensionality", pl.col("features") == MANY,
                        pl.col("present") == present)  # fmt: skip
    return {int(s): float(v) for s, v in rows.group_by("seed").agg(pl.col("value").median()).iter_rows()}


CLAIMS = (
    Claim("a-dense", "5 features in 2 dimensions, always active: 2 are kept", "2",
          lambda f: between(_shown(f, 1.0), 1.9, 2.1)),
    Claim("b-sparse", "active once in 20 samples or less: all 5 are kept", "a pentagon",
          lambda f: at_least(_shown(f, 0.03), 4.9)),
    Claim("b-pentagon", "there each has 2/5 of a dimension, ± 0.03", "a pentagon",
          lambda f: between(by_seed(f, "superposition.dimensionality_mean", features=SMALL, present=0.03), 0.37, 0.43)),
    Claim("c-between", "active once in 5 samples: 4 are kept, in two opposite pairs", "opposite pairs",
          lambda f: between(_shown(f, 0.2), 3.9, 4.1)),
    Claim("d-halves", "80 equal features in 20 dimensions, active once in 10 samples: the median feature has half a "
          "dimension, ± 0.05", "sticky at 1/2", lambda f: between(_median(f, 0.1), 0.45, 0.55)),
)  # fmt: skip

_FIVE = {"features": SMALL}
FIGURES = (
    Figure("rows", "The rows of W in the plane, first seed", "superposition.rows", kind="trajectories", x="layer",
           series="features", panels="present", where=_FIVE, caption="Each spoke is a feature."),
    Figure("gram", "W Wᵀ, first seed", "superposition.gram", kind="heat", series="present", where=_FIVE,
           caption="Off the diagonal: interference."),
    Figure("represented", "Features with norm above ½", "superposition.represented", kind="bars", x="present",
           series="features", where=_FIVE),
    Figure("dimensions", "Dimensions per feature, m/‖W‖²_F", "superposition.dimensions_per_feature", x="present",
           series="features", log_x=True),
    Figure("each", "Dimensions of each feature", "superposition.dimensionality", kind="bars", x="layer",
           series="present", where=_FIVE, caption="By importance: feature 0 counts most."),
)  # fmt: skip

_GRID = {"present": PRESENT, "seed": (0, 1, 2, 3, 4)}
study = Study(
    name="superposition-toy-gallery", title=TITLES["superposition-toy-gallery"],
    about="What do a few features in fewer dimensions look like, by sparsity (Elhage and others, 2022)?",
    axes=AXES, cell=cell,
    presets={
        "quick": Preset(({**_GRID, "features": (SMALL,), "m": (2,), "importance": (0.9,)},
                         {**_GRID, "features": (MANY,), "m": (20,), "importance": (1.0,), "seed": (0, 1, 2),
                          "present": PRESENT[2:]}),
                        about="5 features in 2 dimensions and 80 in 20", budget="5 minutes"),
    },
    claims=CLAIMS, figures=FIGURES, stack=("seed", "present"),
    cost=lambda task: len(task.runs) * task.runs[0]["steps"] * 1e-3 / task.threads,
)  # fmt: skip
