"""What the continuity paper asks of a block before training: are first gradients coherent, and is a rotation free?"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from drillcore.measures.first_gradients import Task, coherence_rows, stack_gradients
from drillcore.measures.gauge import inner_breaking, layer_breaking, stream_breaking
from drillcore.table import Row
from drillcore.verbs.check_subject import TOKENS, Subject

COPIES = 16  # of the stack whose gradients are compared
_WRITES = ("o", "o_proj", "out_proj", "out", "to_out", "wo", "c_proj", "down", "down_proj", "dense_4h_to_h", "fc2",
           "w2", "proj")  # fmt: skip


@dataclass(frozen=True)
class Found:
    """Mean |cos| of first gradients on the sides that face the stream, its null, and what a turned layer changes."""

    rows: list[Row]
    coherence: float | None
    null: float | None
    breaking: float | None
    mixes: bool


def continuity(subject: Subject) -> Found:
    """First-gradient coherence over up to 16 copies, and symmetry breaking by rotations of stream and layer."""
    mixes = subject.mixes_tokens()
    reads, writes = _sides(subject)
    rows = _coherence(subject, reads, writes)
    means = [r for r in rows if r.value is not None and r.null is not None]
    turned = _symmetry(subject, reads, writes, mixes)
    layer = next((r.value for r in turned if r.measure == "symmetry.layer"), None)
    if not means:
        return Found([*rows, *turned], None, None, layer, mixes)
    coherence, null = (sum(v) / len(means) for v in ([r.value or 0.0 for r in means], [r.null or 0.0 for r in means]))
    return Found([*rows, *turned], coherence, null, layer, mixes)


def _sides(subject: Subject) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """nn.Linear matrices that read the stream, and those that write to it: the last one, and those named so."""
    d = subject.target.width
    linear = {f"{name}.weight".removeprefix("."): m.weight for name, m in subject.module.named_modules()
              if isinstance(m, nn.Linear)}  # fmt: skip
    ordered = {name: p for name, p in subject.parameters.matrices.items() if name in linear}
    last = list(subject.parameters.matrices)[-1]
    named = {n for n in ordered if n.removesuffix(".weight").rpartition(".")[2].lower() in _WRITES}
    writes = {n: p for n, p in ordered.items() if p.shape[0] == d and (n == last or n in named)}
    only = len(subject.parameters.matrices) == 1
    reads = {n: p for n, p in ordered.items() if p.shape[1] == d and (n not in writes or only)}
    return reads, writes


def _coherence(subject: Subject, reads: dict[str, Tensor], writes: dict[str, Tensor]) -> list[Row]:
    faced = dict.fromkeys(reads, "v") | {n: "uv" if n in reads else "u" for n in writes}
    if not faced:
        return [Row(measure="first_gradient", status="not-applicable",
                    reason="none of its matrices is an nn.Linear that reads or writes the stream")]  # fmt: skip
    count = max(2, min(COPIES, subject.target.copies))
    task = Task.drawn(4, TOKENS, subject.target.width, subject.x)
    everything = {**reads, **writes}
    with subject.copies() as step:
        gradients = stack_gradients(step, list(everything.values()), task, count)
    if not gradients or not all(bool(torch.isfinite(g).all()) for found in gradients for g in found):
        return [Row(measure="first_gradient", status="overflow", reason=f"{count} copies leave the number format")]
    rows = []
    for name, found in zip(everything, gradients, strict=True):
        rows += coherence_rows(found, name.removesuffix(".weight"), faced[name])
    return rows


def _symmetry(subject: Subject, reads: dict[str, Tensor], writes: dict[str, Tensor], mixes: bool) -> list[Row]:
    linear = {**reads, **writes}
    others = [n for n in subject.parameters.matrices if n not in linear]
    x = torch.cat(subject.states(2, "rotations"), 1)[:, ::2]
    with subject.nominal():
        stream = (
            Row(measure="symmetry.stream", status="not-applicable",
                reason=f"it is not known how {', '.join(others)} meet the stream") if others or not writes else
            Row(measure="symmetry.stream", n=4,
                value=stream_breaking(subject.velocity, x, [*reads.values()], [*writes.values()]))
        )  # fmt: skip
        return [stream, _layer(subject, x, reads, writes, mixes)]


def _layer(subject: Subject, x: Tensor, reads: dict[str, Tensor], writes: dict[str, Tensor], mixes: bool) -> Row:
    """The rotation that one layer has for itself: of the MLP's hidden space, or of a single matrix on both sides."""
    last = subject.parameters.last
    if len(subject.parameters.matrices) == 1 and last.shape[0] == last.shape[1] and writes and not mixes:
        return Row(measure="symmetry.layer", value=layer_breaking(subject.update, x, last), n=4)
    into = [p for p in reads.values() if p.shape[0] == last.shape[1] and p is not last]
    if any(p is last for p in writes.values()) and into and not (mixes and last.shape[0] == last.shape[1]):
        return Row(measure="symmetry.layer", value=inner_breaking(subject.velocity, x, into, last), n=4)
    why = "attention leaves the space of each head free to turn (v against o)" if mixes else "no hidden space was found"
    return Row(measure="symmetry.layer", status="not-applicable", reason=why)
