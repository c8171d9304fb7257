"""Architectures as data: one TOML file per family, checked when it is read.

A file says, for each tensor name pattern, what the tensor is. See CONTRIBUTING.md for a worked example and
`architectures/llama.toml` for the plainest one. A pattern is a module name relative to `prefix`; ``{layer}``
and ``{expert}`` stand for numbers. ``.weight`` (and ``.bias``) are added unless the entry says ``param = true``.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from drillcore.weights.role import KINDS, Orientation
from drillcore.weights.source import InputError

LAYOUTS = frozenset({"", "equal", "contiguous", "per_head", "grouped", "interleaved"})
SIDES = frozenset({"in", "out", "post", "inner"})
_STORED_BY_INPUT = frozenset({"embed", "position", "token_type"})  # nn.Embedding: one row per input


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixSpec:
    """What a matrix pattern says."""

    kind: str = ""
    split: tuple[str, ...] = ()  # the kinds inside a fused matrix, in order
    layout: str = ""
    sizes: tuple[str, ...] = ()  # configuration keys of the part sizes, where they are not heads × head_dim
    kv_heads: int | None = None  # where the layout fixes it (multi-query)
    orientation: Orientation | None = None
    reads: str | None = None
    writes: str | None = None
    stacked: bool = False
    optional: bool = False
    param: bool = False
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
    optional: bool = False
    when: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled name pattern with what it says; alternatives are tried in order by their `when`."""

    regex: re.Pattern[str]
    stack: str
    config_key: str
    cases: tuple[MatrixSpec | NormSpec | str, ...]

    def case(self, config: Mapping[str, Any]) -> "MatrixSpec | NormSpec | str | None":
        """The first case whose `when` agrees with the configuration."""
        for case in self.cases:
            if isinstance(case, str) or all(config.get(k, False) == v for k, v in case.when.items()):
                return case
        return None


@dataclass(frozen=True, slots=True)
class Architecture:
    """One family: model types, prefixes to strip, patterns."""

    family: str
    model_types: tuple[str, ...]
    prefixes: tuple[str, ...]
    tie_default: bool
    patterns: tuple[Pattern, ...]

    def match(self, name: str) -> tuple[Pattern, dict[str, int]] | None:
        """The pattern that names the tensor, with its layer and expert numbers; None where there is none."""
        name = _unwrapped(name)
        for prefix in self.prefixes:
            if not name.startswith(prefix):
                continue
            for pattern in self.patterns:
                found = pattern.regex.fullmatch(name, len(prefix))
                if found:
                    return pattern, {k: int(v) for k, v in found.groupdict().items() if v and v.isdigit()}
        return None


_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.")


def _unwrapped(name: str) -> str:
    """The name without what torch.compile, FSDP and DDP add."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name.removeprefix("module.")


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
        raise InputError(f"cannot be read ({error.strerror})", where=path) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"is not TOML: {error}", where=path, remedy=_EXAMPLE) from error
    try:
        return _architecture(data)
    except (KeyError, TypeError, ValueError) as error:
        reason = f"lacks the key {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(reason, where=path, remedy=_EXAMPLE) from error


_EXAMPLE = (
    'a roles file looks like: family = "mine" / prefixes = ["model."] / [[part]] / prefix = "layers.{layer}." / '
    '[part.matrix] / "attn.query" = { kind = "q" }; see CONTRIBUTING.md'
)


def _architecture(data: dict[str, Any]) -> Architecture:
    _only(data, {"family", "model_types", "prefixes", "tie_default", "part"}, "the file")
    patterns = [p for part in data["part"] for p in _part_patterns(part)]
    prefixes = sorted({*data.get("prefixes", []), ""}, key=len, reverse=True)
    return Architecture(
        family=data["family"],
        model_types=tuple(data.get("model_types", ())),
        prefixes=tuple(prefixes),
        tie_default=data.get("tie_default", False),
        patterns=tuple(patterns),
    )


def _part_patterns(part: dict[str, Any]) -> list[Pattern]:
    _only(part, {"prefix", "stack", "config", "matrix", "norm", "other"}, "[[part]]")
    stack, config_key, prefix = part.get("stack", ""), part.get("config", ""), part.get("prefix", "")

    def pattern(name: str, suffix: str, cases: list[Any]) -> Pattern:
        return Pattern(_compile(prefix + name, suffix), stack, config_key, tuple(cases))

    made = []
    for name, value in part.get("matrix", {}).items():
        specs = [_matrix(case, name) for case in _cases(value)]
        made.append(pattern(name, "" if specs[0].param else r"\.weight", specs))
        if not specs[0].param:
            made.append(pattern(name, r"\.bias", [f"bias of {'/'.join(specs[0].kinds)}"]))
    for name, value in part.get("norm", {}).items():
        norms = [_norm(case, name) for case in _cases(value)]
        made.append(pattern(name, r"(?:\.weight|\.gamma|\.scale)", norms))
        made.append(pattern(name, r"(?:\.bias|\.beta)", [f"shift of the norm {name}"]))
    for name, text in part.get("other", {}).items():
        made.append(pattern(name, "", [str(text)]))
    return made


def _cases(value: Any) -> list[dict[str, Any]]:
    return value if isinstance(value, list) else [value]


def _matrix(value: dict[str, Any], name: str) -> MatrixSpec:
    _only(value, {f.name for f in fields(MatrixSpec)}, f'"{name}"')
    spec = MatrixSpec(**_frozen(value))
    for kind in spec.kinds:
        if kind not in KINDS and not (spec.reads and spec.writes):
            raise ValueError(f'"{name}": unknown kind {kind!r}; known kinds: {", ".join(KINDS)}')
    if spec.layout not in LAYOUTS:
        raise ValueError(f'"{name}": unknown layout {spec.layout!r}; known: {", ".join(sorted(LAYOUTS))}')
    if spec.split and not spec.layout:
        raise ValueError(f'"{name}": a split matrix needs a layout')
    return spec


def _norm(value: dict[str, Any], name: str) -> NormSpec:
    _only(value, {f.name for f in fields(NormSpec)}, f'"{name}"')
    spec = NormSpec(**_frozen(value))
    if spec.side not in SIDES:
        raise ValueError(f'"{name}": unknown side {spec.side!r}; known: {", ".join(sorted(SIDES))}')
    return spec


def _frozen(value: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in value.items()}


def _only(table: Mapping[str, Any], allowed: set[str], where: str) -> None:
    unknown = set(table) - allowed
    if unknown:
        raise ValueError(f"{where}: unknown key {sorted(unknown)[0]!r}; allowed: {', '.join(sorted(allowed))}")


def _compile(name: str, suffix: str) -> re.Pattern[str]:
    escaped = re.escape(name)
    for word in ("layer", "expert"):
        escaped = escaped.replace(rf"\{{{word}\}}", rf"(?P<{word}>\d+)")
    return re.compile(escaped.replace(r"\*", r"\d+") + suffix)
