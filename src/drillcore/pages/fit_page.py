"""The page of fits: exponents with what the data leave open, the law over its points, profiles, groups left out."""

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drillcore.pages import colours
from drillcore.pages.colours import INPUT, NULL, kind_style
from drillcore.pages.figures import Figure, Trace, figure, line
from drillcore.pages.page import asset, environment, plotly
from drillcore.pages.rows import five, text
from drillcore.runs import write_text

if TYPE_CHECKING:
    from drillcore.verbs.fit import Exponent, Fit, Fits

_LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
_ROOM = {"l": 60, "r": 10, "t": 64, "b": 40}
_LINES = 24  # groups that get a line of their own


def fit_report(fits: "Fits", path: Path) -> Path:
    """Write the page of these fits and return its path.

    Raises:
        OSError: the folder cannot be made or written, or the disk is full; an older page stays as it was.
    """
    path = Path(path)
    write_text(path, render(fits))
    return path


def render(fits: "Fits") -> str:
    """Return the HTML text of the page."""
    figures: dict[str, Figure] = {}
    for i, one in enumerate(fits.fits):
        figures |= {f"law/{i}": law_figure(one), f"residuals/{i}": residual_figure(one)}
        figures |= {f"profile/{i}/{e.name}": profile_figure(one, e) for e in one.exponents}
        if one.without:
            figures[f"without/{i}"] = forest_figure(one)
    return environment().get_template("fit.html.j2").render(
        fits=fits, figures=figures, data={"figures": figures, "dark": colours.DARK, "captions": {}},
        style=asset("style.css"), script=asset("script.js"), plotly=plotly(), finite=isfinite,
    )  # fmt: skip


def law_figure(one: "Fit") -> Figure:
    """What is above the offset against the first size, both logarithmic, with the fitted power."""
    data, name = one.solution.data, one.law.terms[0]
    rest = one.solution.predicted - _first_power(one)
    traces: list[Trace] = []
    for g, group in enumerate(data.groups[:_LINES]):
        mine = (data.group == g) & (data.y - rest > 0)
        colour, symbol, _ = kind_style(g)
        x, y = data.x[name][mine].tolist(), [five(v) for v in (data.y - rest)[mine].tolist()]
        hover = [f"{group}\n{name} {a:g}: {text(b)} above the rest of the law" for a, b in zip(x, y, strict=True)]
        traces.append({**line(x, y, group, colour, hover=hover, symbols=symbol, size=8), "mode": "markers"})
    order = data.x[name].argsort()
    power = _first_power(one)
    curve = {"type": "scatter", "mode": "lines", "name": "law", "x": data.x[name][order].tolist(),
             "y": [five(v) for v in power[order].tolist()], "line": {"color": NULL, "width": 1.5},
             "hoverinfo": "skip"}  # fmt: skip
    if one.law.scale == "shared":
        traces.append(curve)
    made = figure(traces, name, "measured − rest of the law" if one.law.offset != "none" else "measured", height=420,
                  xaxis={"type": "log"}, yaxis={"type": "log"})  # fmt: skip
    made["layout"] |= {"showlegend": True, "legend": _LEGEND, "margin": {**_ROOM, "t": 110 if len(traces) > 8 else 64}}
    return made


def _first_power(one: "Fit") -> Any:
    s = one.solution
    per = len(s.data.groups) if one.law.scale == "group" else 1
    scale = s.data.members @ s.linear[:per] if per > 1 else s.linear[0]
    name = one.law.terms[0]
    return scale * (s.data.x[name] / s.data.centres[name]) ** -s.exponents[0]


def residual_figure(one: "Fit") -> Figure:
    """Residuals against the first size: a bend says that the law is another."""
    data, name = one.solution.data, one.law.terms[0]
    x, y = data.x[name].tolist(), [five(v) for v in one.solution.residuals.tolist()]
    hover = [f"{data.groups[g]}, {name} {a:g}: {text(b)}" for g, a, b in zip(data.group, x, y, strict=True)]
    points = {**line(x, y, "residual", INPUT, hover=hover, size=7), "mode": "markers"}
    made = figure([points], name, "residual", height=260, xaxis={"type": "log"})
    made["layout"]["shapes"] = [{"type": "line", "x0": 0, "x1": 1, "xref": "paper", "y0": 0, "y1": 0,
                                 "line": {"color": NULL, "width": 1, "dash": "dot"}}]  # fmt: skip
    return made


def profile_figure(one: "Fit", e: "Exponent") -> Figure:
    """How much worse the best fit becomes when the exponent is held; dotted: where 95 % ends."""
    best = one.solution.ssr
    y = [five(v / best - 1) for v in e.profile.ssr]
    hover = [f"{e.name} {a:.4g}: squares {text(100 * (b or 0))} % above the best"
             for a, b in zip(e.profile.values, y, strict=True)]  # fmt: skip
    curve = line(e.profile.values, y, e.name, INPUT, hover=hover, size=4)
    made = figure([curve], e.name, "sum of squares over best − 1", height=260)
    ends = [v for v in (e.profile.low, e.profile.high) if isfinite(v)]
    made["layout"]["shapes"] = [{"type": "line", "x0": v, "x1": v, "y0": 0, "y1": 1, "yref": "paper",
                                 "line": {"color": NULL, "width": 1, "dash": "dot"}} for v in ends]  # fmt: skip
    return made


def forest_figure(one: "Fit") -> Figure:
    """The exponent without each group, and of each group alone, beside that of all."""
    traces = []
    for label, symbol, tables in (("without it", "circle", one.without), ("of it alone", "circle-open", one.alone)):
        points = [(f"{name}", v) for values in tables.values() for name, v in values.items() if v == v]
        hover = [f"{name}, {label}: {text(v)}" for name, v in points]
        values: list[Any] = [five(v) for _, v in points]
        made = line(values, [name for name, _ in points], label, INPUT, hover=hover, symbols=symbol, size=9)  # type: ignore[misc]
        traces.append({**made, "mode": "markers", "marker": {**made["marker"], "line": {"width": 2, "color": INPUT}}})
    e = one.exponents[0]
    drawn = figure(traces, e.name, "", height=120 + 30 * sum(map(len, one.without.values())),
                   yaxis={"autorange": "reversed", "showgrid": False})  # fmt: skip
    marks = [(e.value, "solid"), *((v, "dot") for v in (e.interval.low, e.interval.high) if isfinite(v))]
    drawn["layout"]["shapes"] = [{"type": "line", "x0": v, "x1": v, "y0": 0, "y1": 1, "yref": "paper",
                                  "line": {"color": NULL, "width": 1, "dash": dash}} for v, dash in marks]  # fmt: skip
    drawn["layout"] |= {"showlegend": True, "legend": _LEGEND, "margin": {**_ROOM, "l": 110}}
    return drawn
