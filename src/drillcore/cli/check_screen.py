"""What `drillcore check` prints."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from drillcore.cli.terminal import ERRORS, OUT

if TYPE_CHECKING:
    from drillcore.measures.stability_rules import Finding
    from drillcore.verbs.check import Check

_COLOURS = {"bounded": "green", "scale-free": "green", "state-reset": "green", "forms and holds": "green",
            "needs-decay": "yellow", "grows": "yellow", "threshold": "yellow"}  # fmt: skip
_EXPONENTS = ("p_s", "q_all", "q_last", "q_gain", "j_s", "j_all", "j_last")


def show_check(check: "Check") -> None:
    """Print the classes with their reasons, the exponents, warnings, and what the class means in practice."""
    settings = check.provenance["settings"]
    facts = f"width {settings['width']}, {settings['half_steps']} half-steps, Δt {settings['residual_step']:g}"
    OUT.print(Text.assemble((check.target, "bold"), f"  {check.about}; {facts}, decay {settings['decay']:g}"))
    OUT.print(_verdicts(check))
    OUT.print(_exponents(check))
    OUT.print("[dim]p, q: size of the branch · j: its sensitivity ‖∂f/∂x‖ · by the scale of s: its input, all: its "
               "matrices, last: the last matrix, gain: its gains[/]\n")  # fmt: skip
    if check.warnings:
        OUT.print("[yellow]Warnings[/]")
    for warning in check.warnings:
        OUT.print(Text.assemble("  ", (warning.name, "bold"), f": {warning.reason}. What to do: {warning.remedy}."))
    budget = check.gain_budget
    given = (
        f" The gain budget Δt Σ rms(γ) is {budget:.4g}: the most that output norms add to mean |x|." if budget else ""
    )
    OUT.print(Text(f"In practice: {check.practice}{given}"))
    if check.same_class:
        OUT.print(Text(f"Of the same forward class: {', '.join(check.same_class)}."))


def show_requirements(wanted: Mapping[str, str], missed: Sequence[str], *, quiet: bool) -> None:
    """Say which requirements are not met; that they are, only where it is not quiet."""
    for line in missed:
        ERRORS.print(Text.assemble(("not met", "bold red"), f": {line}"))
    if wanted and not missed and not quiet:
        OUT.print(Text.assemble(("met", "bold green"), f": {', '.join(f'{k}={v}' for k, v in wanted.items())}"))


def _verdicts(check: "Check") -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_header=False)
    for name in ("side", "class", "why"):
        table.add_column(name, overflow="fold", min_width=13 if name == "class" else None)
    lines = [("forward", check.forward), ("backward", check.backward), *(("backward", f) for f in check.carried),
             ("continuity", check.continuity)]  # fmt: skip
    for side, finding in lines:
        table.add_row(side, Text(finding.name, style=f"bold {_COLOURS.get(finding.name, 'red')}"), _why(finding))
    return table


def _why(finding: "Finding") -> Text:
    done = finding.remedy in ("", "nothing to do")
    return Text(finding.reason + ("" if done else f". What to do: {finding.remedy}"))


def _exponents(check: "Check") -> Table:
    rows = {r.measure.removeprefix("exponent."): r for r in check.rows if r.measure.startswith("exponent.")}
    table = Table(title="Growth exponents", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in _EXPONENTS:
        table.add_column(name, justify="right")
    cells = []
    for name in _EXPONENTS:
        row = rows.get(name)
        cells.append("–" if row is None or row.value is None else f"{row.value:.2f}".replace("-0.00", "0.00"))
    table.add_row(*cells)
    return table
