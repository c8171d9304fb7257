"""Tiles of a large product, worked on in threads with one BLAS thread each.

What follows a product tile (squares, sums, maxima) runs on one thread in NumPy; in threads of our own it runs beside
the product of the next tile. The results do not depend on the number of threads, nor on their timing.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch
from threadpoolctl import ThreadpoolController

T = TypeVar("T")
R = TypeVar("R")


def on_tiles(job: Callable[[T], R], tiles: Iterable[T]) -> Iterator[R]:
    """Yield job(tile) for every tile, in order, worked on in as many threads as torch may use."""
    blas = _blas("scipy.linalg" in sys.modules)
    with blas.limit(limits=1, user_api="blas"), ThreadPoolExecutor(torch.get_num_threads()) as pool:
        yield from pool.map(job, tiles)


@cache
def _blas(scipy: bool) -> ThreadpoolController:
    """The libraries that are loaded; asked again when SciPy has brought its own."""
    return ThreadpoolController()
