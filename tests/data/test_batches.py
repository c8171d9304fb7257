"""Batches are a function of the step and the seed."""

import numpy as np
import pytest
import torch

from drillcore.data.batches import Batches
from drillcore.seeds import seed_of

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (50, 6, 7), dtype=np.uint8)
LABELS = RANDOM.integers(0, 10, 50, dtype=np.uint8)


def seen(x: torch.Tensor) -> list[int]:
    """Which images a batch shows, by their pixels."""
    back = x.double() * IMAGES.std() + IMAGES.mean()
    flat = IMAGES.reshape(50, -1)
    return [int(np.flatnonzero((abs(flat - row) < 0.01).all(1))[0]) for row in back.numpy()]


def test_an_epoch_shows_every_image_once_in_an_order_of_its_own() -> None:
    batches = Batches(IMAGES, LABELS, 10, (3,))
    epochs = []
    for epoch in range(2):
        shown = []
        for step in range(5):
            x, y = batches.at(5 * epoch + step)
            assert x.shape == (1, 10, 42)
            shown += seen(x[0])
            assert y[0].tolist() == LABELS[seen(x[0])].tolist()
        assert sorted(shown) == list(range(50))
        epochs.append(shown)
    assert epochs[0] != epochs[1]


def test_the_rest_of_less_than_a_batch_is_left_out() -> None:
    assert Batches(IMAGES, LABELS, 12, (0,)).epoch == 4


def test_a_replica_sees_what_it_would_alone() -> None:
    stack = Batches(IMAGES, LABELS, 10, (5, 6, 5), shift=2)
    for step in (0, 7):
        x, y = stack.at(step)
        for r, seed in enumerate((5, 6, 5)):
            alone, labels = Batches(IMAGES, LABELS, 10, (seed,), shift=2).at(step)
            assert torch.equal(x[r], alone[0])
            assert torch.equal(y[r], labels[0])
        assert not torch.equal(x[0], x[1])


def slowly(seed: int, step: int, batch: int, shift: int) -> tuple[list[list[float]], list[int]]:
    """A batch pixel by pixel, from the named streams: what is published must not change with a faster gather."""
    epoch, place = step // (50 // batch), step % (50 // batch)
    order = np.random.default_rng(seed_of("mnist order", seed, epoch)).permutation(50)[place * batch :][:batch]
    down, right = np.random.default_rng(seed_of("mnist shift", seed, step)).integers(0, 2 * shift + 1, (2, batch))
    mean, deviation = float(IMAGES.mean()), float(IMAGES.std())
    rows = []
    for k, image in enumerate(order):
        row = []
        for i in range(6):
            for j in range(7):
                a, b = i + int(down[k]) - shift, j + int(right[k]) - shift
                pixel = float(IMAGES[image, a, b]) if 0 <= a < 6 and 0 <= b < 7 else 0.0
                row.append((pixel - mean) / deviation)
        rows.append(row)
    return rows, [int(LABELS[image]) for image in order]


@pytest.mark.parametrize("shift", [0, 1, 2])
@pytest.mark.parametrize("step", [0, 3, 4, 11])
def test_a_batch_is_what_a_plain_loop_over_pixels_gives(shift: int, step: int) -> None:
    x, y = Batches(IMAGES, LABELS, 12, (7,), shift).at(step)
    rows, labels = slowly(7, step, 12, shift)
    assert torch.allclose(x[0], torch.tensor(rows), atol=1e-6)
    assert y[0].tolist() == labels


@pytest.mark.parametrize(("batch", "shift"), [(51, 0), (0, 0), (10, -1)])
def test_a_batch_that_the_images_cannot_fill_is_refused(batch: int, shift: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 50 images .* not {batch} images by {shift}"):
        Batches(IMAGES, LABELS, batch, (0,), shift)


def test_images_move_by_up_to_so_many_pixels_with_background_coming_in() -> None:
    batches = Batches(IMAGES, LABELS, 50, (0,), shift=2)
    plain = Batches(IMAGES, LABELS, 50, (0,))
    moved, still = batches.at(3)[0][0], plain.at(3)[0][0]
    zero = float(-IMAGES.mean() / IMAGES.std())
    found = set()
    for a, b in zip(moved.view(50, 6, 7), still.view(50, 6, 7), strict=True):
        padded = torch.full((10, 11), zero)
        padded[2:8, 2:9] = b
        fits = [
            (i, j) for i in range(5) for j in range(5) if torch.allclose(padded[i : i + 6, j : j + 7], a, atol=1e-6)
        ]
        assert len(fits) == 1
        found |= set(fits)
    assert len(found) > 15


def test_pixels_are_normalised() -> None:
    x = Batches(IMAGES, LABELS, 50, (0,)).at(0)[0]
    assert float(x.mean()) == pytest.approx(0, abs=1e-6)
    assert float(x.std(correction=0)) == pytest.approx(1, abs=1e-6)
    first = (torch.from_numpy(IMAGES[0]).float().view(-1) - float(IMAGES.mean())) / float(IMAGES.std())
    assert torch.equal(Batches(IMAGES, LABELS, 50, (0,)).normalised(IMAGES[:2])[0], first)
