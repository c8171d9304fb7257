"""A PEFT LoRA folder: each delta scale·B·A under the name of the base's tensor, kept as its two factors.

Scale is alpha / r, or alpha / √r with `use_rslora` (Kalajdzievski 2023), with `alpha_pattern` and `rank_pattern`
matched to module names as PEFT does.
"""

import re
from collections.abc import Mapping, Sequence
from math import isfinite, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from drillcore.linalg.factored import Matrix, Product
from drillcore.weights.folder import read_config
from drillcore.weights.source import Config, InputError, Note, Source, TensorSpec

_FACTOR = re.compile(
    r"(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<letter>[AB])(?:\.[^.]+)??(?P<end>\.weight|\.bias)?"
)
_SAVED = re.compile(r"\.modules_to_save(?:\.[^.]+)?(?=\.[^.]+$)")
_REPAIR = "repair it, or download the adapter again"
_MERGE = "merge the adapter into its base (PEFT: model.merge_and_unload()) and survey the merged checkpoint"


class Delta(NamedTuple):
    """One low-rank change: where its factors lie, and how the base stores the matrix that it changes."""

    a: str  # r × in
    b: str  # out × r
    scale: float
    transposed: bool  # the base stores in × out


class LoraSource:
    """An adapter as a source of products; `config` is that of the base model."""

    def __init__(self, inner: Source, adapter: Config, *, config: Config) -> None:
        _refuse_others(inner, adapter)
        _check_numbers(inner.label, adapter)
        self._inner, self.label, self.config = inner, inner.label, config
        self._deltas: dict[str, Delta] = {}
        self._whole: dict[str, str] = {}  # name in the base → name in the file
        self.specs: dict[str, TensorSpec] = {}
        notes = list(inner.notes)
        for name in inner.specs:
            notes += self._add(name, adapter)
        self.notes: Sequence[Note] = tuple(notes)

    def read(self, name: str, rows: slice | None = None) -> Matrix:
        """See `Source.read`: a float32 `Product` for a delta, a tensor for a module that was saved whole."""
        if name in self._whole:
            return self._inner.read(self._whole[name], rows)
        delta = self._deltas[name]
        a, b = self._inner.read(delta.a), self._inner.read(delta.b)
        assert isinstance(a, Tensor)
        assert isinstance(b, Tensor)
        product = Product(b.to(torch.float32) * delta.scale, a.to(torch.float32))
        product = product.T if delta.transposed else product
        return product if rows is None else Product(product.left[rows], product.right)

    def _add(self, name: str, adapter: Config) -> list[Note]:
        """Enter one tensor of the file; the notes it leaves."""
        spec = self._inner.specs[name]
        found = _FACTOR.fullmatch(name)
        if ".base_layer." in name:
            return [Note(name, "recognised", "the base's own weights, saved beside their delta", spec=spec)]
        if found is None:
            plain = _plain(_SAVED.sub("", name))
            self._whole[plain] = name
            self.specs[plain] = TensorSpec(plain, spec.shape, spec.dtype, spec.nbytes, spec.file)
            return [Note(f"({plain})", "recognised", "saved whole (modules_to_save): replaces the base's, not a delta")]
        if found["end"] == ".bias":
            return [Note(name, "recognised", "bias of a LoRA factor", spec=spec)]
        partner = _partner(name, found)
        if partner not in self._inner.specs:
            return [Note(name, "skipped", f"its other factor {partner} is missing", "download the adapter again", spec)]
        return self._add_delta(name, partner, found, adapter) if found["letter"] == "A" else []

    def _add_delta(self, a: str, b: str, found: re.Match[str], adapter: Config) -> list[Note]:
        left, right = self._inner.specs[b], self._inner.specs[a]
        module, embedding = _plain(found["module"]), found["embedding"] is not None
        name = f"{module}.weight"
        rank, scale = _rank_and_scale(module, adapter)
        if len(left.shape) != 2 or len(right.shape) != 2:
            return _skip_both(left, right, "LoRA on a convolution or on stacked experts")
        if not rank == right.shape[0] == left.shape[1]:
            return _skip_both(left, right, f"the configuration says rank {rank}, the factors have "
                                           f"{right.shape[0]} and {left.shape[1]}")  # fmt: skip
        transposed = embedding or bool(adapter.get("fan_in_fan_out"))
        self._deltas[name] = Delta(a, b, scale, transposed)
        out, into = left.shape[0], right.shape[1]
        shape = (into, out) if transposed else (out, into)
        self.specs[name] = TensorSpec(name, shape, left.dtype, left.nbytes + right.nbytes, left.file, True)
        return []


def read_adapter_config(folder: Path) -> Config:
    """The adapter_config.json of a folder.

    Raises:
        InputError: it cannot be read.
    """
    return read_config(folder / "adapter_config.json", required=True)


def _refuse_others(inner: Source, adapter: Config) -> None:
    kind = str(adapter.get("peft_type", "LORA"))
    if kind.upper() != "LORA":
        raise InputError(f"is a PEFT adapter of type {kind}; only LORA is a difference of weights that can be read",
                         where=inner.label, remedy=_MERGE)  # fmt: skip
    if adapter.get("use_dora") or any("lora_magnitude_vector" in name for name in inner.specs):
        raise InputError("is a DoRA adapter: its change depends on the norm of the base's columns, it is not a "
                         "product of two factors", where=inner.label, remedy=_MERGE)  # fmt: skip
    if adapter.get("target_parameters"):
        raise InputError("is a LoRA on bare parameters (target_parameters), whose factors are stacked over experts",
                         where=inner.label, remedy=_MERGE)  # fmt: skip


def _check_numbers(label: str, adapter: Config) -> None:
    """Ranks and alphas are numbers, their patterns regular expressions."""
    for key, patterns, least in (("r", "rank_pattern", 1), ("lora_alpha", "alpha_pattern", None)):
        given = adapter.get(patterns) or {}
        if not isinstance(given, Mapping):
            raise InputError(f"{patterns} is not an object", where=f"{label}/adapter_config.json", remedy=_REPAIR)
        for name, value in {key: adapter.get(key, 8), **given}.items():
            if not _is_number(value, least):
                raise InputError(f"{name} is {value!r}, not a number{' of at least 1' if least else ''}",
                                 where=f"{label}/adapter_config.json", remedy=_REPAIR)  # fmt: skip
        for pattern in given:
            try:
                re.compile(pattern)
            except re.error as error:
                raise InputError(f"{patterns}: {pattern!r} is not a regular expression ({error})",
                                 where=f"{label}/adapter_config.json", remedy=_REPAIR) from error  # fmt: skip


def _is_number(value: object, least: int | None) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and value >= least if least is not None else (whole or isinstance(value, float)) and isfinite(value)  # type: ignore[operator, arg-type]


def _rank_and_scale(module: str, adapter: Config) -> tuple[int, float]:
    rank = int(_by_pattern(module, adapter.get("rank_pattern"), adapter.get("r", 8)))
    alpha = float(_by_pattern(module, adapter.get("alpha_pattern"), adapter.get("lora_alpha", 8)))
    return rank, alpha / (sqrt(rank) if adapter.get("use_rslora") else rank)


def _by_pattern(module: str, patterns: Mapping[str, Any] | None, default: Any) -> Any:
    """The value of the first pattern that matches the module's name or its end, as PEFT decides."""
    for key, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({key})$", module):
            return value
    return default


def _plain(name: str) -> str:
    """The base's own name of a module."""
    return name.removeprefix("base_model.model.")


def _partner(name: str, found: re.Match[str]) -> str:
    at = found.start("letter")
    return name[:at] + ("B" if found["letter"] == "A" else "A") + name[at + 1 :]


def _skip_both(left: TensorSpec, right: TensorSpec, reason: str) -> list[Note]:
    return [Note(spec.name, "skipped", reason, _MERGE, spec) for spec in (left, right)]
