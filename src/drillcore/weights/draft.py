"""A census in the making: what has been found so far, what is shared, what does not fit and what is missing."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from drillcore.weights.architecture import Architecture, MatrixSpec, Pattern, unwrapped
from drillcore.weights.census import Entry, State
from drillcore.weights.layout import number
from drillcore.weights.role import Norm, Orientation, Weight
from drillcore.weights.source import Source, TensorSpec

_CHECK = "check the download, or a shard is missing"
_HEADED = ("LMHead", "ForCausalLM", "ConditionalGeneration", "MaskedLM", "PreTraining", "DoubleHeads", "MTModel")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_OTHER_STREAM = frozenset({"cross_k", "cross_v"})  # they read the encoder's stream, which may have another width


@dataclass
class Draft:
    """Weights, norms and entries of one source, and the checks that need all of them."""

    source: Source
    architecture: Architecture
    weights: list[Weight] = field(default_factory=list)
    norms: list[Norm] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    # (stack, kind) → layers in which a tensor of the kind was met, used or skipped; None outside the layers
    seen: dict[tuple[str, str], set[int | None]] = field(default_factory=lambda: defaultdict(set))
    _sections: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _counts: dict[tuple[str, tuple[str, ...]], int | None] = field(default_factory=dict)
    _modules: dict[str, bool] = field(default_factory=dict)

    @cached_property
    def names(self) -> frozenset[str]:
        """Every tensor's name without wrappers."""
        return frozenset(map(unwrapped, self.source.specs))

    def has(self, module: str) -> bool:
        """Whether the checkpoint holds the weight of a module whose name ends so."""
        if module not in self._modules:
            self._modules[module] = any(f".{name}".endswith(f".{module}.weight") for name in self.names)
        return self._modules[module]

    def section(self, key: str) -> Mapping[str, Any]:
        """The part of the configuration that speaks of one tower, or the whole."""
        if key not in self._sections:
            config = self.source.config
            inner = config.get(key or "text_config")
            if not isinstance(inner, dict):
                inner = {}
            self._sections[key] = inner if key and inner else {**config, **inner}
        return self._sections[key]

    def layers(self, pattern: Pattern) -> int | None:
        """How many layers the configuration promises to the stack of a pattern."""
        key = (pattern.config_key, pattern.layers)
        if key not in self._counts:
            counts = (number(self.section(pattern.config_key), name) for name in pattern.layers or ("layers",))
            self._counts[key] = next((count for count in counts if count is not None), None)
        return self._counts[key]

    def enter(self, spec: TensorSpec, state: State, detail: str, remedy: str = "") -> None:
        """Add the entry of a tensor."""
        self.entries.append(entry(spec, state, detail, remedy))

    def refuse_doubles(self) -> None:
        """Skip a second matrix of the same stack, kind, layer and expert: it would be counted as another one."""
        first: dict[tuple[str, str, int | None, int | None], str] = {}
        doubles: dict[str, str] = {}
        for weight in self.weights:
            role = weight.role
            here = first.setdefault((role.stack, role.kind, role.layer, role.expert), weight.tensor)
            if here != weight.tensor:
                doubles[weight.tensor] = f"a second {role.kind} of its place; {here} is used"
        self._skip(doubles)

    def refuse_misfits(self) -> None:
        """Skip the matrices whose stream side is not as wide as the stream: the family or its layout is wrong."""
        misfits: dict[str, str] = {}
        for stack, width in self._widths().items():
            for weight in self.weights:
                side = _stream_side(weight)
                if weight.role.stack == stack and side not in (None, width):
                    misfits[weight.tensor] = (
                        f"as {weight.role.kind} it would face a stream of width {side}, the others face {width}"
                    )
        self._skip(misfits)

    def _skip(self, reasons: Mapping[str, str]) -> None:
        """Take the weights of the named tensors out again."""
        remedy = "describe its layout with --roles FILE.toml"
        self.weights = [w for w in self.weights if w.tensor not in reasons]
        self.entries = [
            replace(e, state="skipped", detail=reasons[e.tensor], remedy=remedy) if e.tensor in reasons else e
            for e in self.entries
        ]

    def _widths(self) -> dict[str, int]:
        """Stack → width of its stream, by the matrices of its layers."""
        counts: dict[str, Counter[int]] = defaultdict(Counter)
        for weight in self.weights:
            side = _stream_side(weight)
            if side is not None and weight.role.layer is not None:
                counts[weight.role.stack][side] += 1
        return {stack: count.most_common(1)[0][0] for stack, count in counts.items()}

    def face_projections(self) -> None:
        """Let a narrower embedding (OPT-350m, ELECTRA) face its projection instead of the stream."""
        narrow = {w.shape[1] for w in self.weights if w.role.kind == "project_in"}
        for i, weight in enumerate(self.weights):
            role = weight.role
            if role.kind in ("embed", "position", "token_type") and weight.shape[0] in narrow:
                self.weights[i] = replace(weight, role=replace(role, writes="embedding"))
            elif role.kind == "unembed" and weight.shape[1] in narrow:
                self.weights[i] = replace(weight, role=replace(role, reads="embedding"))

    def resolve_ties(self) -> None:
        """Offer a shared head (or embedding) under both kinds, or say that it is missing."""
        kinds = {w.role.kind: w for w in self.weights if w.role.kind in ("embed", "unembed")}
        if len(kinds) == 2 and self._tied_by_configuration():
            note = "; the configuration ties it to the embedding, the file stores both"
            head = kinds["unembed"].tensor
            self.entries = [replace(e, detail=e.detail + note) if e.tensor == head else e for e in self.entries]
        if len(kinds) != 1:
            return
        have, lack = ("embed", "unembed") if "embed" in kinds else ("unembed", "embed")
        if not (self._has_head() if lack == "unembed" else self._may_have("embed")):
            return
        what = "output head" if lack == "unembed" else "embedding"
        if not self._tied():
            detail = f"no {what}, and the configuration says that embedding and output head are not tied"
            self.entries.append(Entry(f"({what})", "missing", detail, "check the download"))
            return
        shared = kinds[have]
        orientation: Orientation = "out_in" if shared.role.orientation == "in_out" else "in_out"
        role = replace(shared.role, kind=lack, reads=shared.role.writes, writes=shared.role.reads,
                       orientation=orientation, tie=have)  # fmt: skip
        self.weights.append(replace(shared, role=role, shape=(shared.shape[1], shared.shape[0])))
        self.entries.append(Entry(f"({what})", "tied", f"{lack} shares the bytes of {shared.tensor}"))

    def _tied(self) -> bool:
        flag = self._tied_by_configuration()
        # Without a word from the configuration, a checkpoint that lacks one of the two is a tied one.
        return (self.architecture.tie_default or not self.source.config) if flag is None else flag

    def _tied_by_configuration(self) -> bool | None:
        flag = self.source.config.get("tie_word_embeddings")
        flag = self.section("").get("tie_word_embeddings") if flag is None else flag
        return flag if isinstance(flag, bool) else None

    def _has_head(self) -> bool:
        """The family has a language-model head, and this model is one that uses it."""
        marks = self.architecture.head_marks
        if marks:
            return any(mark in name for mark in marks for name in self.names)
        named = self.source.config.get("architectures")
        classes = named if isinstance(named, list) and named else ["ForCausalLM"]
        return self._may_have("unembed") and any(word in str(name) for name in classes for word in _HEADED)

    def _may_have(self, kind: str) -> bool:
        cases = (case for pattern in self.architecture.patterns for case in pattern.cases)
        return any(isinstance(case, MatrixSpec) and kind in case.kinds for case in cases)

    def find_missing(self, *, sure: bool) -> None:
        """Enter what the family or the configuration promises and the checkpoint lacks.

        A family that was not named by the configuration (`sure`) promises only what some layer has.
        """
        for stack, (once, every_layer) in self.architecture.required().items():
            met = {kind for other, kind in self.seen if other == stack}
            if sure and (met or not stack):
                self._find_missing_outside(stack, once)
            if met or not stack:
                self._find_missing_layers(stack, every_layer if sure else every_layer & met)
        self._find_missing_experts()

    def _find_missing_outside(self, stack: str, kinds: Iterable[str]) -> None:
        have = {kind for other, kind in self.seen if other == stack} | {w.role.kind for w in self.weights if w.role.tie}
        told = {e.tensor for e in self.entries if e.state == "missing"}
        for kind in sorted(set(kinds) - have):
            if kind != "embed" or "(embedding)" not in told:
                self._missing(f"{kind}{_of(stack)}", "every model of the family has one")

    def _find_missing_layers(self, stack: str, required: set[str]) -> None:
        met = {kind: {n for n in layers if n is not None} for (at, kind), layers in self.seen.items() if at == stack}
        found = set().union(*met.values())
        in_layers = (p for p in self.architecture.patterns if p.stack == stack and "layer" in p.slots)
        promised = next((count for p in in_layers if (count := self.layers(p))), 0)
        for first, last in _gaps(found, promised):
            several = f"layers {first} to {last}" if last > first else f"layer {first}"
            self._missing(f"{several}{_of(stack)}", "no tensor of this layer is in the checkpoint")
        for kind in sorted(required):
            for layer in sorted(found - met.get(kind, set())):
                self._missing(f"{kind} of layer {layer}{_of(stack)}", "every layer of the family has it")

    def _find_missing_experts(self) -> None:
        met: dict[tuple[str, str, int | None], set[int]] = defaultdict(set)
        for w in self.weights:
            if w.role.expert is not None:
                met[w.role.stack, w.role.kind, w.role.layer].add(w.role.expert)
        given = (number(self.section(""), key) for key in _EXPERTS)
        count = max((n + 1 for experts in met.values() for n in experts), default=0)
        count = max(count, next((n for n in given if n), 0)) if met else 0
        for (stack, kind, layer), experts in met.items():
            if len(experts) < count:
                gaps = [str(a) if a == b else f"{a} to {b}" for a, b in _gaps(experts, count)]
                what = f"{kind} of layer {layer}{_of(stack)}, expert {', '.join(gaps[:8])}"
                lack = count - len(experts)
                self._missing(what + (" …" if len(gaps) > 8 else ""), f"{lack} of {count} experts are missing")

    def _missing(self, name: str, detail: str) -> None:
        self.entries.append(Entry(f"({name})", "missing", detail, _CHECK))


def _gaps(found: Iterable[int], count: int) -> list[tuple[int, int]]:
    """The runs (first, last) of the numbers below `count`, or below the largest of `found`, that `found` lacks."""
    ends = [-1, *sorted(found)]
    ends.append(max(count, ends[-1] + 1))
    return [(a + 1, b - 1) for a, b in pairwise(ends) if b > a + 1]


def entry(spec: TensorSpec, state: State, detail: str, remedy: str = "") -> Entry:
    """The census entry of a tensor."""
    return Entry(spec.name, state, detail, remedy, spec.shape, spec.dtype, spec.nbytes, spec.file)


def _stream_side(weight: Weight) -> int | None:
    """The width of the side that faces the stream; None where none does, or another stack's."""
    if not weight.role.faces or weight.role.kind in _OTHER_STREAM:
        return None
    return weight.shape[1] if weight.role.faces == "in" else weight.shape[0]


def _of(stack: str) -> str:
    return f" of the {stack}" if stack else ""
