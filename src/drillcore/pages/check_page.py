"""The page of a check: verdicts with reasons first, then sweeps, roll-outs and the way back; one offline file."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drillcore.pages import colours
from drillcore.pages.figures import Figure, Trace, depth_axis, figure, line
from drillcore.pages.page import asset, environment, plotly
from drillcore.pages.rows import five, text
from drillcore.pages.tables import flat, status_groups
from drillcore.runs import write_text
from drillcore.table import Row

if TYPE_CHECKING:
    from drillcore.verbs.check import Check

_SWEEPS = {"s": "input", "all": "all matrices", "last": "last matrix", "gain": "gains"}
_STACKS = ("as given", "inflated", "weights × 3")
_BOUNDS = {"mean_abs": "mean |x|", "rms": "RMS", "entry_sd": "entry-wise sd", "data_sd": "data-wise sd",
           "largest": "largest |x|"}  # fmt: skip
_EXPONENTS = {
    "p_s": "size by input", "q_all": "size by all matrices", "q_last": "size by last matrix", "q_gain": "size by gains",
    "j_s": "sensitivity by input", "j_all": "sensitivity by all matrices", "j_last": "sensitivity by last matrix",
}  # fmt: skip
_TITLES = {
    "size": ("Size of the branch", "RMS, by the scale of what is multiplied"),
    "sensitivity": ("Sensitivity of the branch", "‖∂f/∂x‖, median of three states"),
    "roll_out": ("Variance of the stream", "over the entries of a token, by half-step or block"),
    "retention": ("What a half-step keeps of the signal", "ρ = tr(J)/n; 1 is the skip path alone"),
    "gradient": ("Gradient on the way back", "relative to the last site"),
    "bounds": ("Measured against bound", "1 is the bound; derived (drillcore)"),
}


def check_report(check: "Check", path: Path) -> Path:
    """Write the check as one offline HTML page and return its path.

    Raises:
        OSError: the folder cannot be made or written, or the disk is full; an older page stays as it was.
    """
    path = Path(path)
    write_text(path, render(check))
    return path


def render(check: "Check") -> str:
    """Return the HTML text of the page."""
    rows = _by_measure(check.rows)
    figures = {name: made for name, made in _figures(rows) if made is not None}
    facts = check.provenance.get("settings", {})
    verdicts = [("forward", check.forward), ("backward", check.backward), *(("backward", f) for f in check.carried),
                ("continuity", check.continuity)]  # fmt: skip
    return environment().get_template("check.html.j2").render(
        check=check, facts=facts, verdicts=verdicts, figures=figures, titles=_TITLES, exponents=_exponents(rows),
        hamiltonian=rows.get("hamiltonian", []), symmetry=_symmetry(rows), growth=rows.get("growth", []),
        single=_single(rows), statuses=status_groups(r for r in check.rows if r.measure != "hamiltonian"),
        provenance=flat(check.provenance),
        data={"figures": figures, "dark": colours.DARK, "captions": {}}, style=asset("style.css"),
        script=asset("script.js"), plotly=plotly(),
    )  # fmt: skip


def _by_measure(rows: "Sequence[Row] | Any") -> Mapping[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.measure, []).append(row)
    return found


def _figures(rows: Mapping[str, list[Row]]) -> Iterator[tuple[str, Figure | None]]:
    yield "size", _sweep(rows, "rms", "RMS")
    yield "sensitivity", _sweep(rows, "sensitivity", "‖∂f/∂x‖")
    yield "roll_out", _by_stack(rows.get("roll_out.entry_variance", []), "site", "variance", log=True)
    yield "retention", _by_stack(rows.get("retention", []), "layer", "ρ", log=False)
    yield "gradient", _by_stack(rows.get("gradient", []), "site", "‖∂L/∂x‖", log=True)
    yield "bounds", _bounds(rows)


def _sweep(rows: Mapping[str, list[Row]], what: str, title: str) -> Figure | None:
    traces: list[Trace] = []
    for i, (key, name) in enumerate(_SWEEPS.items()):
        points = [r for r in rows.get(f"sweep.{key}.{what}", []) if r.value]
        if points:
            x = [float((r.subset or "").rpartition("× ")[2]) for r in points]
            hover = [f"{name} × {s:g}: {text(r.value)}" for s, r in zip(x, points, strict=True)]
            traces.append(_styled(line(x, [five(r.value) for r in points], name, colours.KINDS[i], hover=hover), i))
    ticks = {"type": "log", "tickvals": [2.0**k for k in range(-4, 9, 2)],
             "ticktext": ["1/16", "1/4", "1", "4", "16", "64", "256"]}  # fmt: skip
    return _with_legend(figure(traces, "scale", title, height=300, xaxis=ticks, yaxis=_log())) if traces else None


def _by_stack(rows: Sequence[Row], place: str, title: str, *, log: bool) -> Figure | None:
    traces: list[Trace] = []
    for i, name in enumerate(_STACKS):
        points = [r for r in rows if r.subset == name and r.value is not None]
        if points:
            x = [float(getattr(r, place)) for r in points]
            hover = [f"{name}, {place} {a:g}: {text(r.value)}" for a, r in zip(x, points, strict=True)]
            traces.append(_styled(line(x, [five(r.value) for r in points], name, colours.KINDS[i], hover=hover), i))
    if not traces:
        return None
    axis = _log() if log else {"rangemode": "tozero"}
    every = [x for trace in traces for x in trace["x"]]
    return _with_legend(figure(traces, place, title, height=300, xaxis=depth_axis(every), yaxis=axis))


def _bounds(rows: Mapping[str, list[Row]]) -> Figure | None:
    traces: list[Trace] = []
    for i, (key, name) in enumerate(_BOUNDS.items()):
        points = [r for r in rows.get(f"bound.{key}", []) if r.value is not None and r.high]
        if points:
            x = [float(r.site or 0) for r in points]
            y = [five((r.value or 0.0) / (r.high or 1.0)) for r in points]
            hover = [f"{name}, site {a:g}: {text(r.value)} of at most {text(r.high)}"
                     for a, r in zip(x, points, strict=True)]  # fmt: skip
            traces.append(_styled(line(x, y, name, colours.KINDS[i], hover=hover), i))
    if not traces:
        return None
    every = [x for trace in traces for x in trace["x"]]
    return _with_legend(
        figure(traces, "site", "measured / bound", height=300, xaxis=depth_axis(every), yaxis={"range": [0, 1.05]})
    )


def _styled(trace: Trace, i: int) -> Trace:
    trace["marker"]["symbol"] = colours.SYMBOLS[i]
    return trace


def _log() -> dict[str, Any]:
    return {"type": "log", "exponentformat": "power", "dtick": 1}


def _with_legend(made: Figure) -> Figure:
    made["layout"] |= {"showlegend": True, "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
                       "margin": {"l": 56, "r": 10, "t": 30, "b": 40}}  # fmt: skip
    _short_ticks(made)
    return made


def _short_ticks(made: Figure) -> None:
    """One tick a decade is too many over eight decades and too few below one and a half."""
    axis = made["layout"]["yaxis"]
    values = [y for trace in made["data"] for y in trace["y"] if y]
    if axis.get("type") == "log" and values:
        ratio = max(values) / min(values)
        axis["dtick"] = "D2" if ratio < 30 else 1 if ratio < 1e7 else 2


def _exponents(rows: Mapping[str, list[Row]]) -> list[tuple[str, str, Row]]:
    return [(key, words, row) for key, words in _EXPONENTS.items() for row in rows.get(f"exponent.{key}", [])]


def _symmetry(rows: Mapping[str, list[Row]]) -> list[tuple[str, Row]]:
    named = {"symmetry.stream": "one rotation of the whole stream", "symmetry.layer": "a rotation of one layer"}
    return [(words, row) for key, words in named.items() for row in rows.get(key, [])]


def _single(rows: Mapping[str, list[Row]]) -> list[tuple[str, str, Row]]:
    named = {
        "sensitivity": ("sensitivity ‖∂f/∂x‖ as given", "power iteration, from below"),
        "relative_sensitivity": ("relative sensitivity κ", "relative change of output per relative change of input"),
        "carry": ("carry a", "what the skip path alone multiplies the signal by"),
        "gain_budget": ("gain budget Δt Σ rms(γ)", "the most that output norms add to mean |x|; gains are trained too"),
        "zero_start.gradient_ratio": ("gradient of the last matrix at zero", "relative to its usual start"),
    }  # fmt: skip
    return [(words, why, row) for key, (words, why) in named.items() for row in rows.get(key, [])]
