"""The study `superposition-llm`: heads of open language models (arXiv 2505.10465, figure 6).

Each model is looked for in the folder that `DRILLCORE_MODELS` names, by the last part of its id, then in the local
Hugging Face cache, then on the hub.
"""

import os
from dataclasses import replace
from pathlib import Path

import polars as pl

from drillcore.data.published import published
from drillcore.intervals import slope
from drillcore.study import Axis, Claim, Figure, Preset, Study, Task, Verdict
from drillcore.study.claims import not_run
from drillcore.study.reference import TITLES
from drillcore.verbs.comparison import packings
from drillcore.verbs.survey import survey

FAMILIES = {
    "opt": ("125m", "350m", "1.3b", "2.7b", "6.7b", "13b", "30b", "66b"),
    "Qwen2.5": ("0.5B", "1.5B", "3B", "7B", "14B", "32B", "72B"),
    "gpt2": ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"),
    "pythia": ("70m", "160m", "410m", "1b", "1.4b", "2.8b", "6.9b", "12b"),
}
OWNERS = {"opt": "facebook/", "Qwen2.5": "Qwen/", "gpt2": "openai-community/", "pythia": "EleutherAI/"}
MODELS = tuple(
    f"{OWNERS[family]}{size if family == 'gpt2' else f'{family}-{size}'}"
    for family, sizes in FAMILIES.items() for size in sizes
)  # fmt: skip
OVERLAP, WIDTH = "superposition.mean_sq_overlap", "superposition.m"


def where(model: str) -> str:
    """The folder of a model, or its id where there is none."""
    folder = os.environ.get("DRILLCORE_MODELS")
    local = Path(folder) / model.split("/")[-1] if folder else None
    return str(local) if local is not None and local.exists() else model


def cell(task: Task) -> None:
    """The superposition of one model's head, and of its embedding where that is another matrix."""
    run = task.run
    found = survey(where(run["model"]), measures=["superposition"])
    head = {p.kind for p in packings(found) if p.head}
    task.rows(replace(row, run=run.id, source=run["model"], subset=row.subset or "")
              for row in found.rows if (row.kind or "") in head)  # fmt: skip


def heads(frame: pl.DataFrame, subset: str = "raw") -> list[tuple[str, float, float]]:
    """(model, m, mean squared overlap) of the models that were measured."""
    widths = dict(frame.filter(pl.col("measure") == WIDTH).select("model", "value").iter_rows())
    rows = frame.filter(pl.col("measure") == OVERLAP, pl.col("subset") == subset, pl.col("value").is_not_null())
    return [(model, widths[model], value) for model, value in rows.select("model", "value").iter_rows()]


def _slope(frame: pl.DataFrame, subset: str) -> Verdict:
    """The exponent of overlap against width, 1 within its interval."""
    points, label = heads(frame, subset), "interval of the exponent holds 1"
    if len({m for _, m, _ in points}) < 3:
        return not_run(label)
    fit = slope([pl.Series([m]).log()[0] for _, m, _ in points], [pl.Series([v]).log()[0] for _, _, v in points])
    inside = fit.low <= -1 <= fit.high
    return Verdict("supported" if inside else "refuted", -fit.value, -fit.high, -fit.low, label, fit.n,
                   "least squares over models, Student t")  # fmt: skip


def _near_random(frame: pl.DataFrame) -> Verdict:
    """m × overlap, geometric mean over models, against 2."""
    points, label = heads(frame), "m × overlap ≤ 2"
    if len(points) < 3:
        return not_run(label)
    logs = pl.Series([m * v for _, m, v in points]).log()
    mean, error = float(logs.mean()), float(logs.std()) / len(logs) ** 0.5  # type: ignore[arg-type]
    low, value, high = (float(pl.Series([mean + k * error]).exp()[0]) for k in (-2, 0, 2))
    outcome = "supported" if high <= 2 else "refuted" if low > 2 else "inconclusive"
    return Verdict(outcome, value, low, high, label, len(logs), "geometric mean ± 2 standard errors")  # type: ignore[arg-type]


def _agrees(frame: pl.DataFrame) -> Verdict:
    """The published values, within 3 %: they were formed in half precision and read off a figure."""
    told = _published()
    pairs = [(model, v, told[name]) for model, _, v in heads(frame) if (name := model.split("/")[-1]) in told]
    label = "within 3 % of the published"
    if not pairs:
        return not_run(label)
    off = [f"{model.split('/')[-1]}: {ours:.4g}, published {theirs:.4g}"
           for model, ours, theirs in pairs if abs(ours / theirs - 1) > 0.03]  # fmt: skip
    share = 1 - len(off) / len(pairs)
    return Verdict("refuted" if off else "supported", share, threshold=label, n=len(pairs), how="; ".join(off) or "all")


def _published() -> dict[str, float]:
    found = {name: published("llm_mean_sq_overlap", model=name) for name in (m.split("/")[-1] for m in MODELS)}
    return {name: rows[0]["mean_sq_overlap"] for name, rows in found.items() if rows}


CLAIMS = (
    Claim("a-exponent", "mean squared overlap of the heads falls as 1/m", "1.26 ± 0.19, our fit to its figure",
          lambda f: _slope(f, "raw")),
    Claim("a-centred", "ours: the same with the mean row removed", "not done there", lambda f: _slope(f, "centred")),
    Claim("b-random", "the overlaps are near those of random directions: m × overlap at most 2",
          "“1/m”; 5 … 99 measured", _near_random),
    Claim("z-agrees", "our overlaps are the published ones", "25 models, read off a figure", _agrees),
)  # fmt: skip

study = Study(
    name="superposition-llm", title=TITLES["superposition-llm"],
    about="Do the output heads of open language models overlap as 1/width (arXiv 2505.10465)?",
    axes=(Axis("model", MODELS, about="Hugging Face id, or its last part as a folder in DRILLCORE_MODELS"),), cell=cell,
    presets={
        "quick": Preset(({"model": tuple(m for m in MODELS if m.endswith(("125m", "gpt2", "0.5B", "70m")))},),
                        about="the smallest of each family, 2 GB to fetch", budget="5 minutes"),
        "paper": Preset(({"model": MODELS},), about="all 27 models", budget="hours, and 1 TB to fetch"),
    },
    claims=CLAIMS,
    figures=(Figure("overlap", "m × mean squared overlap, as stored", "superposition.mean_sq_overlap_x_m", kind="bars",
                    x="model", series="subset", where={"subset": ("raw", "centred")}),
             Figure("norms", "Mean row norm", "superposition.norm_mean", kind="bars", x="model", series="kind")),
)  # fmt: skip
