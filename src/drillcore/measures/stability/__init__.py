"""Stability from weights alone: gains, norms by depth, and what half precision can hold (after arXiv 2510.09904)."""

from drillcore.measures.stability.certificate import Certificate, PartVerdict, certify
from drillcore.measures.stability.collect import Collector

__all__ = ["Certificate", "Collector", "PartVerdict", "certify"]
