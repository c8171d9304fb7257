"""MNIST: the whole set from its four IDX files, and a subset that ships with the package.

Images by Y. LeCun, C. Cortes and C. J. C. Burges, CC BY-SA 3.0; see `mnist_subset.txt` beside the subset.
"""

import hashlib
import os
import urllib.request
from importlib.resources import files
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from drillcore.data.errors import DataError
from drillcore.data.idx import Bytes, parse_idx, unpacked
from drillcore.runs import atomic_path

Part = Literal["train", "test"]
MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_WAIT = 60.0  # seconds that a mirror may be silent
SUBSET = {"train": 500, "test": 100}  # images of each digit: the first ones of the file
_FILES = {  # part → (images, labels), each with the SHA-256 of the unpacked file
    "train": (
        ("train-images-idx3-ubyte", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
        ("train-labels-idx1-ubyte", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    ),
    "test": (
        ("t10k-images-idx3-ubyte", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
        ("t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
    ),
}


class Images(NamedTuple):
    """Images (n × 28 × 28) and their labels (n), unsigned bytes."""

    images: Bytes
    labels: Bytes


def mnist(part: Part) -> Images:
    """One part of MNIST, from the folder `mnist` of `data_folder()`; every file is checked.

    Raises:
        DataError: a file is missing (with the ways to get it) or is not the published one.
    """
    images, labels = (_checked(data_folder() / "mnist", name, digest) for name, digest in _FILES[part])
    return Images(images, labels)


def mnist_subset(part: Part) -> Images:
    """The images that ship: 500 of each digit to learn from, 100 to hold out, lossless, sorted by digit."""
    with files("drillcore.data").joinpath("mnist_subset.npz").open("rb") as file:
        content = np.load(file, allow_pickle=False)
        images = content[part]
    return Images(images, np.repeat(np.arange(10, dtype=np.uint8), SUBSET[part]))


def fetch_mnist(folder: Path | None = None, mirror: str = MIRROR) -> list[Path]:
    """Download what is missing of the four files into the data folder, and check it.

    Raises:
        DataError: a file that came is not the published one; it is not kept.
        OSError: the mirror cannot be reached, or the folder cannot be written.
    """
    place = (folder or data_folder()) / "mnist"
    written = []
    for name, digest in (file for part in _FILES.values() for file in part):
        path = place / f"{name}.gz"
        if _existing(place, name) is None:
            with atomic_path(path) as temporary:
                with urllib.request.urlopen(mirror + path.name, timeout=_WAIT) as answer:  # noqa: S310 (a known mirror)
                    temporary.write_bytes(answer.read())
                _check(unpacked(temporary), digest, path)
            written.append(path)
    return written


def data_folder() -> Path:
    """`DRILLCORE_DATA`, or `drillcore` in the user's cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("DRILLCORE_DATA") or cache / "drillcore")


def pack_subset(path: Path) -> None:
    """Make the file of `mnist_subset` from the whole set."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, train=_first("train"), test=_first("test"))


def _first(part: Part) -> Bytes:
    whole = mnist(part)
    chosen = [np.flatnonzero(whole.labels == digit)[: SUBSET[part]] for digit in range(10)]
    return whole.images[np.concatenate(chosen)]


def _existing(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / f"{name}.gz", folder / name) if path.exists()), None)


def _checked(folder: Path, name: str, digest: str) -> Bytes:
    path = _existing(folder, name)
    if path is None:
        raise DataError(
            f"there is no {name}(.gz) in {folder}: set DRILLCORE_DATA to a folder that holds mnist/, or run "
            "python -c 'from drillcore.data.mnist import fetch_mnist; fetch_mnist()', or use --preset quick"
        )
    content = unpacked(path)
    _check(content, digest, path)
    return parse_idx(content, str(path))


def _check(content: bytes, digest: str, path: Path) -> None:
    if hashlib.sha256(content).hexdigest() != digest:
        raise DataError(f"{path} is not the published file (SHA-256 differs); delete it and fetch it again")
