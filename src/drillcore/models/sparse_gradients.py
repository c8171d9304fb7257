"""Loss and gradients of y = ReLU(W Wᵀx + b) against sparse x, by hand (derived; held against dense autograd).

With h = Wᵀx, e = y − x and G = 2 e·1[y > 0] over the number of samples: ∂L/∂b = Σ G, ∂L/∂W = Gᵀh + xᵀ(G W). Samples
without an active feature are one row with its count. The bias is a column of ones beside h, so that no product is
formed twice. Where training has left few y above zero, Gᵀh and G W are sparse products.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from drillcore.data.features import Active

Integers = np.ndarray[Any, np.dtype[Any]]

_TILE = 1 << 21  # entries of y at a time: they stay in the cache
_SPARSE = 0.12  # share of positive y below which products over them alone are faster


class Found(NamedTuple):
    """Loss (…), ∂L/∂W (… × n × m) and ∂L/∂b (… × n); the gradients are zero where none were asked for."""

    loss: Tensor
    grad_weight: Tensor
    grad_bias: Tensor


def found(W: Tensor, b: Tensor, x: Active, importance: Tensor | None = None, *, gradients: bool) -> Found:
    """Loss and gradients of one model on the CPU: W n × m, b n."""
    joined = torch.cat([W, b[:, None]], 1)  # n × (m + 1)
    given = csr_array((x.value.numpy(), x.feature.numpy(), _ends(x.sample.numpy(), x.filled)), (x.filled, x.n))
    hidden, count = W.new_ones(x.filled + 1, W.shape[1] + 1), W.new_ones(x.filled + 1)
    hidden[-1, :-1], count[-1] = 0, x.samples - x.filled
    hidden[:-1, :-1] = torch.from_numpy(given @ W.numpy())
    weighted, grad, back = hidden * count[:, None], torch.zeros_like(joined), torch.zeros_like(hidden)
    loss, rows = W.new_zeros(()), max(1, _TILE // x.n)
    starts = np.append(given.indptr, given.indptr[-1])  # the empty sample has no entry
    for start in range(0, len(hidden), rows):
        tile = slice(start, min(start + rows, len(hidden)))
        of = slice(int(starts[tile.start]), int(starts[tile.stop]))
        cells = (x.sample[of] - start) * x.n + x.feature[of]
        errors = _errors(hidden[tile] @ joined.T, cells, x.value[of], importance)
        loss += errors.squared(count[tile])
        if gradients:
            errors.add(grad, back[tile], weighted[tile], joined)
    scale = 2 / x.samples
    if gradients:
        grad[:, :-1] += torch.from_numpy(given.T @ back[:-1, :-1].numpy())
    return Found(loss / x.samples, grad[:, :-1] * scale, grad[:, -1] * scale)


def _ends(rows: Integers, count: int) -> Integers:
    """Where each of `count` rows begins among sorted row numbers, and where the last ends."""
    return np.searchsorted(rows, np.arange(count + 1)).astype(np.int32)


class _Dense(NamedTuple):
    """Errors of a tile, zero where y is: e rows × n; `missed`: Σ x² there where x is not."""

    e: Tensor
    missed: Tensor
    importance: Tensor | None

    def squared(self, count: Tensor) -> Tensor:
        squares = self.e.square() if self.importance is None else self.e.square() * self.importance
        return squares.sum(1) @ count + self.missed

    def add(self, grad: Tensor, back: Tensor, hidden: Tensor, joined: Tensor) -> None:
        weighted = self.e if self.importance is None else self.e * self.importance
        grad += (hidden.T @ weighted).T  # this way round where m is small
        torch.mm(weighted, joined, out=back)


class _Sparse(NamedTuple):
    """The same as a sparse matrix of the entries with y > 0."""

    e: csr_array
    missed: Tensor
    importance: Tensor | None

    def squared(self, count: Tensor) -> Tensor:
        rows = np.repeat(count.numpy(), np.diff(self.e.indptr))
        return torch.as_tensor((self._weighted().data * self.e.data) @ rows) + self.missed

    def add(self, grad: Tensor, back: Tensor, hidden: Tensor, joined: Tensor) -> None:
        weighted = self._weighted()
        grad += torch.from_numpy(weighted.T @ hidden.numpy())
        back.copy_(torch.from_numpy(weighted @ joined.numpy()))

    def _weighted(self) -> csr_array:
        if self.importance is None:
            return self.e
        return csr_array((self.e.data * self.importance.numpy()[self.e.indices], self.e.indices, self.e.indptr),
                         self.e.shape)  # fmt: skip


def _errors(y: Tensor, cells: Tensor, value: Tensor, importance: Tensor | None) -> _Dense | _Sparse:
    """Errors of a tile of pre-activations (rows × n, overwritten), with `value` the active entries at `cells`."""
    rows, n = y.shape
    flat = y.view(-1)
    before = flat[cells]
    shown = before > 0
    weight = 1.0 if importance is None else importance[cells % n]
    missed = (torch.where(shown, 0.0, value).square() * weight).sum()
    positive = y.numpy() > 0
    if np.count_nonzero(positive) > _SPARSE * y.numel():
        y.relu_()
        flat[cells] = torch.where(shown, before - value, 0.0)
        return _Dense(y, missed, importance)
    flat[cells] = before - value  # where y is not positive nobody looks
    place = np.flatnonzero(positive).astype(np.int32)
    ends = np.searchsorted(place, np.arange(rows + 1, dtype=np.int32) * n).astype(np.int32)
    return _Sparse(csr_array((flat.numpy()[place], place % n, ends), (rows, n)), missed, importance)


def found_stacked(W: Tensor, b: Tensor, batch: Sequence[Active], importance: Tensor | None = None, *,
                  gradients: bool) -> Found:  # fmt: skip
    """Loss and gradients of replicas at once, on any device: W replicas × n × m, b replicas × n.

    Rows beyond a replica's filled samples are empty and count nothing.
    """
    R, n, m = W.shape
    filled = max(x.filled for x in batch)
    which = torch.cat([torch.full_like(x.sample, i) for i, x in enumerate(batch)])
    sample, feature = torch.cat([x.sample for x in batch]), torch.cat([x.feature for x in batch])
    value = torch.cat([x.value for x in batch])
    count = W.new_zeros(R, filled + 1)
    for i, x in enumerate(batch):
        count[i, : x.filled] = 1
        count[i, -1] = x.samples - x.filled
    rows, flat_W = which * (filled + 1) + sample, W.flatten(0, 1)
    hidden = W.new_zeros(R * (filled + 1), m).index_add_(0, rows, flat_W[which * n + feature] * value[:, None])
    hidden = hidden.view(R, filled + 1, m)
    e = torch.baddbmm(b[:, None], hidden, W.mT)
    before = e[which, sample, feature]
    missed = torch.where(before > 0, 0.0, value).square()
    weighted = e.relu_()
    e[which, sample, feature] = torch.where(before > 0, before - value, 0.0)
    squares = e.square()
    if importance is not None:
        squares, weighted, missed = squares * importance, e * importance, missed * importance[feature]
    samples = torch.tensor([x.samples for x in batch], dtype=W.dtype, device=W.device)
    loss = (torch.einsum("rsn,rs->r", squares, count).index_add_(0, which, missed)) / samples
    if not gradients:
        return Found(loss, torch.zeros_like(W), torch.zeros_like(b))
    scale = 2 / samples
    dW = torch.bmm(weighted.mT, hidden * count[..., None])
    back = torch.bmm(weighted, W)[which, sample] * value[:, None]
    dW.flatten(0, 1).index_add_(0, which * n + feature, back)
    return Found(loss, dW * scale[:, None, None], torch.einsum("rsn,rs->rn", weighted, count) * scale[:, None])
