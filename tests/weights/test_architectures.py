"""Every family on tiny random models: nothing is left out, and the model itself proves each split."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.activations import ACT2FN
from transformers.masking_utils import eager_mask

from drillcore.weights import Assignment, Source, Weight, assign, open_source
from drillcore.weights.layout import read_weight
from tests.weights.tiny import CASES, StateSource, inputs

Key = tuple[str, str, int | None, int | None]
QKV = ("q", "k", "v", "cross_q", "cross_k", "cross_v")


@dataclass
class Proof:
    """A tiny model, its file and its memory assigned, and what a forward pass showed."""

    model: nn.Module
    file: Source
    memory: Source
    saved: Assignment
    live: Assignment
    inputs: dict[str, Tensor] = field(default_factory=dict)  # module → what it read
    outputs: dict[str, Any] = field(default_factory=dict)
    attention: dict[str, tuple[Tensor, ...]] = field(default_factory=dict)  # module → q, k, v, output

    def matrix(self, weight: Weight) -> Tensor:
        """The matrix of a live weight's role, read from the file."""
        return self.matrices[_key(weight)]

    @property
    def matrices(self) -> dict[Key, Tensor]:
        return {_key(w): read_weight(self.file, w) for w in self.saved.weights}


def _key(weight: Weight) -> Key:
    return weight.role.stack, weight.role.kind, weight.role.layer, weight.role.expert


@cache
def proof(name: str) -> Proof:
    """Build, save, assign and run a case once."""
    model = CASES[name].build()
    folder = Path(_FOLDER.name) / name.replace(" ", "_")
    model.save_pretrained(folder)
    file = open_source(folder)
    config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    live = StateSource({n: t.detach() for n, t in model.state_dict().items()}, config)
    made = Proof(model, file, live, assign(file), assign(live))
    _run(made)
    return made


_FOLDER = TemporaryDirectory()


def _run(made: Proof) -> None:
    """One forward pass; what each module reads and writes, and what attention receives."""
    model = made.model
    for path, module in list(model.named_modules()):
        if re.search(r"\.[qk]_(norm|layernorm|ln)$", path):
            model.set_submodule(path, nn.Identity())
        elif path:
            module.register_forward_hook(_recorder(made, path), with_kwargs=True)
    paths = {module: path for path, module in model.named_modules()}
    with torch.no_grad(), _attention(made, paths):
        model(**inputs(model))
        if hasattr(model, "model") and hasattr(model.model, "vision_tower"):
            model.model.vision_tower(torch.randn(1, 3, 8, 8))


def _recorder(made: Proof, path: str) -> Callable[..., None]:
    def record(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        read = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
        if read is not None:
            first = output[0] if isinstance(output, tuple) else output  # a router returns its logits first
            made.inputs[path] = read.clone()  # Falcon adds in place
            made.outputs[path] = first.clone() if isinstance(first, Tensor) else first

    return record


@contextmanager
def _attention(made: Proof, paths: dict[nn.Module, str]) -> Iterator[None]:
    """Record the heads where attention is computed: through the interface, or in a family's own method."""

    def probe(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        repeat = q.shape[1] // k.shape[1]
        out = (q @ k.repeat_interleave(repeat, 1).mT).softmax(-1) @ v.repeat_interleave(repeat, 1)
        out = out.transpose(1, 2).contiguous()
        made.attention[paths[module]] = (*(_rows(x) for x in (q, k, v)), out)
        return out, None

    AttentionInterface.register("probe", probe)
    AttentionMaskInterface.register("probe", eager_mask)
    if made.model._supports_attention_backend or made.model._supports_sdpa:
        made.model.set_attn_implementation("probe")
    with pytest.MonkeyPatch.context() as patch:
        for module, path in paths.items():
            _own_method(made, module, path, patch)
        yield


def _own_method(made: Proof, module: nn.Module, path: str, patch: pytest.MonkeyPatch) -> None:
    """Bloom, Falcon and GPT-Neo split in a method of the attention module; MPT in its forward."""

    def wrap(method: str, read: Callable[[tuple[Any, ...], Any], tuple[Tensor, ...]]) -> None:
        inner = getattr(module, method)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = inner(*args, **kwargs)
            made.attention.setdefault(path, read(args, result))
            return result

        patch.setattr(module, method, wrapped)

    kind = type(module).__name__
    if kind == "BloomAttention":
        wrap("_reshape", lambda _, out: tuple(map(_rows, out)))
    elif kind == "FalconAttention":
        step = module.num_heads // module.num_kv_heads if module.new_decoder_architecture else 1
        wrap("_split_heads", lambda _, out: (out[0].flatten(2), *(x[:, :, ::step].flatten(2) for x in out[1:])))
    elif kind == "GPTNeoSelfAttention":
        wrap("_attn", lambda args, _: tuple(map(_rows, args[:3])))
    elif kind == "MptAttention":
        inner, products = module.forward, []

        def forward(*args: Any, **kwargs: Any) -> Any:
            matmul = torch.matmul
            with pytest.MonkeyPatch.context() as inside:
                inside.setattr(torch, "matmul", lambda a, b: (products.append((a, b)), matmul(a, b))[1])
                result = inner(*args, **kwargs)
            (q, k), (_, v) = products[-2:]
            made.attention[path] = (_rows(q), _rows(k.mT), _rows(v))
            return result

        patch.setattr(module, "forward", forward)


def _rows(heads: Tensor) -> Tensor:
    """Batch × heads × tokens × width → batch × tokens × (heads · width)."""
    return heads.transpose(1, 2).flatten(2)


def _same(got: Tensor, expected: Tensor) -> bool:
    """Equal up to a positive factor (attention scales the queries of some families, Gemma its embedding)."""
    got, expected = got.flatten().double(), expected.flatten().double()
    factor = (got @ expected) / (expected @ expected)
    return factor > 0 and torch.allclose(got, factor * expected, rtol=1e-3, atol=1e-5 * float(got.abs().max()))


def _module(weight: Weight, made: Proof) -> str:
    """The module that ran with a live tensor: its owner, or the one it shares the tensor with (T5's embeddings)."""
    owner = weight.tensor.rpartition(".")[0]
    if owner in made.inputs or weight.role.stacked:
        return owner
    address = made.memory.read(weight.tensor).data_ptr()
    return next((p for p in made.inputs if _address(made.model.get_submodule(p)) == address), owner)


def _address(module: nn.Module) -> int | None:
    weight = getattr(module, "weight", None)
    return weight.data_ptr() if isinstance(weight, Tensor) else None


every_case = pytest.mark.parametrize("name", CASES)


@every_case
def test_every_tensor_has_one_line_and_none_is_left_out(name: str) -> None:
    made = proof(name)
    for census, specs in ((made.saved.census, made.file.specs), (made.live.census, made.memory.specs)):
        assert census.left_out == ()
        assert (census.family, census.decided_by) == (CASES[name].family, "model_type")
        named = [e.tensor for e in census.entries if e.state != "tied"]
        assert sorted(named) == sorted(specs)
    assert made.saved.census.nbytes == sum(s.nbytes for s in made.file.specs.values())
    cut = sum(w.nbytes for w in made.saved.weights if not w.role.tie)
    assert cut == sum(e.nbytes for e in made.saved.census.entries if e.state in ("used", "split"))


@every_case
def test_file_and_memory_hold_the_same_matrices(name: str) -> None:
    made = proof(name)
    live = {_key(w): read_weight(made.memory, w) for w in made.live.weights}
    kept = {key for key in live if key[1] != "position" or key in made.matrices}  # Marian does not save its sinusoids
    assert made.matrices.keys() == kept
    for key, matrix in made.matrices.items():
        assert torch.equal(matrix, live[key]), key


@every_case
def test_attention_receives_what_the_roles_project(name: str) -> None:
    made, proved = proof(name), set()
    for path, (q, k, v, *_) in made.attention.items():
        inside = [w for w in made.live.weights if w.tensor.startswith(f"{path}.") and w.role.kind in QKV]
        for w in inside:
            heads = {"q": q, "k": k, "v": v}[w.role.kind.removeprefix("cross_")]
            assert _same(heads, made.inputs[_module(w, made)] @ made.matrix(w).T), w
            proved.add(_key(w))
    latent = {key for key in made.matrices if key[1] in ("q", "q_b", "k_b", "v_b")}
    if any(key[1] == "kv_a" for key in latent | made.matrices.keys()):
        proved |= _prove_latent(made)
    assert proved == {key for key in made.matrices if key[1] in (*QKV, "q_b", "k_b", "v_b") and _ran(made, key)}


def _ran(made: Proof, key: Key) -> bool:
    """Whether the forward pass used it: cross-attention of GPT-2 has nothing to read, towers need pictures."""
    return key[1] not in ("cross_q", "cross_k", "cross_v") or "encoder" in {w.role.stack for w in made.live.weights}


def _prove_latent(made: Proof) -> set[Key]:
    """Multi-head latent attention: compare the part of each head that is not rotated."""
    plain = made.model.config.qk_nope_head_dim
    proved = set()
    for path, (q, k, v, _) in made.attention.items():
        for w in made.live.weights:
            if w.tensor.startswith(f"{path}.") and w.role.kind in ("q", "q_b", "k_b", "v_b"):
                projected = made.inputs[_module(w, made)] @ made.matrix(w).T
                heads = {"q": q, "q_b": q, "k_b": k, "v_b": v}[w.role.kind]
                got, expected = (x.unflatten(-1, (4, -1))[..., :plain] for x in (heads, projected))
                assert _same(got, expected), w
                proved.add(_key(w))
    return proved


@every_case
def test_each_matrix_stands_the_right_way_round(name: str) -> None:
    made, checked = proof(name), set()
    for w in made.live.weights:
        path, role = _module(w, made), w.role
        if path not in made.inputs or role.split or role.stacked or role.kind in ("patch", "position", "token_type"):
            continue
        read, out = made.inputs[path], made.outputs[path]
        matrix = made.matrix(w)
        if role.kind == "router":
            read = read.flatten(0, -2)
            logits = read @ matrix.T
            assert out.argmax(-1).flatten().tolist() == logits.argmax(-1).tolist(), w
        else:
            expected = matrix.T[read] if role.kind == "embed" else read @ matrix.T
            assert _same(out, expected), w
        checked.add(role.kind)
    assert checked >= {
        w.role.kind for w in made.live.weights if w.role.kind in ("o", "down", "embed") and not w.role.stacked
    }


@every_case
def test_o_reads_the_heads_that_attention_wrote(name: str) -> None:
    made = proof(name)
    for path, (*_, out) in made.attention.items():
        mine = [w for w in made.live.weights if w.tensor.startswith(f"{path}.") and w.role.kind in ("o", "cross_o")]
        for w in mine:
            if out.ndim == 4:
                assert torch.allclose(made.inputs[_module(w, made)], out.flatten(2)), w


@every_case
def test_down_reads_what_gate_and_up_make(name: str) -> None:
    made = proof(name)
    for prefix in ("", "shared_"):
        found = {
            _key(w): _module(w, made)
            for w in made.live.weights
            if w.role.expert is None and _module(w, made) in made.inputs
        }
        for key, path in found.items():
            stack, kind, layer, _ = key
            if kind != f"{prefix}up":
                continue
            gate = made.matrices.get((stack, f"{prefix}gate", layer, None))
            down = found[stack, f"{prefix}down", layer, None]
            assert _is_mlp(made.inputs[path], made.matrices[key], gate, made.inputs[down]), key


ACTIVATIONS = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "relu2")


def _is_mlp(read: Tensor, up: Tensor, gate: Tensor | None, hidden: Tensor) -> bool:
    """Some activation gives ``act(x @ gate.T) * (x @ up.T)``, or ``act(x @ up.T)`` where there is no gate."""
    u = read @ up.T
    g = None if gate is None else read @ gate.T
    made = (ACT2FN[a](u) if g is None else ACT2FN[a](g) * u for a in ACTIVATIONS)
    return any(torch.allclose(hidden, h, rtol=1e-3, atol=1e-4 * float(h.abs().max())) for h in made)


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if "num_experts_per_tok" in c.sizes])
def test_each_expert_computes_what_its_roles_say(name: str) -> None:
    made = proof(name)
    for w in made.live.weights:
        if w.role.kind != "down" or w.role.expert is None:
            continue
        stack, _, layer, expert = _key(w)
        gate, up, down = (made.matrices[stack, kind, layer, expert] for kind in ("gate", "up", "down"))
        x = torch.randn(3, gate.shape[1], generator=torch.Generator().manual_seed(2))
        experts = made.model.get_submodule(_module(w, made))
        out = experts(x, torch.full((3, 1), expert), torch.ones(3, 1))
        g, u = x @ gate.T, x @ up.T
        hidden = g * torch.sigmoid(1.702 * g) * (u + 1) if name == "gpt_oss" else torch.nn.functional.silu(g) * u
        assert torch.allclose(out, hidden @ down.T, rtol=1e-3, atol=1e-5), w


@every_case
def test_names_alone_decide_the_family(name: str) -> None:
    made, case = proof(name), CASES[name]
    file = StateSource({n: made.file.read(n) for n in made.file.specs})
    blind = assign(file)
    assert blind.census.decided_by == "tensor names"
    assert blind.census.family == (case.by_names or case.family)
    for e in blind.census.left_out:
        assert e.state == "skipped", e
        assert "--config" in e.remedy, e
    skipped = {e.tensor for e in blind.census.left_out}
    assert set(blind.weights) == {w for w in made.saved.weights if w.tensor not in skipped}
    if not case.by_names:
        assert blind.norms == made.saved.norms


@pytest.mark.parametrize("prefix", ["", "model.", "transformer.", "language_model.", "module.", "_orig_mod.model."])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "opt", "bloom", "olmo2", "t5"])
def test_prefixes_do_not_matter(name: str, prefix: str) -> None:
    made = proof(name)
    strip = re.compile(r"^(model\.decoder|model|transformer|gpt_neox)\.")
    state = {n: made.file.read(n) for n in made.file.specs}
    heads = ("lm_head", "embed_out")
    moved = {n if n.startswith(heads) else prefix + strip.sub("", n): t for n, t in state.items()}
    found = assign(StateSource(moved, made.file.config))
    assert found.census.left_out == ()
    assert [w.role for w in found.weights] == [w.role for w in made.saved.weights]
