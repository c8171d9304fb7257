"""A live module: the source gives the parameters themselves."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from drillcore.weights import InputError, assign, open_source


class Tied(nn.Module):
    """Llama's names, a tied head, a layer that is used twice, and a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(10, 4)
        self.layers = nn.ModuleList([nn.ModuleDict({"mlp": nn.ModuleDict({"up_proj": nn.Linear(4, 8, bias=False)})})])
        self.layers.append(self.layers[0])
        self.lm_head = nn.Linear(4, 10, bias=False)
        self.lm_head.weight = self.embed_tokens.weight
        self.register_buffer("inv_freq", torch.ones(2), persistent=False)


def test_reads_are_the_parameters_themselves() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    source = open_source(module)
    assert source.label == "Sequential"
    assert dict(source.config) == {}
    assert set(source.specs) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    read = source.read("0.weight")
    assert isinstance(read, Tensor)
    assert not read.requires_grad
    with torch.no_grad():
        module[0].weight[1, 2] = 7.0
    assert read[1, 2] == 7.0
    assert torch.equal(source.read("0.weight", slice(1, 3)), module[0].weight[1:3])


def test_shared_parameters_are_counted_once() -> None:
    source = open_source(Tied())
    assert set(source.specs) == {f"layers.{i}.mlp.up_proj.weight" for i in (0, 1)} | {"embed_tokens.weight"}
    assert [(n.name, n.state, n.detail) for n in source.notes] == [
        ("lm_head.weight", "tied", "shares the bytes of embed_tokens.weight")
    ]
    assignment = assign(source)
    assert assignment.census.nbytes == 4 * (10 * 4 + 8 * 4)
    assert [w.role.tie for w in assignment.of("unembed")] == ["embed"]
    assert [w.role.layer for w in assignment.of("up")] == [0, 1]
    assert assignment.census.left_out == ()


def test_configuration_of_a_transformers_model() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=20, tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    source = open_source(model)
    assert (source.label, source.config["num_key_value_heads"]) == ("LlamaForCausalLM", 2)
    assignment = assign(source)
    assert (assignment.census.family, assignment.census.decided_by) == ("llama", "model_type")
    assert assignment.census.left_out == ()
    assert {e.state for e in assignment.census.entries} == {"used", "recognised", "tied"}
    assert assignment.census.nbytes == sum(p.numel() * p.element_size() for p in model.parameters())


def test_a_given_configuration_is_used(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"num_attention_heads": 2}')
    source = open_source(nn.Linear(2, 2), config=tmp_path / "c.json")
    assert source.config["num_attention_heads"] == 2


def test_meta_tensors_are_refused() -> None:
    with torch.device("meta"):
        module = nn.Linear(2, 2)
    with pytest.raises(InputError, match=r"Linear: 2 of its 2 tensors are on the meta device(.|\n)*load the weights"):
        open_source(module)
