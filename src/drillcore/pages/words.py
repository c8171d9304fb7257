"""What a survey found, in sentences. They say only what the verdicts and the rows say."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from drillcore.pages.packing import Packed
from drillcore.pages.rows import Kind, RowIndex, cosine, listed, spans, text

if TYPE_CHECKING:
    from drillcore.measures.verdict import KindSummary, SideSummary
    from drillcore.verbs.survey import Survey

SIDE = {"in": "input", "out": "output"}


def name_of(line: "KindSummary") -> str:
    """The kind as the page calls it."""
    return Kind(line.stack, line.kind).label


def facing(line: "KindSummary") -> "SideSummary":
    """The side that faces the residual stream (the input side where neither does, as in the verdict)."""
    return line.u if line.faces == "out" else line.v


def control(line: "KindSummary") -> "SideSummary":
    """The other side."""
    return line.v if line.faces == "out" else line.u


def findings(survey: "Survey", matrices: Sequence[Packed]) -> list[str]:
    """Three or four plain sentences: what is shared and where, the extremes, the controls, the packing."""
    measured = [s for s in survey.summary if facing(s).word != "not measured"]
    said = [_sharing(measured), *_extremes(measured), *_controls(measured)] if measured else []
    said += [_packing(p) for p in matrices if p.layer is None and p.kind.kind in ("embed", "unembed")]
    return said or ["No pair of layers and no embedding was measured; see the statuses below."]


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
    found += _doubtful(index, "unidentifiable", "not identifiable (σ₁ and σ₂ too close): trust the subspace")
    found += _doubtful(index, "not-converged", "not converged: their bounds say how far off they may be")
    return found


def _doubtful(index: RowIndex, status: str, meaning: str) -> list[str]:
    places, total = [], 0
    for kind in index.kinds("spectrum.angle_bound", "spectrum.sigma1"):
        rows = index.of("spectrum.angle_bound", kind) or index.of("spectrum.sigma1", kind)
        layers = {r.layer for r in rows if r.status == status and r.layer is not None}
        total += len(layers)
        places += [f"{kind.label} (layers {spans(layers)})"] if layers else []
    return [f"{_count(total, 'pair')} of leading vectors {meaning}: {listed(places)}."] if total else []


def _sharing(lines: Sequence["KindSummary"]) -> str:
    shared = [s for s in lines if facing(s).word == "shared"]
    if not shared:
        return "No kind shares its leading directions between neighbouring layers beyond chance, on the side facing the stream."
    reads = [name_of(s) for s in shared if s.faces != "out"]
    writes = [name_of(s) for s in shared if s.faces == "out"]
    parts = [f"{listed(reads)} share what they read from the residual stream (input space)"] if reads else []
    parts += [f"{listed(writes)} share what they write to it (output space)"] if writes else []
    how_many = "All" if len(shared) == len(lines) else f"{len(shared)} of"
    return f"{how_many} {_count(len(lines), 'kind')} of matrix agree between neighbouring layers: {'; '.join(parts)}."


def _extremes(lines: Sequence["KindSummary"]) -> list[str]:
    shared = sorted((s for s in lines if facing(s).word == "shared"), key=lambda s: facing(s).mean or 0.0)
    said = []
    if shared:
        strongest = f"The strongest is {name_of(shared[-1])}: the leading {_side(shared[-1])} directions of neighbouring layers have a mean |cos| of {_against(facing(shared[-1]))}"
        weakest = f"; the weakest that is shared is {name_of(shared[0])} with {_against(facing(shared[0]))}"
        said.append(strongest + (weakest if len(shared) > 1 else "") + ".")
    chance = [name_of(s) for s in lines if facing(s).word == "at chance"]
    if chance and len(chance) < len(lines):
        said.append(f"At chance on the side facing the stream: {listed(chance)}.")
    dull = [f"{name_of(s)} ({facing(s).word})" for s in lines if facing(s).word in ("one-signed", "one-coordinate")]
    if dull:
        said.append(
            f"Above chance for a dull reason, which goes away with one fixed direction taken out: {listed(dull)}."
        )
    return said


def _controls(lines: Sequence["KindSummary"]) -> list[str]:
    at_chance = [name_of(s) for s in lines if control(s).word == "at chance"]
    above = [
        f"{name_of(s)} ({cosine(control(s).mean)}, {control(s).word})"
        for s in lines
        if control(s).word not in ("at chance", "not measured")
    ]
    if not at_chance and not above:
        return []
    chance = (
        f"{listed(at_chance)} {'is' if len(at_chance) == 1 else 'are'} at chance"
        if at_chance
        else "nothing is at chance"
    )
    rest = f", {listed(above)} {'is' if len(above) == 1 else 'are'} not" if above else ""
    return [f"On the other side, the built-in control, {chance}{rest}."]


def _packing(p: Packed) -> str:
    n, m, value = p.value("n"), p.value("m"), p.value("mean_sq_overlap", "raw")
    if n is None or m is None or value is None:
        return f"The superposition of {p.label} was not measured; see the statuses."
    said = f"{p.label} holds {text(n)} vectors in {text(m)} dimensions: their mean squared overlap is {text(value)}, {_times(value * m)} the 1/m = {text(1 / m)} of random directions"
    if p.welch is not None:
        said += f" and {_times(value / p.welch)} the Welch bound {text(p.welch)}, the least that is possible"
    centred = p.value("mean_sq_overlap", "centred")
    return said + (f"; without the mean row it is {_times(centred * m)} 1/m." if centred is not None else ".")


def _times(ratio: float) -> str:
    return f"{text(ratio, 2)} times"


def _against(side: "SideSummary") -> str:
    ratio = (
        f", {_times(side.mean / side.null)} the {cosine(side.null)} of independent directions"
        if side.mean and side.null
        else ""
    )
    return f"{cosine(side.mean)}{ratio}"


def _side(line: "KindSummary") -> str:
    return SIDE.get(line.faces, "input")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
