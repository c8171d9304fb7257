"""The page of a signal: where it leaves the range first, then every quantity along the stream; one offline file."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from drillcore.pages import colours
from drillcore.pages.page import asset, environment, plotly
from drillcore.pages.rows import text
from drillcore.pages.signal_figures import FP16_MAX, signal_figures
from drillcore.pages.tables import flat, status_groups
from drillcore.runs import write_text

if TYPE_CHECKING:
    from drillcore.measures.signal import Overflow
    from drillcore.table import Row
    from drillcore.verbs.signal import Signal


def signal_report(signal: "Signal", path: Path) -> Path:
    """Write the page of a signal and return its path.

    Raises:
        OSError: the folder cannot be made or written, or the disk is full; an older page stays as it was.
    """
    path = Path(path)
    write_text(path, render(signal))
    return path


def render(signal: "Signal") -> str:
    """Return the HTML text of the page."""
    drawn = {f"{plot.name}/{stack}": figure for stack, plot, figure in signal_figures(signal.rows)}
    stacks: dict[str, list[tuple[str, str, str]]] = {}
    for stack, plot, _ in signal_figures(signal.rows):
        stacks.setdefault(stack, []).append((f"{plot.name}/{stack}", plot.title, plot.caption))
    return environment().get_template("signal.html.j2").render(
        signal=signal, title=_title(signal), findings=list(findings(signal)), stacks=stacks, figures=drawn,
        statuses=status_groups(signal.rows), provenance=flat(signal.provenance),
        data={"figures": drawn, "dark": colours.DARK, "captions": {}}, style=asset("style.css"),
        script=asset("script.js"), plotly=plotly(),
    )  # fmt: skip


def _title(signal: "Signal") -> str:
    source = str(signal.provenance["source"])
    return "/".join(Path(source).parts[-2:]) if "/" in source else source


def findings(signal: "Signal") -> Iterator[str]:
    """What was seen, in sentences; they say only what the rows say."""
    for overflow in signal.overflows:
        yield overflow_sentence(overflow)
    peaks = [r for r in signal.rows if r.value is not None and r.measure in _PEAKS]
    if peaks and not any(o.dtype == "fp16" for o in signal.overflows):
        peak = max(peaks, key=lambda r: r.value or 0.0)
        room = FP16_MAX / max(peak.value or 0.0, 1e-30)
        yield (
            f"No branch and no add left the range of fp16 on this text: the largest number is {text(peak.value)} "
            f"({_where(peak)}), {text(room)} times below 65,504."
        )
    for stack in dict.fromkeys(r.stack or "" for r in signal.rows if r.measure == "stream.rms"):
        yield from _growth(signal, stack)


_PEAKS = ("stream.max_abs", "branch.max_abs", "add.max_abs")


def overflow_sentence(overflow: "Overflow") -> str:
    """Where a number leaves the range first."""
    kind = f" of the {overflow.kind} half-step" if overflow.kind else ""
    place = f"{overflow.stack} layer {overflow.layer}".strip()
    return (
        f"{overflow.direction.capitalize()}, {overflow.dtype} is left first at the {overflow.where}{kind} of "
        f"{place} (site {overflow.site}): |x| reaches {text(overflow.value)}."
    )


def _growth(signal: "Signal", stack: str) -> Iterator[str]:
    rms = sorted((r for r in signal.rows if r.measure == "stream.rms" and (r.stack or "") == stack
                  and r.subset == "all" and r.value is not None), key=lambda r: r.site or 0)  # fmt: skip
    if len(rms) > 1 and rms[0].value:
        name = f"The {stack} stream" if stack else "The stream"
        yield (f"{name} goes from a root mean square of {text(rms[0].value)} to {text(rms[-1].value)} over "
               f"{rms[-1].site} residual adds.")  # fmt: skip


def _where(row: "Row") -> str:
    what = {"branch.max_abs": f"{row.kind} branch", "add.max_abs": f"sum after the {row.kind} branch"}
    return f"{what.get(row.measure, 'stream')} of {row.stack or ''} layer {row.layer}".replace("  ", " ")
