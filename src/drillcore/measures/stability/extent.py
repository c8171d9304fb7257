"""Sets that hold every vector a place of the model can take, and their images under a matrix (derived (drillcore)).

Two shapes are enough. What a norm gives lies on an ellipsoid (Lemma 1 of arXiv 2510.09904); everything else is held in
a `Region`: a centre, how far each entry may be from it, and how long the difference may be, group by group.
"""

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from drillcore.linalg.operator import row_blocks

_BLOCK = 1 << 20  # numbers of a row block: 4 MiB in float32, which stay in the cache


@dataclass(frozen=True)
class Region:
    """All x = centre + y with |y_j| ≤ spread_j, and ‖y_g‖ ≤ radii_g for each of the equal parts g of y. Float64."""

    centre: Tensor  # n
    spread: Tensor  # n
    radii: Tensor  # parts

    @property
    def entries(self) -> Tensor:
        """Bound on |x_j|, n."""
        return self.centre.abs() + self.spread

    @property
    def radius(self) -> float:
        """Bound on ‖x − centre‖."""
        return min(float(self.radii.norm()), float(self.spread.norm()))

    @property
    def norm(self) -> float:
        """Bound on ‖x‖."""
        return float(self.centre.norm()) + self.radius

    @property
    def largest(self) -> float:
        """Bound on max |x_j|."""
        return min(float(self.entries.max()), self.norm)

    def plus(self, other: "Region", step: float = 1.0) -> "Region":
        """The sums x + step·y."""
        radius = torch.tensor([self.radius + step * other.radius], dtype=torch.float64)
        return Region(self.centre + step * other.centre, self.spread + abs(step) * other.spread, radius)

    def image(self, W: Tensor, bias: Tensor | None, sigma: float) -> "Region":
        """Where W x + b lies.

        Args:
            W: out × n, any floating dtype.
            bias: out.
            sigma: an upper bound on ‖W‖; infinite where none is known.
        """
        parts, spread = len(self.radii), self.spread.to(W.device, torch.float32)
        radii = self.radii.to(W.device, torch.float32)
        rows = torch.empty(len(W), dtype=torch.float64)
        for start, stored in row_blocks(W, _BLOCK):
            block = stored.float()
            by_parts = torch.linalg.vector_norm(block.reshape(len(block), parts, -1), dim=2) @ radii
            rows[start : start + len(block)] = torch.minimum(block.abs() @ spread, by_parts).double().cpu()
        rows *= _upward(W.shape[1])
        radius = min(sigma * self.radius, float(rows.norm()))
        return Region(_moved(W, self.centre, bias), rows, torch.tensor([radius], dtype=torch.float64))

    def heads(self, count: int, repeated: int) -> "Region":
        """Values of every head, each a mix of its own tokens: parts are bounded apart, and repeated for its queries."""
        parts = self.spread.reshape(count, -1)
        radii = parts.norm(dim=1).clamp_max(self.radius)
        centre = self.centre.reshape(count, -1).repeat_interleave(repeated, dim=0).flatten()
        spread = parts.repeat_interleave(repeated, dim=0).flatten()
        return Region(centre, spread, radii.repeat_interleave(repeated))


@dataclass(frozen=True)
class Ellipsoid:
    """What a norm gives: γ ⊙ u + β with ‖u‖ ≤ √d, and mean(u) = 0 for a layer norm. Float64."""

    gain: Tensor  # d
    shift: Tensor  # d
    centred: bool

    @property
    def region(self) -> Region:
        """The smallest region around it: |u_j| ≤ √(d − 1) for a layer norm, √d for an RMS norm."""
        d = len(self.gain)
        one = self.gain.abs() * sqrt(d - 1 if self.centred else d)
        return Region(self.shift, one, (self.gain.abs().max() * sqrt(d))[None])

    @property
    def largest(self) -> float:
        """Bound on max |x_j|."""
        return float(self.region.entries.max())

    def image(self, W: Tensor, bias: Tensor | None, sigma: float) -> Region:
        """Where W x + b lies: entry i moves by at most √d ‖W_i ⊙ γ‖. Arguments as for `Region.image`."""
        squares = self.gain.square().to(W.device, torch.float32)
        rows = torch.empty(len(W), dtype=torch.float64)
        for start, stored in row_blocks(W, _BLOCK):
            found = stored.float().square() @ squares
            rows[start : start + len(found)] = found.double().cpu()
        rows = (rows * _upward(W.shape[1]) * len(self.gain)).sqrt()
        radius = min(sigma * float(self.gain.abs().max()) * sqrt(len(self.gain)), float(rows.norm()))
        return Region(_moved(W, self.shift, bias), rows, torch.tensor([radius], dtype=torch.float64))


Extent = Region | Ellipsoid


def around_zero(entries: Tensor, norm: float) -> Region:
    """All vectors with these bounds on their entries and on their length."""
    return Region(torch.zeros_like(entries), entries, torch.tensor([norm], dtype=torch.float64))


def either(regions: list[Region]) -> Region:
    """A region that holds all of these, around zero: the experts of a layer."""
    entries = torch.stack([r.entries for r in regions]).amax(0)
    return around_zero(entries, max(r.norm for r in regions))


def product(a: Region, b: Region) -> Region:
    """All products x ⊙ y: a gate and what it lets through."""
    largest = min(a.largest * b.norm, b.largest * a.norm)
    return around_zero(a.entries * b.entries, largest)


def _moved(W: Tensor, centre: Tensor, bias: Tensor | None) -> Tensor:
    """W centre + b in float64."""
    moved = torch.zeros(len(W), dtype=torch.float64) if bias is None else bias.double().cpu()
    if not bool(centre.any()):
        return moved
    turned = centre.to(W.device)
    parts = [(block.double() @ turned).cpu() for _, block in row_blocks(W, _BLOCK)]
    return moved + torch.cat(parts)


def _upward(n: int) -> float:
    """What float32 may lose in a sum of n positive numbers, put on top (Higham, Accuracy and Stability, §3.1)."""
    return 1 + (n + 8) * 2.0**-23
