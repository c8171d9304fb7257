"""What the commands print of a certificate."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from drillcore.cli.terminal import OUT, plain, say
from drillcore.pages.rows import text

if TYPE_CHECKING:
    from drillcore.measures.stability import Certificate

_COLOURS = {"cannot overflow": "green", "may overflow": "yellow", "not bounded": "yellow"}


def show_certificates(certificates: Sequence["Certificate"]) -> None:
    """A table a stack: what each part can reach, and the head-room."""
    for certificate in certificates:
        name = f"Stability of the {certificate.stack} stack" if certificate.stack else "Stability"
        table = plain(f"{name}: {', '.join(certificate.placed.facts)}")
        table.add_column("part")
        table.add_column("in fp16")
        table.add_column("|x| at most", justify="right")
        table.add_column("head-room", justify="right")
        for part in certificate.parts:
            room = f"{text(part.head_room)}×" if part.head_room else "–"
            table.add_row(part.part, f"[{_COLOURS[part.verdict]}]{part.words}[/]", text(part.bound), room)
        if certificate.parts:
            table.caption = (
                "bounds for any input, from the weights alone, derived (drillcore); a text may stay far below"
            )
            OUT.print(table)
        else:
            say(f"{name}: {', '.join(certificate.placed.facts)}; in fp16 {certificate.words}")
        if certificate.reason:
            OUT.print(f"  {escape(certificate.reason)}\n    what to do: {escape(certificate.remedy)}", soft_wrap=True)
        if certificate.below_bfloat16 is not None:
            share = 100 * certificate.below_bfloat16
            say(f"bf16: {share:.0f} % of the half-steps add less than half a step of the stream (estimate).")
