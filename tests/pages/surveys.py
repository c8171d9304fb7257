"""Surveys made of numbers that a test chooses: no checkpoint is read."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from random import Random

from drillcore.measures.verdict import summarise
from drillcore.stats import abs_cos, subspace_overlap
from drillcore.table import Row, Table
from drillcore.verbs.survey import Survey
from drillcore.weights.census import Census, Entry

FACES = {"q": "in", "k": "in", "v": "in", "o": "out", "gate": "in", "up": "in", "down": "out"}
DIMENSION = 256
NASTY = '<script>alert("x")</script> & <img src=x onerror=alert(1)>'


def made_survey(rows: Sequence[Row], entries: Sequence[Entry] = (), faces: dict[str, str] | None = None) -> Survey:
    """A survey of these rows, with the verdicts that drillcore gives them."""
    table = Table(tuple(rows))
    faces = FACES if faces is None else faces
    present = dict.fromkeys(
        (r.stack or "", r.kind or "") for r in rows if r.measure.startswith(("continuity", "spectrum"))
    )
    summary = tuple(summarise(table, stack, kind, faces.get(kind, "")) for stack, kind in present)
    facts = {"source": "made-up/model", "settings": {"rank": 8, "layers": None}, "seconds": 1.5}
    return Survey(table, Census(tuple(entries), "llama", "model_type"), facts, summary)


def kind_rows(kind: str, layers: Sequence[int], *, stack: str = "", shared: float = 0.6, blur: Sequence[int] = (),
              seed: int = 0) -> Iterator[Row]:  # fmt: skip
    """All rows of one kind; `blur` are layers whose leading vector is not identifiable."""
    random = Random(f"{kind}{stack}{seed}")
    for measure in ("v1", "u1", "v_subspace", "u_subspace", "gram_v", "gram_u"):
        faced = (FACES.get(kind) == "out") == measure.replace("gram_", "").startswith("u")
        yield from _pairs(random, f"continuity.{measure}", kind, stack, layers, shared if faced else 0.03)
    for layer in layers:
        yield from _spectrum(random, kind, stack, layer, layer in blur)


def _pairs(random: Random, measure: str, kind: str, stack: str, layers: Sequence[int], level: float) -> Iterator[Row]:
    null = subspace_overlap(DIMENSION, 8) if "subspace" in measure else abs_cos(DIMENSION)
    gram = "gram" in measure
    following = set(pairwise(layers))
    for a, b in combinations(layers, 2):
        value = min(0.99, max(0.0, level * 0.95 ** (b - a) + random.gauss(0, 0.03)))
        yield Row(
            stack=stack, kind=kind, layer=a, other=b, adjacent=(a, b) in following, measure=measure, value=value,
            bound=None if gram else 0.004, stderr=0.01 if gram else None, null=0.0 if gram else null.mean,
            null_sd=0.0 if gram else null.sd, unit="1",
        )  # fmt: skip


def _spectrum(random: Random, kind: str, stack: str, layer: int, blurred: bool) -> Iterator[Row]:
    def row(measure: str, value: float, **more: object) -> Row:
        return Row(stack=stack, kind=kind, layer=layer, measure=f"spectrum.{measure}", value=value, **more)  # type: ignore[arg-type]

    first, ratio = 3 + random.random(), 0.99 if blurred else 0.6 + 0.2 * random.random()
    yield row("sigma1", first, bound=1e-5, high=4 * first)
    for i in range(1, 9):
        yield row("sigma", first * (1.0 if i == 1 else ratio * 0.97 ** (i - 2)), subset=str(i), bound=1e-5)
    yield row("gap", 1 / ratio)
    status = {"status": "unidentifiable", "reason": "σ₁ and σ₂ are too close"} if blurred else {}
    yield row("angle_bound", 1.0 if blurred else 0.002, **status)
    yield row("stable_rank", 20 + 10 * random.random())
    yield Row(stack=stack, kind=kind, layer=layer, measure="spectrum.effective_rank", status="needs-full-spectrum",
              reason="the short side is above 2048; ask for it with --spectrum full")  # fmt: skip
    for side in "uv":
        yield row(f"ones_{side}", 0.2 * random.random(), null=0.05)
        yield row(f"peak_{side}", 0.3 * random.random())


def expert_rows(kind: str, layers: Sequence[int]) -> Iterator[Row]:
    """Both expert measures of adjacent layers."""
    for a, b in pairwise(layers):
        yield Row(kind=kind, layer=a, other=b, adjacent=True, measure="continuity.expert_mean", value=0.07, n=64,
                  null=0.05, null_sd=0.005)  # fmt: skip
        yield Row(kind=kind, layer=a, other=b, adjacent=True, measure="continuity.expert_matched", value=0.31, n=8,
                  null=0.14, null_sd=0.01)  # fmt: skip


def packing_rows(kind: str, n: int = 50_000, m: int = DIMENSION, layer: int | None = None) -> Iterator[Row]:
    """Superposition of one matrix; its largest overlap was not computed."""

    def row(name: str, value: float | None, **more: object) -> Row:
        return Row(kind=kind, stack="", layer=layer, measure=f"superposition.{name}", value=value, **more)  # type: ignore[arg-type]

    for name, value in (("n", n), ("m", m), ("zero_rows", 3), ("padded_rows", 64), ("phi_half", 0.94), ("phi_1", 0.7),
                        ("norm_min", 0.2), ("norm_max", 1.7), ("norm_median", 1.1), ("norm_mean", 1.05)):  # fmt: skip
        yield row(name, value)
    for q, value in ((0.05, 0.5), (0.25, 0.9), (0.75, 1.2), (0.95, 1.4)):
        yield row("norm_quantile", value, subset=f"q{q}", n=n)
    for subset, overlap in (("raw", 3.1 / m), ("centred", 2.2 / m)):
        yield row("mean_sq_overlap", overlap, subset=subset, n=n, null=1 / m)
        yield row("mean_sq_overlap_x_m", overlap * m, subset=subset, n=n, null=1.0)
        yield row("variance_ratio", 90.0, subset=subset, stderr=1.2, null=1.0)
        yield row("max_overlap", None, subset=subset, low=0.71, status="needs-exact-max",
                  reason="largest of 2000000 sampled pairs; form all pairs with --exact-max")  # fmt: skip


def entry(name: str, state: str = "used", detail: str = "q of layer 0", remedy: str = "") -> Entry:
    """One line of a census."""
    return Entry(name, state, detail, remedy, (256, 256), "bfloat16", 131_072, "model.safetensors")  # type: ignore[arg-type]


def rich_survey(kinds: Sequence[str] = tuple(FACES)) -> Survey:
    """Every state at once: experts, a zero matrix, blurred vectors, two stacks, tensors left out, hostile names."""
    layers = range(8)
    rows = [r for kind in kinds for r in kind_rows(kind, layers, shared=0.02 if kind == "v" else 0.6, blur=(2, 3))]
    rows = [_without(r, 5) if r.kind == "gate" and r.measure.startswith("continuity") else r for r in rows]
    rows += [r for kind in ("q", "o") for r in kind_rows(kind, range(4), stack="vision", shared=0.4)]
    rows += [*expert_rows("gate", layers), *expert_rows("down", layers)]
    rows += [r for kind in ("embed", "unembed") for r in packing_rows(kind)]
    rows += [r for layer in layers for r in packing_rows("up", n=1024, layer=layer)]
    entries = [entry(f"layers.{i}.q_proj.weight") for i in range(120)]
    entries += [entry(NASTY, "unknown", NASTY, "give --roles")]
    entries += [entry("lost", "missing", "the configuration promises it")]
    return made_survey(rows, entries)


def _without(row: Row, layer: int) -> Row:
    if layer not in (row.layer, row.other):
        return row
    return replace(row, value=None, bound=None, stderr=None, null=None, null_sd=None, status="zero-matrix",
                   reason=f"the matrix of layer {layer} is all zero")  # fmt: skip
