"""Stand-in until the helper's branch is merged."""

from drillcore.table import Row
from drillcore.weights.role import Weight
from drillcore.weights.source import Source


def superposition(source: Source, weight: Weight, *, exact_max: bool = False, device: str = "cpu") -> list[Row]:
    return []
