"""Give every tensor of a source its role, and account for every tensor in the census."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, cast

from drillcore.weights.architecture import MatrixSpec, NormSpec, Pattern, load_architecture
from drillcore.weights.census import Census, Entry, State
from drillcore.weights.draft import Draft, entry
from drillcore.weights.family import Choice, choose
from drillcore.weights.layout import NeedsConfig, as_matrix, head_dim, number, require, splits
from drillcore.weights.role import KINDS, Norm, Role, Split, Weight
from drillcore.weights.source import InputError, Note, Source, TensorSpec

_FLOATS = "give the checkpoint in float32, float16, bfloat16 or fp8"
_NOT_REAL = re.compile(r"u?int\d+|bool|complex\d+")
_CONFIG_REMEDY = "give the model's configuration with --config FILE (its config.json)"


@dataclass(frozen=True)
class Assignment:
    """The matrices and norms of a source by role, and the census."""

    weights: tuple[Weight, ...]
    norms: tuple[Norm, ...]
    census: Census

    def of(self, kind: str, stack: str = "") -> list[Weight]:
        """The weights of one kind and stack, by layer and expert."""
        found = [w for w in self.weights if w.role.kind == kind and w.role.stack == stack]
        return sorted(found, key=lambda w: (w.role.layer or 0, w.role.expert or 0))

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """(stack, kind) of every weight, stacks in file order, kinds in the order of `KINDS`."""
        stacks = list(dict.fromkeys(w.role.stack for w in self.weights))
        order = {kind: i for i, kind in enumerate(KINDS)}
        present = {(w.role.stack, w.role.kind) for w in self.weights}
        return sorted(present, key=lambda p: (stacks.index(p[0]), order.get(p[1], len(order)), p[1]))


def assign(source: Source, *, roles: Path | None = None) -> Assignment:
    """Decide the family (model type, then names, then inference; or the file `roles`) and assign roles.

    Raises:
        InputError: no tensors; tensors of two families; a bad roles file.
    """
    if not source.specs:
        raise InputError("holds no tensors that can be read", where=source.label, remedy=_empty_remedy(source))
    choice = Choice(load_architecture(roles), "--roles") if roles else choose(source)
    draft = Draft(source, choice.architecture)
    mark = " (inferred from names and shapes)" if choice.decided_by == "inferred" else ""
    for spec in source.specs.values():
        _add(draft, spec, mark)
    if roles and not draft.weights:
        raise InputError(
            f"none of its patterns names a matrix of {source.label}",
            where=roles,
            remedy=f"a tensor of the checkpoint is called {next(iter(source.specs))!r}; `drillcore describe` lists all",
        )
    draft.refuse_doubles()
    draft.face_projections()
    draft.refuse_misfits()
    if not any(spec.delta for spec in source.specs.values()):
        draft.resolve_ties()
        draft.find_missing(sure=choice.decided_by == "model_type")
    entries = [*draft.entries, *(_note_entry(n) for n in source.notes)]
    census = Census(tuple(entries), choice.architecture.family, choice.decided_by)
    return Assignment(tuple(draft.weights), tuple(draft.norms), census)


def _add(draft: Draft, spec: TensorSpec, mark: str) -> None:
    """Give one tensor its role and its entry."""
    match = draft.architecture.match(spec.name)
    if match is None:
        draft.entries.append(_unmatched(spec, draft.architecture.family))
        return
    pattern, numbers = match
    layers = draft.layers(pattern)
    if layers is not None and numbers.get("layer", 0) >= layers:
        detail = f"beyond the {layers} layers of the configuration (a multi-token-prediction layer, or a wrong number)"
        draft.enter(spec, "skipped", detail, "correct the configuration, or give one with --config FILE")
        return
    case = pattern.case(draft.section(pattern.config_key), draft.has)
    if isinstance(case, str):
        draft.enter(spec, "recognised", case)
    elif isinstance(case, NormSpec):
        _add_norm(draft, spec, pattern, case, numbers)
    elif case is None:
        draft.enter(spec, "skipped", "its layout depends on the configuration", _CONFIG_REMEDY)
    else:
        _add_matrix(draft, spec, pattern, case, numbers, mark)


def _add_norm(draft: Draft, spec: TensorSpec, pattern: Pattern, case: NormSpec, numbers: dict[str, int]) -> None:
    stem = spec.name.rsplit(".", 1)[0]
    bias = next((b for b in (f"{stem}.bias", f"{stem}.beta") if b in draft.source.specs), None)
    norm = Norm(
        tensor=spec.name, layer=numbers.get("layer"), stack=pattern.stack,
        side=case.side,  # type: ignore[arg-type]  # checked when the file was read
        feeds=case.feeds, zero_centered=case.zero_centered, bias=bias,
    )  # fmt: skip
    draft.norms.append(norm)
    feeds = f", feeds {', '.join(case.feeds)}" if case.feeds else ""
    draft.enter(spec, "recognised", f"norm ({case.side}){_at(numbers, pattern.stack)}{feeds}")


def _add_matrix(
    draft: Draft, spec: TensorSpec, pattern: Pattern, case: MatrixSpec, numbers: dict[str, int], mark: str
) -> None:
    if case.copy_of and draft.has(case.copy_of):
        draft.enter(spec, "recognised", f"copy of {case.copy_of}")
        return
    for kind in case.kinds:
        draft.seen[pattern.stack, kind].add(numbers.get("layer"))
    if _NOT_REAL.fullmatch(spec.dtype):
        draft.enter(spec, "skipped", f"{spec.dtype} numbers ({'/'.join(case.kinds)}) are not read as weights", _FLOATS)
        return
    rank = 3 if case.stacked else 2
    if len(spec.shape) < rank or (case.stacked and len(spec.shape) > rank) or 0 in spec.shape:
        wanted = "experts × rows × columns" if case.stacked else "a matrix"
        draft.enter(
            spec, "skipped", f"expected {wanted} ({'/'.join(case.kinds)}), its shape is {list(spec.shape)}",
            "map it with --roles FILE.toml (see CONTRIBUTING.md)",
        )  # fmt: skip
        return
    try:
        parts = _parts(case, spec, draft.section(pattern.config_key))
    except NeedsConfig as needed:
        detail = f"a fused matrix ({'/'.join(case.kinds)}) that needs {needed}"
        draft.enter(spec, "skipped", detail, _CONFIG_REMEDY)
        return
    for kind, split in parts:
        draft.weights += _weights(spec, pattern.stack, case, kind, split, numbers)
    where = _at(numbers, pattern.stack)
    if case.split:
        draft.enter(spec, "split", f"{'/'.join(case.split)} ({case.layout}){where}{mark}")
    else:
        draft.enter(spec, "used", f"{case.kind}{where}{mark}")


def _parts(case: MatrixSpec, spec: TensorSpec, config: Mapping[str, Any]) -> list[tuple[str, Split | None]]:
    if not case.split:
        return [(case.kind, None)]
    out = spec.shape[-2] if case.stored() == "out_in" else spec.shape[-1]
    groups, sizes = _sizes(case, out, config)
    try:
        return list(zip(case.split, splits(case.layout, sizes, out, groups=groups), strict=True))
    except InputError as error:
        raise InputError(error.what, where=spec.name, remedy=error.remedy) from error


def _sizes(case: MatrixSpec, out: int, config: Mapping[str, Any]) -> tuple[int, list[int]]:
    """(groups, rows of each part in one group) of a fused matrix."""
    parts = len(case.split)
    if case.layout == "equal":
        return case.groups, [out // parts // case.groups] * parts
    if case.layout == "interleaved":
        return out // parts, [1] * parts
    if case.sizes:
        sizes = [require(config, key) for key in case.sizes]
        return (out // sum(sizes) if case.layout == "per_head" else 1), sizes
    heads, width = require(config, "heads"), head_dim(config)
    if case.layout == "per_head":
        return heads, [width] * parts
    kv_heads = case.kv_heads or number(config, "kv_heads") or heads
    if case.layout == "grouped":
        return kv_heads, [heads // kv_heads * width, width, width]
    return 1, [heads * width, kv_heads * width, kv_heads * width]


def _weights(
    spec: TensorSpec, stack: str, case: MatrixSpec, kind: str, split: Split | None, numbers: dict[str, int]
) -> list[Weight]:
    reads, writes = KINDS.get(kind, ("", ""))
    role = Role(
        kind=kind, layer=numbers.get("layer"), stack=stack, reads=case.reads or reads, writes=case.writes or writes,
        orientation=case.stored(), split=split, expert=numbers.get("expert"), stacked=case.stacked,
    )  # fmt: skip
    rows, columns = as_matrix(spec.shape[1:] if case.stacked else spec.shape)
    out, into = (rows, columns) if case.stored() == "out_in" else (columns, rows)
    out = split.rows if split else out
    each = spec.nbytes * out * into // max(1, prod(spec.shape))
    if not case.stacked:
        return [Weight(spec.name, role, (out, into), spec.dtype, each)]
    return [Weight(spec.name, replace(role, expert=e), (out, into), spec.dtype, each) for e in range(spec.shape[0])]


def _unmatched(spec: TensorSpec, family: str) -> Entry:
    if spec.dtype in ("int8", "uint8") and len(spec.shape) >= 2:
        return entry(spec, "skipped", f"{spec.dtype} matrix: packed or quantised weights, not read as numbers",
                     _FLOATS)  # fmt: skip
    if spec.dtype.startswith(("int", "uint", "bool")):
        return entry(spec, "recognised", f"{spec.dtype} buffer, not a weight")
    what = "matrix" if len(spec.shape) >= 2 and min(spec.shape) > 1 else "vector"
    return entry(spec, "unknown", f"a {what} that no {family} pattern names",
                 "map it with --roles FILE.toml (see CONTRIBUTING.md)")  # fmt: skip


def _note_entry(note: Note) -> Entry:
    if note.spec is None:
        return Entry(note.name, cast("State", note.state), note.detail, note.remedy)
    return entry(replace(note.spec, name=note.name), cast("State", note.state), note.detail, note.remedy)


def _at(numbers: dict[str, int], stack: str) -> str:
    words = [stack] if stack else []
    words += [f"{word} {numbers[word]}" for word in ("layer", "expert") if word in numbers]
    return f" of {', '.join(words)}" if words else ""


def _empty_remedy(source: Source) -> str:
    notes = [n for n in source.notes if n.remedy]
    return notes[0].remedy if notes else "check the path and the download"
