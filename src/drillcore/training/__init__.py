"""Training: one loop, its probes, and a state that survives being killed."""

from drillcore.training.checkpoint import CheckpointError
from drillcore.training.loop import Probe, Training, train
from drillcore.training.optim import Optim, RowDecayAdam, WarmUpCosine

__all__ = ["CheckpointError", "Optim", "Probe", "RowDecayAdam", "Training", "WarmUpCosine", "train"]
