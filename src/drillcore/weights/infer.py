"""Roles of an unknown family, inferred from the words that people use. What is inferred is marked so."""

import re
from collections.abc import Iterable

from drillcore.weights.architecture import Architecture, MatrixSpec, Pattern, numbered, unwrapped
from drillcore.weights.source import TensorSpec

# The last word(s) of a module's name → kind. Fused names are left unknown: their layout cannot be guessed.
_WORDS = {
    "q": ("q_proj", "query", "wq", "q_lin", "to_q", "q", "query_proj", "w_q", "attn_q"),
    "k": ("k_proj", "key", "wk", "k_lin", "to_k", "k", "key_proj", "w_k", "attn_k"),
    "v": ("v_proj", "value", "wv", "v_lin", "to_v", "v", "value_proj", "w_v", "attn_v"),
    "o": ("o_proj", "out_proj", "wo", "out_lin", "to_out", "o", "w_o", "attn_output", "output_proj"),
    "gate": ("gate_proj", "w1_gate", "ffn_gate", "w_gate", "wi_0"),
    "up": ("up_proj", "fc1", "fc_in", "lin1", "ffn_up", "c_fc", "w_up", "wi", "wi_1", "dense_h_to_4h"),
    "down": ("down_proj", "fc2", "fc_out", "lin2", "ffn_down", "w_down", "dense_4h_to_h"),
    "embed": ("embed_tokens", "wte", "tok_embeddings", "word_embeddings", "token_embedding", "embedding", "embed",
              "tok_emb", "token_emb", "emb"),
    "unembed": ("lm_head", "output", "unembed", "head", "embed_out", "decoder", "output_projection"),
}  # fmt: skip
_KIND_OF = {word: kind for kind, words in _WORDS.items() for word in words}
_OUTER = frozenset({"embed", "unembed"})


def infer_architecture(specs: Iterable[TensorSpec]) -> Architecture:
    """An architecture with one pattern per recognised name; what it does not name stays unknown."""
    specs = list(specs)
    width = _stream_width(specs)
    patterns: dict[tuple[str, tuple[str, ...]], Pattern] = {}
    for spec in specs:
        kind = _kind(spec)
        if kind is None or width not in spec.shape:
            continue
        key, numbers = numbered(unwrapped(spec.name))
        slots = _slots(key, numbers)
        patterns[key, slots] = Pattern(key, slots, "", "", (_spec(kind, spec, width),))
    return Architecture.of("unknown", patterns.values())


def _slots(key: str, numbers: tuple[str, ...]) -> tuple[str, ...]:
    """What each number of a name is: the layer first, an expert after the word, otherwise itself."""
    words = key.split(".")
    before = [words[i - 1] if i else "" for i, word in enumerate(words) if word == "#"]
    rest = ("expert" if word in ("experts", "expert") else number for word, number in zip(before, numbers, strict=True))
    return ("layer", *list(rest)[1:]) if numbers else ()


_LAYER = re.compile(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)")


def _kind(spec: TensorSpec) -> str | None:
    if len(spec.shape) != 2:
        return None
    parts = spec.name.removesuffix(".weight").split(".")
    if parts[-1] in ("bias",):
        return None
    kind = _KIND_OF.get(parts[-1].lower())
    inside = _LAYER.search(spec.name) is not None
    return kind if kind is not None and (kind in _OUTER) != inside else None


def _stream_width(specs: list[TensorSpec]) -> int:
    """The dimension that most of the recognised block matrices share."""
    counts: dict[int, int] = {}
    for spec in specs:
        if _kind(spec) not in (None, *_OUTER):
            for size in set(spec.shape):
                counts[size] = counts.get(size, 0) + 1
    return max(counts, key=lambda s: (counts[s], -s)) if counts else 0


def _spec(kind: str, spec: TensorSpec, width: int) -> MatrixSpec:
    """Orientation from the shape where the two sides differ; nn.Linear's where they do not."""
    out, into = spec.shape
    faces_in = kind in ("q", "k", "v", "gate", "up", "unembed")
    turned = kind == "embed" if out == into else into != width if faces_in else out != width
    return MatrixSpec(kind=kind, orientation="in_out" if turned else "out_in", optional=True, param=True)
