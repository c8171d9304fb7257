"""Rotational symmetry of a network of square layers: exact gauge transformations, and how far an activation breaks it.

For a linear residual network W_l → R_{l+1} (I + W_l) R_lᵀ − I with R_0 = R_L = I leaves the function unchanged: L − 1
free rotations along which the loss is flat (derived; arXiv 2605.04971 argues it in words). An activation that does not
commute with rotations takes that freedom away. One that does commute (radial) keeps it without residuals, W_l →
R_{l+1} W_l R_lᵀ. With residuals commuting is not enough: x + act(W x) turns as a whole only if the stream and the
branch turn alike, and there is left one rotation common to all layers.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import sqrt

import torch
from torch import Tensor

from drillcore.seeds import generator


def random_rotation(d: int, *words: object, dtype: torch.dtype = torch.float64) -> Tensor:
    """A d × d orthogonal matrix, uniform (Haar), from the stream named by `words`."""
    Q, R = torch.linalg.qr(torch.randn(d, d, generator=generator("rotation", *words), dtype=torch.float64))
    rotation: Tensor = (Q * R.diagonal().sign()).to(dtype)
    return rotation


def layer_rotations(depth: int, d: int, *words: object, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Rotations R_0 … R_depth with the first and the last the identity."""
    eye = torch.eye(d, dtype=dtype)
    return [eye, *(random_rotation(d, layer, *words, dtype=dtype) for layer in range(1, depth)), eye]


def regauged(weights: Sequence[Tensor], rotations: Sequence[Tensor], *, residual: bool = True) -> list[Tensor]:
    """Weights W_l (out × in) after W_l → R_{l+1} (I + W_l) R_lᵀ − I; without residuals, R_{l+1} W_l R_lᵀ.

    Raises:
        ValueError: there is not one rotation more than there are layers.
    """
    if len(rotations) != len(weights) + 1:
        raise ValueError(f"{len(weights)} layers need {len(weights) + 1} rotations, got {len(rotations)}")
    skip = torch.eye(weights[0].shape[0], dtype=weights[0].dtype) * float(residual)
    steps = zip(weights, rotations, rotations[1:], strict=False)
    return [after @ (skip + W) @ before.T - skip for W, before, after in steps]


def function_change(function: Callable[[Sequence[Tensor]], Tensor], before: Sequence[Tensor], after: Sequence[Tensor]) \
        -> float:  # fmt: skip
    """Relative change ‖f(after) − f(before)‖ / ‖f(before)‖ of a network's output when its weights are replaced."""
    reference = function(before)
    return float((function(after) - reference).norm() / reference.norm())


def symmetry_breaking(activation: Callable[[Tensor], Tensor], x: Tensor, rotations: int = 8) -> float:
    """How far an activation is from commuting with rotations on inputs x (n × d): 0 for none and radial.

    Root mean square over random rotations R of ‖act(R x) − R act(x)‖ / ‖act(x)‖ (derived). 0 does not mean that the
    rotations by layer are a symmetry: without residuals they are, with them only one common to all layers is.
    """
    size = activation(x).square().sum()
    total = 0.0
    for R in _rotations(rotations, x.shape[1], x.dtype):
        total += float((activation(x @ R.T) - activation(x) @ R.T).square().sum() / size)
    return sqrt(total / rotations)


@lru_cache(maxsize=4)
def _rotations(count: int, d: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The same for every activation that is asked about: to draw one takes longer than to use it."""
    return tuple(random_rotation(d, "symmetry breaking", i, dtype=dtype) for i in range(count))
