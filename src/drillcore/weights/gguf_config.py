"""The configuration that a GGUF file's metadata gives, in the keys of a config.json."""

from collections.abc import Mapping
from typing import Any

from drillcore.weights.source import Config, TensorSpec

# Architectures whose converter reorders the rows of q and k (llama.cpp, conversion/*.py, read in 2026: `permute` of
# LlamaModel, of its subclasses without `undo_permute = False`, and of the classes that copy it). Apertus, Llama 4,
# AFMoE and CogVLM inherit from LlamaModel and do not reorder.
PERMUTED = frozenset({
    "llama", "llama-embed", "mistral3", "deci", "baichuan", "xverse", "internlm2", "minicpm", "olmo", "arctic",
    "deepseek", "granite", "granitemoe", "granitehybrid", "chameleon", "bailingmoe", "smollm3", "arcee", "llada",
    "eagle3",
})  # fmt: skip
_KEYS = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.value_length_mla": "v_head_dim",
    "rope.dimension_count": "rotary_dim",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
}
_MIXED_QKV = frozenset({"qwen3next", "qwen35", "qwen35moe", "kimi-linear"})  # attn_qkv is that of linear attention


def gguf_config(metadata: Mapping[str, Any], specs: Mapping[str, TensorSpec]) -> Config:
    """Numbers from the metadata, and facts about the blocks from the names of the tensors.

    A list (one number per layer) is a number where all agree, and left out where they do not.
    """
    arch = str(metadata.get("general.architecture", ""))
    config: dict[str, Any] = {"model_type": "gguf", "gguf_architecture": arch}
    for key, word in _KEYS.items():
        value = metadata.get(f"{arch}.{key}")
        if isinstance(value, list):
            value = value[0] if len(set(value)) == 1 else None
        if isinstance(value, int) and not isinstance(value, bool):
            config[word] = value
    if "token_embd.weight" in specs:
        config["vocab_size"] = specs["token_embd.weight"].shape[0]
    whole = metadata.get(f"{arch}.attention.key_length_mla")  # of a head, with its rotated part
    if isinstance(whole, int) and "rotary_dim" in config:
        config["qk_nope_head_dim"] = whole - config["rotary_dim"]
    causal = metadata.get(f"{arch}.attention.causal", "bert" not in arch and arch != "t5encoder")
    return config | _facts(specs, arch) | {"architectures": ["GgufForCausalLM" if causal else "GgufModel"]}


def _facts(specs: Mapping[str, TensorSpec], arch: str) -> dict[str, bool]:
    """What the names say: a tied head, blocks without attention, attention and MLP side by side."""
    words = {part for name in specs for part in name.split(".")[2:3]}
    after_attention = {"ffn_norm", "post_attention_norm", "post_ffw_norm", "attn_output_norm"}
    return {
        "tie_word_embeddings": "output.weight" not in specs,
        "hybrid": any(word.startswith(("ssm", "shortconv")) for word in words),
        "parallel_block": not words & after_attention,
        "plain_attention": arch not in _MIXED_QKV,
    }
