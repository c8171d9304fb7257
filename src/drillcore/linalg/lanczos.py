"""Golub–Kahan–Lanczos bidiagonalisation with full reorthogonalisation of the right vectors.

One-sided reorthogonalisation is enough for the leading triplets (Simon & Zha, SIAM J. Sci. Comput. 21, 2000).
A Krylov space from one vector holds one copy of a repeated singular value: `hidden_value` looks for another.
"""

from collections.abc import Callable
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from drillcore.linalg.operator import Operator


class Ritz(NamedTuple):
    """Approximate triplets: U (out × k), s (k, falling), V (in × k), and the steps that were taken."""

    U: Tensor
    s: Tensor
    V: Tensor
    steps: int
    converged: bool


class _Chain:
    """The bidiagonalisation W V = U B: α on the diagonal of B, β above it."""

    def __init__(self, operator: Operator, start: Tensor, limit: int, avoid: Tensor | None = None) -> None:
        out, into = operator.shape
        self.operator, self.avoid, self.steps = operator, avoid, 0
        self.U = torch.empty(limit, out, device=operator.device)
        self.V = torch.empty(limit + 1, into, device=operator.device)
        self.alpha, self.beta = torch.zeros(limit, dtype=torch.float64), torch.zeros(limit, dtype=torch.float64)
        first = self._orthogonal(start)
        self.V[0] = first / first.norm()

    def _orthogonal(self, x: Tensor) -> Tensor:
        for _ in range(2):  # twice is enough (Kahan, in Parlett, The Symmetric Eigenvalue Problem, §6.9)
            if self.avoid is not None:
                x = x - self.avoid @ (self.avoid.T @ x)
            basis = self.V[: self.steps]
            x = x - basis.T @ (basis @ x)
        return x

    def advance(self) -> bool:
        """Take one step; False when the space is exhausted (an invariant subspace was found)."""
        j = self.steps
        previous = self.U[j - 1] if j else self.U.new_zeros(self.operator.shape[0])
        beta = float(self.beta[j - 1]) if j else 0.0
        t, z = self.operator.step(self.V[j], previous, beta)
        alpha = float(t.norm())
        self.alpha[j], self.steps = alpha, j + 1
        if alpha <= _tiny(self.operator):
            self.U[j] = 0.0
            return False
        self.U[j] = t / alpha
        z = self._orthogonal(z / alpha - alpha * self.V[j])
        norm = float(z.norm())
        self.beta[j] = norm
        if norm <= _tiny(self.operator):
            return False
        self.V[j + 1] = z / norm
        return True

    def bidiagonal(self) -> tuple[Tensor, Tensor, Tensor]:
        """SVD of B in float64: P, s, Q with B = P diag(s) Qᵀ."""
        j = self.steps
        B = torch.diag(self.alpha[:j]) + torch.diag(self.beta[: j - 1], 1)
        P, s, Qh = torch.linalg.svd(B)
        return P, s, Qh.T

    def ritz(self, k: int, *, converged: bool) -> Ritz:
        P, s, Q = self.bidiagonal()
        k = min(k, len(s))
        basis_u, basis_v = self.U[: self.steps], self.V[: self.steps]
        U = basis_u.T @ P[:, :k].to(basis_u)
        V = basis_v.T @ Q[:, :k].to(basis_v)
        return Ritz(U, s[:k], V, self.steps, converged)


def _tiny(operator: Operator) -> float:
    return 1e-7 * operator.frobenius / sqrt(min(operator.shape))


def lanczos(
    operator: Operator, k: int, tol: float, start: Callable[[], Tensor], max_steps: int, avoid: Tensor | None = None
) -> Ritz:
    """The k leading triplets and k + 1'th, to residual tol·σ₁ (the guard k + 1: a tenth of its gap).

    `start` gives a random vector (in). `avoid` (in × a, orthonormal) is kept out of the search. When an invariant
    subspace is found early (low rank, repeated values), the search starts again outside it, with B cut there.
    """
    limit = min(max_steps, *operator.shape)
    chain = _Chain(operator, start(), limit, avoid)
    check = min(limit, max(k + 2, 4))
    while True:
        alive = chain.advance()
        if chain.steps >= limit or (not alive and not _restart(chain, start)):
            return chain.ritz(
                k + 2, converged=chain.steps >= min(operator.shape) or not alive or _settled(chain, k, tol)
            )
        if chain.steps >= check:
            if _settled(chain, k, tol):
                return chain.ritz(k + 2, converged=True)
            check = min(limit, chain.steps + max(2, chain.steps // 8))


def _settled(chain: _Chain, k: int, tol: float) -> bool:
    P, s, _ = chain.bidiagonal()
    if chain.steps < k + 2:
        return False
    residual = float(chain.beta[chain.steps - 1]) * P[-1].abs()
    if bool((residual[:k] > tol * s[0]).any()):
        return False
    guard = max(tol * float(s[0]), 0.1 * float(s[k - 1] - s[k]))
    return float(residual[k]) <= guard


def _restart(chain: _Chain, start: Callable[[], Tensor]) -> bool:
    """Continue outside the invariant subspace; False when nothing is left there."""
    chain.beta[chain.steps - 1] = 0.0
    if chain.steps >= chain.V.shape[0] - 1:
        return False
    x = chain._orthogonal(start())
    norm = float(x.norm())
    if norm < 1e-3:
        return False
    chain.V[chain.steps] = x / norm
    return True


def hidden_value(operator: Operator, V: Tensor, start: Callable[[], Tensor], steps: int) -> float:
    """The largest Ritz value outside the span of V (in × k) after a few steps: a lower bound on what was missed."""
    chain = _Chain(operator, start(), max(1, min(steps, min(operator.shape) - V.shape[1])), V)
    while chain.steps < len(chain.alpha) and chain.advance():
        pass
    return float(chain.bidiagonal()[1][0])
