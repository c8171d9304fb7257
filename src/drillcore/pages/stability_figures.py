"""Figures of a survey's stability: what every part can reach by layer, the stream by site, and the gains."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from drillcore.pages.colours import kind_style
from drillcore.pages.figures import Figure, Trace, depth_axis, figure, limit_line, line, with_legend
from drillcore.pages.rows import five, text
from drillcore.table import Row, Table

FP16_MAX = 65504.0
_SITE_WORDS = {"bound_mean_abs": "mean of |x|", "bound_rms": "root mean square",
               "bound_entry_sd": "standard deviation over entries", "bound_data_sd": "over tokens"}  # fmt: skip


class Picture(NamedTuple):
    """A figure with its name, its title and how it is read."""

    name: str
    title: str
    caption: str
    figure: Figure


def stability_figures(rows: Table) -> dict[str, list[Picture]]:
    """Stack → its pictures; a stack without rows of stability has none."""
    stacks: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.measure.startswith("stability.") and row.layer is not None and row.value is not None:
            stacks[row.stack or ""].append(row)
    return {stack: list(_pictures(stack, own)) for stack, own in stacks.items()}


def _pictures(stack: str, rows: Sequence[Row]) -> Iterator[Picture]:
    key = stack or "model"
    if parts := list(_lines(rows, "stability.bound", "layer", by_subset=True)):
        yield Picture(
            f"stability/parts/{key}", "What each part can reach", "Bound on the largest |x| of a layer, on any input; "
            "the dashed line is fp16's 65,504.", _figure(parts, "layer", FP16_MAX),
        )  # fmt: skip
    sizes = [trace for name in _SITE_WORDS for trace in _lines(rows, f"stability.{name}", "site")]
    if sizes:
        yield Picture(f"stability/stream/{key}", "The stream", "Bounds after every residual add; site 0 is the "
                      "embedding.", _figure(sizes, "site"))  # fmt: skip
    if gains := list(_lines(rows, "stability.gain_rms", "layer", by_subset=True)):
        yield Picture(f"stability/gains/{key}", "Gains of the norms", "rms(γ) as it acts: 1 + w where it is stored so.",
                      _figure(gains, "layer"))  # fmt: skip
    if budget := list(_lines(rows, "stability.gain_budget", "layer")):
        yield Picture(f"stability/budget/{key}", "Gain budget", "Σ Δt·rms(γ) of the output norms up to a layer: the "
                      "most they can add to the stream's mean |x|.", _figure(budget, "layer", log=False))  # fmt: skip


def _lines(rows: Sequence[Row], measure: str, along: str, *, by_subset: bool = False) -> Iterator[Trace]:
    """One line for each part (the largest of a layer) or norm."""
    groups: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        place = row.site if along == "site" else row.layer
        if row.measure == measure and place is not None and row.value is not None:
            own = groups[_name(row) if by_subset else _SITE_WORDS.get(measure.split(".")[1], "budget")]
            own[place] = max(own.get(place, 0.0), row.value)
    for name, values in groups.items():
        colour, symbol, _ = kind_style(_places(measure) + list(groups).index(name))
        hover = [f"{name}, {along} {x}: at most {text(y, 4)}" for x, y in sorted(values.items())]
        made = line([float(x) for x in sorted(values)], [five(values[x]) for x in sorted(values)], name, colour,
                    hover=hover, symbols=symbol, size=5, width=1.5)  # fmt: skip
        yield {**made, "showlegend": True}


def _name(row: Row) -> str:
    """A part of the model; or a norm by its branch and side."""
    if row.measure == "stability.bound":
        return row.subset or ""
    return f"{row.kind}, {row.subset}" if row.kind else row.subset or ""


def _places(measure: str) -> int:
    """The colour that the first line of a measure takes, so that the lines of one figure differ."""
    names = [f"stability.{name}" for name in _SITE_WORDS]
    return names.index(measure) if measure in names else 0


def _figure(lines: list[Trace], along: str, limit: float | None = None, *, log: bool = True) -> Figure:
    places = [x for trace in lines for x in trace["x"]]
    below = [limit_line(places, limit)] if limit is not None else []
    y: dict[str, object] = {"type": "log"} if log else {"rangemode": "tozero"}
    return with_legend(figure([*below, *lines], along, "", height=290, xaxis=depth_axis(places), yaxis=y))
