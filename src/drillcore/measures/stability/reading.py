"""Read a checkpoint's matrices in the order that bounds need, and certify it without any other measure."""

from collections.abc import Callable, Iterable, Mapping

from drillcore.measures.reading import Options, read_kind
from drillcore.measures.stability.certificate import Certificate, certify
from drillcore.measures.stability.collect import Collector
from drillcore.weights.assign import Assignment
from drillcore.weights.placement import Placement
from drillcore.weights.role import SINGLE_KINDS
from drillcore.weights.source import Source


def readers_first(assignment: Assignment, kinds: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The (stack, kind) of block matrices, those that write to the stream last: their bounds need the readers'."""
    in_blocks = [key for key in kinds if key[1] not in SINGLE_KINDS]
    return sorted(in_blocks, key=lambda key: assignment.of(key[1], key[0])[0].role.writes == "residual")


def read_certificates(
    source: Source, assignment: Assignment, placed: Mapping[str, Placement],
    advance: Callable[[int], None] = lambda nbytes: None,
) -> tuple[Certificate, ...]:  # fmt: skip
    """The certificates of all stacks; every block matrix is read once. `advance` is told the bytes of each."""
    collector = Collector(source, assignment, placed)
    options = Options(rank=1, needs=frozenset())
    for stack, kind in readers_first(assignment, assignment.kinds):
        read_kind(source, assignment, stack, kind, options, advance=advance, observe=collector.observe)
    return certify(collector, placed)
