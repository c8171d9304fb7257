"""Scaling laws: sums of powers and offsets, fitted with every doubt that the data leave."""

from drillcore.laws.estimate import Solution, solve
from drillcore.laws.law import Law, LawError, Sizes

__all__ = ["Law", "LawError", "Sizes", "Solution", "solve"]
