"""Tiny random models of transformers, one per layout of each family, and a source over their state in memory."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from drillcore.weights import TensorSpec


class StateSource:
    """The tensors of a dictionary, as a source."""

    label = "a dictionary"
    notes = ()

    def __init__(self, state: Mapping[str, Tensor], config: Mapping[str, Any] | None = None) -> None:
        self.state, self.config = state, config or {}
        self.specs = {
            name: TensorSpec(name, tuple(t.shape), str(t.dtype).removeprefix("torch."), t.nbytes)
            for name, t in state.items()
        }

    def read(self, name: str, rows: slice | None = None) -> Tensor:
        return self.state[name] if rows is None else self.state[name][rows]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A tiny model; `by_names` is the family that its names show, where the names are another family's too."""

    family: str
    model: str
    config: str
    by_names: str = ""
    sizes: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> nn.Module:
        """The model with large random matrices and without biases, so that a projection is x @ W.T."""
        torch.manual_seed(0)
        model = getattr(transformers, self.model)(getattr(transformers, self.config)(**self.sizes)).eval()
        with torch.no_grad():
            for name, p in model.named_parameters():
                if name.endswith("bias"):
                    p.zero_()
                elif p.ndim >= 2:
                    p.normal_(0, 0.2)
        return model


BLOCKS = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = {**BLOCKS, "num_key_value_heads": 2}
WIDE = {**GROUPED, "head_dim": 12}  # heads × head_dim is not the width
PICTURES = {"hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 3, "num_attention_heads": 4,
            "image_size": 8, "patch_size": 4}  # fmt: skip
SEQ = {"vocab_size": 40, "d_model": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
       "decoder_start_token_id": 1}  # fmt: skip
ROUTED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
DEEP = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "n_shared_experts": 1,
        "first_k_dense_replace": 1}  # fmt: skip
LATENT = {**BLOCKS, **DEEP, "num_key_value_heads": 4, "n_group": 2, "topk_group": 1, "kv_lora_rank": 8,
          "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 10}  # fmt: skip
OPT = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "ffn_dim": 48, "max_position_embeddings": 32,
       "num_attention_heads": 4}  # fmt: skip
FALCON = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
PAIRED = {**SEQ, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
          "encoder_ffn_dim": 48, "decoder_ffn_dim": 56, "max_position_embeddings": 16}  # fmt: skip
N_WORDS = {"vocab_size": 40, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}


def causal(family: str, name: str, sizes: Mapping[str, Any], by_names: str = "") -> Case:
    """A case of a decoder whose classes are called after the family."""
    return Case(family=family, model=f"{name}ForCausalLM", config=f"{name}Config", sizes=sizes, by_names=by_names)


def paired(name: str, model: str = "", sizes: Mapping[str, Any] = PAIRED) -> Case:
    """A case of an encoder and decoder as BART has them."""
    return Case(family="bart", model=model or f"{name}ForConditionalGeneration", config=f"{name}Config", sizes=sizes)


CASES: dict[str, Case] = {
    "llama": causal("llama", "Llama", WIDE),
    "llama tied": causal("llama", "Llama", {**WIDE, "tie_word_embeddings": True}),
    "mistral": causal("llama", "Mistral", WIDE),
    "ministral": causal("llama", "Ministral", WIDE),
    "ministral3": causal("llama", "Ministral3", WIDE),
    "smollm3": causal("llama", "SmolLM3", GROUPED),
    "helium": causal("llama", "Helium", {**GROUPED, "head_dim": 8}),
    "arcee": causal("llama", "Arcee", WIDE),
    "seed_oss": causal("llama", "SeedOss", WIDE),
    "granite": causal("llama", "Granite", GROUPED),
    "qwen2": causal("llama", "Qwen2", GROUPED),
    "cwm": causal("llama", "Cwm", WIDE),
    "ernie4_5": causal("llama", "Ernie4_5", WIDE),
    "internlm3": Case(family="llama", model="LlamaForCausalLM", config="InternLM3Config", sizes=WIDE),
    "iquestcoder": Case(family="llama", model="LlamaForCausalLM", config="IQuestCoderConfig", sizes=WIDE),
    "jais2": causal("llama", "Jais2", WIDE),
    "nemotron": causal("nemotron", "Nemotron", WIDE, by_names="llama"),
    "qwen3": causal("qwen3", "Qwen3", WIDE),
    "qwen2_moe": causal("qwen_moe", "Qwen2Moe", {**GROUPED, **ROUTED, "shared_expert_intermediate_size": 24,
                                                 "mlp_only_layers": [0]}),
    "qwen3_moe": causal("qwen_moe", "Qwen3Moe", {**WIDE, **ROUTED, "num_hidden_layers": 3, "mlp_only_layers": [1]}),
    "olmoe": causal("qwen_moe", "Olmoe", {**GROUPED, **ROUTED}),
    "mellum": causal("qwen_moe", "Mellum", {**WIDE, **ROUTED}),
    "vaultgemma": causal("gemma2", "VaultGemma", {**WIDE, "query_pre_attn_scalar": 12}),
    "solar_open": causal("glm4_moe", "SolarOpen", {**WIDE, **DEEP}),
    "youtu": causal("deepseek", "Youtu", {**LATENT, "q_lora_rank": 12}),
    "glm4_moe_lite": causal("deepseek", "Glm4MoeLite", {**LATENT, "q_lora_rank": 12}),
    "minicpm3": causal("deepseek", "MiniCPM3", {**LATENT, "q_lora_rank": 12}),
    "umt5": Case(family="t5", model="UMT5ForConditionalGeneration", config="UMT5Config", sizes={
        **SEQ, "d_kv": 12, "d_ff": 48, "num_layers": 2, "num_heads": 4}),
    "vit_msn": Case(family="vit", model="ViTMSNForImageClassification", config="ViTMSNConfig", sizes=PICTURES),
    "gemma": causal("gemma", "Gemma", WIDE, by_names="llama"),
    "gemma2": causal("gemma2", "Gemma2", {**WIDE, "query_pre_attn_scalar": 12}),
    "gemma3_text": Case(family="gemma2", model="Gemma3ForCausalLM", config="Gemma3TextConfig",
                        sizes={**WIDE, "query_pre_attn_scalar": 12}),
    "gemma3": Case(family="gemma2", model="Gemma3ForConditionalGeneration", config="Gemma3Config",
                   sizes={"text_config": {**WIDE, "query_pre_attn_scalar": 12}, "vision_config": PICTURES,
                          "mm_tokens_per_image": 1}),
    "olmo": causal("olmo", "Olmo", GROUPED),
    "olmo2": causal("olmo2", "Olmo2", GROUPED),
    "olmo3": causal("olmo2", "Olmo3", GROUPED),
    "exaone4": causal("olmo2", "Exaone4", WIDE),
    "phi": causal("phi", "Phi", {**GROUPED, "qk_layernorm": True}),
    "phi3": causal("phi3", "Phi3", GROUPED),
    "glm": causal("glm", "Glm", WIDE),
    "glm4": causal("glm", "Glm4", WIDE),
    "glm4_moe": causal("glm4_moe", "Glm4Moe", {**WIDE, **DEEP, "use_qk_norm": True}),
    "gpt2": Case(family="gpt2", model="GPT2LMHeadModel", config="GPT2Config", sizes=N_WORDS),
    "gpt2 crossed": Case(family="gpt2", model="GPT2LMHeadModel", config="GPT2Config",
                         sizes={**N_WORDS, "add_cross_attention": True}),
    "gpt_neo": causal("gpt_neo", "GPTNeo", {
        "vocab_size": 40, "max_position_embeddings": 32, "hidden_size": 32, "num_layers": 2, "num_heads": 4,
        "attention_types": [[["global", "local"], 1]], "intermediate_size": 48}),
    "gpt_neox": causal("gpt_neox", "GPTNeoX", BLOCKS),
    "gptj": causal("gptj", "GPTJ", {**N_WORDS, "rotary_dim": 4}),
    "gpt_bigcode": causal("gpt_bigcode", "GPTBigCode", {**N_WORDS, "multi_query": True}),
    "gpt_bigcode per head": causal("gpt_bigcode", "GPTBigCode", {**N_WORDS, "multi_query": False}),
    "codegen": causal("codegen", "CodeGen", {**N_WORDS, "n_head": 8, "rotary_dim": 4}),
    "gpt_oss": causal("gpt_oss", "GptOss", {**WIDE, **LOCAL}),
    "opt": causal("opt", "OPT", {**OPT, "word_embed_proj_dim": 32}),
    "opt 350m": causal("opt", "OPT", {**OPT, "word_embed_proj_dim": 16, "do_layer_norm_before": False}),
    "bloom": causal("falcon", "Bloom", {"vocab_size": 40, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "falcon 7b": causal("falcon", "Falcon", {**FALCON, "multi_query": True}),
    "falcon 40b": causal("falcon", "Falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon 11b": causal("falcon", "Falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2,
                                              "num_ln_in_parallel_attn": 1}),
    "falcon rw": causal("falcon", "Falcon", {**FALCON, "multi_query": False, "alibi": True, "parallel_attn": False}),
    "mpt": causal("mpt", "Mpt", {"vocab_size": 40, "d_model": 32, "n_layers": 2, "n_heads": 4, "expansion_ratio": 2,
                                 "max_seq_len": 32}),
    "starcoder2": causal("starcoder2", "Starcoder2", GROUPED),
    "stablelm": causal("stablelm", "StableLm", {**GROUPED, "qk_layernorm": True}),
    "stablelm parallel": causal("stablelm", "StableLm", {**GROUPED, "use_parallel_residual": True}, by_names="cohere"),
    "cohere": causal("cohere", "Cohere", {**GROUPED, "use_qk_norm": True}),
    "cohere2": causal("cohere", "Cohere2", WIDE),
    "mixtral": causal("mixtral", "Mixtral", {**GROUPED, **LOCAL}),
    "deepseek_v2": causal("deepseek", "DeepseekV2", {**LATENT, "q_lora_rank": None}),
    "deepseek_v3": causal("deepseek", "DeepseekV3", {**LATENT, "q_lora_rank": 12}),
    "bert": Case(family="bert", model="BertForMaskedLM", config="BertConfig", sizes=BLOCKS),
    "bert bare": Case(family="bert", model="BertModel", config="BertConfig", sizes=BLOCKS),
    "roberta": Case(family="bert", model="RobertaForMaskedLM", config="RobertaConfig", sizes=BLOCKS),
    "xlm-roberta": Case(family="bert", model="XLMRobertaForMaskedLM", config="XLMRobertaConfig", sizes=BLOCKS),
    "camembert": Case(family="bert", model="CamembertForMaskedLM", config="CamembertConfig", sizes=BLOCKS),
    "electra": Case(family="bert", model="ElectraForPreTraining", config="ElectraConfig",
                    sizes={**BLOCKS, "embedding_size": 16}),
    "electra generator": Case(family="bert", model="ElectraForMaskedLM", config="ElectraConfig",
                              sizes={**BLOCKS, "embedding_size": 16}),
    "distilbert": Case(family="distilbert", model="DistilBertForMaskedLM", config="DistilBertConfig", sizes={
        "vocab_size": 40, "max_position_embeddings": 32, "n_layers": 2, "n_heads": 4, "dim": 32, "hidden_dim": 48}),
    "vit": Case(family="vit", model="ViTForImageClassification", config="ViTConfig", sizes=PICTURES),
    "deit": Case(family="vit", model="DeiTModel", config="DeiTConfig", sizes=PICTURES),
    "clip": Case(family="clip", model="CLIPModel", config="CLIPConfig", sizes={
        "text_config": BLOCKS, "vision_config": PICTURES, "projection_dim": 16}),
    "clip text": Case(family="clip_text", model="CLIPTextModel", config="CLIPTextConfig", sizes=BLOCKS),
    "clip vision": Case(family="clip_vision", model="CLIPVisionModel", config="CLIPVisionConfig", sizes=PICTURES),
    "whisper": Case(family="whisper", model="WhisperForConditionalGeneration", config="WhisperConfig", sizes={
        **SEQ, "num_mel_bins": 8, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 56, "max_source_positions": 8,
        "max_target_positions": 16}),
    "bart": paired("Bart"),
    "bart decoder": paired("Bart", "BartForCausalLM"),
    "plbart": paired("PLBart"),
    "mbart": paired("MBart"),
    "marian": paired("Marian", "MarianMTModel"),
    "pegasus": paired("Pegasus"),
    "blenderbot": paired("Blenderbot"),
    "blenderbot-small": paired("BlenderbotSmall"),
    "m2m_100": paired("M2M100"),
    "t5": Case(family="t5", model="T5ForConditionalGeneration", config="T5Config", sizes={
        **SEQ, "d_kv": 12, "d_ff": 48, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4}),
    "t5 gated": Case(family="t5", model="T5ForConditionalGeneration", config="T5Config", sizes={
        **SEQ, "d_kv": 12, "d_ff": 48, "num_layers": 2, "num_heads": 4, "feed_forward_proj": "gated-gelu"}),
    "mt5": Case(family="t5", model="MT5ForConditionalGeneration", config="MT5Config", sizes={
        **SEQ, "d_kv": 12, "d_ff": 48, "num_layers": 2, "num_heads": 4}),
    "t5 encoder": Case(family="t5", model="T5EncoderModel", config="T5Config", sizes={
        **SEQ, "d_kv": 12, "d_ff": 48, "num_layers": 2, "num_heads": 4}),
}  # fmt: skip


def inputs(model: nn.Module) -> dict[str, Tensor]:
    """Inputs for a forward pass, every token at position 0, where a rotation is the identity."""
    takes = inspect.signature(model.forward).parameters
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 40, (1, 5), generator=generator)
    given: dict[str, Tensor] = {}
    if "input_features" in takes:
        given["input_features"] = torch.randn(1, 8, 16, generator=generator)
    if "pixel_values" in takes and not hasattr(model.config, "mm_tokens_per_image"):
        given["pixel_values"] = torch.randn(1, 3, 8, 8, generator=generator)
    if "input_ids" in takes:
        given["input_ids"] = ids
    if "decoder_input_ids" in takes:
        given["decoder_input_ids"] = ids
    if "position_ids" in takes and "decoder_input_ids" not in takes:
        given["position_ids"] = torch.zeros_like(ids)
    return given
