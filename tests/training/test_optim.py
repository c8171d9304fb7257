"""The optimiser of the toy models against a transcription in float64."""

from copy import deepcopy
from math import cos, pi

import numpy as np
import pytest
import torch

from drillcore.training import RowDecayAdam, WarmUpCosine

Array = np.ndarray


def transcribed(w: Array, gradients: list[Array], gamma: float, peak: float, warm_up: int, eps: float) -> Array:
    """The official step, in its order: decay of each row, then Adam (notes §1.3, §1.4)."""
    m1, m2, steps = np.zeros_like(w), np.zeros_like(w), len(gradients)
    for step, g in enumerate(gradients):
        s = step + 1
        if s < warm_up:
            eta = peak * s / warm_up
        else:
            eta = 0.95 * peak * 0.5 * (1 + cos(pi * (s - warm_up) / (steps - warm_up))) + 0.05 * peak
        norm = np.linalg.norm(w, axis=1, keepdims=True)
        w = w * (1 - eta * gamma) if gamma >= 0 else w + eta * gamma * w * (1 - 1 / (norm + 1e-8))
        m1, m2 = 0.9 * m1 + 0.1 * g, 0.999 * m2 + 0.001 * g * g
        w = w - eta / (1 - 0.9**s) * m1 / (np.sqrt(m2) / np.sqrt(1 - 0.999**s) + eps)
    return w


def test_steps_are_those_of_the_official_code_for_each_decay() -> None:
    random, gammas = np.random.default_rng(0), (-1.0, -0.3, 0.0, 0.4)
    start, gradients = random.normal(size=(4, 6, 3)), random.normal(size=(12, 4, 6, 3)) * 1e-6
    W = torch.nn.Parameter(torch.from_numpy(start.copy()))
    b = torch.nn.Parameter(torch.ones(4, 6, dtype=torch.float64))
    optimiser = RowDecayAdam(W, [b], torch.tensor(gammas), (0.1, 0.02), WarmUpCosine(12, 4))
    for g in gradients:
        W.grad, b.grad = torch.from_numpy(g.copy()), torch.zeros_like(b)
        optimiser.step()
    for i, gamma in enumerate(gammas):
        expected = transcribed(start[i], list(gradients[:, i]), gamma, 0.1, 4, 1e-8)
        np.testing.assert_allclose(W[i].detach(), expected, rtol=1e-6)
    assert torch.equal(b.detach(), torch.ones_like(b))  # a bias does not decay


def test_rows_are_pulled_to_norm_1_from_both_sides_and_zero_rows_stay() -> None:
    W = torch.nn.Parameter(torch.tensor([[[2.0, 0.0], [0.1, 0.0], [0.0, 0.0]]]))
    optimiser = RowDecayAdam(W, [], torch.tensor([-1.0]), (0.1, 0.1), lambda step: 1.0)
    for _ in range(200):
        W.grad = torch.zeros_like(W)
        optimiser.step()
    assert W.detach().norm(dim=2).tolist()[0] == pytest.approx([1.0, 1.0, 0.0], abs=1e-3)


def test_a_resumed_optimiser_keeps_its_place_in_the_schedule() -> None:
    def fresh() -> tuple[torch.nn.Parameter, RowDecayAdam]:
        W = torch.nn.Parameter(torch.ones(1, 4, 2))
        return W, RowDecayAdam(W, [], torch.tensor([0.5]), (0.1, 0.1), WarmUpCosine(10, 3))

    W, optimiser = fresh()
    for step in range(10):
        if step == 5:
            saved, kept = deepcopy(optimiser.state_dict()), W.detach().clone()
        W.grad = torch.full_like(W, float(step))
        optimiser.step()
    V, other = fresh()
    V.data.copy_(kept)
    other.load_state_dict(saved)
    for step in range(5, 10):
        V.grad = torch.full_like(V, float(step))
        other.step()
    assert torch.equal(V, W)
