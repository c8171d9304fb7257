"""GGUF written from a tiny Llama as the converter writes it: the roles give back the model's own matrices."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import drillcore
from drillcore.weights import InputError, Source, assign, open_source
from drillcore.weights.layout import read_weight

gguf = pytest.importorskip("gguf")
LAYERS, WIDTH, HEADS, KV_HEADS, HIDDEN, VOCAB = 2, 64, 4, 2, 96, 32
HEAD = WIDTH // HEADS
NAMES = {"attn_q": "q", "attn_k": "k", "attn_v": "v", "attn_output": "o",
         "ffn_gate": "gate", "ffn_up": "up", "ffn_down": "down"}  # fmt: skip


def tiny_llama() -> dict[str, np.ndarray[Any, Any]]:
    """Matrices out × in under GGUF's names, rows in the order of the Hugging Face checkpoint."""
    random = np.random.default_rng(5)
    shapes = {"attn_q": (WIDTH, WIDTH), "attn_k": (KV_HEADS * HEAD, WIDTH), "attn_v": (KV_HEADS * HEAD, WIDTH),
              "attn_output": (WIDTH, WIDTH), "ffn_gate": (HIDDEN, WIDTH), "ffn_up": (HIDDEN, WIDTH),
              "ffn_down": (WIDTH, HIDDEN), "attn_norm": (WIDTH,), "ffn_norm": (WIDTH,)}  # fmt: skip
    tensors = {"token_embd.weight": (VOCAB, WIDTH), "output_norm.weight": (WIDTH,)}
    tensors |= {f"blk.{i}.{n}.weight": s for i in range(LAYERS) for n, s in shapes.items()}
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in tensors.items()}


def permuted(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """The reordering of Llama's converter, head by head: first half and second half take turns."""
    rows = []
    for head in np.split(weight, heads):
        half = len(head) // 2
        for i in range(half):
            rows += [head[i], head[half + i]]
    return np.stack(rows)


def write(path: Path, tensors: dict[str, np.ndarray[Any, Any]], kind: str, arch: str = "llama", **extra: Any) -> None:
    writer = gguf.GGUFWriter(path, arch)
    for key, value in {"block_count": LAYERS, "embedding_length": WIDTH, "attention.head_count": HEADS,
                       "attention.head_count_kv": KV_HEADS, **extra}.items():  # fmt: skip
        add = writer.add_array if isinstance(value, list) else writer.add_uint32
        add(f"{arch}.{key}", value)
    writer.add_array("tokenizer.ggml.tokens", [f"t{i}" for i in range(VOCAB)])
    for name, tensor in tensors.items():
        if arch == "llama" and ".attn_q." in name:
            tensor = permuted(tensor, HEADS)
        if arch == "llama" and ".attn_k." in name:
            tensor = permuted(tensor, KV_HEADS)
        type_ = gguf.GGMLQuantizationType[kind if tensor.ndim > 1 else "F32"]
        writer.add_tensor(name, gguf.quantize(tensor, type_), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def by_kind(source: Source) -> dict[tuple[str, int | None], Tensor]:
    found = {}
    for weight in assign(source).weights:
        matrix = read_weight(source, weight)
        assert isinstance(matrix, Tensor)
        assert matrix.shape == weight.shape
        found[weight.role.kind, weight.role.layer] = matrix.float()
    return found


# F16 and BF16 keep 11 and 8 bits; a Q8_0 block of 32 has steps of its maximum / 127 (here ≤ 4.5 / 127), half of it off.
@pytest.mark.parametrize(("kind", "dtype", "error"), [("F32", "float32", 0), ("F16", "float16", 2e-3),
                                                      ("BF16", "bfloat16", 2e-2), ("Q8_0", "q8_0", 2e-2)])  # fmt: skip
def test_roles_give_the_original_matrices(tmp_path: Path, kind: str, dtype: str, error: float) -> None:
    tensors = tiny_llama()
    write(tmp_path / "m.gguf", tensors, kind)
    source = open_source(tmp_path / "m.gguf")
    found = by_kind(source)
    for name, role in NAMES.items():
        for layer in range(LAYERS):
            original = torch.from_numpy(tensors[f"blk.{layer}.{name}.weight"])
            assert (found[role, layer] - original).abs().max() <= error, name
    assert source.specs["blk.0.attn_q.weight"].dtype == dtype
    assert found["unembed", None].shape == (VOCAB, WIDTH)  # tied: there is no output.weight


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_rows(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "m.gguf", tiny_llama(), kind)
    source = open_source(tmp_path / "m.gguf")
    for name in ("blk.1.attn_q.weight", "blk.1.ffn_up.weight", "token_embd.weight"):
        assert torch.equal(source.read(name, slice(3, 17)), source.read(name)[3:17])  # type: ignore[index]


def test_the_rounding_of_blocks_is_in_the_bound(tmp_path: Path) -> None:
    """Of Gaussian matrices in 4 bits the leading vectors are off by 0.1 to 0.6: they are not identifiable."""
    tensors = tiny_llama()
    write(tmp_path / "model.gguf", tensors, "Q4_0")
    rows = drillcore.survey(tmp_path / "model.gguf", measures=["spectrum"]).rows.where(measure="spectrum.angle_bound")
    for row in rows:
        name = next(n for n, k in NAMES.items() if k == row.kind)
        original = torch.from_numpy(tensors[f"blk.{row.layer}.{name}.weight"])
        stored = by_kind(open_source(tmp_path / "model.gguf"))[str(row.kind), row.layer]
        x, y = (torch.linalg.svd(W.double())[2][0] for W in (original, stored))
        assert row.value is not None
        assert float((1 - (x @ y).square()).sqrt()) <= row.value
        assert row.status == "unidentifiable"


def test_census_and_configuration(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", tiny_llama(), "Q8_0")
    source = open_source(tmp_path / "m.gguf")
    assert {k: source.config[k] for k in ("model_type", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "hidden_size", "vocab_size", "tie_word_embeddings")} == {
        "model_type": "gguf", "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "hidden_size": WIDTH, "vocab_size": VOCAB, "tie_word_embeddings": True,
    }  # fmt: skip
    census = assign(source).census
    assert (census.family, census.decided_by, census.left_out) == ("gguf", "model_type", ())
    (note,) = [e for e in census.entries if e.tensor == "(attn_q, attn_k)"]
    assert "rows of 4 tensors put back" in note.detail
    assert census.nbytes == sum(s.nbytes for s in source.specs.values())
    q = source.specs["blk.0.attn_q.weight"]
    assert q.nbytes == WIDTH * WIDTH // 32 * 34  # Q8_0: 32 bytes and a half-precision scale


@pytest.mark.parametrize("kv_heads", [[KV_HEADS, KV_HEADS], [KV_HEADS, 1]])
def test_heads_by_layer(tmp_path: Path, kv_heads: list[int]) -> None:
    tensors = tiny_llama()
    tensors["blk.1.attn_k.weight"] = tensors["blk.1.attn_k.weight"][: kv_heads[1] * HEAD]
    stored = dict(tensors)
    if kv_heads[1] == 1:  # `write` reorders for two heads: give it what it turns into the order for one
        rows = permuted(np.arange(HEAD), 1)
        back = np.argsort(permuted(np.arange(HEAD), KV_HEADS))
        stored["blk.1.attn_k.weight"] = tensors["blk.1.attn_k.weight"][rows][back]
    write(tmp_path / "m.gguf", stored, "F32", **{"attention.head_count_kv": kv_heads})
    source = open_source(tmp_path / "m.gguf")
    found = by_kind(source)
    for layer in range(LAYERS):
        assert torch.equal(found["k", layer], torch.from_numpy(tensors[f"blk.{layer}.attn_k.weight"]))
    assert source.config.get("num_key_value_heads") == (KV_HEADS if len(set(kv_heads)) == 1 else None)


def test_other_architectures_keep_their_rows(tmp_path: Path) -> None:
    tensors = tiny_llama()
    write(tmp_path / "m.gguf", tensors, "F32", arch="qwen2")
    source = open_source(tmp_path / "m.gguf")
    assert torch.equal(by_kind(source)["q", 1], torch.from_numpy(tensors["blk.1.attn_q.weight"]))
    assert not source.notes


def test_fused_attention_and_experts(tmp_path: Path) -> None:
    tensors = tiny_llama()
    names = [n for n in tensors if ".ffn_" not in n or "norm" in n]
    mixed = {n: tensors[n] for n in names if ".attn_q." not in n and ".attn_k." not in n and ".attn_v." not in n}
    for i in range(LAYERS):
        mixed[f"blk.{i}.attn_qkv.weight"] = np.concatenate([tensors[f"blk.{i}.attn_{c}.weight"] for c in "qkv"])
        for name in ("ffn_gate", "ffn_up", "ffn_down"):
            whole = tensors[f"blk.{i}.{name}.weight"]
            mixed[f"blk.{i}.{name}_exps.weight"] = np.stack([whole, 2 * whole, 3 * whole])
    write(tmp_path / "m.gguf", mixed, "F32", arch="phimoe", expert_count=3)
    source = open_source(tmp_path / "m.gguf")
    assignment = assign(source)
    assert assignment.census.left_out == ()
    for kind in "qkv":
        (weight,) = [w for w in assignment.of(kind) if w.role.layer == 1]
        assert torch.equal(read_weight(source, weight), torch.from_numpy(tensors[f"blk.1.attn_{kind}.weight"]))  # type: ignore[arg-type]
    third = [w for w in assignment.of("down") if w.role.expert == 2][1]
    assert torch.equal(read_weight(source, third), torch.from_numpy(3 * tensors["blk.1.ffn_down.weight"]))  # type: ignore[arg-type]


def test_split_files_are_one_model(tmp_path: Path) -> None:
    tensors = tiny_llama()
    names = list(tensors)
    for part, held in enumerate((names[:6], names[6:])):
        write(tmp_path / f"m-0000{part + 1}-of-00002.gguf", {n: tensors[n] for n in held}, "F32")
    assert set(open_source(tmp_path).specs) == set(tensors)


def test_several_quantisations_in_a_folder(tmp_path: Path) -> None:
    for kind in ("F16", "Q8_0"):
        write(tmp_path / f"m-{kind}.gguf", tiny_llama(), kind)
    with pytest.raises(InputError, match=r"holds 2 GGUF files: m-F16\.gguf, m-Q8_0\.gguf(.|\n)*name one of them"):
        open_source(tmp_path)


def test_a_type_that_cannot_be_decoded_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "m.gguf", tiny_llama(), "Q8_0")

    def refuse(data: object, kind: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(gguf, "dequantize", refuse)
    source = open_source(tmp_path / "m.gguf")
    assert "token_embd.weight" not in source.specs
    assert "quantised as q8_0, which the gguf package cannot decode" in source.notes[0].detail


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "m.gguf", tiny_llama(), "F32")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(InputError, match=r"pip install 'drillcore\[gguf\]'"):
        open_source(tmp_path / "m.gguf")


@pytest.mark.parametrize("keep", [40, 900, 20_000])
def test_truncated(tmp_path: Path, keep: int) -> None:
    write(tmp_path / "m.gguf", tiny_llama(), "F32")
    data = (tmp_path / "m.gguf").read_bytes()
    assert len(data) > keep
    (tmp_path / "m.gguf").write_bytes(data[:keep])
    with pytest.raises(InputError, match=rf"truncated or damaged(.|\n)*the file has {keep} bytes(.|\n)*download"):
        open_source(tmp_path / "m.gguf")


def test_not_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"something else")
    with pytest.raises(InputError, match="is not a GGUF file"):
        open_source(tmp_path / "m.gguf")


def written(path: Path, **extra: Any) -> bytearray:
    write(path, tiny_llama(), "F32", **extra)
    return bytearray(path.read_bytes())


def offset_of(data: bytearray, name: str) -> int:
    """Where the header keeps the offset of a matrix: after its name, dimensions, shape and type."""
    return data.index(name.encode()) + len(name) + 4 + 2 * 8 + 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda at, data: data[at], "lie over each other"),
        (lambda at, data: b"\x04" + bytes(7), "does not lie at a multiple of 32 bytes"),
        (lambda at, data: bytes(7) + b"\x40", "truncated or damaged"),
    ],
)
def test_tensors_at_a_wrong_place_are_refused(tmp_path: Path, change: Any, words: str) -> None:
    path = tmp_path / "model.gguf"
    data = written(path)
    at, other = offset_of(data, "blk.0.attn_q.weight"), offset_of(data, "blk.1.ffn_up.weight")
    data[at : at + 8] = change(slice(other, other + 8), data)
    path.write_bytes(data)
    with pytest.raises(InputError, match=words):
        open_source(path)


def test_a_tensor_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(written(path).replace(b"blk.1.attn_q.weight", b"blk.0.attn_q.weight"))
    with pytest.raises(InputError, match=r"holds the tensor 'blk\.0\.attn_q\.weight' twice"):
        open_source(path)


@pytest.mark.parametrize("heads", [3, 64, [4]])
def test_heads_that_do_not_fit_the_rows_are_refused(tmp_path: Path, heads: object) -> None:
    written(tmp_path / "model.gguf", **{"attention.head_count": heads})
    with pytest.raises(InputError, match="numbers of heads do not fit"):
        open_source(tmp_path / "model.gguf")


def test_half_of_the_numbers_of_latent_attention_is_no_crash(tmp_path: Path) -> None:
    written(tmp_path / "model.gguf", arch="deepseek2", **{"attention.value_length_mla": 8})
    source = open_source(tmp_path / "model.gguf")
    assert source.config["v_head_dim"] == 8
    assert "qk_nope_head_dim" not in source.config
