"""How fast do random directions become orthogonal? Run: drillcore study run docs/my_study.py"""

import numpy as np

from drillcore.study import Axis, Claim, Figure, Preset, Study, Task
from drillcore.study.claims import at_most
from drillcore.table import Row


def cell(task: Task) -> None:
    run = task.run
    x = np.random.default_rng(run["seed"]).normal(size=(2, 200, run["dimension"]))
    cosines = (x[0] * x[1]).sum(1) / np.linalg.norm(x[0], axis=1) / np.linalg.norm(x[1], axis=1)
    task.rows([Row(run=run.id, seed=run["seed"], measure="abs_cos", value=float(abs(cosines).mean()))])


def at_256(results):
    rows = results.filter(results["measure"] == "abs_cos", results["dimension"] == 256)
    return at_most({row["seed"]: row["value"] for row in rows.iter_rows(named=True)}, 0.06)


study = Study(
    name="random-directions",
    axes=(Axis("dimension", (16, 64, 256)), Axis("seed", (0, 1, 2), role="nuisance")),
    cell=cell,
    presets={"quick": Preset(({"dimension": (16, 64, 256), "seed": (0, 1, 2)},))},
    claims=(Claim("small", "in 256 dimensions mean |cos| is below 0.06", "√(2/πd) = 0.05", at_256),),
    figures=(Figure("by-dimension", "Mean |cos|", "abs_cos", kind="bars", x="dimension", series="measure"),),
)
