"""Roll-outs: moments, growth fits, the way back against autograd, and bounds that hold and are met."""

from math import log, sqrt

import numpy as np
import pytest
import torch
from torch import Tensor

from drillcore.measures.output_norm import OutputNorm, bounds, recognise_norm
from drillcore.measures.rollout import Moments, go_back, growth, roll_out
from drillcore.models.blocks import VARIANTS, LayerNorm, RMSNorm
from drillcore.models.blocks.start import draw

pytestmark = pytest.mark.usefixtures("one_thread")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_moments_are_those_of_numpy_and_obey_the_identity() -> None:
    x = normal(2, 5, 7) * 2 + 0.3
    m, flat = Moments.of(x), x.numpy().reshape(10, 7)
    assert m.entry_variance == pytest.approx(flat.var(1).mean())
    assert m.data_variance == pytest.approx(flat.var(0).mean())
    assert (m.mean_abs, m.largest) == pytest.approx((np.abs(flat).mean(), np.abs(flat).max()))
    assert m.rms == pytest.approx(sqrt((flat**2).mean()))
    # shared notes §3.2: both split the total variance
    assert m.entry_variance + flat.mean(1).var() == pytest.approx(flat.var())
    assert m.data_variance + flat.mean(0).var() == pytest.approx(flat.var())


def test_growth_is_told_apart() -> None:
    k = np.arange(49)
    exponential = growth(list(2 * np.exp(0.14 * k)))
    assert (exponential.kind, exponential.value) == ("exponential", pytest.approx(0.14))
    for power in (1.0, 2.0):
        polynomial = growth(list(1e-9 + (1.0 * k) ** power))
        assert (polynomial.kind, polynomial.value) == ("polynomial", pytest.approx(power, abs=0.02))
    assert growth(list(np.exp(0.01 * k))).kind == "polynomial"  # slower than can be told
    assert growth([1.0] * 20).kind == "flat"
    assert growth([1.0, 0.0, 1.0, 1.0]).kind == "none"
    assert growth([1.0, 2.0]).kind == "none"


def step_of(name: str, *, scale: float = 1.0, inflation: float = 1.0, residual_step: float = 1.0, seed: int = 0):
    module = VARIANTS[name].make(64, 48, 0).double()
    object.__setattr__(module.form, "residual_step", residual_step)

    def step(k: int):
        draw(module, "copy", seed, k)
        with torch.no_grad():
            for p in module.parameters():
                if p.dim() >= 2:
                    p.mul_(scale * inflation**k)
        return module

    return step


# entry-wise variance at half-steps 0, 12, 24, 48 with weights × 1.03 per half-step (shared notes §4.3)
INFLATED = {("pre-gelu", 1.0): (1, 12, 64, 1028), ("peri-gelu", 1.0): (1, 14, 27, 55),
            ("pre-gelu", 0.1): (1, 1.1, 1.6, 14), ("peri-gelu", 0.1): (1, 1.1, 1.3, 1.6)}  # fmt: skip


@pytest.mark.parametrize(("name", "residual_step"), INFLATED)
def test_inflation_tells_pre_from_peri(name: str, residual_step: float) -> None:
    states = roll_out(step_of(name, inflation=1.03, residual_step=residual_step), normal(8, 64), 48)
    found = [log(Moments.of(states[k]).entry_variance) for k in (0, 12, 24, 48)]
    assert found == pytest.approx([log(v) for v in INFLATED[name, residual_step]], abs=0.5)
    fit = growth([Moments.of(s).entry_variance for s in states])
    assert fit.kind == ("exponential" if name == "pre-gelu" else "polynomial")


def test_the_way_back_is_autograds() -> None:
    """Weights are set anew at every step; the oracle holds all copies at once."""
    steps = [VARIANTS["pre-gelu"].make(16, 4, k).double() for k in range(4)]
    module = VARIANTS["pre-gelu"].make(16, 4, 99).double()

    def step(k: int):
        module.load_state_dict(steps[k].state_dict())
        return module

    x = normal(3, 16)
    states = roll_out(step, x, 4)
    back = go_back(step, states, probes=64)
    leaf = x.clone().requires_grad_()
    y, sites = leaf, [leaf]
    for s in steps:
        y = s(y)
        sites.append(y)
    torch.testing.assert_close(states[-1], y.detach())
    from drillcore.seeds import generator

    u = torch.randn(y.shape, generator=generator("roll-out gradient"), dtype=torch.float64)
    gradients = torch.autograd.grad(y, sites[:-1], u)
    assert back.gradient[:-1] == pytest.approx([float(g.norm() / u.norm()) for g in gradients], rel=1e-9)
    for k, (found, stderr) in enumerate(zip(back.retention, back.stderr, strict=True)):
        J = torch.autograd.functional.jacobian(steps[k], states[k]).reshape(48, 48)
        assert abs(found - float(J.trace()) / 48) < 5 * stderr
    middle = sorted(back.retention)[1:3]
    assert back.carried == pytest.approx((sum(middle) / 2) ** 4)


def test_it_stops_where_the_stream_leaves_the_numbers() -> None:
    states = roll_out(lambda k: lambda x: x * 1e200, normal(2, 3), 10)
    assert len(states) == 3


def peri(kind: str, seed: int):
    """x + Δt·norm(g(x)) with gains and shifts away from 1 and 0; `aligned`: the same branch every time."""
    norm = LayerNorm(32) if kind == "layernorm" else RMSNorm(32)
    norm = norm.double()
    with torch.no_grad():
        norm.gain.copy_(normal(32, seed=seed))
        if kind == "layernorm":
            norm.shift.copy_(0.3 * normal(32, seed=seed + 1))
    shift = norm.shift.detach() if kind == "layernorm" else torch.zeros(32, dtype=torch.float64)
    return norm, OutputNorm(kind, norm.gain.detach().clone(), shift.clone())


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("aligned", [False, True])
def test_the_bounds_hold_and_aligned_branches_come_near_them(kind: str, aligned: bool) -> None:
    norms = [peri(kind, 10 * (0 if aligned else k)) for k in range(24)]
    direction = normal(32, seed=3)

    def step(k: int):
        norm = norms[k][0]
        W = normal(32, 32, seed=0 if aligned else k)
        return lambda x: x + 0.7 * norm(direction.expand_as(x) if aligned else torch.tanh(x @ W)).detach()

    x = normal(6, 32, seed=1)
    sites = [Moments.of(s) for s in roll_out(step, x, 24)]
    found = list(bounds([[told] for _, told in norms], sites, x, 0.7))
    assert len(found) == 24 * 5
    assert all(b.measured <= b.bound * (1 + 1e-9) for b in found)
    tight = max(b.tightness for b in found if b.site == 24)
    assert tight > 0.5 if aligned else tight < 0.5
    # the third half-step's first bound, by hand
    third = next(b for b in found if b.site == 3 and b.name == "mean_abs")
    by_hand = float(x.abs().mean()) + 0.7 * sum(
        float(n.gain.square().mean().sqrt() + n.shift.abs().mean()) for _, n in norms[:3])  # fmt: skip
    assert third.bound == pytest.approx(by_hand)


def test_a_peak_meets_the_bound_of_a_coordinate() -> None:
    """Lemma 1's extreme: all energy in one coordinate gives √(d − 1) for LayerNorm, √d for RMSNorm."""
    x0, peak = torch.zeros(1, 32, dtype=torch.float64), torch.zeros(1, 32, dtype=torch.float64)
    peak[0, 5] = 1e6
    for kind, norm, reach in (("layernorm", LayerNorm(32), sqrt(31)), ("rmsnorm", RMSNorm(32), sqrt(32))):
        z = norm.double()(peak).detach()
        told = OutputNorm(kind, torch.ones(32), torch.zeros(32))
        (last,) = (b for b in bounds([[told]], [Moments.of(x0), Moments.of(x0 + z)], x0, 1.0) if b.name == "largest")
        assert last.bound == pytest.approx(reach)
        assert last.measured == pytest.approx(reach, rel=1e-6)


@pytest.mark.parametrize(("zero_centred", "kind"), [(False, "layernorm"), (False, "rmsnorm"), (True, "rmsnorm")])
def test_a_norm_is_recognised_by_what_it_gives(zero_centred: bool, kind: str) -> None:
    norm = (LayerNorm if kind == "layernorm" else RMSNorm)(32, zero_centred=zero_centred).double()
    with torch.no_grad():
        norm.gain.add_(0.2 * normal(32))
    shift = getattr(norm, "shift", None)
    found = recognise_norm(norm(normal(9, 32) * 3 + 1), norm.gain, shift)
    assert found is not None
    assert found.kind == kind
    torch.testing.assert_close(found.gain, (norm.gain + float(zero_centred)).detach())
    assert recognise_norm(normal(9, 32) * 3, norm.gain, shift) is None
