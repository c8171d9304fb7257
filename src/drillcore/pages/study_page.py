"""The page of a study: verdicts first, then the figures; one HTML file that needs no network."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drillcore.pages import colours
from drillcore.pages.page import asset, environment, plotly
from drillcore.pages.study_figures import drawings
from drillcore.pages.tables import flat
from drillcore.runs import write_text
from drillcore.study import Coverage, Decided, Figure, Run, Study

if TYPE_CHECKING:
    import polars as pl

_WORDS = {"supported": "supported", "refuted": "refuted", "inconclusive": "inconclusive", "not-run": "not run",
          "failed": "failed"}  # fmt: skip


@dataclass(frozen=True)
class Section:
    """A figure of the study: its pictures by name and title, and how many rows could not be drawn."""

    spec: Figure
    plots: tuple[tuple[str, str], ...]
    broken: int


def study_report(
    study: Study, results: "pl.DataFrame", decided: Sequence[Decided], path: Path, *,
    covered: Sequence[Coverage] = (), made: Mapping[str, Any] | None = None,
) -> Path:  # fmt: skip
    """Write the page of a study and return its path; `covered` and `made` are its `coverage` and `provenance`.

    Raises:
        OSError: the folder cannot be made or written, or the disk is full; an older page stays as it was.
    """
    path = Path(path)
    write_text(path, render(study, results, decided, covered, made or {}))
    return path


def render(
    study: Study, results: "pl.DataFrame", decided: Sequence[Decided], covered: Sequence[Coverage] = (),
    made: Mapping[str, Any] | None = None,
) -> str:  # fmt: skip
    """Return the HTML text of the page."""
    sections, figures = [], dict[str, Any]()
    for spec in study.figures:
        drawn = list(drawings(spec, results))
        figures |= {name: drawing for name, _, drawing in drawn}
        sections.append(Section(spec, tuple((name, title) for name, title, _ in drawn), spec.broken(results)))
    missing = {c.preset: list(missing_runs(study, c.missing)) for c in covered}
    return environment().get_template("study.html.j2").render(
        study=study, decided=[d for d in decided if d.verdict.outcome != "not-run"], words=_WORDS,
        absent=[d for d in decided if d.verdict.outcome == "not-run"],
        counts=Counter(d.verdict.outcome for d in decided), covered=covered,
        missing={name: missing.get(name, []) for name in study.presets}, provenance=flat(made or {}),
        runs=results["run"].n_unique(), rows=len(results), figures=figures,
        sections=[s for s in sections if s.plots], undrawn=[s for s in sections if not s.plots],
        data={"figures": figures, "dark": colours.DARK, "captions": {}},
        seeds=results["seed"].n_unique(), style=asset("style.css"), script=asset("script.js"), plotly=plotly(),
    )  # fmt: skip


def missing_runs(study: Study, runs: Sequence[Run]) -> Iterator[tuple[str, int]]:
    """Runs in words, with how many there are: what differs from the defaults, but for nuisance axes."""
    told = [axis for axis in study.axes if axis.role != "nuisance"]
    counts = Counter(tuple((a.name, run[a.name]) for a in told if run[a.name] != a.values[0]) for run in runs)
    for changed, count in counts.items():
        yield ", ".join(f"{name} {value}" for name, value in changed) or "the defaults", count
