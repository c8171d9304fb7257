"""Ties, wrappers, gaps, mixtures, wrong descriptions: the census says what is there and what is not."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from drillcore.weights import Assignment, InputError, assign
from drillcore.weights.layout import as_matrix, number, read_weight, splits
from tests.weights.tiny import StateSource

D, V, HEADS, WIDTH, F = 16, 20, 4, 6, 24
CONFIG = {
    "model_type": "llama", "num_hidden_layers": 3, "hidden_size": D, "num_attention_heads": HEADS,
    "num_key_value_heads": 2, "head_dim": WIDTH, "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False,
}  # fmt: skip


def llama(layers: int = 3) -> dict[str, Tensor]:
    """The tensors of a small Llama."""
    state = {"model.embed_tokens.weight": torch.randn(V, D), "lm_head.weight": torch.randn(V, D)}
    for n in range(layers):
        p = f"model.layers.{n}"
        shapes = {"q": (HEADS * WIDTH, D), "k": (2 * WIDTH, D), "v": (2 * WIDTH, D), "o": (D, HEADS * WIDTH)}
        state |= {f"{p}.self_attn.{k}_proj.weight": torch.randn(*s) for k, s in shapes.items()}
        shapes = {"gate": (F, D), "up": (F, D), "down": (D, F)}
        state |= {f"{p}.mlp.{k}_proj.weight": torch.randn(*s) for k, s in shapes.items()}
    return state


def without(state: dict[str, Tensor], *parts: str) -> dict[str, Tensor]:
    return {n: t for n, t in state.items() if not any(part in n for part in parts)}


def states(found: Assignment) -> dict[str, str]:
    return {e.tensor: e.state for e in found.census.entries}


def missing(found: Assignment) -> set[str]:
    return {e.tensor for e in found.census.entries if e.state == "missing"}


def test_both_present_are_both_used() -> None:
    found = assign(StateSource(llama(), CONFIG))
    assert found.census.left_out == ()
    assert all(w.role.tie is None for w in found.weights)
    both = assign(StateSource(llama(), CONFIG | {"tie_word_embeddings": True}))
    assert both.census.left_out == ()
    assert "stores both" in next(e.detail for e in both.census.entries if e.tensor == "lm_head.weight")


@pytest.mark.parametrize(
    ("lost", "kind", "have"),
    [("lm_head", "unembed", "model.embed_tokens.weight"), ("embed_tokens", "embed", "lm_head.weight")],
)
@pytest.mark.parametrize("config", [CONFIG | {"tie_word_embeddings": True}, {}])
def test_a_tie_is_resolved_in_both_directions(lost: str, kind: str, have: str, config: dict[str, Any]) -> None:
    source = StateSource(without(llama(), lost), config)
    found = assign(source)
    assert found.census.left_out == ()
    (shared,) = found.of(kind)
    assert (shared.tensor, shared.role.tie) == (have, "embed" if kind == "unembed" else "unembed")
    table = source.state[have]
    assert torch.equal(read_weight(source, shared), table if kind == "unembed" else table.T)
    assert shared.role.faces == ("in" if kind == "unembed" else "out")
    assert found.census.nbytes == sum(s.nbytes for s in source.specs.values())


@pytest.mark.parametrize(("lost", "name"), [("lm_head", "(output head)"), ("embed_tokens", "(embedding)")])
def test_an_untied_model_that_lacks_one_says_so(lost: str, name: str) -> None:
    found = assign(StateSource(without(llama(), lost), CONFIG))
    assert missing(found) == {name}


def test_a_bare_model_has_no_head_to_miss() -> None:
    config = CONFIG | {"architectures": ["LlamaModel"]}
    assert assign(StateSource(without(llama(), "lm_head"), config)).census.left_out == ()


def test_neither_embedding_nor_head_is_missing_something() -> None:
    assert "(embed)" in missing(assign(StateSource(without(llama(), "lm_head", "embed_tokens"), CONFIG)))


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod.", "module._orig_mod.", "_fsdp_wrapped_module."])
def test_wrappers_are_looked_through(wrapper: str) -> None:
    found = assign(StateSource({wrapper + n: t for n, t in llama().items()}, CONFIG))
    assert found.census.left_out == ()
    assert {w.tensor for w in found.weights} == {wrapper + n for n in llama()}


def test_a_wrapper_inside_the_name() -> None:
    state = {n.replace("self_attn.", "_checkpoint_wrapped_module.self_attn._orig_mod."): t for n, t in llama().items()}
    assert assign(StateSource(state, CONFIG)).census.left_out == ()


def test_a_missing_layer_and_a_missing_matrix() -> None:
    assert missing(assign(StateSource(without(llama(), "layers.1."), CONFIG))) == {"(layer 1)"}
    assert missing(assign(StateSource(llama(2), CONFIG))) == {"(layer 2)"}
    lost = without(llama(), "layers.1.self_attn.v_proj")
    assert missing(assign(StateSource(lost, CONFIG))) == {"(v of layer 1)"}
    nowhere = missing(assign(StateSource(without(llama(), "o_proj"), CONFIG)))
    assert nowhere == {f"(o of layer {n})" for n in range(3)}


def test_a_layer_beyond_the_configuration_is_listed() -> None:
    found = assign(StateSource(llama(4), CONFIG))
    assert {e.state for e in found.census.entries if ".layers.3." in e.tensor} == {"skipped"}
    assert {w.role.layer for w in found.of("q")} == {0, 1, 2}


def test_missing_experts() -> None:
    state = without(llama(), "mlp")
    for n in range(3):
        for e in range(4):
            for kind, shape in (("gate", (F, D)), ("up", (F, D)), ("down", (D, F))):
                state[f"model.layers.{n}.mlp.experts.{e}.{kind}_proj.weight"] = torch.randn(*shape)
    config = CONFIG | {"model_type": "qwen3_moe", "num_experts": 4}
    assert assign(StateSource(state, config)).census.left_out == ()
    found = assign(StateSource(without(state, "layers.1.mlp.experts.2.up"), config))
    assert missing(found) == {"(up of layer 1, expert 2)"}


def test_null_in_the_configuration_is_not_given() -> None:
    nulls = dict.fromkeys(CONFIG) | {"model_type": "llama", "text_config": None, "quantization_config": None}
    found = assign(StateSource(llama(), nulls))
    assert found.census.left_out == ()
    assert number({"num_attention_heads": None, "n_head": 3}, "heads") == 3
    assert number({"num_attention_heads": 0}, "heads") is None
    assert number({"num_attention_heads": True}, "heads") is None


def neox(layers: int = 2) -> dict[str, Tensor]:
    state = {"gpt_neox.embed_in.weight": torch.randn(V, D), "embed_out.weight": torch.randn(V, D)}
    for n in range(layers):
        p = f"gpt_neox.layers.{n}"
        state |= {
            f"{p}.attention.query_key_value.weight": torch.randn(3 * D, D),
            f"{p}.attention.dense.weight": torch.randn(D, D),
            f"{p}.mlp.dense_h_to_4h.weight": torch.randn(F, D),
            f"{p}.mlp.dense_4h_to_h.weight": torch.randn(D, F),
        }
    return state


def test_two_families_are_refused() -> None:
    for config in (CONFIG, {}):
        with pytest.raises(InputError, match="two families"):
            assign(StateSource(llama() | neox(), config))


def test_an_unknown_tensor_is_listed() -> None:
    found = assign(StateSource(llama() | {"model.layers.0.adapter.weight": torch.randn(D, D)}, CONFIG))
    (left,) = found.census.left_out
    assert (left.tensor, left.state) == ("model.layers.0.adapter.weight", "unknown")
    assert "--roles" in left.remedy


def test_packed_integers_are_not_taken_for_buffers() -> None:
    extra = {
        "model.layers.0.mlp.experts.gate_up_proj_blocks": torch.zeros(4, 8, dtype=torch.uint8),
        "model.layers.0.self_attn.position_ids": torch.arange(8)[None],
    }
    found = states(assign(StateSource(llama() | extra, CONFIG)))
    assert [found[name] for name in extra] == ["skipped", "recognised"]


def test_a_second_matrix_of_the_same_place_is_skipped() -> None:
    extra = {"layers.0.self_attn.q_proj.weight": torch.randn(HEADS * WIDTH, D)}
    found = assign(StateSource(llama() | extra, CONFIG))
    assert [e.tensor for e in found.census.left_out] == list(extra)
    assert len(found.of("q")) == 3


def test_a_matrix_that_does_not_fit_the_stream_is_skipped() -> None:
    state = llama()
    state["model.layers.1.mlp.up_proj.weight"] = state["model.layers.1.mlp.up_proj.weight"].T.contiguous()
    (left,) = assign(StateSource(state, CONFIG)).census.left_out
    assert (left.tensor, left.state) == ("model.layers.1.mlp.up_proj.weight", "skipped")
    assert str(D) in left.detail


def test_a_vector_where_a_matrix_is_expected_is_skipped() -> None:
    state = llama() | {"model.layers.1.mlp.up_proj.weight": torch.randn(5)}
    (left,) = assign(StateSource(state, CONFIG)).census.left_out
    assert left.state == "skipped"


def test_a_fused_matrix_that_does_not_fit_the_configuration() -> None:
    config = {"model_type": "gpt_neox", "num_attention_heads": HEADS, "hidden_size": 20, "num_hidden_layers": 2}
    with pytest.raises(InputError, match=r"query_key_value.*the tensor has 48"):
        assign(StateSource(neox(), config))


def test_a_fused_matrix_without_configuration_says_what_to_give() -> None:
    found = assign(StateSource(neox()))
    assert {e.tensor for e in found.census.left_out} == {n for n in neox() if "query_key_value" in n}
    assert all("--config" in e.remedy for e in found.census.left_out)


def test_no_tensors() -> None:
    with pytest.raises(InputError, match="no tensors"):
        assign(StateSource({}))


ROLES = """
family = "mine"
prefixes = ["net."]
[[part]]
[part.matrix]
"table" = { kind = "embed" }
[[part]]
prefix = "steps.{layer}."
[part.matrix]
"ask" = { kind = "q" }
"both" = { split = ["k", "v"], layout = "equal", orientation = "in_out" }
"mystery" = { kind = "mixer", reads = "residual", writes = "residual", optional = true }
[part.norm]
"scale" = { side = "in", feeds = ["q", "k", "v"] }
[part.other]
"mask" = "a mask"
"""


def test_a_roles_file_describes_an_odd_model(tmp_path: Path) -> None:
    (tmp_path / "roles.toml").write_text(ROLES)
    state = {"net.table.weight": torch.randn(V, D), "net.steps.0.ask.weight": torch.randn(12, D),
             "net.steps.0.both.weight": torch.randn(D, 24), "net.steps.0.scale.weight": torch.ones(D),
             "net.steps.0.mask": torch.ones(3), "net.steps.0.mystery.weight": torch.randn(D, D)}  # fmt: skip
    source = StateSource(state)
    found = assign(source, roles=tmp_path / "roles.toml")
    assert (found.census.family, found.census.decided_by) == ("mine", "--roles")
    assert found.census.left_out == ()
    (v,) = found.of("v")
    assert torch.equal(read_weight(source, v), state["net.steps.0.both.weight"].T[12:])
    (mixer,) = found.of("mixer")
    assert mixer.role.writes == "residual"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (ROLES, "[[[", "is not TOML"),
        ('family = "mine"', "", "lacks the key 'family'"),
        ("[[part]]\n[part.matrix]", "[part]\n[part.matrix]", "."),
        ('kind = "q" }', 'kinds = "q" }', "unknown key 'kinds'"),
        ("prefixes", "prefix", "unknown key 'prefix'"),
        ('kind = "q" }', 'kind = "querry" }', "unknown kind 'querry'"),
        ('layout = "equal"', 'layout = "even"', "unknown layout 'even'"),
        ('layout = "equal", ', "", "layout"),
        ('orientation = "in_out"', 'orientation = "down"', "unknown orientation 'down'"),
        ('side = "in"', 'side = "left"', "unknown side 'left'"),
        ('feeds = ["q", "k", "v"]', 'feeds = ["w"]', "feeds the unknown kind 'w'"),
        ('"net."', '"other."', "none of its patterns"),
    ],
)
def test_a_wrong_roles_file_says_what_is_wrong(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in ROLES
    path = tmp_path / "roles.toml"
    path.write_text(ROLES.replace(old, new, 1))
    with pytest.raises(InputError, match=message) as caught:
        assign(StateSource({"net.steps.0.ask.weight": torch.randn(12, D)}), roles=path)
    assert str(path) in str(caught.value)
    assert caught.value.remedy


def test_a_roles_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        assign(StateSource(llama()), roles=tmp_path / "none.toml")


@given(
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    groups=st.integers(1, 6),
)
def test_every_layout_partitions_the_rows(sizes: list[int], groups: int) -> None:
    """Each row of the fused matrix belongs to exactly one part."""
    out = groups * sum(sizes)
    rows = torch.arange(out)
    taken: list[int] = []
    for split in splits("grouped", sizes, out, groups=groups):
        part = rows.unflatten(0, (split.groups, split.period))[:, split.start : split.stop].flatten()
        assert len(part) == split.rows
        assert part.tolist() == sorted(part.tolist())
        taken += part.tolist()
    assert sorted(taken) == rows.tolist()
    with pytest.raises(InputError, match="rows"):
        splits("grouped", sizes, out + 1, groups=groups)


def test_tensors_of_more_dimensions() -> None:
    assert as_matrix((1, 5, 8)) == (5, 8)
    assert as_matrix((32, 3, 4, 4)) == (32, 48)
    assert as_matrix((1, 3)) == (1, 3)
