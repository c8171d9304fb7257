"""Spectra: the leading singular values of each kind over depth, and one line per kind for what follows from them."""

from collections import defaultdict
from collections.abc import Sequence

from drillcore.pages.colours import RAMP, kind_style
from drillcore.pages.figures import Figure, Trace, depth_axis, figure, line
from drillcore.pages.rows import Kind, RowIndex, five, four, text
from drillcore.table import Row

# measure → (title of the figure, settings of its axis)
BY_DEPTH: dict[str, tuple[str, dict[str, object]]] = {
    "spectrum.gap": ("gap σ₁/σ₂", {"type": "log"}),
    "spectrum.stable_rank": ("stable rank", {"rangemode": "tozero"}),
    "spectrum.effective_rank": ("effective rank", {"rangemode": "tozero"}),
    "spectrum.sigma1": ("σ₁", {"rangemode": "tozero"}),
    "spectrum.ones_v": ("|cos(v₁, constant)|", {"range": [0, 1.03]}),
    "spectrum.ones_u": ("|cos(u₁, constant)|", {"range": [0, 1.03]}),
    "spectrum.peak_v": ("largest squared entry of v₁", {"range": [0, 1.03]}),
    "spectrum.peak_u": ("largest squared entry of u₁", {"range": [0, 1.03]}),
}


def depth_figures(index: RowIndex, kinds: Sequence[Kind]) -> dict[str, Figure]:
    """Figures by name: "depth/spectrum.gap", one line per kind. A measure without a value has none."""
    made = {}
    for measure, (_, settings) in BY_DEPTH.items():
        lines = [trace for i, kind in enumerate(kinds) if (trace := _by_layer(index.of(measure, kind), kind, i))]
        if lines:
            layers = [x for trace in lines for x in trace["x"]]
            made[f"depth/{measure}"] = figure(lines, "layer", "", xaxis=depth_axis(layers), yaxis=settings)
    return made


def spectrum_figures(index: RowIndex) -> dict[str, Figure]:
    """Figures by name: "spectrum/q", σᵢ/σ₁ over depth, one line per i."""
    made = {}
    for kind in index.kinds("spectrum.sigma"):
        by_place: dict[int, dict[int, Row]] = defaultdict(dict)
        for row in index.of("spectrum.sigma", kind):
            if row.layer is not None and row.subset is not None and row.value is not None:
                by_place[int(row.subset)][row.layer] = row
        lines = [_ratio(by_place[i], by_place[1], i) for i in sorted(by_place) if i > 1]
        if lines:
            made[f"spectrum/{kind.key}"] = figure(
                lines, "layer", "", xaxis=depth_axis(sorted(by_place[1])), yaxis={"range": [0, 1.03]}
            )
    return made


def _by_layer(rows: Sequence[Row], kind: Kind, place: int) -> Trace | None:
    chosen = sorted((r for r in rows if r.layer is not None), key=lambda r: r.layer or 0)
    if not any(r.value is not None for r in chosen):
        return None
    colour, symbol, _ = kind_style(place)
    hover = [f"{kind.label}, layer {r.layer}: {text(r.value, 4)}{_doubt(r)}" for r in chosen]
    return line([float(r.layer or 0) for r in chosen], [five(r.value) for r in chosen], kind.label, colour,
                hover=hover, symbols=symbol, size=5, width=1.5)  # fmt: skip


def _doubt(row: Row) -> str:
    found = [f"error at most {text(row.bound, 2)}"] if row.bound is not None else []
    found += [f"at most {text(row.high)}"] if row.high is not None else []
    found += [f"by chance {text(row.null)}"] if row.null is not None else []
    return "\n" + ", ".join(found) if found else ""


def _ratio(rows: dict[int, Row], first: dict[int, Row], place: int) -> Trace:
    layers = sorted(first)
    ratios = [_over(rows.get(layer), first[layer]) for layer in layers]
    hover = [f"layer {layer}: σ{place}/σ1 = {text(ratio, 4)}" for layer, ratio in zip(layers, ratios, strict=True)]
    colour = RAMP[min(place - 2, len(RAMP) - 1)]
    return line(
        [float(x) for x in layers], [four(r) for r in ratios], f"σ{place}", colour, hover=hover, width=1.5, size=4
    )


def _over(row: Row | None, first: Row) -> float | None:
    return row.value / first.value if row is not None and row.value is not None and first.value else None
