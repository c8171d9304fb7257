"""Leading singular triplets with a certificate: converged to a residual, or said not to be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from drillcore.linalg.dense import full_spectrum
from drillcore.linalg.factored import Matrix, Product
from drillcore.linalg.lanczos import hidden_value, lanczos
from drillcore.linalg.operator import (
    DenseOperator,
    Operator,
    ProductOperator,
    Scratch,
    StackedOperator,
    as_operator,
)
from drillcore.seeds import generator

Status = Literal["ok", "not-converged", "repeated", "zero"]
_DENSE_SIDE = 512  # up to this short side the whole spectrum is the faster way
_IDENTIFIABLE = 0.1


@dataclass(frozen=True)
class Triplets:
    """The k leading triplets of W = U S Vᵀ (W out × in) with the doubt of each.

    `bound` is an a-posteriori bound on the sine of the angle between a vector and the true one (Wedin, BIT 12,
    1972): (residual + ε_store) / gap, where residual² = ‖W v − s u‖² + ‖Wᵀ u − s v‖², gap is the distance to the
    nearer neighbour and ε_store = relative rounding of the stored numbers (that of float32 at least, in which W is
    held) × rms(W) × (√out + √in), the spectral norm that rounding the weights adds when its errors are independent
    and of one size; second-order terms in ε/gap are left out. The gap is that of the computed (Ritz) values, less the
    residual of the neighbour: the bound is relative to it. A vector with bound ≤ 0.1 is `identifiable`.
    """

    u: Tensor  # out × k
    s: Tensor  # k, falling, float64
    v: Tensor  # in × k
    residual: Tensor  # k, absolute
    gap_above: Tensor  # k, s[i−1] − s[i]; infinite for the first
    gap_below: Tensor  # k, s[i] − s[i+1]
    bound: Tensor  # k, on the sine of the angle; 1 where nothing is known
    identifiable: Tensor  # k, bool
    frobenius: float
    iterations: int
    status: Status
    method: Literal["lanczos", "gram"]
    _subspace_bound: float
    spectrum: Tensor | None = None  # all singular values, where they were computed
    full_u: Tensor | None = None  # out × r, with `spectrum`
    full_v: Tensor | None = None  # in × r, with `spectrum`

    @property
    def subspace_bound(self) -> float:
        """Bound on ‖sin Θ‖_F of the whole leading subspace: (‖residual‖ + √k·ε) / (s[k−1] − s[k]), at most √k."""
        return self._subspace_bound

    @property
    def T(self) -> "Triplets":
        """The triplets of Wᵀ."""
        return replace(self, u=self.v, v=self.u, full_u=self.full_v, full_v=self.full_u)


def leading_triplets(
    W: Matrix | Sequence[Tensor], k: int, tol: float = 1e-5, *, key: str, full: bool = False,
    scratch: Scratch | None = None, gain: Tensor | None = None, max_steps: int = 1000,
    rounding: float | None = None,
) -> Triplets:  # fmt: skip
    """Compute the k leading singular triplets of W.

    Args:
        W: out × in in any floating dtype, a factored product, or matrices stacked along the rows.
        k: number of triplets; fewer are returned where min(out, in) is smaller.
        tol: largest residual, relative to σ₁.
        key: names the random start. Two matrices must not share a key: a shared start invents alignment.
        full: compute the whole spectrum (float64 Gram matrix of the short side), unless W is too large to be held.
        scratch: a buffer to reuse for the float32 copy.
        gain: in-vector multiplied into the columns first.
        max_steps: Lanczos steps before the status becomes "not-converged".
        rounding: relative error of the stored numbers, for ε_store; that of W's dtype by default. Infinite: unknown.

    Raises:
        NonFiniteError: W holds NaN or infinity.
        ValueError: k < 1 or tol ≤ 0.
    """
    if k < 1 or not tol > 0:
        raise ValueError(f"k must be at least 1 and tol above 0, got k={k}, tol={tol}")
    operator, turned = as_operator(W, scratch=scratch, gain=gain)
    known = roundoff(stored_dtype(W)) if rounding is None else rounding
    found = operator_triplets(operator, k, tol, key=key, full=full, max_steps=max_steps, rounding=known)
    return found.T if turned else found


def operator_triplets(
    operator: Operator, k: int, tol: float = 1e-5, *, key: str, rounding: float, full: bool = False,
    max_steps: int = 1000,
) -> Triplets:  # fmt: skip
    """The same for a matrix that `as_operator` already holds, which others may use as well."""
    k = min(k, *operator.shape)
    if operator.frobenius == 0.0:
        return _zero(operator, k)
    noise = _store_noise(operator, rounding)
    small = min(operator.shape) <= max(_DENSE_SIDE, 2 * (k + 2)) or isinstance(operator, ProductOperator)
    if (full or small) and not isinstance(operator, StackedOperator):  # that one is never held as a whole
        return _by_gram(operator, k, noise, keep=full)
    return _by_lanczos(operator, k, tol, noise, key, max_steps) or _by_gram(operator, k, noise, keep=False)


def _by_gram(operator: Operator, k: int, noise: float, *, keep: bool) -> Triplets:
    U, s, V = full_spectrum(operator) if keep else full_spectrum(operator, min(k + 1, *operator.shape))
    some = min(k + 1, len(s))
    found = _certified(operator, U[:, :some], V[:, :some], k, noise, 0, "gram", converged=True, last=len(s) <= k)
    if not keep:
        return found
    return replace(found, spectrum=s, full_u=U, full_v=V)


def _by_lanczos(operator: Operator, k: int, tol: float, noise: float, key: str, max_steps: int) -> Triplets | None:
    """Lanczos and its certificate; None where a repeated value hides from it and the exact way is open."""
    ritz = lanczos(operator, k, tol, _starts(operator, key, "start"), max_steps)
    some = min(k + 1, len(ritz.s))
    found = _certified(operator, ritz.U[:, :some], ritz.V[:, :some], k, noise, ritz.steps, "lanczos",
                       converged=ritz.converged)  # fmt: skip
    if found.status != "ok":
        return found
    span = torch.linalg.qr(ritz.V[:, :some])[0]
    hidden = hidden_value(operator, span, _starts(operator, key, "probe"), max(3, ritz.steps // 4))
    if hidden <= float(ritz.s[some - 1]) + 10 * tol * float(ritz.s[0]):
        return found
    if isinstance(operator, DenseOperator):
        return None
    unknown = torch.ones_like(found.bound)
    return replace(found, bound=unknown, identifiable=unknown < 0, status="repeated", _subspace_bound=k**0.5)


def _starts(operator: Operator, key: str, purpose: str) -> Callable[[], Tensor]:
    random = generator("leading_triplets", purpose, key)
    return lambda: torch.randn(operator.shape[1], generator=random).to(operator.device)


def _certified(
    operator: Operator, U: Tensor, V: Tensor, k: int, noise: float, steps: int, method: Literal["lanczos", "gram"], *,
    converged: bool, last: bool = False,
) -> Triplets:  # fmt: skip
    """Measure residuals and gaps of approximate triplets (k + 1 of them, unless the spectrum ends: `last`)."""
    V = V / V.norm(dim=0)
    lengths = U.norm(dim=0)
    U = U / lengths.clamp_min(torch.finfo(U.dtype).tiny)
    WV, WU = operator.both(V, U)
    s = (U.double() * WV.double()).sum(0).abs()
    residual = torch.hypot((WV - U * s).norm(dim=0).double(), (WU - V * s).norm(dim=0).double())
    s_next = torch.cat([s[1:], s.new_zeros(1)])
    doubt_next = torch.cat([residual[1:], residual.new_zeros(1)])
    below = (s - s_next - doubt_next).clamp_min(0)
    if not last and len(s) == k:
        below[-1] = 0.0  # the next value was not found: no gap is known
    above = torch.cat([s.new_full((1,), float("inf")), (s[:-1] - s[1:] - residual[:-1]).clamp_min(0)])
    s, residual, below, above = (x[:k].cpu() for x in (s, residual, below, above))
    bound = _sine(residual + noise, torch.minimum(above, below))
    columns = len(s)
    subspace = _sine(residual.norm()[None] + columns**0.5 * noise, below[-1:], limit=columns**0.5)
    return Triplets(
        u=U[:, :k], s=s, v=V[:, :k], residual=residual, gap_above=above, gap_below=below, bound=bound,
        identifiable=bound <= _IDENTIFIABLE, frobenius=operator.frobenius, iterations=steps,
        status="ok" if converged else "not-converged", method=method, _subspace_bound=float(subspace),
    )  # fmt: skip


def _sine(error: Tensor, gap: Tensor, limit: float = 1.0) -> Tensor:
    return torch.where(gap > 0, (error / gap.clamp_min(torch.finfo(gap.dtype).tiny)).clamp_max(limit), limit)


def _zero(operator: Operator, k: int) -> Triplets:
    nothing, ones = torch.zeros(k, dtype=torch.float64), torch.ones(k, dtype=torch.float64)
    out, into = operator.shape
    return Triplets(
        u=torch.zeros(out, k, device=operator.device), s=nothing, v=torch.zeros(into, k, device=operator.device),
        residual=nothing, gap_above=nothing, gap_below=nothing, bound=ones, identifiable=ones < 0,
        frobenius=0.0, iterations=0, status="zero", method="gram", _subspace_bound=k**0.5,
    )  # fmt: skip


def stored_dtype(W: Matrix | Sequence[Tensor]) -> torch.dtype:
    """The dtype of a matrix, of a product's factors, or of stacked matrices."""
    if isinstance(W, Product):
        return W.left.dtype
    return W.dtype if isinstance(W, Tensor) else W[0].dtype


def roundoff(dtype: torch.dtype) -> float:
    """Relative rounding error of a floating dtype."""
    return float(torch.finfo(dtype).eps) / 2


def _store_noise(operator: Operator, rounding: float) -> float:
    out, into = operator.shape
    rms = operator.frobenius / (out * into) ** 0.5
    return float(max(rounding, roundoff(torch.float32)) * rms * (out**0.5 + into**0.5))
