"""`drillcore fit`: a scaling law with honest intervals."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.markup import escape

import drillcore
from drillcore.cli.options import check_folder
from drillcore.cli.terminal import OUT, note, number, plain, say

if TYPE_CHECKING:
    from drillcore.verbs.fit import Fit, Fits


def fit(
    table: Annotated[Path | None, Parameter(help="CSV or parquet table, one measured model a row.")] = None,
    *,
    x: Annotated[str, Parameter(help="Comma list of columns of sizes, one a power.")] = "",
    y: Annotated[str, Parameter(help="Column of losses.")] = "loss",
    law: Annotated[
        Literal["power", "offset", "sum"], Parameter(help="c/x^α; c/x^α + L₀; or a sum of powers and L₀.")
    ] = "offset",
    group: Annotated[str, Parameter(help="Comma list of columns; each combination has an offset of its own.")] = "",
    cluster: Annotated[
        str | None, Parameter(help="Column of what shares its errors (the model): bootstrapped.")
    ] = None,
    each: Annotated[str, Parameter(help="Comma list of columns; a fit for each combination.")] = "",
    residual: Annotated[
        Literal["linear", "log"] | None, Parameter(help="What is squared; log for power, else linear.")
    ] = None,
    own_scale: Annotated[bool, Parameter(help="Groups have coefficients of their own too.")] = False,
    robust: Annotated[bool, Parameter(help="Soft L1 loss: few points cannot decide.")] = False,
    draws: Annotated[int, Parameter(help="Draws of the bootstrap.")] = 2000,
    example: Annotated[str | None, Parameter(help="llm-losses or toy-large, instead of a table.")] = None,
    out: Annotated[Path | None, Parameter(help="Folder for fit.json, rows.parquet and report.html.")] = None,
) -> int:
    """Fit a scaling law to a table, and say what the data leave open.

    Prints every exponent with the interval to quote, the textbook error beside it, how it changes without each group,
    and how well the largest sizes are predicted from the rest. An exponent that the data do not determine is named as
    such, with what would determine it.

    Examples:

    `drillcore fit --example llm-losses`

    `drillcore fit losses.csv --x m --y loss --group family,corpus --cluster model --out fit`

    `drillcore fit runs.csv --law sum --x params,tokens`
    """
    if out is not None:
        check_folder(out)
    if (table is None) == (example is None):
        raise drillcore.InputError(
            "give a table or --example, one of them", remedy="drillcore fit --example llm-losses"
        )
    if example is not None:
        found = drillcore.fit_example(example, draws=draws, robust=robust, say=note)
    else:
        assert table is not None
        found = drillcore.fit(table, x=_words(x), y=y, law=law, group=_words(group), cluster=cluster, each=_words(each),
                              residual=residual, own_scale=own_scale, robust=robust, draws=draws, say=note)  # fmt: skip
    for one in found.fits:
        _show(one, found)
    if out is not None:
        for path in (*found.save(out), drillcore.fit_report(found, out / "report.html")):
            OUT.print(str(path), soft_wrap=True, markup=False)
    return 0 if all(e.status == "ok" for one in found.fits for e in one.exponents) else 1


def _show(one: "Fit", found: "Fits") -> None:
    table = plain(escape(f"{one.label}: y = {one.law}"))
    for name in ("parameter", "value", "95 % interval", "Jacobian error", "textbook error", "published"):
        table.add_column(name, justify="left" if name == "parameter" else "right")
    quoted = {e.name: e for e in one.exponents}
    for name, value in one.solution.values.items():
        e = quoted.get(name)
        ends = f"{number(e.interval.low)} … {number(e.interval.high)}" if e else ""
        told = "not identifiable" if e and e.status != "ok" else f"{value:.4g}"
        table.add_row(escape(name), told, ends, number(one.errors[name]), number(e.textbook) if e else "",
                      found.published.get(one.label, "") if e else "")  # fmt: skip
    OUT.print(table)
    say(f"{len(one.solution.data)} points, mean square error {one.mean_square_error:.4g} ({one.law.residual})")
    for e in one.exponents:
        say(f"{e.name} = {e.value:.4g}, 95 % {number(e.interval.low)} … {number(e.interval.high)} by {e.how}"
            + (f"; not identifiable: {e.reason}" if e.reason else ""))  # fmt: skip
    for kind, tables in (("without", one.without), ("of it alone", one.alone)):
        for column, values in tables.items():
            say(f"exponent {kind}, by {column}: " + ", ".join(f"{k} {number(v)}" for k, v in values.items()))
    if one.hold_out is not None:
        h = one.hold_out
        say(
            f"the {h.sizes} largest sizes from the rest: error {number(h.law)}; {number(h.constant)} if nothing changed"
        )
    for warning in one.warnings:
        say(f"mind: {warning}")
    OUT.print()


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
