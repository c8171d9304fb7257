"""From a config.json to the design of its block. A small table by model type; what it does not know is refused."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from drillcore.models.blocks import VARIANTS, Design, Variant
from drillcore.weights import InputError

# model type → the variant whose block it is
_BLOCKS = {
    "gpt2": ("gpt2", "gpt_neo", "gpt_bigcode", "bloom", "mpt", "starcoder2", "vit", "whisper", "nemotron"),
    "gptj": ("gptj", "codegen", "phi"),
    "llama": ("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "phi3", "granite", "smollm3", "deepseek_v3",
              "stablelm", "olmo", "helium"),
    "qwen3": ("qwen3", "qwen3_moe", "olmoe"),
    "gemma2": ("gemma2", "glm4"),
    "gemma3": ("gemma3", "gemma3_text"),
    "olmo2": ("olmo2", "olmo3", "exaone4"),
    "bert": ("bert", "roberta", "electra", "distilbert", "openai-gpt", "bart"),
}  # fmt: skip
_BY_TYPE = {model_type: block for block, types in _BLOCKS.items() for model_type in types}
_WIDTH = ("hidden_size", "n_embd", "d_model", "dim")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "encoder_attention_heads")
_HIDDEN = ("intermediate_size", "n_inner", "ffn_dim", "encoder_ffn_dim", "hidden_dim")


def from_config(path: Path, width: int) -> tuple[Variant, int]:
    """The variant of a configuration (a file, or a folder that holds config.json) and its number of layers.

    The proportions are the model's (heads, key heads, hidden over width), at the width that is checked.

    Raises:
        InputError: the file cannot be read, or its family has no block here.
    """
    config = _read(path / "config.json" if path.is_dir() else path)
    kind = config.get("model_type")
    name = _parallel(config) if kind in ("gpt_neox", "falcon") else _BY_TYPE.get(str(kind))
    if kind == "opt":
        name = "gpt2" if config.get("do_layer_norm_before", True) else "bert"
    if name is None:
        raise InputError(f"no block is known for the model type {kind!r}", where=path,
                         remedy=f"check one of the variants ({', '.join(_BLOCKS)}), or FILE.py:FACTORY")  # fmt: skip
    known = VARIANTS[name]
    design = _proportioned(known.design, config, width, path)
    qk_norm = design.qk_norm or bool(config.get("qk_layernorm") or config.get("use_qk_norm"))
    about = f"{known.about} ({kind})"
    return replace(known, about=about, design=replace(design, qk_norm=qk_norm)), int(_first(config, _LAYERS, 24))


def _parallel(config: Mapping[str, Any]) -> str:
    both = config.get("use_parallel_residual", True), config.get("parallel_attn", True)
    return "gptj" if all(both) else "gpt2"


def _proportioned(design: Design, config: Mapping[str, Any], width: int, path: Path) -> Design:
    own = int(_first(config, _WIDTH, 0))
    heads = int(_first(config, _HEADS, design.heads))
    keys = int(config.get("num_key_value_heads") or heads)
    if not own or heads % keys:
        raise InputError("the width of the model or the number of its heads is not given", where=path,
                         remedy="name a variant instead")  # fmt: skip
    group = heads // keys
    while heads > group and (width % heads or width // heads < 8):
        heads -= group
    if width % heads:
        heads, group = 1, 1
    hidden = int(_first(config, _HIDDEN, 0)) or None
    activation = str(config.get("hidden_act") or config.get("activation_function") or "")
    mlp = "relu" if activation.startswith("relu") and design.mlp == "gelu" else design.mlp
    step = float(config.get("residual_multiplier") or 1.0)
    return replace(
        design, heads=heads, kv_heads=heads // group, hidden=None if hidden is None else max(8, hidden * width // own),
        mlp=mlp, form=replace(design.form, residual_step=step),
    )  # fmt: skip


def _first(config: Mapping[str, Any], names: tuple[str, ...], default: int) -> Any:
    return next((config[name] for name in names if config.get(name)), default)


def _read(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise InputError("there is no config.json", where=path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"it is not JSON: {error}", where=path) from error
    if not isinstance(found, Mapping):
        raise InputError("it holds no configuration", where=path)
    inner = found.get("text_config")
    return inner if isinstance(inner, Mapping) else found
