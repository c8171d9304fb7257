"""A product of two thin factors, kept as factors: what a LoRA delta is."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Product:
    """The matrix ``left @ right`` (out × in), never formed.

    `left` is out × r, `right` is r × in; scale factors belong in `left`.
    """

    left: Tensor
    right: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        return (self.left.shape[0], self.right.shape[1])

    @property
    def T(self) -> "Product":
        """The transpose, in × out."""
        return Product(self.right.T, self.left.T)


Matrix = Tensor | Product
