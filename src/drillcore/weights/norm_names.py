"""What the names of a block's norms say of their placement. The order of the rules matters; none is trusted alone."""

import re
from collections.abc import Iterable

from drillcore.weights.architecture import numbered, unwrapped
from drillcore.weights.role import Norm

_GAIN = re.compile(r"\.(weight|gamma|scale)$")
_NORM = re.compile(r"(norm|layernorm|(^|[._])ln([._\d]|$)|ln$)", re.IGNORECASE)
_QK = re.compile(r"(^|\.)(q|k|query|key)_(norm|layernorm|ln)$|(^|\.)attn_[qk]_norm$")
_INNER = re.compile(r"(^|\.)(q_a|kv_a|kv|attn_q_a|attn_kv_a)_(layernorm|norm)$")

# Suffixes that all have to be there → what they mean; the first that fits decides.
_RULES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("pre_feedforward_layernorm", "post_feedforward_layernorm"), ("peri",)),
    (("post_self_attn_layernorm", "post_mlp_layernorm"), ("peri",)),
    (("pre_mlp_layernorm", "post_mlp_layernorm"), ("peri",)),
    (("post_norm1", "post_norm2"), ("peri",)),
    (("attn_norm", "post_attention_norm", "post_ffw_norm"), ("peri",)),
    (("post_attention_norm", "post_ffw_norm"), ("branch_out",)),
    (("attn_output_norm", "layer_output_norm"), ("post",)),
    (("pre_feedforward_layernorm",), ("pre",)),
    (("input_layernorm",), ("pre",)),
    (("post_feedforward_layernorm",), ("branch_out",)),
    (("post_attention_layernorm", "post_mlp_layernorm"), ("post",)),
    (("attention.output.LayerNorm", "output.LayerNorm"), ("post",)),
    (("sa_layer_norm", "output_layer_norm"), ("post",)),
    (("full_layer_layer_norm",), ("post",)),
    (("layernorm_before", "layernorm_after"), ("pre", "branch_out")),
    (("layer_norm1", "layer_norm2"), ("pre",)), (("norm1", "norm2"), ("pre",)), (("norm_1", "norm_2"), ("pre",)),
    (("layer.#.layer_norm",), ("pre",)),
    (("attention_layernorm", "feedforward_layernorm"), ("pre",)), (("attention_norm", "ffn_norm"), ("pre",)),
    (("operator_norm", "ffn_norm"), ("pre",)), (("attn_norm", "mlp_norm"), ("pre",)),
    (("attn_norm", "ffn_norm"), ("pre",)), (("attn_norm", "post_attention_norm"), ("pre",)),
    (("ln_attn", "ln_mlp"), ("pre",)),
)  # fmt: skip
# These stand before the branches in a stack that has a final norm of its own, and on the stream in one that has not.
_BY_FINAL = (("ln_1",), ("self_attn_layer_norm", "final_layer_norm"))


def placements_by_names(names: Iterable[str], final_norm: bool) -> set[str]:
    """The placements that fit the names of the norms in the layers; empty where no rule fits.

    Args:
        names: the tensors of a stack; what is no gain of a norm in a layer is passed over.
        final_norm: the stack ends with a norm of its own.
    """
    suffixes = {suffix for name in names if (suffix := _suffix(name)) and not _within(suffix)}
    for wanted, meant in _RULES:
        if all(_has(suffixes, one) for one in wanted):
            return set(meant)
    if any(all(_has(suffixes, one) for one in wanted) for wanted in _BY_FINAL):
        return {"pre" if final_norm else "post"}
    return set()


def looks_like_norm(name: str) -> str:
    """ "qk" for a norm of queries or keys, "norm" for another, "" for what is none."""
    stem = _GAIN.sub("", name)
    if _QK.search(stem):
        return "qk"
    return "norm" if _NORM.search(stem.rpartition(".")[2] or stem) else ""


# A branch of a block → the kinds that a norm before it feeds; branches run in this order.
BRANCHES = {
    "attention": frozenset({"q", "k", "v"}),
    "cross": frozenset({"cross_q"}),
    "mlp": frozenset({"gate", "up", "shared_gate", "shared_up", "router"}),
}


def branches_of(norm: Norm) -> frozenset[str]:
    """The branches of a layer that a norm belongs to: by what it feeds, else by its name."""
    if norm.feeds:
        return frozenset(branch for branch, kinds in BRANCHES.items() if kinds & set(norm.feeds))
    key, _ = numbered(unwrapped(norm.tensor))
    local = key.partition("#.")[2]
    if re.search(r"cross|encoder_attn", local):
        return frozenset({"cross"})
    return frozenset({"attention"}) if re.search(r"att|(^|\.)sa_", local) else frozenset({"mlp"})


def _suffix(name: str) -> str:
    """The name of a norm's gain behind its layer's number; empty for what is no gain of a norm in a layer."""
    stem = unwrapped(name)
    if not _GAIN.search(stem) or not looks_like_norm(stem):
        return ""
    key, numbers = numbered(_GAIN.sub("", stem))
    return key.partition("#.")[2] if numbers else ""


def _within(suffix: str) -> bool:
    """A norm inside a branch says nothing of the block's."""
    return bool(_QK.search(suffix) or _INNER.search(suffix))


def _has(suffixes: set[str], wanted: str) -> bool:
    return any(suffix == wanted or suffix.endswith("." + wanted) for suffix in suffixes)
