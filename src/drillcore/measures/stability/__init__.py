"""Stability from weights alone: gains, norms by depth, and what half precision can hold (after arXiv 2510.09904)."""

from drillcore.measures.stability.certificate import Certificate, PartVerdict, certify
from drillcore.measures.stability.collect import Collector
from drillcore.measures.stability.reading import read_certificates, readers_first
from drillcore.measures.stability.rows import growth_row, stability_rows

__all__ = [
    "Certificate",
    "Collector",
    "PartVerdict",
    "certify",
    "growth_row",
    "read_certificates",
    "readers_first",
    "stability_rows",
]
