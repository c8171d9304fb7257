"""How a toy model packs its features: geometry of the rows of W, and the loss that theory gives them.

Formulas are those of Liu, Liu and Gore, arXiv 2505.10465v4, unless said otherwise. Features are in the order of falling
frequency p; L is summed over features.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from drillcore.measures.row_blocks import RowBlocks
from drillcore.measures.superposition import packing
from drillcore.table import Row

Regime = Literal["strong", "weak", "mixed"]
_STRONG = 1.0  # norm above which a row is strongly represented (eq. 9)
_OF_ALL = ("phi_half", "phi_1", "norm_mean", "norm_min", "norm_max", "norm_median")
_OF_PAIRS = ("n", "mean_sq_overlap", "mean_sq_overlap_x_m", "variance_ratio", "max_overlap_over_welch",
             "tight_frame_defect")  # fmt: skip


def feature_rows(make: Callable[..., Row], W: Tensor) -> Iterator[Row]:
    """Geometry of W (n × m): norms, and overlaps of all rows, of strong rows (norm > 1) and of the others.

    Names are those of a survey; `subset` says which rows. `superposition.n` of the strong rows is ν of the Welch bound.
    """
    W = W.detach().float().cpu()
    norms = W.norm(dim=1)
    strong = norms > _STRONG
    for subset, kept in (("all", norms > 0), ("strong", strong), ("others", (norms > 0) & ~strong)):
        names = _OF_PAIRS if subset != "all" else (*_OF_ALL, *_OF_PAIRS)
        yield from _overlap_rows(make, W[kept], subset, names)
    phi = float((norms > 0.5).double().mean())
    yield make(measure="superposition.regime", kind=regime(phi, *W.shape), value=phi)
    yield make(measure="superposition.weak_distance", value=weak_distance(W))
    dimensionality = feature_dimensionality(W)
    yield make(measure="superposition.dimensionality_mean", value=float(dimensionality.mean()), n=len(W))
    total = float(norms.square().sum())
    yield make(measure="superposition.dimensions_per_feature", value=W.shape[1] / total if total else None)


def _overlap_rows(make: Callable[..., Row], W: Tensor, subset: str, names: tuple[str, ...]) -> Iterator[Row]:
    n, m = W.shape
    if n < 2:
        reason = f"{n} row(s) in this subset; overlaps need two"
        yield make(measure="superposition.n", subset=subset, value=n)
        yield from (make(measure=f"superposition.{name}", subset=subset, status="not-applicable", reason=reason)
                    for name in names if name != "n")  # fmt: skip
        return
    wanted = {f"superposition.{name}" for name in names}
    for row in packing(make, RowBlocks(subset, n, m, lambda start, stop: W[start:stop])):
        if row.measure in wanted and row.subset != "centred":
            yield replace(row, subset=subset)


def regime(phi_half: float, n: int, m: int) -> Regime:
    """Strong superposition where nearly all features are represented, weak where not many more than fit (derived)."""
    if phi_half > 0.9:
        return "strong"
    return "weak" if phi_half < 2 * m / n else "mixed"


def weak_distance(W: Tensor) -> float:
    """‖W Wᵀ − I‖₂ with I the first m of n features: 0 where the most frequent have a dimension each (appendix)."""
    W = W.double()
    n, m = W.shape
    # The difference acts in the span of the columns of W and of the first m axes: 2m dimensions instead of n.
    axes = torch.zeros(n, m, dtype=W.dtype)
    axes[:m] = torch.eye(m, dtype=W.dtype)
    basis, _ = torch.linalg.qr(torch.cat([W, axes], 1))
    inside, corner = basis.T @ W, basis.T @ axes
    return float(torch.linalg.eigvalsh(inside @ inside.T - corner @ corner.T).abs().max())


def feature_dimensionality(W: Tensor) -> Tensor:
    """Dᵢ = ‖Wᵢ‖²/Σⱼ(Ŵᵢ·Wⱼ)² (n): the share of a dimension that a feature has for itself; 0 for a row of zeros.

    Elhage and others, Toy Models of Superposition, 2022.
    """
    W = W.double()
    squares = W.square().sum(1)
    interference = ((W @ (W.T @ W)) * W).sum(1)  # Σⱼ (Wᵢ·Wⱼ)²
    return torch.where(squares > 0, squares**2 / interference.clamp_min(1e-300), 0.0)


def tail_loss(p: Tensor, kept: int) -> float:
    """Loss of a model that has the first `kept` features exactly and the mean of the rest: Σ (4/3 pᵢ − pᵢ²) (eq. 4).

    The sum over these n features, not its limit for large n, from which it is far at n = 1000.
    """
    rest = p[kept:].double()
    return float((4 / 3 * rest - rest.square()).sum())


def single_feature_loss(W: Tensor, b: Tensor, p: Tensor) -> float:
    """Loss of samples with one active feature, in expectation over its value, exact (eq. 8).

    Σᵢ pᵢ E_v[Σ_{j≠i} ReLU(wⱼ·wᵢ v + bⱼ)² + (ReLU(‖wᵢ‖² v + bᵢ) − v)²], v ~ Uniform(0, 2). Where several features are
    active in a sample the loss is another; at density 1 this is most of it.
    """
    W, b, p = W.double(), b.double(), p.double()
    overlaps = W @ W.T
    own = overlaps.diagonal().clone()
    others = _mean_relu_square(overlaps, b)  # i × j: feature i active, output j
    others.fill_diagonal_(0)
    return float(p @ (others.sum(1) + _mean_own_square(own, b)))


def _mean_relu_square(a: Tensor, b: Tensor) -> Tensor:
    """E ReLU(a v + b)² over v in (0, 2), for every entry of a (i × j) and b (j)."""
    low, high = b.expand_as(a).clamp_min(0), (2 * a + b).clamp_min(0)
    both = (high.square() + high * low + low.square()) / 3  # a > 0 throughout: (high³ − low³)/(3 · 2a), without a
    one = (high**3 - low**3) / (6 * torch.where(a == 0, 1.0, a))
    inside = (b.expand_as(a) > 0) & (2 * a + b > 0)
    return torch.where(inside, both, torch.where(a == 0, 0.0, one))


def _mean_own_square(a: Tensor, b: Tensor) -> Tensor:
    """E (ReLU(a v + b) − v)² over v in (0, 2), a ≥ 0: v² until a v + b is positive, ((a − 1) v + b)² beyond."""
    turn = torch.where(a > 0, -b / torch.where(a > 0, a, 1.0), torch.where(b > 0, 0.0, 2.0)).clamp(0, 2)
    start, end = (a - 1) * turn + b, (a - 1) * 2 + b
    return (turn**3 / 3 + (2 - turn) * (start.square() + start * end + end.square()) / 3) / 2


def loss_rows(make: Callable[..., Row], W: Tensor, b: Tensor, p: Tensor) -> Iterator[Row]:
    """What theory says of the loss L: of nothing, of the best bias, of a perfect weak model, of single features."""
    n, m = W.shape
    represented = int((W.norm(dim=1) > 0.5).sum())
    yield make(measure="loss.zero", value=float(4 / 3 * p.sum()))
    yield make(measure="loss.bias_only", value=tail_loss(p, 0))
    yield make(measure="loss.weak_m", value=tail_loss(p, m), n=n)
    yield make(measure="loss.weak_represented", value=tail_loss(p, represented), n=n)
    yield make(measure="loss.strong_tail", value=tail_loss(p, min(n, m * m // 2)), n=n)
    yield make(measure="loss.single_feature", value=single_feature_loss(W, b, p))
