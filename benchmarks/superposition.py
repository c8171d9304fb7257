"""A step of the toy model of superposition against a dense autograd loop, and against its matrix products alone.

python benchmarks/superposition.py            # about two minutes on two cores; run it when nothing else runs
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from drillcore.data.features import FeatureBatches, frequencies
from drillcore.models.feature_autoencoder import FeatureAutoencoder, losses, losses_only
from drillcore.training import RowDecayAdam, WarmUpCosine

LEARNING_RATE, DECAY = 1e-2, -0.5556


def dense(n: int, m: int, batch: int, p: Tensor) -> Callable[[], Tensor]:
    """What the paper's scripts do: dense draws, x W Wᵀ, MSELoss, AdamW."""
    W, b = (torch.nn.Parameter(w) for w in (torch.randn(n, m) / m**0.5, torch.randn(n)))
    optimiser = torch.optim.AdamW([W, b], lr=LEARNING_RATE, weight_decay=0.1)
    p = p.float()

    def step() -> Tensor:
        x = (torch.rand(batch, n) < p) * 2 * torch.rand(batch, n)
        optimiser.zero_grad()
        loss = torch.nn.functional.mse_loss(torch.relu(x @ W @ W.T + b), x)
        loss.backward()
        optimiser.step()
        return loss

    return step


def sparse(n: int, m: int, batch: int, p: Tensor, replicas: int = 1) -> tuple[FeatureAutoencoder, Callable[[], None]]:
    """The same by drillcore."""
    model = FeatureAutoencoder(n, m, range(replicas))
    batches = FeatureBatches((p,) * replicas, batch, tuple(range(replicas)))
    schedule = WarmUpCosine(20_000, 2000)
    rates = (LEARNING_RATE, LEARNING_RATE)
    optimiser, at = (
        RowDecayAdam(model.W, [model.b], torch.full((replicas,), DECAY), rates, schedule),
        iter(range(10**9)),
    )

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        (losses(model, batches.at(next(at))[0]) / n).sum().backward()
        optimiser.step()

    return model, step


def products(n: int, m: int, batch: int, p: Tensor) -> Callable[[], None]:
    """The three dense products of a step, over the samples that are not empty: less cannot be done without sparsity."""
    rows = round(batch * float(1 - (1 - p).prod())) + 1
    h, W, y = torch.randn(rows, m), torch.randn(n, m), torch.empty(rows, n)

    def step() -> None:
        torch.mm(h, W.T, out=y)
        torch.mm(y.T, h)
        torch.mm(y, W)

    return step


def timed(step: Callable[[], object], repeats: int) -> float:
    """Median milliseconds."""
    for _ in range(3):
        step()
    took = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        took.append(time.perf_counter() - start)
    return 1e3 * median(took)


def same_statistics(n: int, m: int, p: Tensor) -> tuple[float, float]:
    """Mean loss of one model on 200 batches drawn as the scripts do and on 200 of ours, and the error of their gap."""
    model, batches = FeatureAutoencoder(n, m, (0,)), FeatureBatches((p,), 2048, (0,), "evaluation")
    model.b.data.sub_(2)
    ours = torch.cat([losses_only(model, batches.at(i)[0]) for i in range(200)])
    found = []
    for _ in range(200):
        x = (torch.rand(2048, n) < p.float()) * 2 * torch.rand(2048, n)
        with torch.no_grad():
            found.append((model(x[None])[0] - x).square().sum(1).mean())
    theirs = torch.stack(found)
    gap = float(ours.mean() - theirs.mean())
    return gap, float((ours.var() + theirs.var()).div(200).sqrt())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2500, help="steps before the trained state is timed")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(f"{given.threads} threads; milliseconds a step, median")
    names = {"n": 6, "m": 5, "batch": 6, "dense": 8, "products": 9, "start": 7, "trained": 8, "ratio": 6, "floor": 6}
    print(" ".join(f"{name:>{width}}" for name, width in names.items()))
    for n, m, batch in ((1000, 10, 2048), (1000, 63, 2048), (1000, 100, 2048), (10240, 64, 2048)):
        p = frequencies("power", n, alpha=0.5)
        large = n > 5000
        slow = timed(dense(n, m, batch, p), 4 if large else 12)
        floor = timed(products(n, m, batch, p), 4 if large else 20)
        _, step = sparse(n, m, batch, p)
        first = timed(step, 4 if large else 20)
        for _ in range(0 if large else given.steps):
            step()
        last = timed(step, 4 if large else 40)
        print(f"{n:>6} {m:>5} {batch:>6} {slow:>8.1f} {floor:>9.2f} {first:>7.2f} {last:>8.2f} {slow / last:>6.1f} "
              f"{last / floor:>6.2f}")  # fmt: skip
    gap, error = same_statistics(1000, 63, frequencies("power", 1000, alpha=0.5))
    print(f"loss of one model: ours − dense draws = {gap:.5f} ± {error:.5f}")
    print("ratio: dense over trained; floor: trained over the dense products alone")


if __name__ == "__main__":
    main()
