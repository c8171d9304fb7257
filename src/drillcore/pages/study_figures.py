"""Figures of a study drawn: from the frozen `Figure` and the numbers that it selects to Plotly dictionaries."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from drillcore.pages.colours import GRID, NULL, SEQUENTIAL, kind_style, scale
from drillcore.pages.figures import Figure as Drawing
from drillcore.pages.figures import Trace, figure, line
from drillcore.study import Figure

if TYPE_CHECKING:
    import polars as pl

_CURVE_HEIGHT, _HEAT_HEIGHT = 340, 300


def drawings(spec: Figure, results: "pl.DataFrame") -> Iterator[tuple[str, str, Drawing]]:
    """(name, title, drawing) of a figure: one, or for heat maps one of each value of the series; none without rows."""
    data = spec.data(results)
    if data.is_empty():
        return
    if spec.kind == "heat":
        for i, (value, part) in enumerate(_series(spec, data)):
            yield f"{spec.name}/{i}", f"{spec.title}: {value}", _heat(part)
        return
    yield spec.name, spec.title, _curves(spec, data)


def _series(spec: Figure, data: "pl.DataFrame") -> Iterator[tuple[Any, "pl.DataFrame"]]:
    for (value,), part in data.group_by(spec.series, maintain_order=True):
        yield value, part


def _curves(spec: Figure, data: "pl.DataFrame") -> Drawing:
    traces: list[Trace] = []
    for i, (value, part) in enumerate(_series(spec, data)):
        colour, symbol, _ = kind_style(i)
        x, y, low, high = (part[name].to_list() for name in (spec.x, "value", "low", "high"))
        hover = [
            f"{value}\n{spec.x} {a}: {b:.4g}, seeds {c:.4g} to {d:.4g}"
            for a, b, c, d in zip(x, y, low, high, strict=True)
        ]
        traces.append(_range(x, low, high, colour))
        traces.append({**line(x, y, str(value), colour, hover=hover, symbols=symbol), "showlegend": True})
    chance = data["null"].drop_nulls()
    if len(chance) and spec.kind == "curves":
        ends = [data[spec.x].min(), data[spec.x].max()]
        mean = sum(chance.to_list()) / len(chance)
        traces.append({"type": "scatter", "mode": "lines", "name": "chance", "x": ends, "y": [mean, mean],
                       "line": {"color": NULL, "width": 1, "dash": "dot"}, "hoverinfo": "skip"})  # fmt: skip
    drawn = figure(
        traces, spec.x, spec.measure, height=_CURVE_HEIGHT, xaxis={"type": "log" if spec.log_x else "linear"}
    )
    drawn["layout"] |= {"showlegend": True, "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
                        "margin": {"l": 56, "r": 10, "t": 60, "b": 40}}  # fmt: skip
    return drawn


def _range(x: list[Any], low: list[float], high: list[float], colour: str) -> Trace:
    return {
        "type": "scatter", "mode": "lines", "x": x + x[::-1], "y": high + low[::-1], "fill": "toself", "opacity": 0.18,
        "fillcolor": colour, "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False,
    }  # fmt: skip


def _heat(part: "pl.DataFrame") -> Drawing:
    """The pairs of one network as a symmetric map; a layer with itself is left blank."""
    layers = sorted({*part["layer"].to_list(), *part["other"].to_list()})
    place = {layer: i for i, layer in enumerate(layers)}
    z: list[list[float | None]] = [[None] * len(layers) for _ in layers]
    for lower, upper, value in part.select("layer", "other", "value").iter_rows():
        z[place[lower]][place[upper]] = z[place[upper]][place[lower]] = round(value, 4)
    trace = {"type": "heatmap", "z": z, "x": layers, "y": layers, "zmin": 0, "zmax": 1, "colorscale": scale(SEQUENTIAL),
             "colorbar": {"thickness": 10, "outlinecolor": GRID}, "xgap": 0.5, "ygap": 0.5,
             "hovertemplate": "layers %{x} and %{y}: %{z:.3f}<extra></extra>"}  # fmt: skip
    drawn = figure([trace], "layer", "layer", height=_HEAT_HEIGHT)
    drawn["layout"]["yaxis"] |= {"scaleanchor": "x", "autorange": "reversed"}
    return drawn
