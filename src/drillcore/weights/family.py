"""Which family a checkpoint belongs to: model type first, tensor names second, inference last."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from drillcore.weights.architecture import Architecture, MatrixSpec, NormSpec, Pattern, architectures
from drillcore.weights.infer import infer_architecture
from drillcore.weights.role import KINDS
from drillcore.weights.source import InputError, Source

_LARGE_NUMBER = re.compile(r"(?<![^.])\d{2,}(?![^.])")  # no family has such a number in a name


class Choice(NamedTuple):
    """The chosen architecture and what decided it."""

    architecture: Architecture
    decided_by: str


class _Name(NamedTuple):
    """Names that differ in large numbers only: one of them, how many, and the shape of that one."""

    example: str
    times: int
    shape: tuple[int, ...]

    @property
    def matrix(self) -> bool:
        """Whether the tensors have two dimensions or more."""
        return len(self.shape) >= 2


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
        example, times, shape = names.get(key, (name, 0, spec.shape))
        names[key] = _Name(example, times + 1, shape)
    return list(names.values())


def _score(architecture: Architecture, names: list[_Name]) -> tuple[int, ...]:
    """Most matrices, then most tensors named, most that face a stream of one width; then the least that is missing.

    That is no norm missing, plain gains, least to spare, many model types. Shapes tell GPT-2 from GPT-BigCode, which
    has its names and stores the matrices turned. Names cannot show that a gain is zero-centred, so the plain reading
    wins where they allow both.
    """
    matrices = tensors = 0
    used: set[str] = set()
    widths: Counter[int] = Counter()
    for name in names:
        match = architecture.match(name.example)
        if match:
            used.add(match[0].key)
            tensors += name.times
            matrices += name.times if name.matrix and _holds_matrix(match[0]) else 0
            widths.update(dict.fromkeys(_stream_sides(match[0], name.shape), name.times))
    missing = len(architecture.block_norms() - used)
    plain = not any(isinstance(c, NormSpec) and c.zero_centered for p in architecture.patterns for c in p.cases)
    agreeing = max(widths.values(), default=0)
    return (
        matrices,
        tensors,
        agreeing,
        -missing,
        plain,
        len(used) - len(architecture.index),
        len(architecture.model_types),
    )


def _stream_sides(pattern: Pattern, shape: tuple[int, ...]) -> Iterator[int]:
    """The width of the stream by a whole matrix of this shape; nothing where it does not say one."""
    case = next((c for c in pattern.cases if isinstance(c, MatrixSpec)), None)
    spaces = KINDS.get(case.kind) if case is not None and len(shape) == 2 else None
    if case is not None and spaces is not None and "residual" in spaces:
        yield shape[1] if (case.stored() == "out_in") == (spaces[0] == "residual") else shape[0]


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
