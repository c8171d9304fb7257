"""Give every tensor of a source its role, and account for every tensor in the census."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, cast

from drillcore.weights.architecture import Architecture, MatrixSpec, NormSpec, Pattern, load_architecture
from drillcore.weights.census import Census, Entry, State
from drillcore.weights.family import Choice, choose
from drillcore.weights.layout import NeedsConfig, head_dim, number, require, splits
from drillcore.weights.role import KINDS, Norm, Orientation, Role, Split, Weight
from drillcore.weights.source import InputError, Note, Source, TensorSpec

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
    collected = _Collector(source, choice.architecture, inferred=choice.decided_by == "inferred")
    for spec in source.specs.values():
        collected.add(spec)
    if roles and not collected.weights:
        raise InputError(
            f"none of its patterns names a matrix of {source.label}",
            where=roles,
            remedy=f"a tensor of the checkpoint is called {next(iter(source.specs))!r}; `drillcore describe` lists all",
        )
    collected.resolve_ties()
    collected.find_missing()
    entries = [*collected.entries, *(_note_entry(n) for n in source.notes)]
    census = Census(tuple(entries), choice.architecture.family, choice.decided_by)
    return Assignment(tuple(collected.weights), tuple(collected.norms), census)


class _Collector:
    """Walks the index once and keeps what it finds."""

    def __init__(self, source: Source, architecture: Architecture, *, inferred: bool) -> None:
        self.config, self.architecture = source.config, architecture
        self.mark = " (inferred from names and shapes)" if inferred else ""
        self.names = source.specs.keys()
        self.weights: list[Weight] = []
        self.norms: list[Norm] = []
        self.entries: list[Entry] = []
        self.promised: dict[tuple[str, str], bool] = {}  # (stack, kind) → every layer must have it

    def add(self, spec: TensorSpec) -> None:
        found = self.architecture.match(spec.name)
        if found is None:
            self.entries.append(_unmatched(spec, self.architecture.family))
            return
        pattern, numbers = found
        config = _section(self.config, pattern.config_key)
        case = pattern.case(config)
        if isinstance(case, str):
            self._enter(spec, "recognised", case)
        elif isinstance(case, NormSpec):
            self._add_norm(spec, pattern, case, numbers)
        elif case is None:
            self._enter(spec, "skipped", "its layout depends on the configuration", _CONFIG_REMEDY)
        else:
            self._add_matrix(spec, pattern, case, numbers, config)

    def _add_norm(self, spec: TensorSpec, pattern: Pattern, case: NormSpec, numbers: dict[str, int]) -> None:
        stem = spec.name.rsplit(".", 1)[0]
        bias = next((b for b in (f"{stem}.bias", f"{stem}.beta") if b in self.names), None)
        norm = Norm(
            tensor=spec.name, layer=numbers.get("layer"), stack=pattern.stack,
            side=case.side,  # type: ignore[arg-type]  # checked when the file was read
            feeds=case.feeds, zero_centered=case.zero_centered, bias=bias,
        )  # fmt: skip
        self.norms.append(norm)
        feeds = f", feeds {', '.join(case.feeds)}" if case.feeds else ""
        self._enter(spec, "recognised", f"norm ({case.side}){_at(numbers, pattern.stack)}{feeds}")

    def _add_matrix(
        self,
        spec: TensorSpec,
        pattern: Pattern,
        case: MatrixSpec,
        numbers: dict[str, int],
        config: Mapping[str, Any],
    ) -> None:
        if len(spec.shape) < 2:
            self._enter(
                spec,
                "skipped",
                f"expected a matrix ({'/'.join(case.kinds)}), its shape is {list(spec.shape)}",
            )
            return
        if case.stacked and len(spec.shape) != 3:
            self._enter(spec, "skipped", f"expected experts × rows × columns, its shape is {list(spec.shape)}")
            return
        try:
            parts = _parts(case, spec, config)
        except NeedsConfig as needed:
            self._enter(
                spec,
                "skipped",
                f"a fused matrix ({'/'.join(case.kinds)}) that needs {needed}",
                _CONFIG_REMEDY,
            )
            return
        for kind, split in parts:
            self.weights += _weights(spec, pattern.stack, case, kind, split, numbers)
            if "layer" in numbers:
                key = (pattern.stack, kind)
                self.promised[key] = self.promised.get(key, True) and not case.optional
        where = _at(numbers, pattern.stack)
        if case.split:
            self._enter(spec, "split", f"{'/'.join(case.split)} ({case.layout}){where}{self.mark}")
        else:
            self._enter(spec, "used", f"{case.kind}{where}{self.mark}")

    def _enter(self, spec: TensorSpec, state: State, detail: str, remedy: str = "") -> None:
        self.entries.append(_entry(spec, state, detail, remedy))

    def resolve_ties(self) -> None:
        """Offer a shared head (or embedding) under both kinds, or say that it is missing."""
        kinds = {w.role.kind: w for w in self.weights if w.role.kind in ("embed", "unembed")}
        if len(kinds) != 1:
            return
        have, lack = ("embed", "unembed") if "embed" in kinds else ("unembed", "embed")
        if lack == "unembed" and not self._has_head():
            return
        shared = kinds[have]
        tied = _tie_flag(self.config, self.architecture.tie_default)
        if not tied and lack == "unembed":
            detail = "no output head, and the configuration says that it is not tied to the embedding"
            self.entries.append(Entry("(output head)", "missing", detail, "check the download"))
            return
        orientation: Orientation = "out_in" if shared.role.orientation == "in_out" else "in_out"
        role = replace(shared.role, kind=lack, reads=KINDS[lack][0], writes=KINDS[lack][1],
                       orientation=orientation, tie=have)  # fmt: skip
        self.weights.append(replace(shared, role=role, shape=(shared.shape[1], shared.shape[0])))
        self.entries.append(Entry(f"({lack})", "tied", f"{lack} shares the bytes of {shared.tensor}"))

    def _has_head(self) -> bool:
        """The family has a language-model head, and this model is one that uses it."""
        if not any(
            isinstance(c, MatrixSpec) and "unembed" in c.kinds for p in self.architecture.patterns for c in p.cases
        ):
            return False
        names = self.config.get("architectures") or ["ForCausalLM"]
        words = ("LMHead", "ForCausalLM", "ConditionalGeneration", "MaskedLM", "PreTraining")
        return any(word in str(name) for name in names for word in words)

    def find_missing(self) -> None:
        """Enter layers and matrices that the family or the configuration promises and the checkpoint lacks."""
        layers: dict[str, set[int]] = defaultdict(set)
        have: dict[tuple[str, str], set[int]] = defaultdict(set)
        for w in self.weights:
            if w.role.layer is not None:
                layers[w.role.stack].add(w.role.layer)
                have[w.role.stack, w.role.kind].add(w.role.layer)
        for stack, found in layers.items():
            count = max(max(found) + 1, self._promised_layers(stack))
            for layer in sorted(set(range(count)) - found):
                self._missing(f"layer {layer}{_of(stack)}", "no tensor of this layer is in the checkpoint")
            for (other, kind), required in self.promised.items():
                for layer in sorted(found - have[other, kind]) if other == stack and required else ():
                    self._missing(f"{kind} of layer {layer}{_of(stack)}", "other layers have it, this one does not")

    def _promised_layers(self, stack: str) -> int:
        keys = {p.config_key for p in self.architecture.patterns if p.stack == stack}
        named = number(self.config, f"{stack}_layers") if stack else None
        return named or (number(_section(self.config, next(iter(keys))), "layers") if len(keys) == 1 else None) or 0

    def _missing(self, name: str, detail: str) -> None:
        self.entries.append(Entry(f"({name})", "missing", detail, "check the download, or a shard is missing"))


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
        return 1, [out // parts] * parts
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
    rows, columns = spec.shape[1:] if case.stacked else (spec.shape[0], prod(spec.shape[1:]))
    out, into = (rows, columns) if case.stored() == "out_in" else (columns, rows)
    out = split.rows if split else out
    each = spec.nbytes * out * into // max(1, prod(spec.shape))
    if not case.stacked:
        return [Weight(spec.name, role, (out, into), spec.dtype, each)]
    return [Weight(spec.name, replace(role, expert=e), (out, into), spec.dtype, each) for e in range(spec.shape[0])]


def _section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The part of a configuration that speaks of one tower, or the whole."""
    if key:
        return cast("Mapping[str, Any]", config.get(key) or config)
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else config


def _tie_flag(config: Mapping[str, Any], default: bool) -> bool:
    inner = config.get("text_config")
    nested = inner.get("tie_word_embeddings") if isinstance(inner, dict) else None
    flag = config.get("tie_word_embeddings", nested)
    # Without a word from the configuration, a checkpoint that lacks one of the two is a tied one.
    return (default or not config) if flag is None else bool(flag)


def _unmatched(spec: TensorSpec, family: str) -> Entry:
    if spec.dtype.startswith(("int", "uint", "bool")):
        return _entry(spec, "recognised", f"{spec.dtype} buffer, not a weight")
    what = "matrix" if len(spec.shape) >= 2 and min(spec.shape) > 1 else "vector"
    return _entry(spec, "unknown", f"a {what} that no {family} pattern names",
                  "map it with --roles FILE.toml (see CONTRIBUTING.md)")  # fmt: skip


def _entry(spec: TensorSpec, state: State, detail: str, remedy: str = "") -> Entry:
    return Entry(spec.name, state, detail, remedy, spec.shape, spec.dtype, spec.nbytes, spec.file)


def _note_entry(note: Note) -> Entry:
    if note.spec is None:
        return Entry(note.name, cast("State", note.state), note.detail, note.remedy)
    return _entry(replace(note.spec, name=note.name), cast("State", note.state), note.detail, note.remedy)


def _at(numbers: dict[str, int], stack: str) -> str:
    words = [stack] if stack else []
    words += [f"{word} {numbers[word]}" for word in ("layer", "expert") if word in numbers]
    return f" of {', '.join(words)}" if words else ""


def _of(stack: str) -> str:
    return f" of the {stack}" if stack else ""


def _empty_remedy(source: Source) -> str:
    notes = [n for n in source.notes if n.remedy]
    return notes[0].remedy if notes else "check the path and the download"
