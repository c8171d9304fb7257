"""The page of several checkpoints: overlaps against width beside 1/m and what was published, norms, token frequency."""

from dataclasses import replace
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drillcore.data.published import published
from drillcore.pages import colours
from drillcore.pages.colours import CONTROL, INPUT, NULL
from drillcore.pages.figures import Figure, Trace, figure, line
from drillcore.pages.packing import Packed, packed, packing_figures
from drillcore.pages.page import asset, environment, plotly
from drillcore.pages.rows import RowIndex, five, text
from drillcore.pages.tables import flat
from drillcore.runs import write_text
from drillcore.verbs.comparison import Comparison, Packing, name_of

if TYPE_CHECKING:
    from drillcore.verbs.survey import Survey

_LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
_ROOM = {"l": 60, "r": 10, "t": 64, "b": 40}


def compare_report(comparison: Comparison, path: Path) -> Path:
    """Write the page of a comparison and return its path.

    Raises:
        OSError: the folder cannot be made or written, or the disk is full; an older page stays as it was.
    """
    path = Path(path)
    write_text(path, render(comparison))
    return path


def render(comparison: Comparison) -> str:
    """Return the HTML text of the page."""
    matrices = [m for found in comparison.surveys for m in _named(found)]
    figures = {"overlaps": overlap_figure(comparison.packings), **packing_figures(matrices)}
    return environment().get_template("compare.html.j2").render(
        comparison=comparison, figures=figures, names=[name_of(p.source) for p in comparison.packings],
        tokens=[fact for found in comparison.surveys for fact in token_facts(found)],
        provenance=[(name_of(str(s.provenance["source"])), flat(s.provenance)) for s in comparison.surveys],
        data={"figures": figures, "dark": colours.DARK, "captions": {}}, style=asset("style.css"),
        script=asset("script.js"), plotly=plotly(),
    )  # fmt: skip


def _named(survey: "Survey") -> list[Packed]:
    name = name_of(str(survey.provenance["source"]))
    return [replace(m, label=f"{name}, {m.label}") for m in packed(RowIndex(survey.rows))]


def token_facts(survey: "Survey") -> list[tuple[str, float, float]]:
    """(checkpoint, tokens of its vocabulary that occur, Zipf exponent) where tokens were counted."""
    first = {row.measure: row.value for row in survey.rows if row.measure.startswith("tokens.")}
    seen, zipf = first.get("tokens.seen"), first.get("tokens.zipf_exponent")
    return [] if seen is None or zipf is None else [(name_of(str(survey.provenance["source"])), seen, zipf)]


def overlap_figure(packings: tuple[Packing, ...]) -> Figure:
    """Mean squared overlap against width, both logarithmic; the published models in grey."""
    theirs = [(f"{int(r['m_of_weight_matrix'])}", r) for r in published("llm_mean_sq_overlap")]
    x, y = ([r[name] for _, r in theirs] for name in ("m_of_weight_matrix", "mean_sq_overlap"))
    hover = [f"published, m {m}" for m, _ in theirs]
    traces = [_points("published models", x, y, hover, "x-thin-open", CONTROL)]
    for label, symbol, pick in (("as stored", "circle", "overlap"), ("mean row removed", "circle-open", "centred")):
        known = [p for p in packings if p.m and getattr(p, pick)]
        hover = [f"{name_of(p.source)}, {p.kind}, {label}" for p in known]
        traces.append(_points(label, [p.m for p in known], [getattr(p, pick) for p in known], hover, symbol, INPUT))
    widths = [p.m for p in packings if p.m] + [r["m_of_weight_matrix"] for _, r in theirs]
    ends = [min(widths) * 0.8, max(widths) * 1.25]
    for label, factor, dash in (("1/m", 1.0, "dot"), ("25/m", 25.0, "dash")):
        traces.append({"type": "scatter", "mode": "lines", "name": label, "x": ends, "hoverinfo": "skip",
                       "y": [factor / m for m in ends], "line": {"color": NULL, "width": 1, "dash": dash}})  # fmt: skip
    ticks = [2**k for k in range(4, 15) if ends[0] <= 2**k <= ends[1]]
    made = figure(traces, "width m", "mean squared overlap", height=430,
                  xaxis={"type": "log", "tickvals": ticks or [round(w) for w in ends], "range": list(map(log10, ends))},
                  yaxis={"type": "log"})  # fmt: skip
    made["layout"] |= {"showlegend": True, "legend": _LEGEND, "margin": _ROOM}
    return made


def _points(name: str, x: list[Any], y: list[Any], hover: list[str], symbol: str, colour: str) -> Trace:
    told = [f"{h}: {text(v, 4)} = {v * m:.3g}/m" for h, v, m in zip(hover, y, x, strict=True)]
    made = line(x, list(map(five, y)), name, colour, hover=told, symbols=symbol, size=9)
    return {**made, "mode": "markers", "marker": {**made["marker"], "size": 9, "line": {"width": 2, "color": colour}}}
