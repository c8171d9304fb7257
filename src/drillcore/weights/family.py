"""Which family a checkpoint belongs to: model type first, tensor names second, inference last."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from drillcore.weights.architecture import Architecture, MatrixSpec, Pattern, architectures
from drillcore.weights.infer import infer_architecture
from drillcore.weights.source import InputError, Source

_LARGE_NUMBER = re.compile(r"(?<![^.])\d{2,}(?![^.])")  # file names of families hold no such number


class Choice(NamedTuple):
    """The chosen architecture and what decided it."""

    architecture: Architecture
    decided_by: str


def choose(source: Source) -> Choice:
    """Choose the architecture of a source.

    Raises:
        InputError: the tensors belong to two families.
    """
    matrices = [name for name, spec in source.specs.items() if len(spec.shape) >= 2]
    by_type = _by_model_type(source)
    if by_type is not None and _named(by_type, matrices):
        _refuse_mixture(source, by_type, matrices)
        return Choice(by_type, "model_type")
    best = _best_named(source)
    # Half of the matrices, since a family file may not know a second tower; below that a name is a coincidence.
    if matrices and len(_named(best, matrices)) * 2 > len(matrices):
        _refuse_mixture(source, best, matrices)
        return Choice(best, "tensor names")
    return Choice(infer_architecture(source.specs.values()), "inferred")


def _by_model_type(source: Source) -> Architecture | None:
    wanted = source.config.get("model_type")
    return next((a for a in architectures() if wanted in a.model_types), None)


def _best_named(source: Source) -> Architecture:
    """The architecture that names most matrices, then most tensors, whose norms are there, the most common one last."""
    shared = Counter((_LARGE_NUMBER.sub("10", name), len(spec.shape) >= 2) for name, spec in source.specs.items())

    def score(architecture: Architecture) -> tuple[int, ...]:
        matrices = tensors = 0
        used: set[str] = set()
        for (name, is_matrix), count in shared.items():
            match = architecture.match(name)
            if match:
                used.add(match[0].key)
                tensors += count
                matrices += count if is_matrix and _holds_matrix(match[0]) else 0
        absent = len(architecture.block_norms() - used)
        return matrices, tensors, -absent, len(used) - len(architecture.index), len(architecture.model_types)

    return max(architectures(), key=score)


def _named(architecture: Architecture, names: Iterable[str]) -> list[str]:
    """The names that a matrix pattern of the architecture matches."""
    return [name for name in names if (match := architecture.match(name)) and _holds_matrix(match[0])]


def _holds_matrix(pattern: Pattern) -> bool:
    return any(isinstance(case, MatrixSpec) for case in pattern.cases)


def _refuse_mixture(source: Source, chosen: Architecture, names: list[str]) -> None:
    rest = [name for name in names if chosen.match(name) is None]
    if len(rest) < 4:
        return
    other = max(architectures(), key=lambda a: len(_named(a, rest)))
    blocks = [n for n in _named(other, rest) if any(part.isdigit() for part in n.split("."))]
    if other is not chosen and len(blocks) > len(rest) // 2 and len(blocks) >= 4:
        raise InputError(
            f"tensors of two families: {len(names) - len(rest)} matrices are named as in {chosen.family}, "
            f"{len(blocks)} as in {other.family} (for example {blocks[0]!r})",
            where=source.label,
            remedy="keep one model per folder, or describe this one with --roles FILE.toml",
        )
