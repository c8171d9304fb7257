"""Where the norms of a model stand: before a branch, after it, on both sides, or on the stream.

The model type decides, from a table or from the family's file of roles; the names of the norms are held against it.
Where they contradict each other, or neither knows, the answer is "undecided": names alone mislead
(`post_attention_layernorm` stands before the MLP in Llama, and on attention's output in Gemma 2).
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import sqrt
from pathlib import Path
from typing import Any, Literal, get_args

from drillcore.weights.assign import Assignment
from drillcore.weights.norm_names import looks_like_norm, placements_by_names
from drillcore.weights.role import Norm
from drillcore.weights.source import InputError, Source

NormPlacement = Literal["none", "pre", "post", "peri", "branch_out", "sub_ln", "deepnorm", "ngpt", "undecided"]
PLACEMENTS: tuple[str, ...] = get_args(NormPlacement)[:-1]
_REMEDY = f"say which with --norm-placement ({', '.join(PLACEMENTS)})"
_EPS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_eps", "norm_epsilon")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Norms of one stack. `reason` and `remedy` are empty unless `norm_placement` is "undecided"."""

    stack: str
    norm_placement: NormPlacement
    norm_kind: Literal["layernorm", "rmsnorm"]
    qk_norm: bool
    parallel: bool
    final_norm: bool
    embed_norm: bool
    zero_centered_gain: bool
    residual_step: float
    eps: float
    decided_by: Literal["model_type", "roles", "names", "given", ""]
    reason: str = ""
    remedy: str = ""

    @property
    def facts(self) -> list[str]:
        """What is known, in a few words each."""
        by = self.decided_by.replace("_", " ")
        said = [f"{self.norm_placement} norms" + (f" (by {by})" if by else "")]
        said.append("layer norm" if self.norm_kind == "layernorm" else "RMS norm")
        said += ["gains stored as 1 + w"] if self.zero_centered_gain else []
        said += ["queries and keys normalised"] if self.qk_norm else []
        said += ["parallel branches"] if self.parallel else []
        said += ["norm on the embedding"] if self.embed_norm else []
        said += [f"residual step {self.residual_step:.3g}"] if self.residual_step != 1 else []
        return said


def placements(source: Source, assignment: Assignment, *, given: str | None = None) -> dict[str, Placement]:
    """Stack → where its norms stand.

    Args:
        source: the checkpoint; its configuration and the names of its tensors are used.
        assignment: its roles.
        given: the placement that the person states (`--norm-placement`), for all stacks.

    Raises:
        InputError: `given` is no placement.
    """
    if given is not None and given not in PLACEMENTS:
        raise InputError(f"no norm placement {given!r}", where="--norm-placement",
                         remedy=f"choose of {', '.join(PLACEMENTS)}")  # fmt: skip
    stacks = dict.fromkeys(w.role.stack for w in assignment.weights if w.role.layer is not None)
    return {stack: _placement(source, assignment, stack, given) for stack in stacks}


def _placement(source: Source, assignment: Assignment, stack: str, given: str | None) -> Placement:
    config = section(source.config, stack)
    norms = [n for n in assignment.norms if n.stack == stack]
    by_type, parallel = _by_type(config)
    by_roles = _by_sides(norms) if assignment.census.decided_by in ("model_type", "--roles") else ""
    elsewhere = {n.tensor for n in assignment.norms if n.stack != stack}
    by_names = placements_by_names((name for name in source.specs if name not in elsewhere), bool(_final(norms)))
    decided, by, reason = _decide(given, by_type, by_roles, by_names, str(config.get("model_type", "")))
    model_type = config.get("model_type")
    return Placement(
        stack=stack,
        norm_placement=decided,  # type: ignore[arg-type]  # one of PLACEMENTS, or "undecided"
        norm_kind="layernorm" if _is_layernorm(norms, config) else "rmsnorm",
        qk_norm=any(n.side == "inner" and looks_like_norm(n.tensor) == "qk" for n in norms),
        parallel=parallel or _shares_norm(norms),
        final_norm=bool(_final(norms)) and decided != "post",  # there it belongs to the head
        embed_norm=any(n.layer is None and n.side == "post" for n in norms),
        zero_centered_gain=model_type in _table()["zero_centered"] or any(n.zero_centered for n in norms),
        residual_step=_residual_step(config),
        eps=next((float(config[k]) for k in _EPS if isinstance(config.get(k), float | int)), 1e-5),
        decided_by=by,  # type: ignore[arg-type]
        reason=reason,
        remedy=_REMEDY if reason else "",
    )


def _decide(given: str | None, by_type: str, by_roles: str, by_names: set[str], model_type: str) \
        -> tuple[str, str, str]:  # fmt: skip
    """Placement, by what, and why not where it is undecided."""
    if given is not None:
        return given, "given", ""
    known, by = (by_type, "model_type") if by_type else (by_roles, "roles")
    if known:
        if not by_names or known in by_names or model_type in _table()["misnamed"] or known == "sub_ln":
            return known, by, ""
        seen = " or ".join(sorted(by_names))
        return "undecided", "", f"the model type {model_type!r} says {known}, the names of its norms say {seen}"
    if len(by_names) == 1:
        return next(iter(by_names)), "names", ""
    if by_names:
        return "undecided", "", f"the names of its norms fit {' and '.join(sorted(by_names))}"
    return "undecided", "", "no model type is known, and no names of norms that are"


def _by_type(config: Mapping[str, Any]) -> tuple[str, bool]:
    """Placement of the model type ("" where it is not in the table), and whether its branches are parallel."""
    table, model_type = _table(), config.get("model_type")
    found = next((name for name in ("pre_parallel", *PLACEMENTS) if model_type in table.get(name, ())), "")
    for name, key, default, if_true, if_false in table["flags"]:
        if name == model_type:
            value = config.get(key)
            found = if_true if (default if value is None else value) else if_false
    if model_type == "falcon" and config.get("new_decoder_architecture"):
        found = "pre_parallel"
    return found.removesuffix("_parallel"), found.endswith("_parallel")


def _by_sides(norms: list[Norm]) -> str:
    """Placement from the sides that a family's file states; "" where a layer has no norm on the stream or a branch."""
    inside = [n for n in norms if n.layer is not None]
    sides = {n.side for n in inside} - {"inner"}
    if any(n.side == "inner" and set(n.feeds) & {"o", "down"} for n in inside):
        return "sub_ln"
    return {frozenset({"in"}): "pre", frozenset({"in", "out"}): "peri", frozenset({"out"}): "branch_out",
            frozenset({"post"}): "post"}.get(frozenset(sides), "")  # fmt: skip


def _final(norms: list[Norm]) -> list[Norm]:
    return [n for n in norms if n.layer is None and n.side == "in"]


def _shares_norm(norms: list[Norm]) -> bool:
    """One norm feeds both branches, so that they are parallel."""
    return any(n.layer is not None and n.side == "in" and {"q", "up"} <= set(n.feeds) for n in norms)


def _is_layernorm(norms: list[Norm], config: Mapping[str, Any]) -> bool:
    if any(n.bias for n in norms) or config.get("model_type") in _table()["layernorm"]:
        return True
    return "rms_norm_eps" not in config and config.get("model_type") not in _table()["rmsnorm"] and any(
        key in config for key in _EPS
    )  # fmt: skip


def _residual_step(config: Mapping[str, Any]) -> float:
    """What each branch is multiplied by: Granite's residual_multiplier, MiniCPM's scale_depth/√layers."""
    if isinstance(step := config.get("residual_multiplier"), int | float):
        return float(step)
    depth, layers = config.get("scale_depth"), config.get("num_hidden_layers")
    if isinstance(depth, int | float) and isinstance(layers, int):
        return float(depth) / sqrt(layers)
    return 1.0


def section(config: Mapping[str, Any], stack: str) -> Mapping[str, Any]:
    """The part of the configuration that speaks of a stack."""
    key = {"vision": "vision_config", "text": "text_config"}.get(stack, "text_config")
    inner = config.get(key)
    return {**config, **inner} if isinstance(inner, Mapping) else config


@cache
def _table() -> dict[str, Any]:
    path = Path(__file__).parent / "norm_placements.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))
