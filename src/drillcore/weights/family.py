"""Which family a checkpoint belongs to: model type first, tensor names second, inference last."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from drillcore.weights.architecture import Architecture, MatrixSpec, Pattern, architectures
from drillcore.weights.infer import infer_architecture
from drillcore.weights.source import InputError, Source

_LARGE_NUMBER = re.compile(r"(?<![^.])\d{2,}(?![^.])")  # no family has such a number in a name


class Choice(NamedTuple):
    """The chosen architecture and what decided it."""

    architecture: Architecture
    decided_by: str


class _Name(NamedTuple):
    """Names that differ in large numbers only: one of them, how many, and whether they name matrices."""

    example: str
    times: int
    matrix: bool


def choose(source: Source) -> Choice:
    """Choose the architecture of a source.

    Raises:
        InputError: the tensors belong to two families.
    """
    names = _distinct(source)
    matrices = [name for name in names if name.matrix]
    by_type = next((a for a in architectures() if source.config.get("model_type") in a.model_types), None)
    if by_type is not None and _named(by_type, matrices):
        _refuse_mixture(source, by_type, matrices)
        return Choice(by_type, "model_type")
    best = max(architectures(), key=lambda architecture: _score(architecture, names))
    # Half of the matrices, since a family file may not know a second tower; below that a name is a coincidence.
    if matrices and _total(_named(best, matrices)) * 2 > _total(matrices):
        _refuse_mixture(source, best, matrices)
        return Choice(best, "tensor names")
    return Choice(infer_architecture(source.specs.values()), "inferred")


def _distinct(source: Source) -> list[_Name]:
    names: dict[tuple[str, bool], _Name] = {}
    for name, spec in source.specs.items():
        key = _LARGE_NUMBER.sub("10", name), len(spec.shape) >= 2
        example, times, _ = names.get(key, (name, 0, False))
        names[key] = _Name(example, times + 1, key[1])
    return list(names.values())


def _score(architecture: Architecture, names: list[_Name]) -> tuple[int, ...]:
    """Most matrices, then most tensors named; then no norm missing, least to spare; then the most common family."""
    matrices = tensors = 0
    used: set[str] = set()
    for name in names:
        match = architecture.match(name.example)
        if match:
            used.add(match[0].key)
            tensors += name.times
            matrices += name.times if name.matrix and _holds_matrix(match[0]) else 0
    missing = len(architecture.block_norms() - used)
    return matrices, tensors, -missing, len(used) - len(architecture.index), len(architecture.model_types)


def _named(architecture: Architecture, names: Iterable[_Name]) -> list[_Name]:
    """The names that a matrix pattern of the architecture matches."""
    return [name for name in names if (match := architecture.match(name.example)) and _holds_matrix(match[0])]


def _holds_matrix(pattern: Pattern) -> bool:
    return any(isinstance(case, MatrixSpec) for case in pattern.cases)


def _total(names: Iterable[_Name]) -> int:
    return sum(name.times for name in names)


def _refuse_mixture(source: Source, chosen: Architecture, names: list[_Name]) -> None:
    rest = [name for name in names if chosen.match(name.example) is None]
    if _total(rest) < 4:
        return
    other = max(architectures(), key=lambda a: _total(_named(a, rest)))
    blocks = [n for n in _named(other, rest) if any(part.isdecimal() for part in n.example.split("."))]
    if other is not chosen and _total(blocks) > _total(rest) // 2 and _total(blocks) >= 4:
        raise InputError(
            f"tensors of two families: {_total(names) - _total(rest)} matrices are named as in {chosen.family}, "
            f"{_total(blocks)} as in {other.family} (for example {blocks[0].example!r})",
            where=source.label,
            remedy="keep one model per folder, or describe this one with --roles FILE.toml",
        )
