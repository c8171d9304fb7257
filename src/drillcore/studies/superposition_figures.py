"""Pictures of the superposition studies, as frozen specs."""

from typing import Any

from drillcore.studies.superposition_axes import ALPHAS, GAMMAS
from drillcore.study import Figure

LOSS = "loss.test"
_ALL, _STRONG = {"subset": "all"}, {"subset": "strong"}


def by_width(series: str, panels: str, gamma: float) -> tuple[Figure, ...]:
    """Loss, represented fractions and overlaps against m; one picture for each value of `panels`.

    Curves by rank or step are those of the decay `gamma`.
    """
    strong = {"gamma": gamma}
    width: dict[str, Any] = {"x": "m", "series": series, "panels": panels, "log_x": True}
    return (
        Figure("loss", "Loss against width", LOSS, log_y=True, **width,
               caption="L on fresh batches, summed over features, with frozen parameters; both axes logarithmic."),
        Figure("weak-theory", "Loss of a model that keeps the m most frequent features", "loss.weak_m", log_y=True,
               **width, caption="Exact tail sum over these n features (eq. 4), not its limit for large n."),
        Figure("single", "Expected loss of samples with one active feature", "loss.single_feature", log_y=True, **width,
               caption="Exact in expectation (eq. 8), for the trained W and b."),
        Figure("phi-half", "Share of rows with norm above ½ (φ½)", "superposition.phi_half", where=_ALL, **width),
        Figure("phi-one", "Share of rows with norm above 1 (φ₁)", "superposition.phi_1", where=_ALL, **width),
        Figure("overlap", "m × mean squared overlap of rows above norm 1", "superposition.mean_sq_overlap_x_m",
               where=_STRONG, **width, caption="1 for random directions; tight frames lie at m times the Welch bound "
               "squared, just below."),
        Figure("overlap-all", "m × mean squared overlap of all rows", "superposition.mean_sq_overlap_x_m", where=_ALL,
               **width),
        Figure("variance", "Variance of squared overlaps over that of random vectors, rows above norm 1",
               "superposition.variance_ratio", where=_STRONG, **width,
               caption="0 for equal angles, 1 for random directions."),
        Figure("largest", "Largest overlap over the Welch bound, rows above norm 1",
               "superposition.max_overlap_over_welch", where=_STRONG, **width),
        Figure("norms", "Row norms by rank of frequency", "superposition.norm_by_rank", x="site", series="m",
               panels=panels, log_x=True, where=strong,
               caption="At one γ of the strong side; mean over seeds; rank 1 is the most frequent feature."),
        Figure("biases", "Biases by rank of frequency", "superposition.bias_by_rank", x="site", series="m",
               panels=panels, log_x=True, where=strong),
        Figure("learning", "Loss while learning", LOSS, series="m", panels=panels, log_y=True, where=strong),
    )  # fmt: skip


MAPS = (
    Figure("map-exponent", "Exponent of loss against width", LOSS, kind="map", x="gamma", y="alpha", slope="m",
           where={"gamma": GAMMAS, "alpha": ALPHAS},
           caption="Minus the least-squares slope of ln L on ln m over all m, mean over seeds."),
    Figure("map-phi", "φ½, mean over m", "superposition.phi_half", kind="map", x="gamma", y="alpha", where=_ALL),
)  # fmt: skip
