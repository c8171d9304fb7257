"""Continuity over depth: for each kind the adjacent pairs, the facing side bold, the control thin, chance shaded."""

from collections.abc import Mapping, Sequence

from drillcore.pages.colours import CONTROL, INPUT, OUTPUT
from drillcore.pages.figures import Figure, Trace, band, depth_axis, figure, line, middle
from drillcore.pages.rows import Kind, RowIndex, four, text
from drillcore.table import Row

# key → (title on the page, measure of the v side, measure of the u side, title of the axis)
VIEWS: dict[str, tuple[str, str, str, str]] = {
    "leading": ("leading vectors", "continuity.v1", "continuity.u1", "|cos|"),
    "subspace": ("leading subspaces", "continuity.v_subspace", "continuity.u_subspace", "subspace overlap"),
    "gram": ("Gram matrices", "continuity.gram_v", "continuity.gram_u", "Gram cosine"),
    "weighted": ("σ²-weighted, v side only", "continuity.s2_weighted", "", "σ²-weighted |cos|"),
}
EXPERTS = ("continuity.expert_matched", "continuity.expert_mean")


def continuity_figures(index: RowIndex, faces: Mapping[Kind, str]) -> dict[str, Figure]:
    """Figures by name: "continuity/leading/q". Kinds without an adjacent pair have none."""
    made = {}
    for view, (_, v, u, title) in VIEWS.items():
        for kind in index.kinds(v, u):
            sides = {"in": _adjacent(index.of(v, kind)), "out": _adjacent(index.of(u, kind))}
            if any(r.value is not None for rows in sides.values() for r in rows):
                open_layers = unidentifiable(index, kind) if view == "leading" else frozenset()
                made[f"continuity/{view}/{kind.key}"] = _panel(sides, faces.get(kind, ""), title, open_layers)
    return made


def expert_figures(index: RowIndex) -> dict[str, Figure]:
    """Experts of adjacent layers: best matching against its shuffled null, and the mean over all pairs."""
    made = {}
    for kind in index.kinds(*EXPERTS):
        matched, mean = (index.of(measure, kind) for measure in EXPERTS)
        curves = [curve(mean, "all pairs of experts", CONTROL, width=1.5), curve(matched, "best matching", INPUT)]
        layers = [middle(r) for r in (*matched, *mean) if r.layer is not None]
        made[f"experts/{kind.key}"] = figure(
            [*band(matched), *curves], "layer", "|cos|", xaxis=depth_axis(layers), yaxis={"rangemode": "tozero"}
        )
    return made


def captions(index: RowIndex, faces: Mapping[Kind, str]) -> dict[str, str]:
    """How many single pairs of the facing side are above chance + 4 sd, by figure: a mean may rest on a few."""
    made = {}
    for view in ("leading", "subspace"):
        _, v, u, _ = VIEWS[view]
        for kind in index.kinds(v, u):
            pairs = _adjacent(index.of(u if faces.get(kind) == "out" else v, kind))
            known = [(r.value, r.null, r.null_sd) for r in pairs if r.value is not None]
            above = sum(value > null + 4 * sd for value, null, sd in known if null is not None and sd is not None)
            made[f"continuity/{view}/{kind.key}"] = f"{above} of {len(known)} pairs above chance"
    return made


def unidentifiable(index: RowIndex, kind: Kind) -> frozenset[int]:
    """Layers whose leading vector the gap does not support."""
    rows = index.of("spectrum.angle_bound", kind)
    return frozenset(r.layer for r in rows if r.status == "unidentifiable" and r.layer is not None)


def _panel(sides: dict[str, list[Row]], faces: str, title: str, open_layers: frozenset[int]) -> Figure:
    facing = "out" if faces == "out" or not sides["in"] else "in"
    control = "in" if facing == "out" else "out"
    names = {"in": ("v, input side", INPUT), "out": ("u, output side", OUTPUT)}
    traces = band(sides[facing])
    if sides[control]:
        traces.append(curve(sides[control], names[control][0], names[control][1], open_layers, width=1, size=4))
    traces.append(curve(sides[facing], *names[facing], open_layers, width=2.5, size=7, errors=True))
    rows = [*sides["in"], *sides["out"]]
    band_ends = [-4 * (r.null_sd or 0.0) for r in rows if r.null == 0.0]
    low = min(0.0, *band_ends, *(r.value for r in rows if r.value is not None))
    layers = [float(x) for r in rows for x in (r.layer, r.other) if x is not None]
    return figure(traces, "layer", title, xaxis=depth_axis(layers), yaxis={"range": [1.1 * low, 1.03]})


def curve(
    rows: Sequence[Row], name: str, colour: str, open_layers: frozenset[int] = frozenset(), *, width: float = 2.5,
    size: float = 7, errors: bool = False,
) -> Trace:  # fmt: skip
    """One side over depth. Open markers: a vector of the pair is not identifiable, and its bound says nothing."""
    hollow = [r.layer in open_layers or r.other in open_layers for r in rows]
    symbols = ["circle-open" if h else "circle" for h in hollow]
    hover = [_hover(r, name, h) for r, h in zip(rows, hollow, strict=True)]
    trace = line([middle(r) for r in rows], [four(r.value) for r in rows], name, colour, hover=hover, width=width,
                 symbols=symbols, size=size)  # fmt: skip
    if errors:
        doubt = [0.0 if h else four(r.bound or r.stderr) or 0.0 for r, h in zip(rows, hollow, strict=True)]
        trace["error_y"] = {"type": "data", "array": doubt, "color": colour, "thickness": 1.2, "width": 3}
    return trace


def _hover(row: Row, name: str, hollow: bool) -> str:
    lines = [f"layers {row.layer} → {row.other}", f"{name}: {text(row.value, 4)}"]
    if row.bound is not None:
        lines.append(f"error at most {text(row.bound, 2)}")
    if row.stderr is not None:
        lines.append(f"standard error {text(row.stderr, 2)}")
    if row.null is not None:
        lines.append(f"by chance {text(row.null)}")
    return "\n".join([*lines, "not identifiable: the gap σ₁ to σ₂ is too small"] if hollow else lines)


def _adjacent(rows: Sequence[Row]) -> list[Row]:
    return sorted((r for r in rows if r.adjacent), key=middle)
