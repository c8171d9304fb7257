"""Does a branch keep a freedom to rotate? Relative changes of its output under rotations (after arXiv 2605.04971).

A rotation that leaves the function unchanged is a flat direction: in it layers can drift apart while the loss stays.
*stream*: one rotation R of the whole stream, with every matrix that reads or writes it turned along; *inner*: a
rotation of the branch's own hidden space, free in each layer. 0 means an exact symmetry. Weights are put back.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import sqrt

import torch
from torch import Tensor

from drillcore.measures.sensitivity import Map
from drillcore.measures.symmetry import random_rotation

_LARGE = 1024  # above this width one rotation says what several would: the change concentrates


def stream_breaking(
    f: Map, x: Tensor, readers: Sequence[Tensor], writers: Sequence[Tensor], rotations: int = 4
) -> float:
    """Root mean square over rotations R of ‖f'(R x) − R f(x)‖/‖f(x)‖, f' with W Rᵀ for readers and R W for writers.

    Args:
        f: the branch, … × d to … × d.
        x: states, … × d.
        readers: matrices … × d that read the stream.
        writers: matrices d × … that write to it.
        rotations: how many are drawn (one above a width of 1024).
    """
    d = x.shape[-1]
    changes = []
    with torch.no_grad():
        y = f(x)
        for i in range(rotations if d <= _LARGE else 1):
            R = random_rotation(d, "stream", i).to(x)
            turned = {w: w @ R.T for w in readers} | {w: R @ w for w in writers}
            with replaced(turned):
                changes.append(_relative(f(x @ R.T), y @ R.T))
    return _root_mean_square(changes)


def inner_breaking(f: Map, x: Tensor, readers: Sequence[Tensor], writer: Tensor, rotations: int = 4) -> float:
    """Root mean square over rotations Q of the hidden space of ‖f'(x) − f(x)‖/‖f(x)‖, with Q W and W_last Qᵀ.

    Args:
        f: the branch, … × d to … × d.
        x: states, … × d.
        readers: matrices h × d, all that lead into the hidden space.
        writer: the matrix d × h that leads out of it.
        rotations: how many are drawn (one above a width of 1024).
    """
    h = writer.shape[1]
    changes = []
    with torch.no_grad():
        y = f(x)
        for i in range(rotations if h <= _LARGE else 1):
            Q = random_rotation(h, "inner", i).to(x)
            with replaced({w: Q @ w for w in readers} | {writer: writer @ Q.T}):
                changes.append(_relative(f(x), y))
    return _root_mean_square(changes)


def layer_breaking(update: Map, x: Tensor, W: Tensor, rotations: int = 4) -> float:
    """The same of one square matrix, x + act(W x): W → R'(I + W)Rᵀ − I, ‖update'(R x) − R' update(x)‖/‖update(x)‖.

    Args:
        update: the stream after the half-step, … × d to … × d.
        x: states, … × d.
        W: d × d.
        rotations: how many pairs are drawn (one above a width of 1024).
    """
    d = x.shape[-1]
    eye, changes = torch.eye(d).to(W), []
    with torch.no_grad():
        y = update(x)
        for i in range(rotations if d <= _LARGE else 1):
            before, after = (random_rotation(d, "layer", side, i).to(x) for side in ("before", "after"))
            with replaced({W: after @ (eye + W) @ before.T - eye}):
                changes.append(_relative(update(x @ before.T), y @ after.T))
    return _root_mean_square(changes)


@contextmanager
def replaced(values: Mapping[Tensor, Tensor]) -> Iterator[None]:
    """Within it these parameters hold these values."""
    kept = {p: p.detach().clone() for p in values}
    try:
        _write(values)
        yield
    finally:
        _write(kept)


def _write(values: Mapping[Tensor, Tensor]) -> None:
    with torch.no_grad():
        for p, value in values.items():
            p.copy_(value)


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def _root_mean_square(values: Sequence[float]) -> float:
    return sqrt(sum(v * v for v in values) / len(values))
