"""Settings for every test: two threads, a fixed hypothesis profile, no network."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(2)
settings.register_profile("default", deadline=None, max_examples=25, derandomize=True,
                          suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
settings.load_profile("default")
