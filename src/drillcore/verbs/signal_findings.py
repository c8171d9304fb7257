"""What a signal shows, in sentences. They say only what the rows say."""

from collections.abc import Iterator, Sequence

from drillcore.measures.signal import FP16_MAX, Overflow
from drillcore.table import Row, Table


def findings(rows: Table, overflows: Sequence[Overflow]) -> Iterator[str]:
    """What was seen, in sentences; they say only what the rows say."""
    for overflow in overflows:
        yield overflow_sentence(overflow)
    peaks = [r for r in rows if r.value is not None and r.measure in _PEAKS]
    if peaks and not any(o.dtype == "fp16" for o in overflows):
        peak = max(peaks, key=lambda r: r.value or 0.0)
        room = FP16_MAX / max(peak.value or 0.0, 1e-30)
        yield (
            f"No branch and no add left the range of fp16 on this text: the largest number is {_text(peak.value)} "
            f"({_where(peak)}), {_text(room)} times below 65,504."
        )
    for stack in dict.fromkeys(r.stack or "" for r in rows if r.measure == "stream.rms"):
        yield from _growth(rows, stack)


_PEAKS = ("stream.max_abs", "branch.max_abs", "add.max_abs")


def overflow_sentence(overflow: Overflow) -> str:
    """Where a number leaves the range first."""
    kind = f" of the {overflow.kind} half-step" if overflow.kind else ""
    place = f"{overflow.stack} layer {overflow.layer}".strip()
    return (
        f"{overflow.direction.capitalize()}, {overflow.dtype} is left first at the {overflow.where}{kind} of "
        f"{place} (site {overflow.site}): |x| reaches {_text(overflow.value)}."
    )


def _growth(rows: Table, stack: str) -> Iterator[str]:
    rms = sorted((r for r in rows if r.measure == "stream.rms" and (r.stack or "") == stack
                  and r.subset == "all" and r.value is not None), key=lambda r: r.site or 0)  # fmt: skip
    if len(rms) > 1 and rms[0].value:
        name = f"The {stack} stream" if stack else "The stream"
        yield (f"{name} goes from a root mean square of {_text(rms[0].value)} to {_text(rms[-1].value)} over "
               f"{rms[-1].site} residual adds.")  # fmt: skip


def _where(row: Row) -> str:
    what = {"branch.max_abs": f"{row.kind} branch", "add.max_abs": f"sum after the {row.kind} branch"}
    return f"{what.get(row.measure, 'stream')} of {row.stack or ''} layer {row.layer}".replace("  ", " ")


def _text(value: float | None) -> str:
    """Three significant digits, without an exponent between 1e-3 and 1e6."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"
