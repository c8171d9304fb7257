"""The claims of `continuity-mlp`, decided before the runs; letters as in arXiv 2605.04971 and beyond it."""

import polars as pl

from drillcore.study import Claim, Verdict
from drillcore.study.claims import at_least, at_most, between, difference_at_least

BASE = {"variant": "Res+ReLU", "optimiser": "adam", "init_scale": 1.0, "law": "normal", "form": "one", "radius": 1.0,
        "blend": 0.0, "depth": 16}  # fmt: skip
V1, STEP, SUM = "continuity.v1", "coherence.step_v1", "coherence.cumulative_v1"
Values = dict[int, float]  # seed → value


def curve(frame: pl.DataFrame, measure: str, **changed: object) -> pl.DataFrame:
    """Mean over layers (or adjacent pairs) by seed and step, of the runs that differ from `BASE` in `changed` only."""
    wanted = [pl.col(axis).eq(value) for axis, value in {**BASE, **changed}.items()]
    rows = frame.filter(pl.col("measure") == measure, pl.col("adjacent").fill_null(value=True), *wanted)
    return rows.group_by("seed", "step").agg(pl.col("value").mean()).sort("seed", "step")


def last(frame: pl.DataFrame, measure: str, **changed: object) -> Values:
    """The value at the last step of each seed."""
    return _by_seed(curve(frame, measure, **changed).group_by("seed", maintain_order=True).last())


def at(frame: pl.DataFrame, measure: str, step: int, **changed: object) -> Values:
    """The value at the last step up to `step`."""
    found = curve(frame, measure, **changed).filter(pl.col("step") <= step)
    return _by_seed(found.group_by("seed", maintain_order=True).last())


def highest(frame: pl.DataFrame, measure: str, **changed: object) -> Values:
    """The largest value over the run."""
    return _by_seed(curve(frame, measure, **changed).group_by("seed").agg(pl.col("value").max()))


def lowest_after_peak(frame: pl.DataFrame, measure: str, **changed: object) -> Values:
    """The smallest value after the largest."""
    found = curve(frame, measure, **changed)
    peaks = found.filter(pl.col("value") == pl.col("value").max().over("seed")).select("seed", peak=pl.col("step"))
    after = found.join(peaks, on="seed").filter(pl.col("step") >= pl.col("peak"))
    return _by_seed(after.group_by("seed").agg(pl.col("value").min()))


def onset(frame: pl.DataFrame, measure: str, level: float, **changed: object) -> Values:
    """The first step at which the curve reaches `level`; seeds that never do are left out."""
    reached = curve(frame, measure, **changed).filter(pl.col("value") >= level)
    return {seed: float(step) for seed, step in reached.group_by("seed").agg(pl.col("step").min()).iter_rows()}


def after_crossing(frame: pl.DataFrame) -> Values:
    """|cos| of weight and summed gradient, mean over the layers at each one's first probe with ‖ΔW‖ ≥ ‖W₀‖."""
    wanted = [pl.col(axis).eq(value) for axis, value in BASE.items()]
    key = ["seed", "layer", "step"]
    ratio = frame.filter(pl.col("measure") == "coherence.update_ratio", pl.col("value") >= 1, *wanted)
    first = ratio.group_by("seed", "layer").agg(pl.col("step").min())
    turned = frame.filter(pl.col("measure") == "coherence.weight_to_gradient", *wanted).select(*key, "value")
    met = first.join(turned, on=key)
    return _by_seed(met.group_by("seed").agg(pl.col("value").mean()))


def rank_correlation(frame: pl.DataFrame) -> Values:
    """Of v1 and the breaking of symmetry at the end, over the mixtures of Res+Radial with ReLU, by seed."""
    pairs = []
    for blend in (0.0, 0.03, 0.1, 0.3, 1.0):
        changed = {"variant": "Res+Radial", "blend": blend}
        v1, index = last(frame, V1, **changed), last(frame, "symmetry.breaking", **changed)
        pairs += [{"seed": seed, "v1": v1[seed], "index": index[seed]} for seed in v1.keys() & index.keys()]
    if not pairs:
        return {}
    found = pl.DataFrame(pairs).group_by("seed").agg(pl.corr("v1", "index", method="spearman").alias("value"), pl.len())
    return _by_seed(found.filter(pl.col("len") >= 4))


def _by_seed(frame: pl.DataFrame) -> Values:
    return {int(seed): float(value) for seed, value in frame.select("seed", "value").iter_rows()}


def _ends(variant: str, threshold: float, name: str, published: str, **changed: object) -> Claim:
    """v1 of the weights at the end."""
    told = "".join(f", {axis} {value}" for axis, value in changed.items())

    def decide(frame: pl.DataFrame) -> Verdict:
        return at_least(last(frame, V1, variant=variant, **changed), threshold)

    return Claim(name, f"{variant}{told}: v1 continuity of the weights ends above {threshold}", published, decide)


CLAIMS = (
    Claim("a-res", "with residuals, gradients of adjacent layers are coherent before the first step: v1 above 0.3",
          "coherent (no number)", lambda f: at_least(at(f, STEP, 0), 0.3)),
    Claim("a-nores", "without residuals they are near chance before the first step: below 0.15",
          "near chance", lambda f: at_most(at(f, STEP, 0, variant="NoRes+ReLU", law="torch"), 0.15)),
    Claim("b-torch", "without residuals, default init: cumulative gradient v1 below 0.10 at the end", "about 0.05",
          lambda f: at_most(last(f, SUM, variant="NoRes+ReLU", law="torch"), 0.10)),
    Claim("b-xavier", "without residuals, Xavier init: cumulative gradient v1 below 0.10 at the end", "about 0.05",
          lambda f: at_most(last(f, SUM, variant="NoRes+ReLU", law="xavier"), 0.10)),
    Claim("b-weights", "without residuals, default init: weight v1 below 0.10 at the end", "none develops",
          lambda f: at_most(last(f, V1, variant="NoRes+ReLU", law="torch"), 0.10)),
    Claim("c-gradient", "Res+None: cumulative gradient v1 above 0.8 at the end", "0.93",
          lambda f: at_least(last(f, SUM, variant="Res+None"), 0.8)),
    Claim("c-forms", "Res+None: weight v1 reaches 0.5", "forms first",
          lambda f: at_least(highest(f, V1, variant="Res+None"), 0.5)),
    Claim("c-falls", "Res+None: after its maximum weight v1 falls below 0.3", "0.22",
          lambda f: at_most(lowest_after_peak(f, V1, variant="Res+None"), 0.3)),
    Claim("d-falls", "Res+Radial: after its maximum weight v1 falls below 0.3", "about 0.22",
          lambda f: at_most(lowest_after_peak(f, V1, variant="Res+Radial"), 0.3)),
    _ends("Res+ReLU", 0.85, "e-relu", "high"), _ends("Res+GELU", 0.85, "e-gelu", "kept"),
    _ends("Res+SiLU", 0.85, "e-silu", "kept"),
    Claim("f-relu", "Res+ReLU: σ²-weighted continuity at the end within 0.05 of 0.249", "0.249",
          lambda f: between(last(f, "continuity.s2_weighted"), 0.199, 0.299)),
    Claim("f-ln", "Res+None+LN: σ²-weighted continuity at the end within 0.05 of 0.303", "0.303",
          lambda f: between(last(f, "continuity.s2_weighted", variant="Res+None+LN"), 0.253, 0.353)),
    Claim("f-order", "σ²-weighted continuity at the end: Res+None+LN above Res+ReLU", "0.303 above 0.249",
          lambda f: difference_at_least(last(f, "continuity.s2_weighted", variant="Res+None+LN"),
                                        last(f, "continuity.s2_weighted"), 0.0)),
    Claim("g-turns", "Res+ReLU: where ‖ΔW‖ has passed ‖W₀‖, weight v1 and cumulative-gradient v1 agree above 0.8",
          "weights take over the gradient's direction", lambda f: at_least(after_crossing(f), 0.8)),
    Claim("h-concentrates", "v1 at the end: Res+ReLU above Res+None+LN", "activation concentrates, LN spreads",
          lambda f: difference_at_least(last(f, V1), last(f, V1, variant="Res+None+LN"), 0.0)),
    Claim("h-together", "v1 at the end: Res+ReLU+LN above Res+None+LN", "the activation's pattern wins",
          lambda f: difference_at_least(last(f, V1, variant="Res+ReLU+LN"), last(f, V1, variant="Res+None+LN"), 0.0)),
    *(_ends("Res+ReLU", 0.5, f"i-{name}", "not tied to one optimiser", optimiser=name)
      for name in ("adam-b0", "momentum", "sgd")),
    *(_ends("Res+ReLU", 0.85, f"j-outcome-{scale}", "outcome unchanged", init_scale=scale)
      for scale in (0.25, 0.5, 2.0, 4.0)),
    Claim("j-onset", "Res+ReLU: v1 reaches 0.5 later from 4 times the init than from a quarter", "onset moves",
          lambda f: difference_at_least(onset(f, V1, 0.5, init_scale=4.0), onset(f, V1, 0.5, init_scale=0.25), 0.0)),
    Claim("k-unsaturated", "ours: Res+Radial far from saturation (radius 30) falls below 0.3 after its maximum",
          "not tested there",
          lambda f: at_most(lowest_after_peak(f, V1, variant="Res+Radial", radius=30.0), 0.3)),
    Claim("k-two", "ours: with x + W₂ act(W₁x), ReLU ends above Radial in v1 of W₁", "not tested there",
          lambda f: difference_at_least(last(f, V1, form="two"), last(f, V1, variant="Res+Radial", form="two"), 0.1)),
    Claim("l-partly", "ours: a tenth of ReLU in Res+Radial already ends above pure Radial by 0.2", "not tested there",
          lambda f: difference_at_least(last(f, V1, variant="Res+Radial", blend=0.1), last(f, V1, variant="Res+Radial"),
                                        0.2)),
    Claim("l-index", "ours: over these mixtures v1 at the end rises with the measured breaking of symmetry: rank "
          "correlation above 0.7", "not tested there", lambda f: at_least(rank_correlation(f), 0.7)),
    *(_ends("Res+ReLU", 0.85, f"m-depth-{depth}", "ours: 16 layers there", depth=depth) for depth in (4, 8, 32, 64)),
)  # fmt: skip
