"""What a survey found of stability, in words."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from drillcore.pages.rows import listed, text
from drillcore.table import Table

if TYPE_CHECKING:
    from drillcore.measures.stability import Certificate


def findings(certificates: Sequence["Certificate"]) -> Iterator[Markup]:
    """One sentence a stack whose norms are known: whether fp16 holds it."""
    for c in certificates:
        name = f"the {c.stack} stack" if c.stack else "nothing" if c.verdict == "cannot overflow" else "it"
        if c.verdict == "cannot overflow":
            least = min(c.parts, key=lambda p: p.head_room or 0.0)
            start = f"In fp16 {name} cannot overflow" if c.stack else "In fp16 nothing in the blocks can overflow"
            yield Markup("{}, whatever the input: the nearest part, {}, has a head-room of {}.").format(
                start, least.part, f"{text(least.head_room, 2)}"
            )
        elif c.worst is not None and c.verdict == "may overflow":
            safe = [p.part for p in c.parts if p.verdict == "cannot overflow"]
            rest = Markup("; {} cannot").format(listed(safe)) if safe else ""
            yield Markup(
                "In fp16 {} may overflow: its {} from layer {}{}. Only a run shows whether a text does it."
            ).format(name, c.worst.part, c.worst.first, rest)


def growths(rows: Table) -> list[tuple[str, str]]:
    """(what, how it grows over depth) of every size that was fitted."""
    found = []
    for row in rows:
        if row.measure in ("stability.growth", "stability.norm_growth") and row.value is not None:
            what = f"{row.kind}: {row.subset}" if row.measure == "stability.growth" else f"σ₁ of {row.kind}"
            found.append(
                (f"{row.stack} {what}".strip() if row.stack else what, growth_words(row.value, row.unit or ""))
            )
    return found


def growth_words(value: float, unit: str) -> str:
    """A growth in words."""
    if unit == "flat":
        return "flat"
    if unit == "exponent":
        return f"as depth to the power {round(value, 2) + 0.0:.2f}".replace("-", "−")
    return f"exponential, {100 * value:+.1f} % a layer".replace("-", "−")


def sentence(said: str) -> str:
    """With a capital at its beginning, the rest as it is."""
    return said[:1].upper() + said[1:]
