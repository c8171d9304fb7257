"""What a survey found, in sentences. They say only what the verdicts and the rows say."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from drillcore.pages.packing import Packed
from drillcore.pages.rows import Kind, RowIndex, cosine, listed, spans, text
from drillcore.pages.stability_words import findings as stability_findings

if TYPE_CHECKING:
    from drillcore.measures.verdict import KindSummary, SideSummary
    from drillcore.verbs.survey import Survey

_DULL = {
    "one-signed": "only because the entries of each vector share one sign",
    "one-coordinate": "only because each vector is one coordinate",
}


def name_of(line: "KindSummary") -> str:
    """The kind as the page calls it."""
    return Kind(line.stack, line.kind).label


def facing(line: "KindSummary") -> "SideSummary":
    """The side that faces the residual stream (the input side where neither does, as in the verdict)."""
    return line.u if line.faces == "out" else line.v


def control(line: "KindSummary") -> "SideSummary":
    """The other side."""
    return line.v if line.faces == "out" else line.u


def findings(survey: "Survey", matrices: Sequence[Packed]) -> list[Markup]:
    """Three or four plain sentences: what is shared and where, the extremes, the controls, the packing."""
    measured = [s for s in survey.summary if facing(s).word != "not measured"]
    said = [_sharing(measured), *_extremes(measured), *_controls(measured)] if measured else []
    said += [_packing(p) for p in matrices if p.layer is None and p.kind.kind in ("embed", "unembed")]
    said += stability_findings(survey.certificates)
    if survey.rows.where(status="one-layer").rows:
        said.insert(0, Markup("There is one layer, so that there is no neighbour to compare it with."))
    return said or [Markup("No pair of layers and no embedding was measured; see the statuses below.")]


def warnings(survey: "Survey", index: RowIndex) -> list[str]:
    """What a reader must know before trusting the numbers."""
    found = []
    left_out = survey.census.left_out
    if left_out:
        first = "; ".join(f"{e.tensor} ({e.detail})" for e in left_out[:5])
        more = f"; and {len(left_out) - 5} more" if len(left_out) > 5 else ""
        found.append(f"{_count(len(left_out), 'tensor')} left out: {first}{more}. The census says what to do.")
    if survey.census.decided_by == "inferred":
        found.append("The family is unknown: every role was inferred from names and shapes. Check the census.")
    found += _doubtful(
        index, "unidentifiable", "are not identifiable, since σ₁ and σ₂ are too close; trust the subspace there"
    )
    found += _doubtful(index, "not-converged", "did not converge; their bounds say how far off they may be")
    return found


def _doubtful(index: RowIndex, status: str, meaning: str) -> list[str]:
    places, total = [], 0
    for kind in index.kinds("spectrum.angle_bound", "spectrum.sigma1"):
        rows = index.of("spectrum.angle_bound", kind) or index.of("spectrum.sigma1", kind)
        layers = {r.layer for r in rows if r.status == status and r.layer is not None}
        total += len(layers)
        places += [f"{kind.label} (layers {spans(layers)})"] if layers else []
    return [f"The leading vectors of {_matrices(total)} {meaning}: {'; '.join(places)}."] if total else []


def _sharing(lines: Sequence["KindSummary"]) -> Markup:
    shared = [s for s in lines if facing(s).word == "shared"]
    if not shared:
        return Markup("No kind of matrix shares its leading directions between neighbouring layers beyond chance.")
    reads, writes = ([_bold(s) for s in shared if (s.faces == "out") is out] for out in (False, True))
    parts = [_who_shares(reads, "from the residual stream (input space)", "read")] if reads else []
    parts += [_who_shares(writes, "to the residual stream (output space)", "write")] if writes else []
    how_many = "All" if len(shared) == len(lines) else f"{len(shared)} of"
    return Markup("{} {} of matrix agree on average between neighbouring layers: {}.").format(
        how_many, _count(len(lines), "kind"), Markup("; ").join(parts)
    )


def _who_shares(names: Sequence[Markup], where: str, verb: str) -> Markup:
    said = f"shares what it {verb}s" if len(names) == 1 else f"share what they {verb}"
    return Markup("{} {} {}").format(listed(names), said, where)


def _extremes(lines: Sequence["KindSummary"]) -> list[Markup]:
    shared = sorted((s for s in lines if facing(s).word == "shared"), key=lambda s: facing(s).mean or 0.0)
    said = []
    if shared:
        top, last = shared[-1], shared[0]
        weakest = _weakest(last) if len(shared) > 1 else ""
        side = "output" if top.faces == "out" else "input"
        start = Markup(
            "The strongest is {}: the leading {} directions of neighbouring layers have a mean |cos| of {}, "
        )
        said.append(
            start.format(_bold(top), side, cosine(facing(top).mean))
            + f"{_over_null(top)} the {cosine(facing(top).null)} of independent directions"
            + Markup("{}.").format(weakest)
        )
    chance = [_bold(s) for s in lines if facing(s).word == "at chance"]
    if chance and shared:
        said.append(Markup("At chance on the side facing the stream: {}.").format(listed(chance)))
    for word, reason in _DULL.items():
        dull = [_bold(s) for s in lines if facing(s).word == word]
        said += [Markup("{}{} above chance {}.").format(listed(dull), _are(dull), reason)] if dull else []
    return said


def _weakest(line: "KindSummary") -> Markup:
    return Markup("; the weakest that is shared is {} with {} ({})").format(
        _bold(line), cosine(facing(line).mean), _over_null(line)
    )


def _controls(lines: Sequence["KindSummary"]) -> list[Markup]:
    at_chance = [_bold(s) for s in lines if control(s).word == "at chance"]
    above = [s for s in lines if control(s).word not in ("at chance", "not measured")]
    if not at_chance and not above:
        return []
    chance = listed(at_chance) + _are(at_chance) + " at chance" if at_chance else Markup("nothing is at chance")
    names = [_why_above(s) for s in above]
    rest = Markup("; {}{} not").format(listed(names), _are(names)) if names else ""
    return [Markup("On the side away from the stream, the built-in control, {}{}.").format(chance, rest)]


def _why_above(line: "KindSummary") -> Markup:
    side = control(line)
    reason = f", {_DULL[side.word]}" if side.word in _DULL else ""
    return Markup("{} ({}{})").format(_bold(line), cosine(side.mean), reason)


def _packing(p: Packed) -> Markup:
    n, m, value = p.value("n"), p.value("m"), p.value("mean_sq_overlap", "raw")
    name = Markup("<b>{}</b>").format(p.label)
    if n is None or m is None or value is None:
        return Markup("The superposition of {} was not measured; see the statuses.").format(name)
    welch = f" and {_times(value / p.welch)} the Welch bound {text(p.welch)}, the least possible" if p.welch else ""
    centred = p.value("mean_sq_overlap", "centred")
    without = f"; with the mean row taken out, {_times(centred * m)} 1/m" if centred is not None else ""
    chance = f"{_times(value * m)} the 1/m = {text(1 / m)} of random directions"
    return Markup("{} packs {} vectors into {} dimensions. Their mean squared overlap, {}, is {}{}{}.").format(
        name, text(n), text(m), text(value), chance, welch, without
    )


def _bold(line: "KindSummary") -> Markup:
    return Markup("<b>{}</b>").format(name_of(line))


def _are(names: Sequence[Markup]) -> str:
    return " is" if len(names) == 1 else " are"


def _times(ratio: float) -> str:
    return f"{text(ratio, 2)} times"


def _over_null(line: "KindSummary") -> str:
    side = facing(line)
    return _times(side.mean / side.null) if side.mean is not None and side.null else "–"


def _matrices(number: int) -> str:
    return "1 matrix" if number == 1 else f"{number:,} matrices"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
