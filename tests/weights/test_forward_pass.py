"""What a configuration says of a stack's arithmetic, and what of a model type is refused."""

from typing import Any

import pytest

from drillcore.weights import assign
from drillcore.weights.forward_pass import ForwardPass, Unchecked, forward_pass
from drillcore.weights.layout import read_bias, read_norm
from drillcore.weights.norm_names import branches_of
from tests.weights.tiny import CASES, StateSource

PLAIN = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 8, "hidden_act": "silu"}


def of(stack: str = "", positions: bool = False, **config: Any) -> ForwardPass:
    return forward_pass({**PLAIN, **config}, stack, positions=positions)


def test_heads_and_scales() -> None:
    assert of() == ForwardPass(
        heads=8, kv_heads=8, embedding_scale=1.0, logit_scale=1.0, rotation=pytest.approx(2**0.5), squared=False
    )
    assert of(num_key_value_heads=2).kv_heads == 2
    assert of(model_type="gemma2").embedding_scale == pytest.approx(8.0, rel=1 / 200)
    assert of(model_type="gemma2").embedding_scale > 8.0  # Gemma rounds its factor to the model's dtype
    assert of(model_type="granite", embedding_multiplier=12.0).embedding_scale == 12.0
    assert of(model_type="granite", attention_multiplier=0.01).logit_scale == 1.0
    assert of(model_type="granite", attention_multiplier=3.0).logit_scale == 3.0
    assert of(model_type="mbart", scale_embedding=True).embedding_scale == 8.0


def test_rotations() -> None:
    assert of(positions=True).rotation == 1.0
    assert of(model_type="t5", relative_attention_num_buckets=32).rotation == 1.0
    assert of(rope_scaling={"type": "linear", "factor": 2}).rotation < 2
    assert of(rope_scaling={"rope_type": "yarn", "factor": 4}).rotation == float("inf")
    nested = {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "longrope"}}
    assert of(rope_parameters=nested).rotation == float("inf")


def test_activations() -> None:
    assert of(hidden_act="relu2").squared
    assert not of(hidden_act=None, feed_forward_proj="gated-gelu").squared
    with pytest.raises(Unchecked, match="'laplace' is not one"):
        of(hidden_act="laplace")
    with pytest.raises(Unchecked, match="does not name the activation"):
        of(hidden_act=None)


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(Unchecked, match="'dbrx' has not been checked"):
        of(model_type="dbrx")
    with pytest.raises(Unchecked, match="no model type is known"):
        of(model_type="")
    with pytest.raises(Unchecked, match="how many heads"):
        of(num_attention_heads=None)


def test_a_stack_has_its_own_section_and_its_own_heads() -> None:
    paired = {"model_type": "bart", "d_model": 64, "activation_function": "gelu", "encoder_attention_heads": 4,
              "decoder_attention_heads": 16}  # fmt: skip
    assert [forward_pass(paired, s, positions=True).heads for s in ("encoder", "decoder")] == [4, 16]
    pictures = {"model_type": "clip", "text_config": {**PLAIN, "model_type": "clip_text_model"},
                "vision_config": {**PLAIN, "model_type": "clip_vision_model", "num_attention_heads": 2}}  # fmt: skip
    assert [forward_pass(pictures, s, positions=True).heads for s in ("text", "vision")] == [8, 2]


def test_biases_are_split_as_their_matrices_are() -> None:
    """GPT-2 holds q, k and v in one tensor, GPT-NeoX head by head; each gets its own part of the bias."""
    for name in ("gpt2", "gpt_neox", "phi3", "qwen2"):
        model = CASES[name].build()
        for key, p in model.named_parameters():
            if key.endswith("bias"):
                p.data.copy_(p.new_tensor(range(len(p))))
        source = StateSource(dict(model.state_dict()))
        source.config = model.config.to_dict()
        found = {w.role.kind: read_bias(source, w) for w in assign(source).weights if w.role.layer == 0}
        if name == "phi3":
            assert found["q"] is found["down"] is None
            continue
        q, k = found["q"], found["k"]
        assert q is not None
        assert k is not None
        first = {"gpt2": (0, 32), "gpt_neox": (0, 8), "qwen2": (0, 0)}[name]
        assert (int(q[0]), int(k[0])) == first
        if name == "gpt_neox":  # heads of 8: q, k, v, q, k, v, …
            assert q.tolist()[8:16] == list(range(24, 32))


def test_norms_as_they_act() -> None:
    model = CASES["gemma3_text"].build()
    source = StateSource(dict(model.state_dict()), model.config.to_dict())
    norm = next(n for n in assign(source).norms if n.tensor.endswith("0.input_layernorm.weight"))
    gain, shift = read_norm(source, norm)
    assert bool((gain == source.state[norm.tensor].double() + 1).all())
    assert shift is None


def test_branches_of_norms() -> None:
    def branches(name: str) -> dict[str, set[str]]:
        model = CASES[name].build()
        norms = assign(StateSource(dict(model.state_dict()), model.config.to_dict())).norms
        return {n.tensor: set(branches_of(n)) for n in norms if n.layer == 0 and n.side != "inner"}

    assert branches("gptj") == {"transformer.h.0.ln_1.weight": {"attention", "mlp"}}
    found = branches("bart")
    assert found["model.decoder.layers.0.encoder_attn_layer_norm.weight"] == {"cross"}
    assert found["model.decoder.layers.0.self_attn_layer_norm.weight"] == {"attention"}
    assert found["model.decoder.layers.0.final_layer_norm.weight"] == {"mlp"}
    assert branches("gemma2")["model.layers.0.post_feedforward_layernorm.weight"] == {"mlp"}
    assert branches("olmo2")["model.layers.0.post_attention_layernorm.weight"] == {"attention"}
