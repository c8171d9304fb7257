"""Layer × layer: one compact triangle per kind and measure; the page unpacks the one that is chosen."""

from collections.abc import Callable, Sequence
from typing import Any

from drillcore.pages.colours import DIVERGING, GRID, SEQUENTIAL, scale
from drillcore.pages.figures import Figure, figure
from drillcore.pages.rows import Kind, RowIndex
from drillcore.table import Row

MEASURES = {
    "continuity.v1": "v1: leading input vectors, |cos|",
    "continuity.u1": "u1: leading output vectors, |cos|",
    "continuity.v_subspace": "v subspace: overlap of leading input subspaces",
    "continuity.u_subspace": "u subspace: overlap of leading output subspaces",
    "continuity.gram_v": "Gram v: cosine of traceless WᵀW",
    "continuity.gram_u": "Gram u: cosine of traceless WWᵀ",
}
UNIT = 10_000  # values are whole numbers of 1/UNIT: four digits, compact in JSON


def heat_maps(index: RowIndex) -> dict[str, dict[str, Any]]:
    """Triangles by "measure/kind": layers, and for each pair (upper triangle, row by row) value, doubt and null.

    `doubt` is a bound, or a standard error where `estimated`. A pair without a value is null, its reason in `why`
    by place. A list whose members are all the same is one number. `null` and its `sd` are plain numbers of four
    significant digits, since an sd can be below 1e-3.
    """
    made = {}
    for measure in MEASURES:
        for kind in index.kinds(measure):
            pairs = [r for r in index.of(measure, kind) if r.layer is not None and r.other is not None]
            if pairs:
                made[f"{measure}/{kind.key}"] = _triangle(kind, measure, pairs)
    return made


def heat_figures() -> dict[str, Figure]:
    """The empty map and the empty curve over distance; the page fills both from a triangle."""
    heat = {"type": "heatmap", "z": [], "colorscale": scale(SEQUENTIAL), "zmin": 0, "zmax": 1, "xgap": 1, "ygap": 1,
            "hoverongaps": True, "hovertemplate": "%{customdata}<extra></extra>",
            "colorbar": {"thickness": 10, "outlinewidth": 0, "len": 0.9}}  # fmt: skip
    square = figure([heat], "layer", "layer", height=460, yaxis={"autorange": "reversed", "scaleanchor": "x",
                    "constrain": "domain"}, xaxis={"constrain": "domain"})  # fmt: skip
    decay = figure([], "distance in layers", "mean over pairs", height=460, yaxis={"rangemode": "tozero"})
    for name in ("xaxis", "yaxis"):
        square["layout"][name]["showgrid"] = False
        square["layout"][name]["linecolor"] = GRID
    return {"heat": square, "decay": decay}


def colour_scales() -> dict[str, list[list[float | str]]]:
    """For values from 0, and for values of both signs."""
    return {"sequential": scale(SEQUENTIAL), "diverging": scale(DIVERGING)}


def _triangle(kind: Kind, measure: str, pairs: list[Row]) -> dict[str, Any]:
    layers = sorted({x for r in pairs for x in (r.layer, r.other) if x is not None})
    found = {(r.layer, r.other): r for r in pairs}
    rows = [found.get((a, b)) for i, a in enumerate(layers) for b in layers[i + 1 :]]
    estimated = any(r.stderr is not None for r in pairs)
    return {
        "measure": measure, "kind": kind.key, "layers": layers, "value": _whole(rows, lambda r: r.value),
        "doubt": _joined(_whole(rows, lambda r: r.stderr if estimated else r.bound)), "estimated": estimated,
        "null": _joined(_short(rows, lambda r: r.null)), "sd": _joined(_short(rows, lambda r: r.null_sd)),
        "why": {str(i): _reason(r) for i, r in enumerate(rows) if r is None or r.value is None},
    }  # fmt: skip


def _whole(rows: list[Row | None], pick: Callable[[Row], float | None]) -> list[int | None]:
    picked = [None if r is None else pick(r) for r in rows]
    return [None if x is None else round(x * UNIT) for x in picked]


def _short(rows: list[Row | None], pick: Callable[[Row], float | None]) -> list[float | None]:
    picked = [None if r is None else pick(r) for r in rows]
    return [None if x is None else float(f"{x:.4g}") for x in picked]


def _joined(values: Sequence[float | None]) -> Sequence[float | None] | float | None:
    return values[0] if len(set(values)) == 1 else values


def _reason(row: Row | None) -> str:
    return "this pair is not in the table" if row is None else f"{row.status}: {row.reason or 'no reason given'}"
