"""The study `superposition-small`: a phase map of the toy model at n = 1000 (arXiv 2505.10465, figures 3 to 5)."""

from drillcore.studies.superposition_axes import ALPHAS, AXES, GAMMAS, QUICK, SEEDS, SMALL, STACK
from drillcore.studies.superposition_cell import cell, cost
from drillcore.studies.superposition_claims import CLAIMS
from drillcore.studies.superposition_figures import MAPS, by_width
from drillcore.study import Preset, Study
from drillcore.study.reference import TITLES

PRESETS = {
    "quick": Preset(
        ({"features": (256,), "m": QUICK, "batch": (512,), "steps": (6000,), "seed": SEEDS[:3],
          "alpha": (0.0, 1.0, 2.0), "gamma": (-0.5556, 0.1111, 0.5556)},),
        about="256 features, three α, three γ, three seeds", budget="10 minutes",
    ),
    "core": Preset(
        ({"m": SMALL, "alpha": (0.0, 0.5, 1.0), "gamma": (-0.5556,), "seed": SEEDS},),
        about="the published size: the strong side at γ = −0.556", budget="an hour",
    ),
    "core-weak": Preset(
        ({"m": SMALL, "alpha": (0.0, 1.0, 2.0), "gamma": (0.5556,), "seed": SEEDS[:3]},),
        about="the published size: the weak side at γ = 0.556", budget="an hour",
    ),
    "paper": Preset(
        ({"m": SMALL, "alpha": ALPHAS, "gamma": GAMMAS, "seed": SEEDS},),
        about="the whole map", budget="some days of two cores",
    ),
}  # fmt: skip

study = Study(
    name="superposition-small", title=TITLES["superposition-small"],
    about="How does loss fall with width where features overlap, and where they do not (arXiv 2505.10465)?",
    axes=AXES, cell=cell, presets=PRESETS, claims=CLAIMS,
    figures=(*by_width("gamma", "alpha", -0.5556), *MAPS), stack=STACK, cost=cost,
)  # fmt: skip
