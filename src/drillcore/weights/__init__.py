"""Weights: sources of every format, roles, and the census."""

from drillcore.weights.assign import Assignment, assign
from drillcore.weights.census import Census, Entry
from drillcore.weights.opening import open_source
from drillcore.weights.role import Norm, Role, Split, Weight
from drillcore.weights.source import InputError, Note, Source, TensorSpec

__all__ = [
    "Assignment", "Census", "Entry", "InputError", "Norm", "Note", "Role", "Source", "Split", "TensorSpec", "Weight",
    "assign", "open_source",
]  # fmt: skip
