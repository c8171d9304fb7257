"""Loss and gradients of y = ReLU(W Wᵀx + b) against sparse x, by hand (derived; held against dense autograd).

With h = Wᵀx, e = y − x and G = 2 e·1[y > 0] over the number of samples: ∂L/∂b = Σ G, ∂L/∂W = Gᵀh + xᵀ(G W). Samples
without an active feature are one row with its count. The bias is a column of ones beside h, so that no product is
formed twice. Where training has left few y above zero, Gᵀh and G W are sparse products.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from drillcore.data.features import Active

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
    hidden, count = _hidden(W, x)
    weighted = hidden * count[:, None]
    grad, back = torch.zeros_like(joined), torch.zeros_like(hidden)
    loss, rows = W.new_zeros(()), max(1, _TILE // x.n)
    starts = torch.searchsorted(x.sample, torch.arange(0, len(hidden) + rows, rows)).tolist()
    for i, start in enumerate(range(0, len(hidden), rows)):
        tile, of = slice(start, start + rows), slice(starts[i], starts[i + 1])
        y = hidden[tile] @ joined.T
        cells = (x.sample[of] - start) * x.n + x.feature[of]
        errors = _errors(y, cells, x.value[of], importance)
        loss += errors.squared(count[tile])
        if gradients:
            errors.add(grad, back[tile], weighted[tile], joined)
    scale = 2 / x.samples
    dW = grad[:, :-1].index_add_(0, x.feature, back[x.sample, :-1] * x.value[:, None]) if gradients else grad[:, :-1]
    return Found(loss / x.samples, dW * scale, grad[:, -1] * scale)


def _hidden(W: Tensor, x: Active) -> tuple[Tensor, Tensor]:
    """(Wᵀx, 1) of the filled samples and of one empty sample, and how many samples each row stands for."""
    m = W.shape[1]
    hidden = W.new_zeros(x.filled + 1, m + 1)
    hidden[:, m] = 1
    hidden[:, :m].index_add_(0, x.sample, W[x.feature] * x.value[:, None])
    count = W.new_ones(x.filled + 1)
    count[-1] = x.samples - x.filled
    return hidden, count


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
        grad += weighted.T @ hidden
        torch.mm(weighted, joined, out=back)


class _Sparse(NamedTuple):
    """The same as a sparse matrix of the entries with y > 0."""

    e: csr_array
    missed: Tensor
    importance: Tensor | None

    def squared(self, count: Tensor) -> Tensor:
        weighted = self.e.data * self._weights()
        rows = np.repeat(count.numpy(), np.diff(self.e.indptr))
        return torch.as_tensor((weighted * self.e.data) @ rows) + self.missed

    def add(self, grad: Tensor, back: Tensor, hidden: Tensor, joined: Tensor) -> None:
        weighted = csr_array((self.e.data * self._weights(), self.e.indices, self.e.indptr), self.e.shape)
        grad += torch.from_numpy(weighted.T @ hidden.numpy())
        back.copy_(torch.from_numpy(weighted @ joined.numpy()))

    def _weights(self) -> "np.ndarray[tuple[int], np.dtype[np.float32]] | np.float32":
        return np.float32(1) if self.importance is None else self.importance.numpy()[self.e.indices]


def _errors(y: Tensor, cells: Tensor, value: Tensor, importance: Tensor | None) -> _Dense | _Sparse:
    """Errors of a tile of pre-activations (rows × n, overwritten), with `value` the active entries at `cells`."""
    flat = y.view(-1)
    shown = flat[cells] > 0
    weight = 1.0 if importance is None else importance[cells % y.shape[1]]
    missed = (torch.where(shown, 0.0, value).square() * weight).sum()
    positive = y.numpy() > 0
    if np.count_nonzero(positive) > _SPARSE * y.numel():
        y.relu_()
        flat[cells] = torch.where(shown, flat[cells] - value, 0.0)
        return _Dense(y, missed, importance)
    flat[cells[shown]] -= value[shown]
    place = np.flatnonzero(positive)
    row, column = np.divmod(place, y.shape[1])
    ends = np.searchsorted(row, np.arange(y.shape[0] + 1))
    return _Sparse(csr_array((flat.numpy()[place], column, ends), tuple(y.shape)), missed, importance)


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
