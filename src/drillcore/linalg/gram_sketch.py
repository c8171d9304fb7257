"""The squared Frobenius norm of a sum of outer products, where the sum itself would cost too much.

In the manner of Hutch++ (Meyer, Musco, Musco and Woodruff, SOSA 2021, arXiv 2010.09649), on C itself, for ‖C‖²_F: the
leading space of C is found from one random product and taken exactly; random signs estimate only what is left, where
no direction dominates. The rows are streamed twice. The standard error does not count the rounding of float32
products, some 1e-6.
"""

from math import sqrt

import torch
from torch import Tensor

from drillcore.linalg.gram import native
from drillcore.seeds import generator

_WIDTH = 48  # directions taken exactly, and probes of the rest


class GramSketch:
    """‖Σ x xᵀ‖²_F over rows x of length m, in two passes: `first` for every block, then `second` for every block."""

    def __init__(self, m: int, key: str, device: torch.device | str = "cpu") -> None:
        random = generator("gram sketch", key)
        width = min(_WIDTH, m)
        self._start = torch.randn(m, width, generator=random).to(device)
        self._signs = torch.randint(0, 2, (m, _WIDTH), generator=random).double().mul_(2).sub_(1).to(device)
        self._range = torch.zeros(m, width, dtype=torch.float64, device=device)
        self._seen: Tensor | None = None  # orthonormal, m × width, then the probes outside it
        self._product = torch.zeros(m, width + _WIDTH, dtype=torch.float64, device=device)

    def first(self, block: Tensor) -> None:
        """Add a block of rows (rows × m, float32) to the first pass."""
        self._range += _gram_times(block, self._start)

    def second(self, block: Tensor) -> None:
        """Add a block of rows to the second pass, after the whole first one."""
        self._product += _gram_times(block, self._basis().float())

    def squared_norm(self, vector: Tensor | None = None, weight: float = 0.0) -> tuple[float, float]:
        """The estimate and its standard error; of the sum less `weight` · v vᵀ where a vector (m, float64) is given."""
        basis, product = self._basis(), self._product
        if vector is not None:
            product = product - weight * torch.outer(vector, vector @ basis)
        width = basis.shape[1] - _WIDTH
        Q, CQ, CZ = basis[:, :width], product[:, :width], product[:, width:]
        inside = Q.T @ CQ
        outside = CQ - Q @ inside
        rest = (CZ - Q @ (Q.T @ CZ)).square().sum(0)
        value = inside.square().sum() + 2 * outside.square().sum() + rest.mean()
        return float(value), float(rest.std()) / sqrt(_WIDTH)

    def _basis(self) -> Tensor:
        if self._seen is None:
            Q = torch.linalg.qr(self._range)[0]
            self._seen = torch.cat([Q, self._signs - Q @ (Q.T @ self._signs)], dim=1)
        return self._seen


def _gram_times(block: Tensor, Z: Tensor) -> Tensor:
    """XᵀX Z (m × width)."""
    X = native(block)
    product = X.T @ (X @ native(Z))
    return (torch.from_numpy(product) if block.device.type == "cpu" else product).double()
