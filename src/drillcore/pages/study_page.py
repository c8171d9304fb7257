"""The page of a study: verdicts first, then the figures; one HTML file that needs no network."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drillcore.pages import colours
from drillcore.pages.page import asset, environment, plotly
from drillcore.pages.study_figures import drawings
from drillcore.runs import write_text
from drillcore.study import Decided, Study

if TYPE_CHECKING:
    import polars as pl

_WORDS = {"supported": "supported", "refuted": "refuted", "inconclusive": "inconclusive", "not-run": "not run"}


def study_report(study: Study, results: "pl.DataFrame", decided: Sequence[Decided], path: Path) -> Path:
    """Write the page of a study and return its path.

    Raises:
        OSError: the folder cannot be made or written, or the disk is full; an older page stays as it was.
    """
    path = Path(path)
    write_text(path, render(study, results, decided))
    return path


def render(study: Study, results: "pl.DataFrame", decided: Sequence[Decided]) -> str:
    """Return the HTML text of the page."""
    sections: list[dict[str, Any]] = []
    figures: dict[str, Any] = {}
    for spec in study.figures:
        drawn = list(drawings(spec, results))
        figures |= {name: drawing for name, _, drawing in drawn}
        if drawn:
            sections.append({"spec": spec, "plots": [(name, title) for name, title, _ in drawn]})
    data = {"figures": figures, "dark": colours.DARK, "captions": {}}
    return environment().get_template("study.html.j2").render(
        study=study, decided=[d for d in decided if d.verdict.outcome != "not-run"], words=_WORDS,
        absent=[d for d in decided if d.verdict.outcome == "not-run"],
        counts=Counter(d.verdict.outcome for d in decided),
        runs=results["run"].n_unique(), rows=len(results), sections=sections, figures=figures, data=data,
        seeds=_seeds(results), style=asset("style.css"), script=asset("script.js"), plotly=plotly(),
    )  # fmt: skip


def _seeds(results: "pl.DataFrame") -> Any:
    return results["seed"].n_unique() if "seed" in results.columns else 1
