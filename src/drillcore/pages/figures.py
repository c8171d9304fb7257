"""Pieces of Plotly figures as plain dictionaries: layout, axes, lines over depth, the band of chance.

Plotly itself is not imported: the page draws them with plotly.js. Colours are those of the light page.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

from drillcore.pages.colours import BAND_FAR, BAND_NEAR, GRID, INK, NULL
from drillcore.table import Row

Figure = dict[str, Any]
Trace = dict[str, Any]


def figure(data: list[Trace], x: str, y: str, *, height: int = 230, **axes: dict[str, Any]) -> Figure:
    """A figure with titled axes; `xaxis` and `yaxis` add to the axes' settings."""
    layout = {
        "height": height, "margin": {"l": 52, "r": 10, "t": 8, "b": 40}, "showlegend": False, "hovermode": "closest",
        "font": {"size": 12, "color": INK}, "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": axis(x, **axes.get("xaxis", {})), "yaxis": axis(y, **axes.get("yaxis", {})),
    }  # fmt: skip
    return {"data": data, "layout": layout}


def axis(title: str, **settings: Any) -> dict[str, Any]:
    """One quiet axis."""
    return {
        "title": {"text": title, "standoff": 8}, "gridcolor": GRID, "linecolor": GRID, "zeroline": False,
        "ticks": "", "automargin": True, **settings,
    }  # fmt: skip


def depth_axis(layers: Sequence[float]) -> dict[str, Any]:
    """An axis of layers: whole ticks, half a layer of room on both sides."""
    low, high = (min(layers), max(layers)) if layers else (0, 1)
    step = next(s for s in (1, 2, 4, 5, 10, 20, 50, 100, 1000) if (high - low) / s <= 10)
    return {"range": [low - 0.6, high + 0.6], "dtick": step, "tick0": 0}


def middle(row: Row) -> float:
    """Where a row of a pair stands: between its two layers."""
    assert row.layer is not None
    return (row.layer + row.other) / 2 if row.other is not None else float(row.layer)


def band(rows: Sequence[Row]) -> list[Trace]:
    """What chance gives: its mean as a dotted line, ± 2 sd and ± 4 sd shaded. Rows need `null`.

    A null of mean 0 belongs to values of both signs; the band of the others ends at 0.
    """
    known = [r for r in rows if r.null is not None]
    if not known:
        return []
    x = [middle(known[0]) - 0.6, *map(middle, known), middle(known[-1]) + 0.6]
    ends = [known[0], *known, known[-1]]
    shades = [
        _shade(x, ends, wide, colour)
        for wide, colour in ((4, BAND_FAR), (2, BAND_NEAR))
        if any(r.null_sd for r in known)
    ]
    mean = [round(r.null, 6) for r in ends if r.null is not None]
    line = {"type": "scatter", "mode": "lines", "name": "chance", "x": x, "y": mean, "hoverinfo": "skip",
            "line": {"color": NULL, "width": 1, "dash": "dot"}}  # fmt: skip
    return [*shades, line]


def _shade(x: list[float], rows: list[Row], wide: int, colour: str) -> Trace:
    upper = [round((r.null or 0.0) + wide * (r.null_sd or 0.0), 6) for r in rows]
    lower = [round(_lowest(r, wide * (r.null_sd or 0.0)), 6) for r in rows]
    return {"type": "scatter", "mode": "lines", "name": f"chance ± {wide} sd", "x": x + x[::-1],
            "y": upper + lower[::-1], "fill": "toself", "fillcolor": colour, "line": {"width": 0},
            "hoverinfo": "skip"}  # fmt: skip


def _lowest(row: Row, width: float) -> float:
    return max(0.0, row.null - width) if row.null else -width


def line(
    x: Sequence[float], y: Sequence[float | None], name: str, colour: str, *, hover: Sequence[str], width: float = 2,
    symbols: str | Sequence[str] = "circle", size: float = 6, dash: str = "solid",
) -> Trace:  # fmt: skip
    """A line with markers, which shrink where there are many; it breaks where `y` has no value."""
    size = round(max(2.5, size - len(x) / 24), 1)
    return {
        "type": "scatter", "mode": "lines+markers", "name": escape(name), "x": list(x), "y": list(y),
        "connectgaps": False, "text": [escape(h).replace("\n", "<br>") for h in hover],
        "hovertemplate": "%{text}<extra></extra>", "line": {"color": colour, "width": width, "dash": dash},
        "marker": {"symbol": symbols if isinstance(symbols, str) else list(symbols), "size": size, "color": colour},
    }  # fmt: skip


def limit_line(places: Sequence[float], limit: float, name: str = "fp16 maximum") -> Trace:
    """A dashed line that must not be passed."""
    return {"type": "scatter", "mode": "lines", "name": name, "hoverinfo": "skip",
            "x": [min(places) - 0.6, max(places) + 0.6], "y": [limit] * 2,
            "line": {"color": NULL, "width": 1, "dash": "dash"}, "showlegend": True}  # fmt: skip


def with_legend(drawn: Figure) -> Figure:
    """The figure with a legend below it."""
    drawn["layout"] |= {"showlegend": True, "legend": {"orientation": "h", "y": -0.28, "x": 0, "font": {"size": 11}}}
    drawn["layout"]["margin"] |= {"b": 70}
    return drawn
