"""The page of a signal: where it leaves the range first, then every quantity along the stream; one offline file."""

from pathlib import Path
from typing import TYPE_CHECKING

from drillcore.pages import colours
from drillcore.pages.page import asset, environment, plotly
from drillcore.pages.signal_figures import signal_figures
from drillcore.pages.tables import flat, status_groups
from drillcore.runs import write_text

if TYPE_CHECKING:
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
        signal=signal, title=_title(signal), findings=signal.findings, stacks=stacks, figures=drawn,
        statuses=status_groups(signal.rows), provenance=flat(signal.provenance),
        data={"figures": drawn, "dark": colours.DARK, "captions": {}}, style=asset("style.css"),
        script=asset("script.js"), plotly=plotly(),
    )  # fmt: skip


def _title(signal: "Signal") -> str:
    source = str(signal.provenance["source"])
    return "/".join(Path(source).parts[-2:]) if "/" in source else source
