"""Linear algebra with certificates: leading triplets, norm bounds, overlaps, factored products."""

from drillcore.linalg.bounds import sigma_above, spectral_norm_bound
from drillcore.linalg.factored import Matrix, Product
from drillcore.linalg.operator import NonFiniteError, Scratch
from drillcore.linalg.overlap import abs_cosines, principal_angles, subspace_overlap, subspace_overlaps
from drillcore.linalg.triplets import Triplets, leading_triplets

__all__ = [
    "Matrix", "NonFiniteError", "Product", "Scratch", "Triplets", "abs_cosines", "leading_triplets",
    "principal_angles", "sigma_above", "spectral_norm_bound", "subspace_overlap", "subspace_overlaps",
]  # fmt: skip
