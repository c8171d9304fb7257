"""What a small or zero last matrix does in front of an output norm (shared notes §2.8, derived (drillcore)).

At zero the slope of the norm is γ/√ε, some 316 for ε = 1e-5: the first gradient of the last matrix is that much larger
than it would be without the norm, and the first update with it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from drillcore.measures.sensitivity import Map, plain_attention


def gradient_norm(f: Map, x: Tensor, p: Tensor, parameter: Tensor) -> float:
    """‖∂(p·f(x))/∂W‖_F of one parameter that requires gradients; p has the shape of f(x). 0 where f does not use it."""
    with torch.enable_grad(), plain_attention():
        (found,) = torch.autograd.grad((p * f(x)).sum(), [parameter], allow_unused=True)
    return 0.0 if found is None else float(torch.linalg.vector_norm(found))


def gradient_ratio_at_zero(f: Map, x: Tensor, p: Tensor, last: Tensor) -> float | None:
    """Gradient norm of the last matrix when it is zero over that when it is as it is; None where the latter is 0."""
    here = gradient_norm(f, x, p, last)
    kept = last.detach().clone()
    try:
        with torch.no_grad():
            last.zero_()
        at_zero = gradient_norm(f, x, p, last)
    finally:
        with torch.no_grad():
            last.copy_(kept)
    return at_zero / here if here > 0 else None


def relative_sensitivity(sensitivity: float, x: Tensor, y: Tensor) -> float | None:
    """κ = ‖∂f/∂x‖ · rms(x)/rms(f(x)): the relative change of the output per relative change of the input.

    A branch normalised at its output has κ = (γ/σ_a)‖J_g‖ up to the projections of the norms, whatever the size of its
    weights (shared notes §2.5). None where the output is zero.
    """
    size = float(y.detach().double().square().mean().sqrt())
    return sensitivity * float(x.double().square().mean().sqrt()) / size if size > 0 else None


def pooled_variance(values: Sequence[Tensor]) -> float:
    """Mean over tokens of the variance over the entries of a token; values are … × width."""
    return sum(float(v.detach().double().var(-1, correction=0).mean()) for v in values) / len(values)
