"""A checkpoint with the shapes of Llama-3.1-8B, power-law spectra, and leading vectors that turn slowly with depth.

The planted triplet is an exact one of the float32 matrix, so the true continuity is known: cos θ between adjacent
layers on the side that faces the stream, chance on the other.
"""

import json
from dataclasses import dataclass
from math import cos, sin
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor


@dataclass(frozen=True)
class Shapes:
    """Sizes of a Llama-like decoder."""

    width: int = 4096
    hidden: int = 14336
    heads: int = 32
    kv_heads: int = 8
    vocab: int = 128256
    layers: int = 32
    angle: float = 0.35  # radians between the leading vectors of adjacent layers

    def matrices(self) -> dict[str, tuple[int, int, str]]:
        """Module name → out, in, side that faces the stream."""
        head = self.width // self.heads
        return {
            "self_attn.q_proj": (self.width, self.width, "in"),
            "self_attn.k_proj": (self.kv_heads * head, self.width, "in"),
            "self_attn.v_proj": (self.kv_heads * head, self.width, "in"),
            "self_attn.o_proj": (self.width, self.width, "out"),
            "mlp.gate_proj": (self.hidden, self.width, "in"),
            "mlp.up_proj": (self.hidden, self.width, "in"),
            "mlp.down_proj": (self.width, self.hidden, "out"),
        }

    def config(self) -> dict[str, object]:
        """The config.json."""
        return {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
            "hidden_size": self.width, "intermediate_size": self.hidden, "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers, "num_key_value_heads": self.kv_heads, "vocab_size": self.vocab,
            "tie_word_embeddings": False,
        }  # fmt: skip


def write(folder: Path, shapes: Shapes, *, embeddings: bool = True, seed: int = 0) -> int:
    """Write the checkpoint shard by shard; return its bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    random = torch.Generator().manual_seed(seed)
    planes = {name: _plane(shapes.width, random) for name in shapes.matrices()}
    index: dict[str, str] = {}
    for layer in range(shapes.layers):
        tensors = {f"model.layers.{layer}.{n}.weight": _matrix(*spec, planes[n], layer * shapes.angle, random)
                   for n, spec in shapes.matrices().items()}  # fmt: skip
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"] = torch.ones(shapes.width, dtype=torch.bfloat16)
        _save(folder, f"model-{layer:05d}.safetensors", tensors, index)
    if embeddings:
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            table = torch.randn(shapes.vocab, shapes.width, generator=random).mul_(0.02).bfloat16()
            _save(folder, f"{name}.safetensors", {name: table}, index)
    _save(folder, "norm.safetensors", {"model.norm.weight": torch.ones(shapes.width, dtype=torch.bfloat16)}, index)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (folder / "config.json").write_text(json.dumps(shapes.config()))
    return sum(p.stat().st_size for p in folder.glob("*.safetensors"))


def _matrix(out: int, into: int, faces: str, plane: Tensor, angle: float, random: torch.Generator) -> Tensor:
    rank = 48
    s = 8 * torch.arange(1, rank + 1).float() ** -0.5
    lead = cos(angle) * plane[:, 0] + sin(angle) * plane[:, 1]
    U, V = (
        _basis(out, rank, lead if faces == "out" else None, random),
        _basis(into, rank, lead if faces == "in" else None, random),
    )
    W = torch.randn(out, into, generator=random).mul_(0.01)
    W -= torch.outer(U[:, 0], U[:, 0] @ W)
    W -= torch.outer(W @ V[:, 0], V[:, 0])
    return W.addmm_(U * s, V.T).bfloat16()


def _basis(d: int, rank: int, lead: Tensor | None, random: torch.Generator) -> Tensor:
    X = torch.randn(d, rank, generator=random)
    if lead is not None:
        X[:, 0] = lead
    return torch.linalg.qr(X)[0]


def _plane(d: int, random: torch.Generator) -> Tensor:
    return torch.linalg.qr(torch.randn(d, 2, generator=random))[0]


def _save(folder: Path, name: str, tensors: dict[str, Tensor], index: dict[str, str]) -> None:
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / name)
    index.update(dict.fromkeys(tensors, name))
