"""What the commands print: the progress bar, the summary table, the census."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.markup import escape
from rich.table import Table

from drillcore.cli.stability_screen import show_certificates
from drillcore.cli.terminal import ERRORS, OUT

if TYPE_CHECKING:
    from drillcore.verbs.survey import Survey
    from drillcore.weights import Assignment, Entry

_COLOURS = {"unknown": "red", "missing": "red", "skipped": "yellow", "ignored": "dim"}


def error(text: str) -> None:
    """Print an error: what was wrong, where, what to do."""
    ERRORS.print("[bold red]error[/]: " + "\n".join(map(_escaped, text.split("\n"))))


def show_survey(survey: "Survey") -> None:
    """Print one line per kind, the superposition lines, and what was left out."""
    census = survey.census
    OUT.print(f"[bold]{_escaped(str(survey.provenance['source']))}[/]", soft_wrap=True)
    OUT.print(f"{_escaped(census.family)} (by {census.decided_by}), {len(census.entries)} tensors, "
               f"{_size(census.nbytes)}")  # fmt: skip
    if any(x.mean is not None or x.subspace is not None for s in survey.summary for x in (s.v, s.u)):
        OUT.print(_kind_table(survey))
    else:
        _show_counts(survey)
    if lines := list(_superposition_lines(survey)):
        OUT.print(_superposition_table(lines))
    show_certificates(survey.certificates)
    _show_statuses(survey)
    _show_left_out(census.left_out)


def _show_counts(survey: "Survey") -> None:
    """Where no leading vectors were compared: how many numbers each measure gave; the report shows them."""
    found = Counter(
        r.measure for r in survey.rows if r.value is not None and r.measure.split(".")[0] != "superposition"
    )
    for measure, count in found.items():
        OUT.print(f"{measure}: {count} numbers, in rows.parquet and the report")


def _show_statuses(survey: "Survey") -> None:
    """What has no number and why, one line a status."""
    without = [r for r in survey.rows if r.value is None and r.status != "not-applicable"]
    for status, count in Counter(r.status for r in without).items():
        first = next(r for r in without if r.status == status)
        where = " ".join(str(x) for x in (first.stack, first.kind, first.layer) if x not in (None, ""))
        OUT.print(f"[yellow]{count} without a number[/] ({status}), first {first.measure} of {_escaped(where)}: "
                   f"{_escaped(first.reason or '')}", soft_wrap=True)  # fmt: skip


def _kind_table(survey: "Survey") -> Table:
    table = _plain("Continuity: mean |cos| of the leading singular vectors of adjacent layers")
    table.add_column("kind")
    for name in ("v1", "u1", "null v, u", "subspace", "known"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for s in survey.summary:
        headline, control = (s.u, s.v) if s.faces == "out" else (s.v, s.u)
        cells = [f"[bold]{_number(x.mean)}[/]" if x is headline else _number(x.mean) for x in (s.v, s.u)]
        whole = headline.subspace_null is not None and headline.subspace_null >= 1  # of all dimensions: always 1
        subspace = None if whole else headline.subspace
        other = "v1" if headline is s.u else "u1"
        dull = "" if control.word in ("at chance", "not measured") else f"\n[dim]{other}: {control.word}[/]"
        table.add_row(
            _escaped(f"{s.stack} {s.kind}".strip()), *cells, f"{_number(s.v.null)}, {_number(s.u.null)}",
            _number(subspace), f"{s.identifiable}/{s.layers}", s.verdict + dull,
        )  # fmt: skip
    table.caption = (
        "subspace: overlap of the leading subspaces on the side that faces the stream · "
        "known: layers whose leading vector is identifiable"
    )
    return table


def _plain(title: str) -> Table:
    return Table(title=title, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))


def _superposition_lines(survey: "Survey") -> Iterator[dict[str, float]]:
    """One dictionary of raw values for each matrix whose rows were measured."""
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in survey.rows:
        if row.measure.startswith("superposition.") and row.subset in (None, "raw"):
            key = (row.stack, row.kind, row.layer)
            lines.setdefault(key, {"where": " ".join(str(k) for k in key if k not in (None, ""))})
            lines[key][row.measure.removeprefix("superposition.")] = row.value
    yield from lines.values()


_COUNTS = (("n", "n"), ("m", "m"))
_SHOWN = (("norm_mean", "norm"), ("phi_half_relative", "> ½med"),
          ("mean_sq_overlap", "overlap²"), ("mean_sq_overlap_x_m", "× m"), ("variance_ratio", "var/random"),
          ("max_overlap", "max |cos|"))  # fmt: skip


def _superposition_table(lines: list[dict[str, float]]) -> Table:
    table = _plain("Superposition: n directions in m dimensions")
    table.add_column("rows")
    for _, title in (*_COUNTS, *_SHOWN):
        table.add_column(title, justify="right")
    for line in lines[:24]:
        counts = (_number(line.get(name), digits=0) for name, _ in _COUNTS)
        table.add_row(_escaped(str(line["where"])), *counts, *(_number(line.get(name)) for name, _ in _SHOWN))
    more = f" · {len(lines) - 24} more in the report" if len(lines) > 24 else ""
    table.caption = (
        "overlap²: mean squared cosine; × m is 1 for random directions · > ½med: share of rows longer than half "
        f"the median{more}"
    )
    return table


def show_paths(paths: Sequence[Path | str]) -> None:
    """One path or command a line, not folded and with its brackets, so that they can be piped or copied."""
    for path in paths:
        OUT.print(str(path), soft_wrap=True, markup=False)


def show_census(found: "Assignment", *, every: bool) -> None:
    """Print the census: counts, then one line per pattern (or per tensor)."""
    census = found.census
    counts = ", ".join(f"{n} {state}" for state, n in sorted(census.count().items(), key=lambda c: -c[1]))
    usual = Counter(e.dtype for e in census.entries if e.dtype).most_common(1)[0][0]  # named once, to save its column
    OUT.print(f"family [bold]{_escaped(census.family)}[/] (by {census.decided_by}); {_size(census.nbytes)}, {usual} "
               f"where nothing else is said; {counts}")  # fmt: skip
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name, share in (("tensor", 3), ("×", None), ("shape", None), ("state", None), ("what it is", 2)):
        table.add_column(name, overflow="fold", no_wrap=name == "state", ratio=share)
    for entries in _patterns(census.entries, every):
        first, colour = entries[0], _COLOURS.get(entries[0].state, "")
        shape = " × ".join(map(str, first.shape)) + (f"\n{first.dtype}" if first.dtype != usual else "")
        name, detail = first.tensor, first.detail
        if len(entries) > 1:
            name, detail = _STAR.sub("*", name), re.sub(r"(layer|expert) \d+", r"every \1", detail)
        state = f"[{colour}]{first.state}[/]" if colour else first.state
        table.add_row(_escaped(name), str(len(entries)), shape, state, _escaped(detail))
    OUT.print(table)
    _show_left_out(census.left_out)


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_STAR = re.compile(r"(?<![A-Za-z_])\d+(?![A-Za-z_])")


def _patterns(entries: "tuple[Entry, ...]", every: bool) -> "list[list[Entry]]":
    if every:
        return [[e] for e in entries]
    groups: dict[tuple[Any, ...], list[Entry]] = {}
    for e in entries:
        key = (_STAR.sub("*", e.tensor), e.state, e.shape, e.dtype, re.sub(r"\d+", "*", e.detail))
        groups.setdefault(key, []).append(e)
    return list(groups.values())


def _show_left_out(entries: "tuple[Entry, ...]") -> None:
    groups: dict[tuple[str, str, str], list[str]] = {}
    for e in entries:
        groups.setdefault((e.state, e.detail, e.remedy), []).append(e.tensor)
    if entries:
        OUT.print(f"[yellow]{len(entries)} left out[/]:")
    for (state, detail, remedy), names in groups.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        OUT.print(f"  {state}: {_escaped(', '.join(names[:3]))}{more}: {_escaped(detail)}"
                   + (f"\n    what to do: {_escaped(remedy)}" if remedy else ""), soft_wrap=True)  # fmt: skip


def _number(value: float | None, digits: int = 4) -> str:
    if value is None:
        return "–"
    return f"{value:.{digits}f}" if abs(value) < 100 or digits == 0 else f"{value:.1f}"


def _size(nbytes: float) -> str:
    for unit in ("B", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.2f} GB"


def _escaped(text: str) -> str:
    """Text of a file as it is, whatever it holds: no markup, nothing that moves the cursor."""
    return escape(_CONTROL.sub(lambda found: ascii(found[0])[1:-1], text))
