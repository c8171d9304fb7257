"""The axes that all superposition studies share (arXiv 2505.10465, §1)."""

from drillcore.study import Axis

ALPHAS = tuple(i / 8 for i in range(17))
GAMMAS = (-1.0, -0.7778, -0.5556, -0.3333, -0.1111, 0.0, 0.1111, 0.3333, 0.5556, 0.7778, 1.0)  # linspace(−1, 1, 10), 0
DENSITIES = (1.0, 1.811, 2.621, 3.432, 4.243, 5.053, 5.864, 6.675, 7.485)
SEEDS = (0, 1, 2, 3, 4)
SMALL = (10, 15, 25, 39, 63, 100)
LARGE = (8, 16, 32, 64, 128, 256, 512, 1024)
QUICK = (8, 12, 16, 24, 32, 48)

AXES = (
    Axis("family", ("power", "exponential", "linear"), about="how often features are active, by rank"),
    Axis("alpha", (1.0, *(a for a in (*ALPHAS, 1.2) if a != 1.0)), about="exponent of the power family"),
    Axis(
        "gamma", (-0.5556, *(g for g in (*GAMMAS, 0.1) if g != -0.5556)), about="weight decay; below 0: pull to norm 1"
    ),
    Axis("density", DENSITIES, about="active features in a sample"),
    Axis("m", tuple(sorted({*SMALL, *LARGE, *QUICK})), about="dimensions"),
    Axis("seed", SEEDS, role="nuisance", about="start and samples"),
    Axis("features", (1000,), role="fixed", about="n"),
    Axis("rule", ("small", "large"), role="fixed", about="learning rates and loss scale published for each n"),
    Axis("length", (400.0,), role="fixed", about="of the exponential family"),
    Axis("correlation", (0.0,), role="fixed", about="ours: of ten neighbours, with unchanged frequencies"),
    Axis("batch", (2048,), role="fixed", about="samples a step"),
    Axis("steps", (20_000,), role="fixed", about="fresh batches"),
)
STACK = ("seed", "gamma")
