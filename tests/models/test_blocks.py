"""Blocks against plain float64 transcriptions of their equations (shared notes §1.2, §4.5)."""

from collections.abc import Callable
from dataclasses import replace
from math import erf, exp, sqrt, tanh

import numpy as np
import pytest
import torch

from drillcore.models.blocks import (
    MLP,
    VARIANTS,
    Attention,
    Block,
    Design,
    Form,
    GatedMLP,
    HalfStep,
    attention_half,
    make_norm,
    mlp_half,
)
from drillcore.models.blocks.branches import rotary
from drillcore.models.blocks.start import draw

Array = np.ndarray
D, T = 12, 5
gelu = np.vectorize(lambda a: a * (1 + erf(a / sqrt(2))) / 2)
silu = np.vectorize(lambda a: a / (1 + exp(-a)))


def drawn(module: torch.nn.Module) -> torch.nn.Module:
    """Matrices from N(0, 1/in); gains and shifts moved away from 1 and 0, so that they count."""
    draw(module.double(), "test")
    random = torch.Generator().manual_seed(5)
    for parameter in module.parameters():
        if parameter.dim() < 2:
            with torch.no_grad():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=random, dtype=torch.float64))
    return module


def numbers(module: torch.nn.Module) -> dict[str, Array]:
    return {name: p.detach().numpy() for name, p in module.named_parameters()}


X = np.random.default_rng(0).normal(size=(T, D)) * 1.7 + 0.2


def run(module: torch.nn.Module, x: Array = X) -> Array:
    return module(torch.from_numpy(x)).detach().numpy()


def layernorm(x: Array, gain: Array, shift: Array, eps: float = 1e-5) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * gain + shift


def l2(x: Array) -> Array:
    return x / np.sqrt((x * x).sum(-1, keepdims=True))


def ln(p: dict[str, Array], name: str, x: Array) -> Array:
    return layernorm(x, p[f"{name}.gain"], p[f"{name}.shift"])


def g(p: dict[str, Array], z: Array) -> Array:
    """The GELU MLP of a half-step."""
    return gelu(z @ p["branch.up.weight"].T) @ p["branch.down.weight"].T


EQUATIONS: dict[str, Callable[[dict[str, Array], Array], Array]] = {
    "none": lambda p, x: x + 0.3 * g(p, x),
    "pre": lambda p, x: x + 0.3 * g(p, ln(p, "norm_in", x)),
    "peri": lambda p, x: x + 0.3 * ln(p, "norm_out", g(p, ln(p, "norm_in", x))),
    "branch_out": lambda p, x: x + 0.3 * ln(p, "norm_out", g(p, x)),
    "post": lambda p, x: ln(p, "norm_add", x + 0.3 * g(p, x)),
    "deepnorm": lambda p, x: ln(p, "norm_add", 2.5 * x + 0.3 * g(p, x)),
    "sub_ln": lambda p, x: (
        x
        + 0.3
        * (ln(p, "branch.inner_norm", gelu(ln(p, "norm_in", x) @ p["branch.up.weight"].T)) @ p["branch.down.weight"].T)
    ),
}


@pytest.mark.parametrize("placement", EQUATIONS)
def test_a_half_step_is_its_equation(placement: str) -> None:
    form = Form(placement, residual_step=0.3, alpha=2.5)
    half = drawn(mlp_half(Design(D, form)))
    np.testing.assert_allclose(run(half), EQUATIONS[placement](numbers(half), X), rtol=1e-12, atol=1e-13)


def test_ngpt_moves_on_the_sphere() -> None:
    half = drawn(mlp_half(Design(D, Form("ngpt", "l2", alpha=0.05))))
    p, x = numbers(half), l2(X)
    step = np.abs(p["alpha"] * 0.05 * sqrt(D))
    expected = l2((1 - step) * x + step * l2(g(p, x)))
    np.testing.assert_allclose(run(half, x), expected, rtol=1e-11)
    plain = mlp_half(Design(D, Form("ngpt", "l2", alpha=0.05)))
    np.testing.assert_allclose((plain.alpha * plain._alpha_scale).detach().numpy(), 0.05, rtol=1e-6)


def test_norms_are_their_formulas() -> None:
    rms = X / np.sqrt((X * X).mean(-1, keepdims=True) + 1e-5)
    for kind, expected in {
        "layernorm": lambda p: layernorm(X, p["gain"], p["shift"]),
        "rmsnorm": lambda p: rms * p["gain"],
        "dyt": lambda p: p["gain"] * np.vectorize(tanh)(p["alpha"] * X) + p["shift"],
        "l2": lambda p: l2(X),
        "none": lambda p: X,
    }.items():
        norm = drawn(make_norm(kind, D))
        np.testing.assert_allclose(run(norm), expected(numbers(norm)), rtol=1e-10, err_msg=kind)
    centred = drawn(make_norm("rmsnorm", D, zero_centred=True))
    np.testing.assert_allclose(run(centred), rms * (1 + numbers(centred)["gain"]), rtol=1e-12)
    fresh = make_norm("layernorm", D, zero_centred=True).double()
    np.testing.assert_allclose(run(fresh), layernorm(X, np.ones(D), np.zeros(D)), rtol=1e-12)
    with pytest.raises(ValueError, match="no zero-centred"):
        make_norm("l2", D, zero_centred=True)


def test_gain_norm_scale_and_softcap_stand_where_they_should() -> None:
    form = Form("pre", norm_scale=0.5, softcap=0.8, branch_gain="vector", residual_step=0.3)
    half = drawn(mlp_half(Design(D, form)))
    p = numbers(half)
    inner = g(p, 0.5 * ln(p, "norm_in", X))
    expected = X + 0.3 * p["branch_gain"] * 0.8 * np.tanh(inner / 0.8)
    np.testing.assert_allclose(run(half), expected, rtol=1e-12, atol=1e-13)
    rezero = mlp_half(Design(D, replace(form, branch_gain="scalar", branch_gain_start=0.0))).double()
    np.testing.assert_array_equal(run(rezero), X)


def test_gated_mlp() -> None:
    mlp = drawn(GatedMLP(D, 20, "swiglu"))
    p = numbers(mlp)
    hidden = silu(X @ p["gate.weight"].T) * (X @ p["up.weight"].T)
    np.testing.assert_allclose(run(mlp), hidden @ p["down.weight"].T, rtol=1e-12)
    relu = drawn(MLP(D, 20, "relu", bias=True))
    p = numbers(relu)
    hidden = np.maximum(X @ p["up.weight"].T + p["up.bias"], 0)
    np.testing.assert_allclose(run(relu), hidden @ p["down.weight"].T + p["down.bias"], rtol=1e-12)


def attended(p: dict[str, Array], x: Array, heads: int, kv_heads: int, turned: Callable[[Array], Array]) -> Array:
    """Token by token, head by head."""
    size, found = D // heads, np.zeros((T, D))
    q, k, v = (x @ p[f"{n}.weight"].T for n in "qkv")
    for head in range(heads):
        mine, shared = slice(head * size, (head + 1) * size), head * kv_heads // heads
        theirs = slice(shared * size, (shared + 1) * size)
        Q, K = turned(q[:, mine]), turned(k[:, theirs])
        for t in range(T):
            scores = np.exp(Q[t] @ K[: t + 1].T / sqrt(size))
            found[t, mine] = scores / scores.sum() @ v[: t + 1, theirs]
    return found @ p["o.weight"].T


@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (6, 2)])
def test_attention_is_causal_and_grouped(heads: int, kv_heads: int) -> None:
    attention = drawn(Attention(D, heads, kv_heads))
    expected = attended(numbers(attention), X, heads, kv_heads, lambda z: z)
    np.testing.assert_allclose(run(attention), expected, rtol=1e-11, atol=1e-13)


def test_rope_turns_pairs_and_depends_on_distance_only() -> None:
    def turned(z: Array) -> Array:
        half = z.shape[1] // 2
        out = z.copy()
        for t in range(T):
            for j in range(half):
                a = t * 50.0 ** (-j / half)
                out[t, j] = z[t, j] * np.cos(a) - z[t, j + half] * np.sin(a)
                out[t, j + half] = z[t, j] * np.sin(a) + z[t, j + half] * np.cos(a)
        return out

    attention = drawn(Attention(D, 3, rope_base=50.0))
    np.testing.assert_allclose(run(attention), attended(numbers(attention), X, 3, 3, turned), rtol=1e-11, atol=1e-13)
    q, k = torch.from_numpy(np.tile(X[:1], (T, 1))), torch.from_numpy(np.tile(X[1:2], (T, 1)))
    scores = rotary(q) @ rotary(k).T
    torch.testing.assert_close(scores.diagonal(), scores[0, 0].expand(T))
    torch.testing.assert_close(scores.diagonal(1), scores[0, 1].expand(T - 1))


def test_qk_norm_is_per_head() -> None:
    attention = drawn(attention_half(Design(D, Form("none", "rmsnorm"), heads=3, qk_norm=True)).branch)
    p = numbers(attention)

    def normed(name: str) -> Callable[[Array], Array]:
        return lambda z: z / np.sqrt((z * z).mean(-1, keepdims=True) + 1e-5) * p[f"{name}.gain"]

    q_gain, k_gain = normed("q_norm"), normed("k_norm")
    calls = iter([q_gain, k_gain] * 3)
    found = attended(p, X, 3, 3, lambda z: next(calls)(z))
    np.testing.assert_allclose(run(attention), found, rtol=1e-11, atol=1e-13)


def test_a_block_is_attention_then_mlp_or_both_at_once() -> None:
    block = drawn(Block(Design(D, heads=3)))
    x = torch.from_numpy(X)
    torch.testing.assert_close(block(x), block.half_steps[1](block.half_steps[0](x)))
    parallel = drawn(Block(Design(D, heads=3, parallel=True)))
    (half,) = parallel.half_steps
    attention, mlp = half.branch.branches
    z = half.norm_in(x)
    torch.testing.assert_close(parallel(x), x + attention(z) + mlp(z))
    with pytest.raises(ValueError, match="do not divide"):
        Block(Design(D, heads=5))


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_made_and_keeps_the_shape(name: str) -> None:
    module = VARIANTS[name].make(16, 8, 0)
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    assert module(x).shape == x.shape
    again = VARIANTS[name].make(16, 8, 0)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), again.parameters(), strict=True))
    assert isinstance(module, HalfStep | Block)


def test_deepnorm_starts_as_published() -> None:
    half = VARIANTS["deepnorm-gelu"].make(64, 48, 0)
    assert half.form.alpha == pytest.approx(48**0.25)
    assert float(half.branch.up.weight.detach().std()) * 8 == pytest.approx(192**-0.25, rel=0.03)
