"""The study `continuity-mlp`: why continuity emerges, on residual MLPs and MNIST (arXiv 2605.04971, toy experiments).

Choices that the paper leaves open (init, optimiser settings, lengths) are ours; the axes state them.
"""

from drillcore.studies.continuity_cell import OPTIMISERS, VARIANTS, cell, cost
from drillcore.studies.continuity_claims import BASE, CLAIMS
from drillcore.study import Axis, Figure, Preset, Study
from drillcore.study.reference import TITLES

SEEDS = (0, 1, 2, 3, 4)
EPOCH = 468  # batches of 128 in 60,000 images

AXES = (
    Axis("variant", tuple(VARIANTS), about="residual or not, activation, norm"),
    Axis("optimiser", tuple(OPTIMISERS), about="settings in studies/continuity_cell.py"),
    Axis("init_scale", (1.0, 0.25, 0.5, 2.0, 4.0), about="times the deviation of the layers' start"),
    Axis("form", ("one", "two"), about="x + act(Wx) or x + W₂ act(W₁x)"),
    Axis("radius", (1.0, 30.0), about="of the radial activation x·tanh(‖x‖/radius)"),
    Axis("blend", (0.0, 0.03, 0.1, 0.3, 1.0), about="share of ReLU mixed into the activation"),
    Axis("depth", (16, 4, 8, 32, 64), about="layers"),
    Axis("law", ("normal", "torch", "xavier"), role="nuisance", about="how the layers start"),
    Axis("seed", SEEDS, role="nuisance", about="start and order of the images"),
    Axis("data", ("full", "subset"), role="fixed", about="60,000 images, or the 5,000 that ship"),
    Axis("shift", (0, 2), role="fixed", about="pixels of random shift"),
    Axis("steps", (10 * EPOCH,), role="fixed", about="batches of 128"),
    Axis("probe_every", (EPOCH,), role="fixed", about="steps"),
)

Grid = dict[str, tuple[str | int | float | bool, ...]]
NORES: Grid = {"variant": ("NoRes+ReLU",), "law": ("torch", "xavier")}
SHORT: Grid = {"data": ("subset",), "shift": (2,), "steps": (4500,), "probe_every": (250,), "seed": SEEDS[:3]}

QUICK = Preset(
    ({"variant": ("Res+None", "Res+ReLU", "Res+Radial"), **SHORT}, {**NORES, "law": ("torch",), **SHORT}),
    about="four variants, three seeds, 4,500 steps on the images that ship", budget="10 minutes",
)  # fmt: skip

MAIN: tuple[Grid, ...] = (
        {"variant": ("Res+ReLU", "Res+None+LN", "Res+ReLU+LN", "Res+GELU", "Res+SiLU", "Res+Tanh", "Res+None+RMS"),
         "seed": SEEDS},
        {**NORES, "seed": SEEDS},
        {"variant": ("Res+None", "Res+Radial"), "seed": SEEDS, "steps": (20 * EPOCH,)},
        {"init_scale": (0.25, 0.5, 2.0, 4.0), "seed": SEEDS},
        {"optimiser": ("adam-b0",), "seed": SEEDS, "steps": (20 * EPOCH,)},
        {"variant": ("Res+Radial",), "radius": (30.0,), "seed": SEEDS, "steps": (20 * EPOCH,)},
        {"variant": ("Res+ReLU", "Res+None", "Res+Radial"), "form": ("two",), "seed": SEEDS},
)  # fmt: skip
BLEND: Grid = {"variant": ("Res+Radial",), "blend": (0.0, 0.03, 0.1, 0.3, 1.0), "seed": SEEDS, "steps": (20 * EPOCH,)}
DEPTH: Grid = {"depth": (4, 8, 32, 64), "seed": SEEDS[:3]}
SLOW: tuple[Grid, ...] = (
    {"optimiser": ("momentum",), "seed": SEEDS[:3], "steps": (50 * EPOCH,), "probe_every": (5 * EPOCH,)},
    {"optimiser": ("sgd",), "seed": SEEDS[:3], "steps": (100 * EPOCH,), "probe_every": (10 * EPOCH,)},
)
PAPER = Preset((*MAIN, BLEND, DEPTH, *SLOW), budget="some hours",
               about="60,000 images, 10 epochs, 20 for the variants that drift; one factor at a time")  # fmt: skip
SHARDS = {
    "paper-blend": Preset((BLEND,), about="of it, the mixtures of ReLU and Radial", budget="an hour"),
    "paper-depth": Preset((DEPTH,), about="of it, the depths", budget="half an hour"),
    "paper-slow": Preset(SLOW, about="of it, the optimisers that need 50 and 100 epochs", budget="an hour"),
}

EACH = {**{axis: value for axis, value in BASE.items() if axis not in ("variant", "law")}, "law": ("normal", "torch")}
FIGURES = (
    Figure("v1", "Continuity of the weights (v1)", "continuity.v1", where=EACH,
           caption="Mean |cos| of the leading right singular vectors of adjacent layers; shaded: 95 % interval."),
    Figure("gradient", "Coherence of the summed gradient (v1)", "coherence.cumulative_v1", where=EACH,
           caption="The same of Σ dL/dW since the first step. Res+None stays coherent here while its weights do not."),
    Figure("step", "Coherence of one step's gradient (v1)", "coherence.step_v1", where=EACH,
           caption="At step 0 it shows what residual connections do before anything is learned."),
    Figure("s2", "σ²-weighted continuity", "continuity.s2_weighted", where=EACH,
           caption="Every singular direction counts with its share of ‖W‖²_F (reading A)."),
    Figure("rotation", "Rotation from the first probe", "coherence.rotation", where=EACH,
           caption="Degrees. Read beside v1: layers that turn together keep their continuity."),
    Figure("update", "‖W − W₀‖ / ‖W₀‖", "coherence.update_ratio", where=EACH),
    Figure("turned", "Weights that turned to their summed gradient", "coherence.weight_to_gradient", where=EACH,
           caption="|cos| of the leading right vectors of W and of its summed gradient, mean over layers."),
    Figure("crossing", "By layer: weight against summed gradient at the end", "coherence.weight_to_gradient",
           kind="bars", x="layer", where=EACH),
    Figure("start", "Before the first step: gradient coherence between all layers", "coherence.step_v1", kind="heat",
           where={**EACH, "step": 0}),
    Figure("pairs", "At the end: v1 between all layers", "continuity.v1", kind="heat", where=EACH),
    Figure("paths", "The path of v1 through the layers, at the end", "continuity.v1_path", kind="trajectories",
           x="layer", where=EACH,
           caption="Sign-aligned v1 of every layer in the plane that holds most of them; the large point is layer 0. "
           "Where layers share v1, all points lie together at distance 1 from the origin."),
    Figure("symmetry", "How far the activation is from commuting with rotations, at the end", "symmetry.breaking",
           kind="bars", x="layer", where=EACH,
           caption="Relative change under random rotations of what the activation gets; 0 for none and radial."),
    Figure("scale", "Start of the layers, Res+ReLU", "continuity.v1", series="init_scale",
           where={**EACH, "init_scale": (0.25, 0.5, 1.0, 2.0, 4.0), "variant": "Res+ReLU"}),
    Figure("depth", "Depth, Res+ReLU", "continuity.v1", series="depth",
           where={**EACH, "depth": (4, 8, 16, 32, 64), "variant": "Res+ReLU"}),
    Figure("blend", "A share of ReLU in Res+Radial", "continuity.v1", series="blend",
           where={**EACH, "blend": (0.0, 0.03, 0.1, 0.3, 1.0), "variant": "Res+Radial"}),
    Figure("index", "The same against the measured breaking of symmetry, at the end", "symmetry.breaking",
           kind="bars", x="blend", where={**EACH, "blend": (0.0, 0.03, 0.1, 0.3, 1.0), "variant": "Res+Radial"},
           caption="How far each mixture is from commuting with rotations, on what the activation gets."),
    Figure("accuracy", "Held-out accuracy", "training.test_accuracy", where=EACH),
)  # fmt: skip

study = Study(
    name="continuity-mlp", title=TITLES["continuity-mlp"],
    about="Do adjacent layers share leading singular vectors because of residual connections, and do activations that "
    "break rotational symmetry keep them (arXiv 2605.04971)?",
    axes=AXES, cell=cell, presets={"quick": QUICK, "paper": PAPER, **SHARDS}, claims=CLAIMS, figures=FIGURES,
    stack=("seed", "init_scale"), cost=cost,
)  # fmt: skip
