"""Named half-steps and blocks: every row of the shared notes' table §4.3, and blocks of known designs.

`forward` and `backward` are the classes that `drillcore check` finds for them at width 64 and 48 half-steps; a test
checks each, so that a page may name the designs of a class.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from torch import nn

from drillcore.models.blocks.block import Block, Design, attention_half, mlp_half
from drillcore.models.blocks.half_step import Form
from drillcore.models.blocks.start import deepnorm_alpha, draw, shrink_for_deepnorm


@dataclass(frozen=True)
class Variant:
    """A design by name: how its module is made, what it is, who uses it, and the classes it has."""

    about: str
    design: Design  # its width is a placeholder
    part: str  # "attention", "mlp" or "block"
    forward: str
    backward: str
    designs: tuple[str, ...] = ()
    starred: bool = False  # exponents that saturate or depend on the softmax: measured to ±0.3

    def make(self, width: int, half_steps: int, *words: object) -> nn.Module:
        """The module with weights from the stream named by `words`; `half_steps` is the depth of the stack.

        Raises:
            ValueError: the heads do not divide the width.
        """
        layers, form = max(1, half_steps // 2), self.design.form
        if form.norm_placement == "deepnorm":
            form = replace(form, alpha=deepnorm_alpha(layers))
        design = replace(self.design, width=width, form=form)
        made = {"attention": attention_half, "mlp": mlp_half, "block": Block}[self.part](design)
        draw(made, "variant", *words)
        return shrink_for_deepnorm(made, layers) if form.norm_placement == "deepnorm" else made


_PRE, _PERI, _OUT = Form("pre"), Form("peri"), Form("branch_out")
_RMS = Form("pre", "rmsnorm")


def _mlp(about: str, form: Form, forward: str, backward: str, mlp: str = "gelu", *designs: str, starred: bool = False) \
        -> Variant:  # fmt: skip
    return Variant(about, Design(0, form, mlp=mlp), "mlp", forward, backward, designs, starred)


def _attention(about: str, form: Form, forward: str, backward: str, *, qk: bool = False) -> Variant:
    return Variant(about, Design(0, form, qk_norm=qk), "attention", forward, backward, starred=not qk)


def _block(about: str, design: Design, forward: str, backward: str, *designs: str) -> Variant:
    return Variant(about, design, "block", forward, backward, designs, starred=not design.qk_norm)


VARIANTS: Mapping[str, Variant] = {
    "none-gelu": _mlp("GELU MLP without a norm", Form("none"), "ill-posed", "explodes"),
    "none-swiglu": _mlp("SwiGLU without a norm", Form("none"), "ill-posed", "explodes", "swiglu"),
    "none-attention": _attention("attention without a norm", Form("none"), "ill-posed", "grows"),
    "pre-gelu": _mlp("Pre-LN, GELU MLP", _PRE, "threshold", "explodes"),
    "pre-relu": _mlp("Pre-LN, ReLU MLP", _PRE, "threshold", "explodes", "relu"),
    "pre-swiglu": _mlp("Pre-LN, SwiGLU", _PRE, "ill-posed", "explodes", "swiglu"),
    "pre-geglu": _mlp("Pre-LN, GEGLU", _PRE, "ill-posed", "explodes", "geglu"),
    "pre-attention": _attention("Pre-LN, attention", _PRE, "threshold", "grows"),
    "pre-attention-qk": _attention("Pre-LN, attention with QK-norm", _PRE, "threshold", "explodes", qk=True),
    "peri-gelu": _mlp("Peri-LN, GELU MLP", _PERI, "bounded", "scale-free"),
    "peri-gelu-0.1": _mlp("Peri-LN, GELU MLP, Δt = 0.1", replace(_PERI, residual_step=0.1), "bounded", "scale-free"),
    "peri-swiglu": _mlp("Peri-LN, SwiGLU", _PERI, "bounded", "scale-free", "swiglu"),
    "peri-attention": _attention("Peri-LN, attention", _PERI, "bounded", "scale-free"),
    "peri-attention-qk": _attention("Peri-LN, attention with QK-norm", _PERI, "bounded", "scale-free", qk=True),
    "branch-out-gelu": _mlp("norm on the branch's output, GELU MLP", _OUT, "bounded", "scale-free"),
    "branch-out-swiglu": _mlp("norm on the branch's output, SwiGLU", _OUT, "bounded", "scale-free", "swiglu"),
    "branch-out-attention-qk": _attention("norm on the output, QK-norm", _OUT, "bounded", "scale-free", qk=True),
    "sub-ln-gelu": _mlp("Sub-LN, GELU MLP", Form("sub_ln"), "needs-decay", "grows", "gelu", "Magneto"),
    "ln-scaling-gelu": _mlp("LayerNorm scaling 1/√4", replace(_PRE, norm_scale=0.5), "threshold", "explodes"),
    "layerscale-gelu": _mlp(
        "LayerScale on Pre-LN", replace(_PRE, branch_gain="vector", branch_gain_start=0.1), "ill-posed", "explodes",
        "gelu", "CaiT", "DINOv2",
    ),
    "rezero-gelu": _mlp(
        "ReZero gain on Pre-LN", replace(_PRE, branch_gain="scalar", branch_gain_start=0.0), "ill-posed", "explodes",
        "gelu", "ReZero",
    ),
    "skipinit-gelu": _mlp(
        "SkipInit gain, no norm", Form("none", branch_gain="scalar", branch_gain_start=0.0), "ill-posed", "explodes",
    ),
    "dyt-gelu": _mlp("DyT in place of the input norm", Form("pre", "dyt"), "threshold", "explodes", starred=True),
    "dyt-both-gelu": _mlp("DyT on input and output", Form("peri", "dyt"), "bounded", "explodes", starred=True),
    "softcap-gelu": _mlp("Pre-LN, tanh softcap 30", replace(_PRE, softcap=30.0), "needs-decay", "explodes",
                         starred=True),
    "post-gelu": _mlp("Post-LN half-step", Form("post"), "state-reset", "scale-free, vanishing"),
    "deepnorm-gelu": _mlp("DeepNorm half-step", Form("deepnorm"), "state-reset", "scale-free"),
    "ngpt-gelu": _mlp("nGPT half-step", Form("ngpt", "l2", alpha=0.05), "state-reset", "scale-free"),
    "gpt2": _block("Pre-LN block, GELU", Design(0, _PRE), "threshold", "explodes",
                   "GPT-2", "OPT", "BLOOM", "MPT", "ViT", "Whisper"),
    "gptj": _block("Pre-LN block, parallel branches", Design(0, _PRE, parallel=True), "threshold", "explodes",
                   "GPT-J", "GPT-NeoX", "Phi"),
    "llama": _block("Pre-RMSNorm block, SwiGLU", Design(0, _RMS, mlp="swiglu", rope_base=1e4), "ill-posed", "explodes",
                    "Llama", "Mistral", "Qwen2", "Phi-3", "Granite"),
    "qwen3": _block("Pre-RMSNorm block, SwiGLU, QK-norm", Design(0, _RMS, mlp="swiglu", rope_base=1e4, qk_norm=True),
                    "ill-posed", "explodes", "Qwen3"),
    "gemma2": _block("Peri-RMSNorm block, GEGLU", Design(0, Form("peri", "rmsnorm", zero_centred_gain=True),
                     mlp="geglu", rope_base=1e4), "bounded", "scale-free", "Gemma 2", "GLM-4"),
    "gemma3": _block("Peri-RMSNorm block, GEGLU, QK-norm", Design(0, Form("peri", "rmsnorm", zero_centred_gain=True),
                     mlp="geglu", rope_base=1e4, qk_norm=True), "bounded", "scale-free", "Gemma 3"),
    "olmo2": _block("norm on the branch's output, SwiGLU, QK-norm", Design(0, Form("branch_out", "rmsnorm"),
                    mlp="swiglu", rope_base=1e4, qk_norm=True), "bounded", "scale-free", "OLMo 2", "EXAONE 4"),
    "bert": _block("Post-LN block, GELU", Design(0, Form("post"), causal=False), "state-reset",
                   "scale-free, vanishing", "BERT", "RoBERTa", "GPT-1", "BART"),
}  # fmt: skip


def of_class(forward: str) -> Iterator[str]:
    """Known designs whose forward class this is."""
    for variant in VARIANTS.values():
        if variant.forward == forward:
            yield from variant.designs
