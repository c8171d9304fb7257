"""Moments of a stream or a branch, summed up as it passes: activations are never kept.

The three statistics that arXiv 2510.09904 plots against depth are read as follows (inferred): the mean of |x|; the
variance over the entries of a token, mean over tokens; the variance over tokens of an entry, mean over entries.
"""

from dataclasses import dataclass, field
from math import sqrt

import torch
from torch import Tensor

_SHIFT = 15  # of the bits of |x| as float32: what is left has 8 bits of mantissa
_BINS = 1 << (31 - _SHIFT)


@dataclass
class Moments:
    """Running sums over tokens (rows of width d), in float64. The 99th percentile is right to 0.2 %."""

    tokens: int = 0
    width: int = 0
    largest: float = 0.0
    _absolute: float = 0.0
    _spread: float = 0.0  # Σ over tokens of the variance over entries
    _mean_squares: float = 0.0  # Σ over tokens of the squared mean over entries
    _sums: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))  # by entry
    _squares: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    _bins: Tensor = field(default_factory=lambda: torch.zeros(_BINS, dtype=torch.int64))

    def add(self, x: Tensor) -> None:
        """Take in tokens (… × d)."""
        rows = x.detach().reshape(-1, x.shape[-1]).float()
        if self.width == 0:
            self.width = rows.shape[1]
            self._sums = torch.zeros(self.width, dtype=torch.float64, device=rows.device)
            self._squares, self._bins = torch.zeros_like(self._sums), self._bins.to(rows.device)
        size = rows.abs()
        self.tokens += len(rows)
        self.largest = max(self.largest, float(size.max()) if len(rows) else 0.0, key=_worst)
        self._absolute += float(size.sum(dtype=torch.float64))
        means = rows.mean(1, dtype=torch.float64)
        self._mean_squares += float(means.square().sum())
        wide = rows.double()
        self._spread += float((wide - means[:, None]).square().mean(1).sum())
        self._sums += wide.sum(0)
        self._squares += wide.square_().sum(0)
        self._bins += torch.bincount(size.view(torch.int32).flatten() >> _SHIFT, minlength=_BINS)[:_BINS]

    @property
    def mean_abs(self) -> float:
        """Mean of |x| over tokens and entries."""
        return self._absolute / (self.tokens * self.width)

    @property
    def rms(self) -> float:
        """Root mean square over tokens and entries."""
        return sqrt(float(self._squares.sum()) / (self.tokens * self.width))

    @property
    def entry_variance(self) -> float:
        """Mean over tokens of the variance over entries."""
        return self._spread / self.tokens

    @property
    def data_variance(self) -> float:
        """Mean over entries of the variance over tokens."""
        return float((self._squares / self.tokens - (self._sums / self.tokens).square()).clamp_min(0).mean())

    @property
    def total_variance(self) -> float:
        """Variance of all entries of all tokens around one mean."""
        mean = float(self._sums.sum()) / (self.tokens * self.width)
        return self.rms**2 - mean**2

    @property
    def variance_of_means(self) -> float:
        """Variance over tokens of the mean over entries; with `entry_variance` it makes up the total."""
        mean = float(self._sums.sum()) / (self.tokens * self.width)
        return self._mean_squares / self.tokens - mean**2

    @property
    def p99(self) -> float:
        """99th percentile of |x| over tokens and entries."""
        place = int((self._bins.cumsum(0) < 0.99 * self.tokens * self.width).sum())
        middle = torch.tensor((place << _SHIFT) + (1 << (_SHIFT - 1)), dtype=torch.int32)
        return float(middle.view(torch.float32))

    def top_share(self, count: int) -> float:
        """Share of Σx² that the `count` largest coordinates hold."""
        total = float(self._squares.sum())
        return float(self._squares.topk(count).values.sum()) / total if total > 0 else 0.0


def _worst(value: float) -> float:
    """NaN counts as larger than everything."""
    return float("inf") if value != value else value
