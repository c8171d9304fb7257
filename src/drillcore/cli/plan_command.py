"""`drillcore plan`: width, depth and tokens for a budget."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import drillcore
from drillcore.cli.terminal import OUT, number, plain, say


def plan(
    *,
    params: Annotated[float | None, Parameter(help="Parameters in the blocks, 12·width²·depth.")] = None,
    flops: Annotated[float | None, Parameter(help="Operations of the training, 6·parameters·tokens.")] = None,
    tokens: Annotated[float | None, Parameter(help="Tokens, where --params are given and tokens are fixed.")] = None,
    fit: Annotated[Path | None, Parameter(help="fit.json of your own runs: --law sum, width, depth, tokens.")] = None,
) -> int:
    """Plan a model: the width, depth and tokens with the smallest loss by a fitted law, with their intervals.

    The shipped law is our fit to 205 Chinchilla runs. The optimum is flat: the range of shapes that lose less than 1 %
    is printed beside it.

    Examples:

    `drillcore plan --params 1e9`

    `drillcore plan --flops 1e21`
    """
    found = drillcore.plan(params=params, flops=flops, tokens=tokens, fit=fit)
    table = plain(f"by {found.law}")
    for name in ("", "best", "95 % interval"):
        table.add_column(name, justify="left" if not name else "right")
    for name, value in found.numbers.items():
        ends = f"{number(value.low)} … {number(value.high)}" if value.n else "–"
        table.add_row(name, number(value.value), ends)
    OUT.print(table)
    low, high = found.as_good
    say(f"width/depth {found.width.value / found.depth.value:.0f}; from {low:.0f} to {high:.0f} loses less than 1 %")
    for warning in found.warnings:
        say(f"mind: {warning}")
    return 0
