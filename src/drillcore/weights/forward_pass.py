"""What the configuration says of a stack's arithmetic: heads, scales, activation. Only of checked model types.

A bound on a model is wrong where its forward pass does something that the weights do not show: a norm without a gain, a
scaled query, a clamp. So `CHECKED` lists the model types whose bounds tests hold against their forward passes; every
other one is refused.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

from drillcore.weights.layout import number
from drillcore.weights.placement import section

CHECKED = frozenset({
    "llama", "mistral", "ministral", "smollm3", "helium", "arcee", "seed_oss", "granite", "qwen2", "cwm", "ernie4_5",
    "qwen3", "qwen2_moe", "qwen3_moe", "olmoe", "mixtral", "gemma", "gemma2", "gemma3", "gemma3_text", "vaultgemma",
    "olmo2", "olmo3", "exaone4", "phi", "phi3", "glm", "glm4", "gpt2", "gpt_neo", "gpt_neox", "gptj", "codegen", "opt",
    "starcoder2", "stablelm", "nemotron", "bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert",
    "vit", "deit", "vit_msn", "clip", "clip_text_model", "clip_vision_model", "bart", "plbart", "mbart", "t5", "mt5",
    "umt5",
})  # fmt: skip
_ROOT_OF_WIDTH = frozenset({"gemma", "gemma2", "gemma3", "gemma3_text", "vaultgemma"})  # scales its embedding by √d
_ACTIVATION = ("hidden_activation", "hidden_act", "activation_function", "activation", "feed_forward_proj", "hidden_fn")
_SQUARED = frozenset({"relu2"})
_SHRINKING = frozenset({
    "gelu", "gelu_new", "gelu_fast", "gelu_python", "gelu_pytorch_tanh", "gelu_accurate", "quick_gelu", "relu", "silu",
    "swish",
})  # fmt: skip
_PLAIN_ROTATIONS = frozenset({"default", "linear", "dynamic", "llama3"})  # those that only turn
_BFLOAT16 = 1 + 2.0**-8  # Gemma rounds its factor to the model's dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardPass:
    """Numbers of a stack's arithmetic that its weights do not show."""

    heads: int
    kv_heads: int
    embedding_scale: float
    logit_scale: float  # of q·k, at least 1: an unfused kernel stores the product before it is scaled
    rotation: float  # a rotary embedding multiplies an entry of a query or key by at most this
    squared: bool  # the activation is relu(a)²; otherwise |act(a)| ≤ |a|


class Unchecked(Exception):  # noqa: N818 - a signal to who asked, not an error of the user
    """No bound can be given on this model; the text says why."""


def forward_pass(config: Mapping[str, Any], stack: str, *, positions: bool) -> ForwardPass:
    """Read what a bound needs of the configuration.

    Args:
        config: of the checkpoint.
        stack: "" where there is one.
        positions: the stack adds learned positions, so that its queries and keys are not turned.

    Raises:
        Unchecked: the model type is not in `CHECKED`, or a setting is not known.
    """
    own = section(config, stack)
    model_type = str(own.get("model_type", ""))
    if model_type not in CHECKED:
        known = f"the forward pass of {model_type!r} has not been checked" if model_type else "no model type is known"
        raise Unchecked(f"{known}, so that no bound on it is")
    heads = number(own, f"{stack}_attention_heads") or number(own, "heads")
    if heads is None:
        raise Unchecked("its configuration does not say how many heads it has")
    turned = not positions and "relative_attention_num_buckets" not in own
    return ForwardPass(
        heads=heads, kv_heads=number(own, "kv_heads") or heads, embedding_scale=_embedding_scale(own, model_type),
        logit_scale=max(1.0, float(own.get("attention_multiplier") or 1.0)),
        rotation=_rotation(own) if turned else 1.0, squared=_squared(own),
    )  # fmt: skip


def _embedding_scale(config: Mapping[str, Any], model_type: str) -> float:
    width = number(config, "hidden") or 0
    if model_type in _ROOT_OF_WIDTH:
        return sqrt(width) * _BFLOAT16
    if config.get("scale_embedding"):
        return sqrt(width)
    return float(config.get("embedding_multiplier") or 1.0)


def _rotation(config: Mapping[str, Any]) -> float:
    """√2: an entry may take all of its pair. Infinite for rotations that also stretch (YaRN, LongRoPE)."""
    kinds = set(_rope_types(config.get("rope_parameters"))) | set(_rope_types(config.get("rope_scaling")))
    return sqrt(2.0) if kinds <= _PLAIN_ROTATIONS else inf


def _rope_types(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key in ("rope_type", "type") and isinstance(inner, str):
                yield inner
            yield from _rope_types(inner)


def _squared(config: Mapping[str, Any]) -> bool:
    name = next((str(config[key]) for key in _ACTIVATION if isinstance(config.get(key), str)), "")
    if not name:
        raise Unchecked("its configuration does not name the activation of its MLP")
    name = name.removeprefix("gated-")
    if name not in _SQUARED | _SHRINKING:
        raise Unchecked(f"its activation {name!r} is not one that is known not to grow")
    return name in _SQUARED
