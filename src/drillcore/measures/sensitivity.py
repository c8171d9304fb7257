"""Local sensitivity: products with a map's Jacobian and its transpose, its spectral norm and its trace."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from drillcore.seeds import generator

Map = Callable[[Tensor], Tensor]


class Jacobian:
    """J = ∂f/∂x at one place, as the two products. f runs once; x and f(x) may have any shapes.

    `push` differentiates the linear map u ↦ Jᵀu by u, so that every operation of f needs a second derivative; the fused
    attention kernels have none, and attention runs through its plain formula.

    Raises:
        RuntimeError: an operation of f cannot be differentiated twice.
    """

    def __init__(self, f: Map, x: Tensor) -> None:
        self.x = x.detach().clone().requires_grad_()
        with torch.enable_grad(), plain_attention():
            self.y = f(self.x)
            self._u = torch.zeros_like(self.y, requires_grad=True)
            self._pulled = self._gradient(self.y, self.x, self._u, build=True)

    def pull(self, u: Tensor) -> Tensor:
        """Jᵀu, in the shape of x."""
        return self._gradient(self.y, self.x, u)

    def push(self, v: Tensor) -> Tensor:
        """J v, in the shape of f(x)."""
        return self._gradient(self._pulled, self._u, v)

    @staticmethod
    def _gradient(of: Tensor, by: Tensor, weight: Tensor, build: bool = False) -> Tensor:
        if not of.requires_grad:  # f does not depend on x
            return torch.zeros_like(by)
        (found,) = torch.autograd.grad(of, by, weight, retain_graph=True, create_graph=build, allow_unused=True)
        return torch.zeros_like(by) if found is None else found


@dataclass(frozen=True)
class JacobianNorm:
    """An estimate of ‖∂f/∂x‖₂ from below, with its doubt.

    `change` is the relative change of the last round: small where the iteration has settled. It is no bound; the true
    norm is never below `value`. `direction` (shape of x, unit norm) is where f changes most.
    """

    value: float
    change: float
    rounds: int
    direction: Tensor


def jacobian_norm(
    f: Map, x: Tensor, rounds: int = 30, *, tol: float = 1e-3, key: str = "sensitivity", start: Tensor | None = None
) -> JacobianNorm:
    """‖∂f/∂x‖₂ at x, where f and x may have any shapes: the Jacobian is that of all entries of x at once.

    Power iteration on JᵀJ (Golub and Van Loan, Matrix Computations, §8.2): v ← Jᵀ(J v)/‖Jᵀ(J v)‖, value ‖J v‖, which
    rises to the norm from below. It ends after `rounds`, or once a round changes it by less than `tol` (relative).

    Args:
        f: a map of a tensor to a tensor that is differentiable twice and has no side effects.
        x: where; any shape, floating.
        rounds: at most so many; each costs two passes backwards.
        tol: relative change at which it ends.
        key: names the random start.
        start: a start of the shape of x instead, such as the direction found at a point nearby.

    Returns:
        The norm; NaN or infinity where f or its derivative is not finite.

    Raises:
        ValueError: `rounds` is below 1.
        RuntimeError: an operation of f cannot be differentiated twice.
    """
    if rounds < 1:
        raise ValueError(f"power iteration needs a round, got {rounds}")
    J = Jacobian(f, x)
    v = _unit(_random(x, key) if start is None else start.to(x))
    value, change, done = 0.0, float("inf"), 0
    while done < rounds:
        done += 1
        Jv = J.push(v)
        before, value = value, float(torch.linalg.vector_norm(Jv))
        change = abs(value - before) / value if value > 0 else 0.0
        back = J.pull(Jv)
        if not value > 0 or not bool(torch.isfinite(back).all()) or change < tol:
            break
        v = _unit(back)
    return JacobianNorm(value, change, done, v)


def jacobian_trace(J: Jacobian, probes: int = 1, *, key: str = "trace") -> tuple[float, float]:
    """tr(J)/n of an n × n Jacobian and its standard error: the mean of vᵀJv/n over v of random signs (Hutchinson 1990).

    f keeps the shape of x. One probe leaves the error unknown: NaN.
    """
    probed = [_random(J.x, key, i).sign() for i in range(probes)]
    found = torch.stack([(v * J.push(v)).sum() / v.numel() for v in probed]).double()
    stderr = float(found.std() / probes**0.5) if probes > 1 else float("nan")
    return float(found.mean()), stderr


@contextmanager
def plain_attention() -> Iterator[None]:
    """Within it `scaled_dot_product_attention` runs as its formula, which has derivatives of every order."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


def _random(x: Tensor, *words: object) -> Tensor:
    drawn = torch.randn(x.shape, generator=generator("jacobian", *words), dtype=torch.float64)
    return drawn.to(x)


def _unit(v: Tensor) -> Tensor:
    return v.div(torch.linalg.vector_norm(v))
