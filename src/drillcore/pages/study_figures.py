"""Figures of a study drawn: from the frozen `Figure` and the numbers that it selects to Plotly dictionaries."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from math import log10
from typing import TYPE_CHECKING, Any

from drillcore.pages.colours import BAND_NEAR, DIVERGING, GRID, NULL, SEQUENTIAL, kind_style, scale
from drillcore.pages.figures import Figure as Drawing
from drillcore.pages.figures import Trace, depth_axis, figure, line
from drillcore.pages.rows import five
from drillcore.study import Figure

if TYPE_CHECKING:
    import polars as pl

_CURVE_HEIGHT, _HEAT_HEIGHT = 340, 300
_LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
_ROOM = {"l": 56, "r": 10, "t": 60, "b": 40}
_SIGNED = -0.02  # below it a map shows values of both signs

Frame = Any  # of polars


def drawings(spec: Figure, results: "pl.DataFrame") -> Iterator[tuple[str, str, Drawing]]:
    """(name, title, drawing) of a figure: one for each panel, for heat maps one for each value of the series too.

    A figure without rows has none.
    """
    data = spec.data(results)
    apart = spec.keys if spec.kind == "heat" else spec.keys[: 1 if spec.panels else 0]
    draw: Callable[[Figure, Frame, list[Any]], Drawing] = {
        "heat": _heat, "curves": _curves, "bars": _points, "trajectories": _paths, "map": _map,
    }[spec.kind]  # fmt: skip
    if data.is_empty():
        return
    # a line looks the same in every panel
    series = [] if spec.kind == "map" else list(dict.fromkeys(data[spec.series].to_list()))
    if not apart:
        yield spec.name, spec.title, draw(spec, data, series)
        return
    drawn = [(values, draw(spec, part, series)) for values, part in data.group_by(apart, maintain_order=True)]
    _same_scale(spec, data, [drawing for _, drawing in drawn])
    for i, (values, drawing) in enumerate(drawn):
        told = ", ".join(f"{name} {value}" for name, value in zip(apart, values, strict=True))
        yield f"{spec.name}/{i}", told, drawing


def _lines(spec: Figure, data: Frame, series: list[Any]) -> Iterator[tuple[Any, str, str, Frame]]:
    """Value, colour, symbol and rows of each line."""
    for (value,), part in data.group_by([spec.series], maintain_order=True):
        colour, symbol, _ = kind_style(series.index(value))
        yield value, colour, symbol, part


def _curves(spec: Figure, data: Frame, series: list[Any]) -> Drawing:
    traces = _chance(spec, data)
    for value, colour, symbol, part in _lines(spec, data, series):
        x, y = part[spec.x].to_list(), list(map(five, part["value"]))
        traces += _intervals(x, part["low"].to_list(), part["high"].to_list(), colour)
        traces.append({**line(x, y, str(value), colour, hover=_hover(spec, value, part), symbols=symbol),
                       "showlegend": True})  # fmt: skip
    drawn = figure(
        traces, spec.x, spec.measure, height=_CURVE_HEIGHT, xaxis={"type": "log" if spec.log_x else "linear"}
    )
    drawn["layout"] |= {"showlegend": True, "legend": _LEGEND, "margin": _ROOM}
    if spec.log_y:
        drawn["layout"]["yaxis"] |= {"type": "log", "dtick": "D1" if _decades(data) < 1.5 else 1}
    if any(isinstance(x, str) for x in data[spec.x]):
        drawn["layout"]["xaxis"]["type"] = "category"
    return drawn


def _points(spec: Figure, data: Frame, series: list[Any]) -> Drawing:
    """Points side by side at each place, with their intervals."""
    traces = []
    for value, colour, symbol, part in _lines(spec, data, series):
        y, low, high = (part[name].to_list() for name in ("value", "low", "high"))
        up = [h - v if h is not None else 0 for v, h in zip(y, high, strict=True)]
        down = [v - b if b is not None else 0 for v, b in zip(y, low, strict=True)]
        bars = {"type": "data", "array": list(map(five, up)), "arrayminus": list(map(five, down)), "color": colour,
                "thickness": 1.5, "width": 3}  # fmt: skip
        x = [str(v) for v in part[spec.x]]
        points = line(x, list(map(five, y)), str(value), colour, hover=_hover(spec, value, part), symbols=symbol)  # type: ignore[arg-type]
        traces.append({**points, "mode": "markers", "error_y": bars, "showlegend": True, "offsetgroup": str(value)})
    order = [str(v) for v in dict.fromkeys(data[spec.x].sort().to_list())]
    drawn = figure(traces, spec.x, spec.measure, height=_CURVE_HEIGHT,
                   xaxis={"type": "category", "categoryorder": "array", "categoryarray": order})  # fmt: skip
    drawn["layout"] |= {"showlegend": True, "legend": _LEGEND, "margin": _ROOM, "scattermode": "group"}
    drawn["layout"] |= {"shapes": _chance_lines(data)}
    return drawn


def _hover(spec: Figure, value: object, part: Frame) -> list[str]:
    words = []
    for x, y, low, high, seeds in part.select(spec.x, "value", "low", "high", "seeds").iter_rows():
        doubt = "one seed" if low is None else f"95 % interval over {seeds} seeds {low:.4g} to {high:.4g}"
        words.append(f"{value}\n{spec.x} {x}: {y:.4g}, {doubt}")
    return words


def _intervals(x: list[Any], low: list[float | None], high: list[float | None], colour: str) -> list[Trace]:
    """The shades of a line's intervals: one for each stretch of points that have one."""
    traces = []
    known = groupby(range(len(x)), lambda i: low[i] is not None)
    for places in (list(run) for has, run in known if has):
        there, back = [x[i] for i in places], [x[i] for i in reversed(places)]
        edge = [high[i] for i in places] + [low[i] for i in reversed(places)]
        traces.append({"type": "scatter", "mode": "lines", "x": there + back, "y": list(map(five, edge)),
                       "opacity": 0.18, "fill": "toself", "fillcolor": colour, "line": {"width": 0},
                       "hoverinfo": "skip", "showlegend": False})  # fmt: skip
    return traces


def _chance(spec: Figure, data: Frame) -> list[Trace]:
    """What chance gives along `x`: the mean as a dotted line, and ± 2 sd over all lines shaded, where it is known."""
    found = [(x, *_span(part)) for (x,), part in data.group_by([spec.x], maintain_order=True)]
    found = sorted((f for f in found if f[1] is not None), key=lambda f: f[0])
    if not found:
        return []
    x = [f[0] for f in found]
    band = {"type": "scatter", "mode": "lines", "name": "chance ± 2 sd", "x": x + x[::-1], "fill": "toself",
            "y": [five(f[2]) for f in found] + [five(f[1]) for f in reversed(found)], "fillcolor": BAND_NEAR,
            "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}  # fmt: skip
    middle = {"type": "scatter", "mode": "lines", "name": "chance", "x": x, "y": [five(f[3]) for f in found],
              "line": {"color": NULL, "width": 1, "dash": "dot"}, "hoverinfo": "skip", "showlegend": True}  # fmt: skip
    return [band, middle]


def _span(rows: Frame) -> tuple[float | None, float | None, float | None]:
    """Low and high end of the band of chance over these rows, and the mean."""
    known = [(null, sd or 0.0) for null, sd in rows.select("null", "null_sd").iter_rows() if null is not None]
    if not known:
        return None, None, None
    low, high = min(n - 2 * sd for n, sd in known), max(n + 2 * sd for n, sd in known)
    return low, high, sum(n for n, _ in known) / len(known)


def _chance_lines(data: Frame) -> list[dict[str, Any]]:
    low, high, mean = _span(data)
    if low is None:
        return []
    across = {"xref": "paper", "x0": 0, "x1": 1, "layer": "below"}
    return [
        {**across, "type": "rect", "y0": low, "y1": high, "fillcolor": BAND_NEAR, "line": {"width": 0}},
        {**across, "type": "line", "y0": mean, "y1": mean, "line": {"color": NULL, "width": 1, "dash": "dot"}},
    ]


def _paths(spec: Figure, data: Frame, series: list[Any]) -> Drawing:
    """Lines through two coordinates; the first point is large, and every point says where it stands."""
    traces = []
    for value, colour, symbol, part in _lines(spec, data, series):
        places = part[spec.x].to_list()
        points = line(part["first"].to_list(), part["second"].to_list(), str(value), colour,
                      hover=[f"{value}\n{spec.x} {place}" for place in places], symbols=symbol)  # fmt: skip
        points["marker"] |= {"size": [12, *[5] * (len(places) - 1)]}
        traces.append({**points, "showlegend": True})
    drawn = figure(traces, "first coordinate", "second coordinate", height=_CURVE_HEIGHT + 60)
    drawn["layout"]["yaxis"] |= {"scaleanchor": "x"}
    drawn["layout"] |= {"showlegend": True, "legend": _LEGEND, "margin": _ROOM}
    return drawn


def _heat(spec: Figure, part: Frame, series: list[Any]) -> Drawing:
    """The pairs of one network as a symmetric map; a layer with itself is left blank."""
    layers = sorted({*part["layer"].to_list(), *part["other"].to_list()})
    place = {layer: i for i, layer in enumerate(layers)}
    z: list[list[float | None]] = [[None] * len(layers) for _ in layers]
    for lower, upper, value in part.select("layer", "other", "value").iter_rows():
        z[place[lower]][place[upper]] = z[place[upper]][place[lower]] = round(value, 4)
    trace = {"type": "heatmap", "z": z, "x": layers, "y": layers,
             "colorbar": {"thickness": 10, "outlinecolor": GRID}, "xgap": 0.5, "ygap": 0.5,
             "hovertemplate": "layers %{x} and %{y}: %{z:.3f}<extra></extra>"}  # fmt: skip
    whole = {name: depth_axis(layers)[name] for name in ("dtick", "tick0")}
    drawn = figure([trace], "layer", "layer", height=_HEAT_HEIGHT, xaxis=whole, yaxis=whole)
    drawn["layout"]["yaxis"] |= {"scaleanchor": "x", "autorange": "reversed"}
    return drawn


def _map(spec: Figure, data: Frame, series: list[Any]) -> Drawing:
    """Two axes of the study against each other, every cell with its number."""
    columns, rows = (sorted(set(data[name].to_list())) for name in (spec.x, spec.y))
    found = {(x, y): five(value) for x, y, value in data.select(spec.x, spec.y, "value").iter_rows()}
    z = [[found.get((x, y)) for x in columns] for y in rows]
    trace = {"type": "heatmap", "z": z, "x": [str(x) for x in columns], "y": [str(y) for y in rows],
             "colorscale": scale(SEQUENTIAL), "colorbar": {"thickness": 10, "outlinecolor": GRID}, "xgap": 1, "ygap": 1,
             "zmin": 0, "texttemplate": "%{z:.2f}",
             "hovertemplate": f"{spec.x} %{{x}}, {spec.y} %{{y}}: %{{z:.3f}}<extra></extra>"}  # fmt: skip
    category = {"type": "category"}
    height = 120 + 24 * max(4, len(rows))
    return figure([trace], spec.x, spec.y, height=height, xaxis=category, yaxis=category)


def _decades(data: Frame) -> float:
    positive = data["value"].filter(data["value"] > 0)
    return 9.0 if positive.is_empty() else log10(positive.max() / positive.min())


def _same_scale(spec: Figure, data: Frame, drawn: Sequence[Drawing]) -> None:
    """Pictures side by side are compared: one scale of colours, or one vertical axis."""
    if spec.kind == "heat":
        low, high = data["value"].min(), max(1.0, data["value"].abs().max())
        signed = low < _SIGNED
        colours = {
            "zmin": -high if signed else 0,
            "zmax": high,
            "colorscale": scale(DIVERGING if signed else SEQUENTIAL),
        }
        for d in drawn:
            d["data"][0] |= colours
    elif spec.kind in ("curves", "bars"):
        ends = [v for name in ("value", "low", "high", "null") for v in data[name].drop_nulls()]
        room = 0.04 * ((max(ends) - min(ends)) or 1.0)
        low, high = min(ends) - room, max(ends) + room
        if spec.log_y:
            positive = [v for v in ends if v > 0]
            low, high = log10(min(positive)) - 0.05, log10(max(positive)) + 0.05
        for d in drawn:
            d["layout"]["yaxis"] |= {"range": [five(low), five(high)]}
