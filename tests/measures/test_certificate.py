"""Certificates against forward passes: of every checked model type, on random inputs and on inputs sought for harm."""

from collections.abc import Iterator
from dataclasses import replace
from math import isfinite
from typing import Any

import pytest
import torch
from tests.measures.reaching import Reaching, bounds, certificates, certificates_of, reaching, shake
from tests.weights.tiny import CASES, Case, StateSource, inputs
from torch import Tensor, nn

from drillcore.measures.stability import Certificate, read_certificates
from drillcore.weights import assign
from drillcore.weights.forward_pass import CHECKED
from drillcore.weights.placement import placements

ROUND = 1e-4  # float32 forward passes against bounds
OPEN = {  # what no weight bounds, and words of the reason
    "vit": "pictures", "deit": "pictures", "vit_msn": "pictures", "gemma3": "'siglip_vision_model' has not been",
    "opt 350m": "projection", "electra": "projection", "electra generator": "projection",
    "gpt2 crossed": "not in this checkpoint", "bart decoder": "not in this checkpoint",
    "stablelm": "inside a branch",
}  # fmt: skip


def with_(name: str, **more: Any) -> Case:
    return replace(CASES[name], sizes={**CASES[name].sizes, **more})


SCALED = {  # numbers of the configuration that change the arithmetic
    "granite scaled": with_("granite", residual_multiplier=0.3, embedding_multiplier=7.0, attention_multiplier=1.7),
    "granite stretched": with_("granite", residual_multiplier=3.0),
    "mbart scaled": with_("mbart", scale_embedding=True),
    "llama long": with_("llama", rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}),
    "exaone4 deep": with_("exaone4", num_hidden_layers=4, sliding_window_pattern=2),
    "gemma2 uncapped": with_("gemma2", attn_logit_softcapping=None),
}  # fmt: skip


def model_types(case: Case) -> set[str]:
    config = case.build().config.to_dict()
    inner = [config[key]["model_type"] for key in ("text_config", "vision_config") if key in config]
    return {config["model_type"], *inner}


ALL = {name: case for name, case in {**CASES, **SCALED}.items() if model_types(case) & CHECKED}


def runs(model: nn.Module) -> None:
    """Several forward passes, at position 0 and at the real ones."""
    given = inputs(model)
    with torch.no_grad():
        model(**given)
        for seed in range(3):
            ids = torch.randint(3, 40, (2, 9), generator=torch.Generator().manual_seed(seed))
            again: dict[str, Tensor] = {name: ids for name in given if name.endswith("input_ids")}
            if "pixel_values" in given:
                again["pixel_values"] = given["pixel_values"].repeat(2, 1, 1, 1) * 10**seed
            model(**again)


def shaken(case: Case, amplify: float = 1.0) -> Any:
    model = case.build()
    shake(model, amplify)
    model.set_attn_implementation("eager")  # type: ignore[operator]
    return model


def check(seen: Reaching, found: dict[str, Certificate]) -> dict[str, float]:
    """Nothing was above its bound; the largest share of it that was reached, by part."""
    allowed, share = bounds(found), dict.fromkeys(("stream", "branch outputs", "projections"), 0.0)
    for place, reached in seen.largest.items():
        if not found[place[0]].places:
            continue  # refused as a whole
        assert reached <= allowed[place] * (1 + ROUND), (place, reached, allowed[place])
        share[place[1]] = max(share.get(place[1], 0.0), reached / allowed[place])
    return share


def test_every_checked_type_has_a_case() -> None:
    assert set().union(*map(model_types, ALL.values())) >= CHECKED


@pytest.mark.parametrize("amplify", [1.0, 4.0])
@pytest.mark.parametrize("name", sorted(ALL))
def test_no_forward_pass_leaves_a_bound(name: str, amplify: float) -> None:
    """Random gains with outliers, shifts, biases and large matrices: every place of every part stays below."""
    model = shaken(ALL[name], amplify)
    found = certificates(model)
    with reaching(model) as seen:
        runs(model)
    share = check(seen, found)
    lost = [c.reason for c in found.values() if c.verdict == "not bounded"]
    assert bool(lost) == (name in OPEN), lost
    if lost:
        assert OPEN[name] in lost[0]
    else:
        assert set(share) == {"stream", "branch outputs", "hidden values", "projections", "attention logits"}
        assert all(0.003 < value <= 1 + ROUND for value in share.values()), share  # bounds, but not of another world


PLACED = ["llama", "gemma3_text", "olmo2", "bert", "gptj", "granite scaled", "granite stretched", "bart",
          "t5"]  # fmt: skip


def sought(model: Any, steps: int = 60) -> None:
    """Ascend on the embedding until the branches' outputs and the last stream are as large as they become."""
    values: list[Tensor] = []
    hooks = [m.register_forward_hook(lambda m, args, out: values.append(out)) for name, m in model.named_modules()
             if name.endswith(("o_proj", "down_proj", "out_proj", "fc_out", "fc2", "output.dense", ".wo"))]  # fmt: skip
    tables = [p for name, p in model.named_parameters() if p.ndim == 2 and len(p) == 40]
    optimiser = torch.optim.Adam(tables, lr=0.05)
    ids = inputs(model)
    for _ in range(steps):
        values.clear()
        model(**ids)
        loss = -sum((value.abs().amax().log() for value in values), torch.zeros(()))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("name", PLACED)
def test_inputs_that_are_sought_for_harm_stay_below(name: str) -> None:
    model = shaken(ALL[name])
    with reaching(model) as before, torch.no_grad():
        model(**inputs(model))
    share = check(before, certificates(model))["branch outputs"]
    sought(model)
    with reaching(model) as after, torch.no_grad():
        model(**inputs(model))
    reached = check(after, certificates(model))["branch outputs"]
    assert reached > 1.15 * share  # the search was a search
    assert reached > 0.1  # and the bound is no large multiple of what can be


@pytest.mark.parametrize("name", PLACED)
def test_the_moments_of_every_site_stay_below(name: str) -> None:
    """(1) to (4) of the notes: mean |x|, rms and standard deviation of each token, and over tokens."""
    model = shaken(ALL[name])
    found = certificates(model)
    with reaching(model) as seen, torch.no_grad():
        model(**inputs(model))
    for stack, certificate in found.items():
        assert len(certificate.sites) == 1 + max(site for s, site in seen.sites if s == stack)
        for site in certificate.sites:
            x = seen.sites[stack, site.site].flatten(0, -2).double() if (stack, site.site) in seen.sites else None
            if x is None:
                continue  # inside a block the harness keeps no stream
            room = 1 + ROUND
            assert float(x.abs().max()) <= site.largest * room
            assert float(x.abs().mean(1).max()) <= site.mean_abs * room
            assert float(x.square().mean(1).sqrt().max()) <= site.rms * room
            assert float(x.std(1, correction=0).max()) <= site.entry_sd * room
            assert float(x.var(0, correction=0).mean().sqrt()) <= site.data_sd * room


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "olmo2", "gptj", "granite scaled", "t5"])
def test_the_law_of_the_tokens_moves_no_further_than_its_bound(name: str) -> None:
    """Each token is its own coupling: ‖x_K − x_0‖ bounds W_p of the laws, and pairs of tokens W_p of two inputs."""
    model = shaken(ALL[name])
    found = certificates(model)
    with reaching(model) as seen, torch.no_grad():
        model(**inputs(model))
    for stack, certificate in found.items():
        assert certificate.transport is not None
        last = max(site for s, site in seen.sites if s == stack)
        first, final = (seen.sites[stack, site].flatten(0, -2).double() for site in (0, last))
        moved = (final - first).norm(dim=1)
        assert float(moved.max()) <= certificate.transport.drift
        assert float(moved.max()) > certificate.transport.drift / 500
        further = torch.cdist(final, final) - torch.cdist(first, first)
        assert float(further.max()) <= certificate.transport.apart


def test_the_transport_of_known_gains() -> None:
    """Each branch moves a token by at most γ√d, and two tokens apart by twice that (closed form)."""
    found = gained(embedding=1.0, gains=[0.5, 3.0]).transport
    assert found is not None
    assert found.drift == pytest.approx(2 * 3.5 * 32**0.5)
    assert found.apart == pytest.approx(2 * found.drift)


def test_a_norm_on_the_stream_leaves_no_transport() -> None:
    (certificate,) = certificates(shaken(CASES["bert"])).values()
    assert certificate.transport is None


def overflowing(name: str, layer: int, part: str) -> nn.Module:
    """A model that leaves fp16 in this layer, and is far from it before."""
    model = with_(name, num_hidden_layers=4).build()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if f"layers.{layer}." in key and part in key:
                p.fill_(30_000.0) if p.ndim == 1 else p.mul_(3e5)
    return model


def streams(model: nn.Module) -> Iterator[Tensor]:
    """The stream behind every layer in fp16."""
    seen: list[Tensor] = []
    for name, module in model.named_modules():
        if name.rpartition(".")[2].isdigit() and name.rpartition(".")[0].endswith("layers"):
            module.register_forward_hook(lambda m, args, out: seen.append(out[0] if isinstance(out, tuple) else out))
    with torch.no_grad():
        model.half()(**inputs(model))
    yield from seen


@pytest.mark.parametrize(
    ("name", "plant"),
    [("gemma3_text", "post_feedforward_layernorm"), ("llama", "down_proj"), ("olmo2", "post_attention_layernorm")],
)
def test_a_planted_overflow_is_said_with_its_layer_and_happens(name: str, plant: str) -> None:
    model = overflowing(name, 1, plant)
    (certificate,) = certificates(model).values()
    parts = {p.part: p for p in certificate.parts}
    assert (parts["stream"].verdict, parts["stream"].first) == ("may overflow", 1)
    assert "from layer 1" in certificate.words
    read_by_norms = name != "olmo2"  # whose later branches read the large stream as it is
    assert (parts["projections"].verdict == "cannot overflow") == read_by_norms
    calm, wild, *_ = streams(model)
    assert bool(calm.isfinite().all())
    assert not bool(wild.isfinite().all())
    assert certificate.divisor is not None
    assert certificate.divisor >= 4
    (calm_one,) = certificates(CASES[name].build()).values()
    assert (calm_one.verdict, calm_one.divisor) == ("cannot overflow", 1.0)
    assert all((p.head_room or 0.0) > 1 for p in calm_one.parts)


def state_of(name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    model = CASES[name].build()
    return dict(model.state_dict()), model.config.to_dict()


def only(state: dict[str, Tensor], config: dict[str, Any]) -> Certificate:
    (certificate,) = certificates_of(state, config).values()
    return certificate


def test_what_cannot_be_certified_says_why_and_what_to_do() -> None:
    state, config = state_of("llama")
    unchecked = only(state, {**config, "model_type": "hunyuan_v1_dense"})
    assert (unchecked.verdict, unchecked.parts) == ("not bounded", ())
    assert "'hunyuan_v1_dense' has not been checked" in unchecked.reason
    assert "drillcore signal" in unchecked.remedy
    nameless = only(state, {k: v for k, v in config.items() if k != "model_type"})
    assert "no model type is known" in nameless.reason
    undecided = only({k: v for k, v in state.items() if "layernorm" not in k}, config)
    assert "norm" in undecided.reason
    strange = only({**state, "model.layers.0.mlp.adapter.weight": torch.ones(3)}, config)
    assert "not understood" in strange.reason
    assert "model.layers.0.mlp.adapter.weight" in strange.reason


def test_a_matrix_of_nan_opens_what_depends_on_it_and_nothing_else() -> None:
    state, config = state_of("gemma3_text")
    key = "model.layers.1.self_attn.v_proj.weight"
    found = only({**state, key: state[key] * float("nan")}, config)
    lost = {(p.part, p.layer, p.branch) for p in found.places if p.value is None}
    assert lost == {(part, 1, "attention") for part in ("branch outputs", "projections", "attention logits")}
    assert found.parts[0].verdict == "cannot overflow"  # a norm stands on what the branch gives
    state, config = state_of("llama")
    found = only({**state, key: state[key] * float("nan")}, config)
    assert found.parts[0].verdict == "not bounded"
    assert "was not read" in found.reason
    assert "left out" in found.remedy


def test_a_table_of_nan_opens_the_stream() -> None:
    state, config = state_of("llama")
    state["model.embed_tokens.weight"][3, 3] = float("nan")
    found = only(state, config)
    assert "model.embed_tokens.weight holds NaN" in found.reason
    assert {p.part for p in found.parts if p.verdict == "not bounded"} == {"stream"}


def test_one_matrix_of_nan_among_those_that_are_summed_opens_the_sum() -> None:
    """The shared expert beside the routed ones: what is known of the others bounds nothing."""
    state, config = state_of("qwen2_moe")
    key = "model.layers.1.mlp.shared_expert.down_proj.weight"
    found = only({**state, key: state[key] * float("nan")}, config)
    assert [(p.layer, p.branch) for p in found.places if p.part == "branch outputs" and p.value is None] == [(1, "mlp")]
    assert found.bound("stream") is None


def test_an_adapter_is_refused() -> None:
    state, config = state_of("llama")
    source = StateSource(state, config)
    source.specs = {name: replace(spec, delta=True) for name, spec in source.specs.items()}
    assignment = assign(source)
    (found,) = read_certificates(source, assignment, placements(source, assignment))
    assert "an adapter holds changes" in found.reason


def test_what_is_multiplied_to_and_added_to_the_logits_counts() -> None:
    """Granite's attention multiplier above 1 stretches them; T5 adds its positions to them (closed forms)."""
    state, config = state_of("granite")
    plain, scaled = (only(state, {**config, "attention_multiplier": m}).bound("attention logits") for m in (1.0, 1.7))
    assert scaled == pytest.approx(1.7 * (plain or 0.0))
    state, config = state_of("t5 encoder")
    (key,) = [name for name in state if "relative_attention_bias" in name]
    before, after = (only({**state, key: table}, config) for table in (0 * state[key], 0 * state[key] - 1234.0))
    assert (after.bound("attention logits") or 0.0) - (before.bound("attention logits") or 0.0) == pytest.approx(1234.0)


def test_a_rotation_that_stretches_opens_queries_and_keys_alone() -> None:
    state, config = state_of("llama")
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 8}
    found = only(state, {**config, "rope_parameters": yarn})
    assert {p.part for p in found.parts if p.verdict == "not bounded"} == {"projections", "attention logits"}
    assert "rotary" in found.reason


def test_the_worst_part_decides() -> None:
    model = overflowing("llama", 0, "q_proj")
    (certificate,) = certificates(model).values()
    assert certificate.worst is not None
    assert certificate.worst.part == "attention logits"
    assert certificate.words == "attention logits: may overflow from layer 0"
    said = certificate.as_json()
    assert (said["verdict"], said["derived"]) == ("may overflow", "drillcore")
    assert {p["part"]: p["words"] for p in said["parts"]}["stream"] == "cannot overflow"
    assert all(p["head_room"] is None or isfinite(p["head_room"]) for p in said["parts"])


def gained(*, embedding: float, gains: list[float]) -> Certificate:
    """A Gemma 3 whose embedding rows have this rms, and whose layers' output norms have these gains."""
    state, config = state_of("gemma3_text")
    table = torch.full_like(state["model.embed_tokens.weight"], embedding / 32**0.5)  # it is scaled by √d
    state["model.embed_tokens.weight"] = table
    state["lm_head.weight"] = table
    for layer, gain in enumerate(gains):
        for name in ("post_attention_layernorm", "post_feedforward_layernorm"):
            state[f"model.layers.{layer}.{name}.weight"] = torch.full((32,), gain - 1.0)
    return only(state, config)


@pytest.mark.parametrize(
    ("embedding", "gains", "share"),
    [(1.0, [1.0, 1.0], 0.0), (1000.0, [1.0, 1.0], 1.0), (100.0, [0.19, 0.2], 0.5), (1.0, [600.0, 1.0], 0.5)],
)
def test_half_steps_that_bfloat16_would_lose(embedding: float, gains: list[float], share: float) -> None:
    """γ below 2⁻⁹·√(rms(x₀)² + Σ γ²), closed form."""
    assert gained(embedding=embedding, gains=gains).below_bfloat16 == share


def test_where_a_branch_has_no_norm_on_its_output_the_share_is_not_known() -> None:
    (certificate,) = certificates(CASES["llama"].build()).values()
    assert certificate.below_bfloat16 is None


def test_the_residual_step_multiplies_what_is_added() -> None:
    state, config = state_of("granite")
    once, thrice = (only(state, {**config, "residual_multiplier": m}).bound("stream") for m in (1.0, 3.0))
    assert (thrice or 0.0) > 2 * (once or 0.0)
