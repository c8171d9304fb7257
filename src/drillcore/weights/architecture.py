"""Architectures as data: one TOML file per family, checked when it is read.

A file says, for each tensor name pattern, what the tensor is. See CONTRIBUTING.md for a worked example and
`architectures/llama.toml` for the plainest one. A pattern is a module name relative to `prefix` (one, or a list of
spellings); ``{layer}``, ``{expert}`` and ``*`` stand for numbers. ``.weight`` (and ``.bias``) are added unless the
entry says ``param = true``.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from drillcore.weights.role import KINDS, Orientation
from drillcore.weights.source import InputError

LAYOUTS = frozenset({"", "equal", "contiguous", "per_head", "grouped", "interleaved"})
_THREE = frozenset({"contiguous", "grouped"})  # layouts of q, k and v, whose sizes follow from the heads
_LISTS = ("split", "sizes", "feeds")
SIDES = frozenset({"in", "out", "post", "inner"})
_DIGITS = 6  # of a layer or an expert; a name with a larger number holds something else
_STORED_BY_INPUT = frozenset({"embed", "position", "token_type"})  # nn.Embedding: one row per input


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixSpec:
    """What a matrix pattern says."""

    kind: str = ""
    split: tuple[str, ...] = ()  # the kinds inside a fused matrix, in order
    layout: str = ""
    sizes: tuple[str, ...] = ()  # configuration keys of the part sizes, where they are not heads × head_dim
    groups: int = 1  # how often the "equal" layout repeats
    kv_heads: int | None = None  # where the layout fixes it (multi-query)
    orientation: Orientation | None = None
    reads: str | None = None
    writes: str | None = None
    stacked: bool = False
    optional: bool = False
    param: bool = False
    copy_of: str = ""  # the module whose tensor this one repeats, where the checkpoint stores both
    when: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that the tensor holds."""
        return self.split or (self.kind,)

    def stored(self) -> Orientation:
        """Orientation of the tensor as stored."""
        return self.orientation or ("in_out" if self.kind in _STORED_BY_INPUT else "out_in")


@dataclass(frozen=True, slots=True, kw_only=True)
class NormSpec:
    """What a norm pattern says."""

    side: str
    feeds: tuple[str, ...] = ()
    zero_centered: bool = False
    when: Mapping[str, Any] = field(default_factory=dict)
    unless: str = ""  # the case holds where the checkpoint has no module of this name (parallel branches, OPT-350m)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A name pattern with what it says; alternatives are tried in order by `when` and `unless`."""

    key: str  # the name with every number as "#": see `numbered`
    slots: tuple[str, ...]  # what each of these numbers is: "layer", "expert", "*" (any), or the number itself
    stack: str
    config_key: str
    cases: tuple[MatrixSpec | NormSpec | str, ...]
    layers: tuple[str, ...] = ()  # configuration keys of the number of layers, where they are not the usual ones

    def read(self, numbers: tuple[str, ...]) -> dict[str, int] | None:
        """The layer and expert among the numbers of a name with this key; None where a number cannot be one."""
        found = {}
        for slot, number in zip(self.slots, numbers, strict=True):
            if slot in ("layer", "expert"):
                if len(number) > _DIGITS:
                    return None
                found[slot] = int(number)
            elif slot not in ("*", number):
                return None
        return found

    def case(self, config: Mapping[str, Any], has: Callable[[str], bool]) -> "MatrixSpec | NormSpec | str | None":
        """The first case that agrees with the configuration and with the modules that the checkpoint `has`."""
        return next((case for case in self.cases if isinstance(case, str) or _holds(case, config, has)), None)


def _holds(case: MatrixSpec | NormSpec, config: Mapping[str, Any], has: Callable[[str], bool]) -> bool:
    if isinstance(case, NormSpec) and case.unless and has(case.unless):
        return False
    return all((False if config.get(k) is None else config[k]) == v for k, v in case.when.items())


@dataclass(frozen=True, slots=True)
class Architecture:
    """One family: model types, prefixes to strip, patterns."""

    family: str
    model_types: tuple[str, ...]
    prefixes: tuple[str, ...]
    tie_default: bool
    head_marks: tuple[str, ...]  # parts of names that show an output head, where the family often has none
    patterns: tuple[Pattern, ...]
    index: Mapping[str, tuple[Pattern, ...]]  # patterns by `key`

    @classmethod
    def of(
        cls,
        family: str,
        patterns: Iterable[Pattern],
        *,
        model_types: Iterable[str] = (),
        prefixes: Iterable[str] = (),
        tie_default: bool = False,
        head_marks: Iterable[str] = (),
    ) -> "Architecture":
        """An architecture whose patterns are indexed by name."""
        patterns = tuple(patterns)
        index: dict[str, tuple[Pattern, ...]] = {}
        for pattern in patterns:
            index[pattern.key] = (*index.get(pattern.key, ()), pattern)
        longest_first = sorted({*prefixes, *PREFIXES}, key=lambda prefix: (-len(prefix), prefix))
        return cls(
            family, tuple(model_types), tuple(longest_first), tie_default, tuple(head_marks), patterns, index
        )  # fmt: skip

    def match(self, name: str) -> tuple[Pattern, dict[str, int]] | None:
        """The pattern that names the tensor, with its layer and expert numbers; None where there is none."""
        name = unwrapped(name)
        for prefix in self.prefixes:
            if name.startswith(prefix):
                key, numbers = numbered(name[len(prefix) :])
                for pattern in self.index.get(key, ()):
                    found = pattern.read(numbers)
                    if found is not None:
                        return pattern, found
        return None

    def block_norms(self) -> set[str]:
        """The keys of the gains that stand on the stream or on a branch of it."""
        return {p.key for p in self.patterns if p.key.endswith(".weight") and any(map(_faces_stream, p.cases))}

    def required(self) -> dict[str, tuple[set[str], set[str]]]:
        """Stack → (kinds that every model has once, kinds that every layer has)."""
        kinds: dict[str, tuple[set[str], set[str]]] = {}
        for pattern in self.patterns:
            in_layers = "layer" in pattern.slots
            for case in pattern.cases:
                if isinstance(case, MatrixSpec) and not case.optional:
                    kinds.setdefault(pattern.stack, (set(), set()))[in_layers].update(case.kinds)
        return kinds


def _faces_stream(case: MatrixSpec | NormSpec | str) -> bool:
    return isinstance(case, NormSpec) and case.side != "inner"


# What wrapping models and heads put before the modules of a family; a file adds its own.
PREFIXES = ("", "model.", "transformer.", "language_model.", "language_model.model.", "model.language_model.")
_WRAPPERS = re.compile(r"_orig_mod\.|_fsdp_wrapped_module\.|_checkpoint_wrapped_module\.|^(?:module\.)+")


def unwrapped(name: str) -> str:
    """The name without what torch.compile, FSDP and DDP add."""
    return _WRAPPERS.sub("", name) if name[:1] in ("_", "m") or "._" in name else name


def numbered(name: str) -> tuple[str, tuple[str, ...]]:
    """The name with every number between dots as "#", and the numbers: layers.3.mlp → layers.#.mlp, ("3",)."""
    parts = name.split(".")
    numbers = tuple(part for part in parts if part.isdecimal())
    return ".".join("#" if part.isdecimal() else part for part in parts) if numbers else name, numbers


@cache
def architectures() -> tuple[Architecture, ...]:
    """Every architecture that ships with drillcore, by family name."""
    folder = Path(__file__).parent / "architectures"
    return tuple(load_architecture(path) for path in sorted(folder.glob("*.toml")))


def load_architecture(path: Path) -> Architecture:
    """Read and check one architecture file.

    Raises:
        InputError: the file is missing, is not TOML, or holds an unknown key, kind, layout or side.
    """
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=path,
                         remedy="give a TOML file with --roles") from error  # fmt: skip
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"is not TOML: {error}", where=path, remedy=_EXAMPLE) from error
    try:
        return _architecture(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"lacks the key {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(reason, where=path, remedy=_EXAMPLE) from error


_EXAMPLE = (
    'a roles file looks like: family = "mine" / prefixes = ["model."] / [[part]] / prefix = "layers.{layer}." / '
    '[part.matrix] / "attn.query" = { kind = "q" }; see CONTRIBUTING.md'
)


def _architecture(data: dict[str, Any]) -> Architecture:
    _only(data, {"family", "model_types", "prefixes", "tie_default", "head_marks", "part"}, "the file")
    for key in ("model_types", "prefixes", "head_marks"):
        if not isinstance(data.get(key, []), list):
            raise ValueError(f"{key}: expected a list")
    if not isinstance(data["part"], list):
        raise ValueError("part: expected [[part]], an array of tables")
    return Architecture.of(
        data["family"],
        [p for part in data["part"] for p in _part_patterns(part)],
        model_types=data.get("model_types", ()),
        prefixes=data.get("prefixes", ()),
        tie_default=data.get("tie_default", False),
        head_marks=data.get("head_marks", ()),
    )


def _part_patterns(part: dict[str, Any]) -> list[Pattern]:
    _only(part, {"prefix", "stack", "config", "layers", "matrix", "norm", "other"}, "[[part]]")
    prefixes = _listed(part.get("prefix", ""))

    def patterns(name: str, suffix: str, cases: list[Any]) -> list[Pattern]:
        return [_pattern(prefix + name, suffix, tuple(cases), part) for prefix in prefixes]

    made = []
    for name, value in part.get("matrix", {}).items():
        specs = [_matrix(case, name) for case in _cases(value, name)]
        made += patterns(name, "" if specs[0].param else ".weight", specs)
        if not specs[0].param:
            made += patterns(name, ".bias", [f"bias of {'/'.join(specs[0].kinds)}"])
    for name, value in part.get("norm", {}).items():
        norms = [_norm(case, name) for case in _cases(value, name)]
        for gain in (".weight", ".gamma", ".scale"):
            made += patterns(name, gain, norms)
        for shift in (".bias", ".beta"):
            made += patterns(name, shift, [f"shift of the norm {name}"])
    for name, text in part.get("other", {}).items():
        made += patterns(name, "", [str(text)])
    return made


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _cases(value: Any, name: str) -> list[dict[str, Any]]:
    """The table of a pattern, or its list of tables."""
    cases = _listed(value)
    if not cases or not all(isinstance(case, dict) and isinstance(case.get("when", {}), dict) for case in cases):
        raise ValueError(f'"{name}": expected a table such as {{ kind = "q" }}, or a list of tables')
    for key in _LISTS:
        if any(not isinstance(case.get(key, []), list) for case in cases):
            raise ValueError(f'"{name}": {key} is a list, for example ["q", "k", "v"]')
    return cases


def _matrix(value: dict[str, Any], name: str) -> MatrixSpec:
    _only(value, {f.name for f in fields(MatrixSpec)}, f'"{name}"')
    spec = MatrixSpec(**_frozen(value))
    for kind in spec.kinds:
        if kind not in KINDS and not (spec.reads and spec.writes):
            raise ValueError(f'"{name}": unknown kind {kind!r}; known kinds: {", ".join(KINDS)}')
    if spec.layout not in LAYOUTS:
        raise ValueError(f'"{name}": unknown layout {spec.layout!r}; known: {", ".join(sorted(LAYOUTS))}')
    if spec.sizes and len(spec.sizes) != len(spec.split):
        raise ValueError(f'"{name}": {len(spec.sizes)} sizes for {len(spec.split)} parts')
    if spec.split and spec.layout in _THREE and not spec.sizes and len(spec.split) != 3:
        raise ValueError(f'"{name}": the layout {spec.layout} has three parts, or sizes')
    if bool(spec.split) == bool(spec.kind) or bool(spec.split) != bool(spec.layout):
        raise ValueError(f'"{name}": give either a kind, or a split with its layout')
    if spec.orientation not in (None, "out_in", "in_out"):
        raise ValueError(f'"{name}": unknown orientation {spec.orientation!r}; known: in_out, out_in')
    return spec


def _norm(value: dict[str, Any], name: str) -> NormSpec:
    _only(value, {f.name for f in fields(NormSpec)}, f'"{name}"')
    spec = NormSpec(**_frozen(value))
    if spec.side not in SIDES:
        raise ValueError(f'"{name}": unknown side {spec.side!r}; known: {", ".join(sorted(SIDES))}')
    for kind in spec.feeds:
        if kind not in KINDS:
            raise ValueError(f'"{name}": feeds the unknown kind {kind!r}; known kinds: {", ".join(KINDS)}')
    return spec


def _frozen(value: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in value.items()}


def _only(table: Mapping[str, Any], allowed: set[str], where: str) -> None:
    unknown = set(table) - allowed
    if unknown:
        raise ValueError(f"{where}: unknown key {sorted(unknown)[0]!r}; allowed: {', '.join(sorted(allowed))}")


_SLOTS = {"{layer}": "layer", "{expert}": "expert", "*": "*"}


def _pattern(name: str, suffix: str, cases: tuple[Any, ...], part: Mapping[str, Any]) -> Pattern:
    words = (name + suffix).split(".")
    numbers = [word for word in words if word in _SLOTS or word.isdecimal()]
    return Pattern(
        key=".".join("#" if word in numbers else word for word in words),
        slots=tuple(_SLOTS.get(word, word) for word in numbers),
        stack=part.get("stack", ""),
        config_key=part.get("config", ""),
        cases=cases,
        layers=tuple(part.get("layers", ())),
    )
