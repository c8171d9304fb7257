"""Figures of a signal: everything along the sites of the residual stream, one line a quantity or a branch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from drillcore.pages.colours import kind_style
from drillcore.pages.figures import Figure, Trace, band, depth_axis, figure, limit_line, line, middle, with_legend
from drillcore.pages.rows import five, text
from drillcore.table import Row, Table

FP16_MAX = 65504.0


@dataclass(frozen=True)
class Plot:
    """A picture: its measures (one line each and, where it has branches, one each branch) and how it is read."""

    name: str
    title: str
    measures: tuple[str, ...]
    caption: str = ""
    along: str = "site"
    log: bool = True
    limit: float | None = None  # a line that must not be passed
    subsets: tuple[str | None, ...] = ("all", None)


PLOTS = (
    Plot("size", "Size of the stream", ("stream.mean_abs", "stream.rms", "stream.p99_abs", "stream.max_abs"),
         "Mean |x|, root mean square, 99th percentile and maximum of |x| after every residual add.", limit=FP16_MAX),
    Plot("variance", "Variance of the stream", ("stream.entry_variance", "stream.data_variance"),
         "Over the entries of a token, and over tokens of an entry."),
    Plot("tokens", "Without the first token of each window", ("stream.rms", "stream.max_abs"),
         "The first position often is an outlier; dashed lines leave it out.", subsets=("all", "without-0")),
    Plot("peaks", "Largest |x|: branches and adds", ("branch.max_abs", "add.max_abs"),
         "A branch can leave the range of fp16 by itself, or only the add does. The line is fp16's 65,504.",
         limit=FP16_MAX),
    Plot("ratio", "Branch over stream", ("branch.ratio",), "Root mean squares; near 0 a half-step changes little."),
    Plot("lost", "Share of entries that bf16 loses", ("branch.lost_bf16",),
         "Entries of a branch that are rounded away when they are added to the stream in bf16.", log=False),
    Plot("top", "Mass in a few coordinates", ("stream.top1_share", "stream.top1percent_share"),
         "Share of Σx² in the largest coordinate, and in the largest hundredth of them.", log=False),
    Plot("influence", "What a block changes", ("block.influence",), "1 − cos between a block's input and output.",
         along="layer", log=False),
    Plot("gradient", "Gradient of the stream", ("gradient.rms", "branch_gradient.rms"),
         "At each site, and what comes back through each branch alone."),
    Plot("gradient-peaks", "Largest gradient entries", ("gradient.max_abs", "branch_gradient.max_abs"), limit=FP16_MAX),
    Plot("weights", "Gradient of the weights", ("gradient.weight_norm",), "Norm by layer.", along="layer"),
    Plot("local", "Local sensitivity", ("sensitivity.local",), "‖∂branch/∂x‖₂ at the stream of this text."),
    Plot("relative", "Relative sensitivity κ", ("sensitivity.relative",),
         "‖∂g/∂z‖₂ / sd(g): what an output norm leaves of a branch's sensitivity (derived)."),
    Plot("coherence-v", "Gradients of adjacent layers, input side", ("coherence.step_v1",),
         "|cos| of the leading right vectors of the weights' gradients; grey: chance.", along="layer", log=False),
    Plot("coherence-u", "Gradients of adjacent layers, output side", ("coherence.step_u1",),
         "|cos| of the leading left vectors; grey: chance.", along="layer", log=False),
)  # fmt: skip


_WORDS = {"branch.max_abs": "branch", "add.max_abs": "sum", "gradient.rms": "stream", "gradient.max_abs": "stream",
          "branch_gradient.rms": "branch", "branch_gradient.max_abs": "branch", "stream.top1_share": "largest",
          "stream.top1percent_share": "largest hundredth", "stream.max_abs": "maximum of |x|",
          "stream.p99_abs": "99th percentile of |x|", "stream.mean_abs": "mean of |x|"}  # fmt: skip


def signal_figures(rows: Table) -> Iterator[tuple[str, Plot, Figure]]:
    """(stack, plot, figure) of every plot that has a row, stack by stack."""
    stacks = dict.fromkeys(row.stack or "" for row in rows if row.site is not None or row.layer is not None)
    for stack in stacks:
        own = [row for row in rows if (row.stack or "") == stack]
        for plot in PLOTS:
            lines = list(_lines(plot, own))
            if lines:
                yield stack, plot, _figure(plot, lines, own)


def _lines(plot: Plot, rows: Sequence[Row]) -> Iterator[Trace]:
    place = 0
    for measure in plot.measures:
        found = [r for r in rows if r.measure == measure and r.subset in plot.subsets and r.adjacent is not False]
        for kind in dict.fromkeys(r.kind for r in found):
            colour, symbol, _ = kind_style(place)
            place += 1
            for subset in plot.subsets:
                points = sorted((r for r in found if (r.kind, r.subset) == (kind, subset)), key=_at(plot))
                if any(r.value is not None for r in points):
                    yield _line(plot, points, measure, kind, subset, colour, symbol)


def _line(
    plot: Plot, points: Sequence[Row], measure: str, kind: str | None, subset: str | None, colour: str, symbol: str
) -> Trace:
    word = _WORDS.get(measure) or measure.split(".")[1].replace("_", " ")
    name = " ".join(part for part in (kind, word if len(plot.measures) > 1 or not kind else "") if part)
    apart = subset == "without-0"
    name += " without the first" if apart else ""
    hover = [f"{name}, {plot.along} {_at(plot)(r):g} (layer {r.layer}): {text(r.value, 4)}" for r in points]
    made = line([_at(plot)(r) for r in points], [five(r.value) for r in points], name, colour, hover=hover,
                symbols=symbol, size=5, width=1.5, dash="dash" if apart else "solid")  # fmt: skip
    return {**made, "showlegend": True}


def _figure(plot: Plot, lines: list[Trace], rows: Sequence[Row]) -> Figure:
    places = [x for trace in lines for x in trace["x"]]
    nulls = sorted((r for r in rows if r.measure == plot.measures[0] and r.adjacent), key=middle)
    below: list[Trace] = band([r for r in nulls if r.kind == nulls[0].kind]) if nulls else []
    if plot.limit is not None:
        below.append(limit_line(places, plot.limit))
    y: dict[str, object] = {"type": "log"} if plot.log else {"rangemode": "tozero"}
    return with_legend(figure([*below, *lines], plot.along, "", height=270, xaxis=depth_axis(places), yaxis=y))


def _at(plot: Plot) -> "_Place":
    return _Place(plot.along)


@dataclass(frozen=True)
class _Place:
    """Where a row stands: its site, or its layer (between both of a pair)."""

    along: str

    def __call__(self, row: Row) -> float:
        return float(row.site or 0) if self.along == "site" else middle(row)
