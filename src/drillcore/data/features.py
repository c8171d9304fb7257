"""Sparse features: which of n features are active in a sample, and how strongly (arXiv 2505.10465, eq. 1).

Entry i of a sample is u·v with u ~ Bernoulli(pᵢ) and v ~ Uniform(0, 2), all independent. About E = Σ pᵢ entries of a
sample are active, so that only these are drawn, and samples without any are no more than a count.
"""

from dataclasses import dataclass, field
from math import sqrt

import torch
from torch import Tensor

from drillcore.errors import UserError
from drillcore.seeds import generator

FAMILIES = ("power", "exponential", "linear")
_OFTEN = 0.5  # features more frequent than this are drawn sample by sample; pᵢ = 1 has no Poisson rate


def frequencies(family: str, n: int, *, alpha: float = 1.0, length: float = 400.0, density: float = 1.0) -> Tensor:
    """Probabilities pᵢ of n features, falling, float64, with sum `density`.

    "power": i^−alpha from i = 1; "exponential": e^(−i/length) and "linear": n − i, both from i = 0 (paper, appendix).

    Raises:
        UserError: there is no such family or no feature, or the density asks for a probability above 1.
    """
    if n < 1 or not 0 < density < float("inf"):
        raise UserError(f"frequencies need a feature and a density above 0, not n = {n}, density = {density:g}")
    rank = torch.arange(n, dtype=torch.float64)
    if family == "power":
        raw = (rank + 1) ** -alpha
    elif family == "exponential":
        raw = torch.exp(-rank / length)
    elif family == "linear":
        raw = n - rank
    else:
        raise UserError(f"there is no family of frequencies {family!r}; there are {', '.join(FAMILIES)}")
    p = raw / raw.sum() * density
    if float(p[0]) > 1 + 1e-12:
        most = float(raw.sum() / raw[0])
        raise UserError(
            f"a density of {density:g} would make the first feature active with probability {float(p[0]):.3g}; "
            f"this family of {n} features takes at most {most:.4g}"
        )
    return p.clamp(max=1.0)


@dataclass(frozen=True, eq=False)
class Active:
    """The active entries of `samples` samples of `n` features, in the order of their samples.

    Sample numbers run over those `filled` samples that have an active entry; the rest are all zero.
    """

    sample: Tensor  # entries, int64, 0 … filled − 1
    feature: Tensor  # entries, int64
    value: Tensor  # entries, float32
    filled: int
    samples: int
    n: int

    def dense(self) -> Tensor:
        """All samples, samples × n; the empty ones last."""
        x = torch.zeros(self.samples, self.n, dtype=self.value.dtype, device=self.value.device)
        x[self.sample, self.feature] = self.value
        return x


@dataclass(frozen=True, eq=False)
class FeatureBatches:
    """Batches of fresh samples for replicas, each with frequencies and a seed of its own; a function of the step.

    With `correlation` ρ > 0, features of one group of `group` neighbours tend to be active together (a Gaussian copula
    with one factor a group; an extension of ours). How often each is active stays as it was.
    """

    p: tuple[Tensor, ...]  # one a replica, n each
    batch: int
    seeds: tuple[int, ...]  # one a replica
    stream: str = "training"
    correlation: float = 0.0
    group: int = 10
    device: str = "cpu"
    _laws: tuple["_Law", ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.batch < 1 or len(self.p) != len(self.seeds) or len({len(p) for p in self.p}) != 1:
            raise ValueError("a batch holds a sample or more, and each seed comes with frequencies of one n")
        if not 0 <= self.correlation < 1 or self.group < 1:
            raise UserError(f"a correlation lies from 0 to below 1, not {self.correlation:g}; groups hold 1 or more")
        found: dict[int, _Law] = {}  # replicas mostly share one tensor
        laws = tuple(found.setdefault(id(p), _Law.of(p.to(self.device))) for p in self.p)
        object.__setattr__(self, "_laws", laws)

    def at(self, step: int) -> tuple[tuple[Active, ...]]:
        """The samples of a step, one `Active` a replica."""
        return (tuple(self._drawn(law, seed, step) for law, seed in zip(self._laws, self.seeds, strict=True)),)

    def _drawn(self, law: "_Law", seed: int, step: int) -> Active:
        random = generator("features", self.stream, seed, step, device=self.device)
        if self.correlation:
            cells = _together(law.p, self.batch, self.correlation, self.group, random)
        else:
            cells = law.cells(self.batch, random)
        return _gathered(cells, self.batch, len(law.p), random)


@dataclass(frozen=True, eq=False)
class _Law:
    """Frequencies, cut into frequent features and rare ones with their Poisson rates."""

    p: Tensor
    often: Tensor  # indices
    rare: Tensor  # indices
    rates: Tensor  # cumulated rates −ln(1 − pᵢ) of the rare ones
    rate: float  # their sum

    @classmethod
    def of(cls, p: Tensor) -> "_Law":
        rare = (p <= _OFTEN).nonzero()[:, 0]
        rates = -torch.log1p(-p[rare])
        total = float(rates.sum())
        return cls(p, (p > _OFTEN).nonzero()[:, 0], rare, rates.cumsum(0), total)

    def cells(self, batch: int, random: torch.Generator) -> Tensor:
        """Active cells sample · n + feature, sorted.

        A cell of a rare feature is active where a Poisson process of rate −ln(1 − pᵢ) has a point: with probability pᵢ,
        independently of all others. The points of all cells are one process: their number is Poisson, each falls on a
        feature by its rate and on any sample alike (derived).
        """
        n, device = len(self.p), self.p.device
        expected = torch.tensor([batch * self.rate], dtype=torch.float64, device=device)
        points = int(torch.poisson(expected, generator=random))
        at = torch.rand(points, dtype=torch.float64, generator=random, device=device) * self.rate
        feature = self.rare[torch.searchsorted(self.rates, at, right=True).clamp_(max=max(0, len(self.rare) - 1))]
        cells = torch.randint(batch, (points,), generator=random, device=device) * n + feature
        if len(self.often):
            hit = torch.rand(batch, len(self.often), dtype=torch.float64, generator=random, device=device)
            sample, which = (hit < self.p[self.often]).nonzero(as_tuple=True)
            cells = torch.cat([cells, sample * n + self.often[which]])
        active: Tensor = torch.unique(cells)
        return active


def _together(p: Tensor, batch: int, correlation: float, group: int, random: torch.Generator) -> Tensor:
    """Active cells where zᵢ = √ρ·(factor of its group) + √(1 − ρ)·(own) lies below the pᵢ quantile of N(0, 1)."""
    n = len(p)

    def drawn(columns: int) -> Tensor:
        return torch.randn(batch, columns, generator=random, dtype=torch.float64, device=p.device)

    shared = drawn(-(-n // group)).repeat_interleave(group, dim=1)[:, :n]
    z = sqrt(correlation) * shared + sqrt(1 - correlation) * drawn(n)
    return torch.less(z, torch.special.ndtri(p)).view(-1).nonzero()[:, 0]


def _gathered(cells: Tensor, batch: int, n: int, random: torch.Generator) -> Active:
    """Active entries of sorted cells: values drawn, samples numbered without the empty ones."""
    sample = torch.div(cells, n, rounding_mode="floor")
    feature = cells - sample * n
    value = 2 * torch.rand(len(cells), generator=random, device=cells.device)
    number = torch.zeros_like(sample)
    torch.cumsum((sample[1:] != sample[:-1]).long(), 0, out=number[1:])
    return Active(number, feature, value, int(number[-1]) + 1 if len(cells) else 0, batch, n)
