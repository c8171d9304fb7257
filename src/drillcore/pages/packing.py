"""Superposition on the page: norms, mean squared overlap beside 1/m and Welch, and every number in a table."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import Any

from drillcore.pages.colours import CONTROL, INK, INPUT, NULL, OUTPUT, kind_style
from drillcore.pages.figures import Figure, Trace, depth_axis, figure, line
from drillcore.pages.rows import Kind, RowIndex, five, text
from drillcore.table import Row

PREFIX = "superposition."
LABELS = {
    "n": "vectors, n", "m": "dimensions, m", "zero_rows": "zero rows", "padded_rows": "padded rows",
    "phi_half": "φ½: share with norm above ½", "phi_1": "φ₁: share with norm above 1",
    "phi_half_relative": "share above ½ × the median norm", "phi_1_relative": "share above the median norm",
    "norm_mean": "mean norm", "norm_min": "smallest norm", "norm_max": "largest norm", "norm_median": "median norm",
    "mean_row_norm": "norm of the mean row", "mean_sq_overlap": "mean squared overlap",
    "mean_sq_overlap_x_m": "… times m (random: 1)", "mean_sq_overlap_over_welch": "… over Welch, κ²",
    "variance_ratio": "variance of squared overlap over random", "max_overlap": "largest overlap",
    "max_overlap_over_welch": "… over Welch, κ", "tight_frame_defect": "distance from a tight frame",
    "participation_ratio": "participation ratio (dimensions used)",
}  # fmt: skip


@dataclass(frozen=True)
class Packed:
    """The superposition of one matrix: its rows by name and subset ("" where there is none)."""

    label: str
    kind: Kind
    layer: int | None
    expert: int | None
    rows: Mapping[tuple[str, str], Row]

    def value(self, name: str, subset: str = "") -> float | None:
        """The value of `superposition.name`, or None."""
        row = self.rows.get((name, subset))
        return row.value if row is not None else None

    @property
    def welch(self) -> float | None:
        """κ² = (n − m)/(m(n − 1)), the least mean squared overlap of n > m unit vectors (arXiv 2505.10465, eq. 5)."""
        row, m = self.rows.get(("mean_sq_overlap", "raw")), self.value("m")
        if row is None or row.n is None or m is None or row.n <= m:
            return None
        return (row.n - m) / (m * (row.n - 1))

    @property
    def plain(self) -> list[tuple[str, Row]]:
        """Label and row of what has one value."""
        return [(LABELS.get(name, name), self.rows[name, ""]) for name in self._names() if (name, "") in self.rows]

    @property
    def doubled(self) -> list[tuple[str, Row | None, Row | None]]:
        """Label and row, raw and centred."""
        names = [n for n in self._names() if (n, "raw") in self.rows or (n, "centred") in self.rows]
        return [(LABELS.get(n, n), self.rows.get((n, "raw")), self.rows.get((n, "centred"))) for n in names]

    @property
    def quantiles(self) -> list[tuple[str, Row]]:
        """ "5 %" and its row."""
        found = [(subset, row) for (name, subset), row in self.rows.items() if name == "norm_quantile" and subset]
        return [(f"{100 * float(subset.removeprefix('q')):g} % quantile", row) for subset, row in found]

    def _names(self) -> list[str]:
        names = dict.fromkeys(name for name, _ in self.rows)
        return [*(n for n in LABELS if n in names), *(n for n in names if n not in LABELS)]


def packed(index: RowIndex) -> list[Packed]:
    """One record per matrix, in the order of the table."""
    groups: dict[tuple[Kind, int | None, int | None], dict[tuple[str, str], Row]] = defaultdict(dict)
    for measure in index.measures(PREFIX):
        for kind in index.kinds(measure):
            for row in index.of(measure, kind):
                groups[kind, row.layer, row.expert][measure.removeprefix(PREFIX), row.subset or ""] = row
    return [Packed(_label(*key), *key, rows) for key, rows in groups.items()]


def packing_figures(matrices: Iterable[Packed]) -> dict[str, Figure]:
    """Norms and overlaps of the matrices outside the blocks; × m over depth for those inside."""
    measured = [p for p in matrices if p.value("mean_sq_overlap", "raw") is not None]
    outside, inside = [p for p in measured if p.layer is None], [p for p in measured if p.layer is not None]
    made = {}
    if outside:
        made = {"packing/overlap": _overlap_figure(outside), "packing/norms": _norm_figure(outside)}
    if inside:
        made["packing/depth"] = _depth_figure(inside)
    strata = _strata_figure(outside)
    return made if strata is None else {**made, "packing/frequency": strata}


def _label(kind: Kind, layer: int | None, expert: int | None) -> str:
    parts = [kind.label, "" if layer is None else f"layer {layer}", "" if expert is None else f"expert {expert}"]
    return ", ".join(filter(None, parts))


def _overlap_figure(matrices: list[Packed]) -> Figure:
    names = [escape(p.label) for p in matrices]
    series = (
        ("raw", "as stored", [p.value("mean_sq_overlap", "raw") for p in matrices], "circle", INPUT),
        (
            "centred",
            "mean row removed",
            [p.value("mean_sq_overlap", "centred") for p in matrices],
            "circle-open",
            INPUT,
        ),
        ("1/m", "random, 1/m", [1 / m if (m := p.value("m")) else None for p in matrices], "line-ns-open", NULL),
        ("Welch", "Welch bound, κ²", [p.welch for p in matrices], "diamond-open", OUTPUT),
    )
    traces = [_dots(names, values, f"{label}", symbol, colour) for _, label, values, symbol, colour in series]
    ticks = _ticks([v for trace in traces for v in trace["x"] if v])
    return _ranked(traces, names, "mean squared overlap", {"type": "log", "tickvals": ticks, "tickangle": 0})


def _ticks(values: list[float]) -> list[float]:
    """Round numbers for a logarithmic axis, a handful of them whatever its span."""
    decades = log10(max(values) / min(values))
    steps = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if decades < 1 else (1.0, 3.0) if decades < 3 else (1.0,)
    exponents = range(floor(log10(min(values))), ceil(log10(max(values))) + 1)
    return [float(f"{step}e{exponent}") for exponent in exponents for step in steps]


def _dots(names: list[str], values: list[float | None], label: str, symbol: str, colour: str) -> Trace:
    return {
        "type": "scatter", "mode": "markers", "name": label, "y": names, "x": [five(v) for v in values],
        "text": [f"{name}, {label}: {text(v, 4)}" for name, v in zip(names, values, strict=True)],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"symbol": symbol, "size": 18 if symbol == "line-ns-open" else 11, "color": colour,
                   "line": {"width": 2, "color": colour}},
    }  # fmt: skip


def _norm_figure(matrices: list[Packed]) -> Figure:
    names = [escape(p.label) for p in matrices]
    whiskers = (("norm_min", "", "norm_max", "", 1.0, "smallest to largest", CONTROL),
                ("norm_quantile", "q0.05", "norm_quantile", "q0.95", 5.0, "5 % to 95 %", CONTROL),
                ("norm_quantile", "q0.25", "norm_quantile", "q0.75", 12.0, "25 % to 75 %", INPUT))  # fmt: skip
    traces: list[Trace] = []
    for low, low_of, high, high_of, width, label, colour in whiskers:
        ends = [(five(p.value(low, low_of)), five(p.value(high, high_of))) for p in matrices]
        x = [value for pair in ends for value in (*pair, None)]
        y = [n for name in names for n in (name, name, None)]
        words = [f"{label}: {text(a)} to {text(b)}" for a, b in ends for _ in range(3)]
        traces.append({
            "type": "scatter", "mode": "lines", "name": label, "x": x, "y": y, "text": words,
            "hovertemplate": "%{text}<extra></extra>", "line": {"width": width, "color": colour},
        })  # fmt: skip
    medians = _dots(names, [p.value("norm_median") for p in matrices], "median", "line-ns-open", INK)
    reached = [v for p in matrices if (v := p.value("norm_max")) is not None]
    made = _ranked([*traces, medians], names, "norm of the vectors", {"range": [0, max(reached, default=1.0) * 1.05]})
    made["layout"]["shapes"] = [_threshold(at) for at in (0.5, 1.0)]
    made["layout"]["annotations"] = [_threshold_name(*of) for of in ((0.5, "φ½"), (1.0, "φ₁"))]
    return made


def _threshold(at: float) -> dict[str, object]:
    return {"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper",
            "line": {"color": NULL, "width": 1, "dash": "dot"}}  # fmt: skip


def _threshold_name(at: float, name: str) -> dict[str, object]:
    return {"x": at, "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False, "text": name,
            "font": {"color": NULL, "size": 12}}  # fmt: skip


def _ranked(traces: list[Trace], names: list[str], title: str, settings: dict[str, object]) -> Figure:
    """A figure with one line per matrix and its legend on top."""
    made = figure(traces, title, "", height=130 + 44 * len(names), xaxis=settings,
                  yaxis={"autorange": "reversed", "showgrid": False})  # fmt: skip
    made["layout"]["margin"]["t"] = 62
    made["layout"] |= {"showlegend": True, "legend": {"orientation": "h", "yref": "container", "y": 1,
                       "yanchor": "top", "x": 0, "itemclick": False, "itemdoubleclick": False}}  # fmt: skip
    return made


def _depth_figure(matrices: list[Packed]) -> Figure:
    by_kind: dict[Kind, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for p in matrices:
        value = p.value("mean_sq_overlap_x_m", "raw")
        if p.layer is not None and value is not None:
            by_kind[p.kind][p.layer].append(value)
    traces = []
    for place, (kind, found) in enumerate(by_kind.items()):
        layers = sorted(found)
        means = [sum(found[layer]) / len(found[layer]) for layer in layers]
        colour, symbol, _ = kind_style(place)
        hover = [f"{kind.label}, layer {layer}: {text(mean, 4)}" for layer, mean in zip(layers, means, strict=True)]
        traces.append(line([float(x) for x in layers], [five(v) for v in means], kind.label, colour, hover=hover,
                           symbols=symbol, size=5, width=1.5))  # fmt: skip
    made = figure(traces, "layer", "mean squared overlap × m", height=280,
                  xaxis=depth_axis([x for t in traces for x in t["x"]]), yaxis={"rangemode": "tozero"})  # fmt: skip
    made["layout"]["shapes"] = [{"type": "line", "x0": 0, "x1": 1, "xref": "paper", "y0": 1, "y1": 1,
                                 "line": {"color": NULL, "width": 1, "dash": "dot"}}]  # fmt: skip
    made["layout"]["showlegend"] = True
    return made


def _strata_figure(matrices: list[Packed]) -> Figure | None:
    """m × mean squared overlap by how frequent the tokens are, one line a matrix; None where no tokens were counted."""
    traces = []
    for place, matrix in enumerate(matrices):
        found = [(subset, row.value) for (name, subset), row in matrix.rows.items()
                 if name == "mean_sq_overlap_x_m" and not subset.endswith(("raw", "centred"))]  # fmt: skip
        if found:
            colour, symbol, _ = kind_style(place)
            hover = [f"{matrix.label}\n{subset}: {text(value)}" for subset, value in found]
            at: list[Any] = [subset for subset, _ in found]
            heights = [five(value) for _, value in found]
            traces.append(line(at, heights, matrix.label, colour, hover=hover, symbols=symbol))
    if not traces:
        return None
    made = figure(traces, "tokens by frequency", "m × mean squared overlap", height=340, xaxis={"type": "category"},
                  yaxis={"rangemode": "tozero"})  # fmt: skip
    made["layout"]["margin"]["t"] = 62
    made["layout"] |= {"showlegend": True, "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}}
    return made
