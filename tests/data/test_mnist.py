"""Images: IDX files that are whole, broken or something else; the whole set where it is found; the shipped subset."""

import gzip
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from drillcore.data import mnist as module
from drillcore.data.errors import DataError
from drillcore.data.idx import read_idx
from drillcore.data.mnist import SUBSET, fetch_mnist, mnist, mnist_subset, pack_subset


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape) + array.tobytes()


IMAGES = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)


@pytest.mark.parametrize("packed", [lambda b: b, gzip.compress], ids=["plain", "gzip"])
def test_an_idx_file_is_read(tmp_path: Path, packed: Callable[[bytes], bytes]) -> None:
    (tmp_path / "x").write_bytes(packed(idx(IMAGES)))
    assert np.array_equal(read_idx(tmp_path / "x"), IMAGES)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"PK\x03\x04", "not an IDX file"), (b"", "not an IDX file"), (idx(IMAGES, kind=13), "IDX type 13"),
        (idx(IMAGES)[:10], "ends inside its header"), (idx(IMAGES)[:-1], "should hold 3 × 4 × 5 bytes and holds 59"),
        (gzip.compress(idx(IMAGES))[:-9], "cut off or broken"),
        (gzip.compress(idx(IMAGES))[:10] + b"\x07" + gzip.compress(idx(IMAGES))[11:], "invalid block type"),
    ],
    ids=["zip", "empty", "floats", "header", "short", "cut off", "corrupt"],
)  # fmt: skip
def test_a_broken_file_is_said(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(DataError, match=words):
        read_idx(tmp_path / "x")


def test_the_array_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(idx(IMAGES))
    torch.from_numpy(read_idx(tmp_path / "x"))  # warns of an array that cannot, and warnings are errors here


def found() -> bool:
    return (Path(os.environ.get("DRILLCORE_DATA", "/nowhere")) / "mnist").exists()


needs_mnist = pytest.mark.skipif(not found(), reason="DRILLCORE_DATA names no folder with mnist/")


@needs_mnist
def test_the_whole_set() -> None:
    learn, held_out = mnist("train"), mnist("test")
    assert learn.images.shape == (60000, 28, 28)
    assert held_out.images.shape == (10000, 28, 28)
    assert np.bincount(learn.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert learn.images.mean() == pytest.approx(33.318421, abs=1e-6)  # the 0.1307 of everyone's normalisation


@needs_mnist
def test_the_subset_is_the_first_of_each_digit_and_its_file_is_what_pack_subset_makes(tmp_path: Path) -> None:
    for part in ("train", "test"):
        whole, shipped = mnist(part), mnist_subset(part)
        for digit in range(10):
            ours = shipped.images[shipped.labels == digit]
            assert np.array_equal(ours, whole.images[whole.labels == digit][: SUBSET[part]])
    pack_subset(tmp_path / "again.npz")
    with np.load(tmp_path / "again.npz") as again:
        assert np.array_equal(again["train"], mnist_subset("train").images)


def test_the_subset_ships_below_its_size_and_with_its_attribution() -> None:
    folder = Path(module.__file__).parent
    assert (folder / "mnist_subset.npz").stat().st_size < 1_200_000
    assert "Attribution-ShareAlike 3.0" in (folder / "mnist_subset.txt").read_text(encoding="utf-8")
    assert mnist_subset("train").images.shape == (5000, 28, 28)
    assert np.bincount(mnist_subset("test").labels).tolist() == [100] * 10


def test_a_missing_set_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRILLCORE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"set DRILLCORE_DATA .* or use --preset quick"):
        mnist("train")


def test_a_file_that_is_not_the_published_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRILLCORE_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte").write_bytes(idx(IMAGES))
    with pytest.raises(DataError, match="not the published file"):
        mnist("train")


@needs_mnist
def test_fetching_gets_what_is_missing_and_keeps_nothing_wrong(tmp_path: Path) -> None:
    source = Path(os.environ["DRILLCORE_DATA"]).resolve() / "mnist"
    written = fetch_mnist(tmp_path / "a", source.as_uri() + "/")
    assert len(written) == 4
    assert fetch_mnist(tmp_path / "a", source.as_uri() + "/") == []
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(IMAGES)))
    with pytest.raises(DataError, match="not the published file"):
        fetch_mnist(tmp_path / "b", mirror.as_uri() + "/")
    assert list((tmp_path / "b" / "mnist").iterdir()) == []
