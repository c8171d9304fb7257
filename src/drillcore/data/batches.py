"""Batches as a function of the step: nothing to save, nothing to restore."""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drillcore.data.idx import Bytes
from drillcore.seeds import seed_of


@dataclass(frozen=True, eq=False)
class Batches:
    """Mini-batches of images for replicas, each in an order of its own seed.

    Every epoch shows each image once, but for the rest of less than a batch. Images are normalised by the mean and
    deviation of all pixels that are learned from. With `shift`, each is moved by up to so many pixels along both axes,
    anew every time, with background moving in.
    """

    images: Bytes  # n × height × width
    labels: Bytes  # n
    batch: int
    seeds: tuple[int, ...]  # one a replica
    shift: int = 0
    _windows: Bytes = field(init=False, repr=False)  # image × down × right × height × width, a view of padded images
    _moments: tuple[float, float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= len(self.images) or self.shift < 0:
            raise ValueError(
                f"a batch holds 1 to {len(self.images)} images and moves them by 0 pixels or more, "
                f"not {self.batch} images by {self.shift}"
            )
        edge = ((0, 0), (self.shift, self.shift), (self.shift, self.shift))
        padded, (height, width) = np.pad(self.images, edge), self.images.shape[1:]
        windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(1, 2))
        object.__setattr__(self, "_windows", windows)
        object.__setattr__(self, "_moments", _moments(self.images))

    @property
    def epoch(self) -> int:
        """Batches in an epoch."""
        return len(self.images) // self.batch

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Images (replicas × batch × pixels, float32) and labels (replicas × batch) of a step."""
        drawn = [self._drawn(seed, step) for seed in self.seeds]
        return torch.stack([x for x, _ in drawn]), torch.stack([y for _, y in drawn])

    def normalised(self, images: Bytes) -> Tensor:
        """Images (n × height × width) as a network sees them, n × pixels."""
        return self._scaled(torch.from_numpy(images).flatten(1))

    def _drawn(self, seed: int, step: int) -> tuple[Tensor, Tensor]:
        epoch, place = divmod(step, self.epoch)
        order = _order(seed, epoch, len(self.images))[place * self.batch : (place + 1) * self.batch]
        down, right = self._moves(seed, step)
        y = torch.from_numpy(self.labels[order]).long()
        return self._scaled(torch.from_numpy(self._windows[order, down, right]).flatten(1)), y

    def _moves(self, seed: int, step: int) -> NDArray[np.int64]:
        """Where the window of each image begins, 0 … 2·shift along both axes."""
        if not self.shift:
            return np.zeros((2, self.batch), np.int64)
        random = np.random.default_rng(seed_of("mnist shift", seed, step))
        return random.integers(0, 2 * self.shift + 1, (2, self.batch))

    def _scaled(self, pixels: Tensor) -> Tensor:
        mean, deviation = self._moments
        return pixels.float().sub_(mean).div_(deviation)


def _moments(images: Bytes) -> tuple[float, float]:
    """Mean and deviation of all pixels, from counts: a float copy of MNIST would take 400 MB."""
    counts = sum(np.bincount(part.ravel(), minlength=256) for part in np.array_split(images, len(images) // 500 + 1))
    share, level = counts / images.size, np.arange(256)
    mean = float(share @ level)
    return mean, float(np.sqrt(share @ (level - mean) ** 2))


@lru_cache(maxsize=64)
def _order(seed: int, epoch: int, n: int) -> NDArray[np.int64]:
    order: NDArray[np.int64] = np.random.default_rng(seed_of("mnist order", seed, epoch)).permutation(n)
    return order
