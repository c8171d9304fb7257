"""Where norms stand: what the file says against what a tiny model does in its forward pass, and the traps of names."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drillcore.measures.stream import Block, HalfStep, blocks_of, watching
from drillcore.weights import InputError, assign, open_source
from drillcore.weights.norm_names import placements_by_names
from drillcore.weights.placement import Placement, placements
from tests.weights.tiny import CASES, StateSource, inputs

UNSEEN = {"deit", "vit", "vit_msn", "clip", "clip text", "clip vision", "gemma3"}  # pictures: tested by clip elsewhere


@dataclass
class Seen:
    """Which norms read the stream before a branch, gave the branch, or gave the stream of the next half-step."""

    before: set[bool] = field(default_factory=set)
    out: set[bool] = field(default_factory=set)
    post: set[bool] = field(default_factory=set)
    calls: list[tuple[Any, Any]] = field(default_factory=list)
    last: HalfStep | None = None

    def entered(self, block: Block, site: int, stream: Tensor) -> None:
        self.calls.clear()

    def added(self, step: HalfStep) -> Tensor:
        same = lambda a, b: a is b or (isinstance(a, Tensor) and a.data_ptr() == b.data_ptr())  # noqa: E731
        into = any(same(x, step.before) for x, _ in self.calls)
        self.before.add(into)
        self.out.add(any(same(y, step.branch) for _, y in self.calls))
        self.post.add(not step.direct)
        return step.after

    def left(self, block: Block, site: int, before: Tensor, after: Tensor) -> None:
        self.post.add(any(y is after for _, y in self.calls))


def observed(model: nn.Module) -> str:
    """The placement that a forward pass shows; raises KeyError where half-steps differ."""
    source = open_source(model)
    writers: dict[tuple[str, int], dict[str, str]] = {}
    for weight in assign(source).weights:
        if weight.role.layer is not None:
            writers.setdefault((weight.role.stack, weight.role.layer), {})[weight.tensor] = weight.role.kind
    seen = Seen()
    for module in model.modules():
        if "norm" in type(module).__name__.lower():
            module.register_forward_hook(lambda m, args, out: seen.calls.append((args[0], out)))
    with torch.no_grad(), watching(blocks_of(model, writers), seen):
        model(**inputs(model))
    if True in seen.post:
        return "post"
    return {(True, False): "pre", (True, True): "peri", (False, True): "branch_out"}[
        any(seen.before), all(seen.out) and bool(seen.out)
    ]  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(CASES) - UNSEEN))
def test_a_forward_pass_shows_the_placement_that_is_said(name: str) -> None:
    model = CASES[name].build()
    source = open_source(model)
    shown = observed(model)
    for stack, found in placements(source, assign(source)).items():
        assert found.norm_placement == shown, (stack, found)
        assert not found.reason


def of(model_type: str, names: list[str], **config: Any) -> Placement:
    """The placement of a checkpoint with these norms in one layer of a Llama."""
    state = {f"model.layers.0.{name}.weight": torch.ones(8) for name in names}
    state |= {f"model.layers.0.self_attn.{k}_proj.weight": torch.ones(8, 8) for k in "qkvo"}
    state |= {f"model.layers.0.mlp.{k}_proj.weight": torch.ones(8, 8) for k in ("up", "down")}
    source = StateSource(state, {"model_type": model_type, **config} if model_type else config)
    return placements(source, assign(source))[""]


PRE = ["input_layernorm", "post_attention_layernorm"]


def test_the_same_names_mean_what_the_type_says() -> None:
    assert of("llama", PRE).norm_placement == "pre"
    assert of("minimax", PRE).norm_placement == "post"
    assert of("molmo2", PRE, norm_after=True).norm_placement == "branch_out"
    assert of("molmo2", PRE).norm_placement == "pre"
    assert of("", PRE).norm_placement == "pre"
    assert of("", PRE).decided_by == "names"


def test_a_contradiction_is_said_and_not_guessed() -> None:
    found = of("llama", ["post_attention_layernorm", "post_feedforward_layernorm"])
    assert (found.norm_placement, found.decided_by) == ("undecided", "")
    assert "llama" in found.reason
    assert "branch_out" in found.reason
    assert "--norm-placement" in found.remedy
    given = placements_of_given("peri")
    assert (given.norm_placement, given.decided_by, given.reason) == ("peri", "given", "")
    with pytest.raises(InputError, match="no norm placement"):
        placements_of_given("sideways")


def placements_of_given(given: str) -> Placement:
    source = StateSource({f"model.layers.0.self_attn.{k}_proj.weight": torch.ones(8, 8) for k in "qkvo"})
    return placements(source, assign(source), given=given)[""]


def test_a_checkpoint_without_norms_is_undecided_unless_its_type_is_known() -> None:
    assert of("", []).norm_placement == "undecided"
    assert of("olmo", []).norm_placement == "pre"
    assert of("dory", []).norm_placement == "ngpt"


@pytest.mark.parametrize(("names", "final", "expected"), [
    (["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"], True,
     "peri"),
    (["input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"], True, "peri"),
    (["post_attention_layernorm", "post_feedforward_layernorm", "self_attn.q_norm", "self_attn.k_norm"], True,
     "branch_out"),
    (["input_layernorm", "pre_feedforward_layernorm"], True, "pre"),
    (["post_attention_layernorm", "post_mlp_layernorm"], False, "post"),
    (["attention.output.LayerNorm", "output.LayerNorm"], False, "post"),
    (["ln_1", "ln_2"], True, "pre"), (["ln_1", "ln_2"], False, "post"), (["ln_1"], True, "pre"),
    (["self_attn_layer_norm", "final_layer_norm"], True, "pre"),
    (["self_attn_layer_norm", "final_layer_norm"], False, "post"),
    (["layernorm_before", "layernorm_after"], True, "pre or branch_out"),
    (["layer.0.layer_norm", "layer.1.layer_norm"], True, "pre"),
    (["self_attn.q_norm", "self_attn.k_norm"], True, ""), ([], True, ""),
])  # fmt: skip
def test_names_are_read_in_order(names: list[str], final: bool, expected: str) -> None:
    found = placements_by_names([f"model.layers.3.{name}.weight" for name in names], final)
    assert found == set(filter(None, expected.split(" or ")))


def test_what_else_is_known_of_the_norms() -> None:
    def case(name: str) -> dict[str, Placement]:
        source = open_source(CASES[name].build())
        return placements(source, assign(source))

    (gemma,) = case("gemma3_text").values()
    assert (gemma.zero_centered_gain, gemma.qk_norm, gemma.norm_kind) == (True, True, "rmsnorm")
    (llama,) = case("llama").values()
    assert (llama.zero_centered_gain, llama.qk_norm, llama.final_norm, llama.embed_norm) == (False, False, True, False)
    (bert,) = case("bert").values()
    assert (bert.norm_kind, bert.embed_norm, bert.final_norm) == ("layernorm", True, False)
    (phi,) = case("phi").values()
    assert phi.parallel
    (falcon,) = case("falcon rw").values()
    assert not falcon.parallel
    (mini,) = case("minicpm3").values()
    assert mini.residual_step == pytest.approx(1.4 / 2**0.5)
    assert of("granite", PRE, residual_multiplier=0.22).residual_step == 0.22
    assert of("llama", PRE, rms_norm_eps=1e-6).eps == 1e-6
    assert case("t5")["encoder"].norm_kind == "rmsnorm"
    assert next(iter(case("olmo").values())).norm_kind == "layernorm"
