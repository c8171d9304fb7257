"""Work on tiles in threads."""

import time
from threading import get_ident

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from drillcore.linalg.tiles import on_tiles


def test_results_come_in_the_order_of_the_tiles_from_several_threads() -> None:
    def job(tile: int) -> tuple[int, int]:
        time.sleep(0.02 * (tile == 0))
        return tile, get_ident()

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    found = list(on_tiles(job, range(20)))
    torch.set_num_threads(before)
    assert [tile for tile, _ in found] == list(range(20))
    assert len({thread for _, thread in found}) == 2


def test_a_tile_has_one_blas_thread_and_the_limit_is_lifted_after() -> None:
    np.ones((2, 2)) @ np.ones((2, 2))

    def blas(_: int = 0) -> list[int]:
        return [lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"]

    before = blas()
    assert set(next(iter(on_tiles(blas, [0])))) == {1}
    assert blas() == before


def test_an_error_in_a_tile_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        list(on_tiles(lambda tile: 1 / tile, [1, 0]))
