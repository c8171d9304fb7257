"""Engines: run jobs in processes here, or on Ray; they know nothing of what a job does."""

from drillcore.engine.job import Job, Outcome
from drillcore.engine.local import run_local

__all__ = ["Job", "Outcome", "run_local"]
