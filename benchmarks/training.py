"""Ten replicas trained in one program against ten ordinary PyTorch loops, as ratios in one run.

python benchmarks/training.py            # about six minutes on two cores; run it when nothing else runs
"""

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from drillcore.models.activations import Activation
from drillcore.models.residual_mlp import ResidualMLP, Shape, Start, losses
from drillcore.training import Optim
from drillcore.verbs.watch import LayersProbe, Replica

BATCH, LEARNING_RATE, EPOCH = 128, 1e-3, 468
SPECTRA = 2 * EPOCH  # steps between whole spectra: five in ten epochs
MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(1 << 29)}  # as the engine sets it


class Plain(nn.Module):
    """What one would write: a list of Linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(784, 256), nn.Linear(256, 10)
        self.layers = nn.ModuleList([nn.Linear(256, 256, bias=False) for _ in range(16)])

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for layer in self.layers:
            h = h + torch.relu(layer(h))
        return self.head(h)


def loop(steps: int, device: str, probes: int) -> float:
    """Seconds a step of an ordinary loop, after a warm-up; with torch.linalg.svd every `probes` steps, 0 for never."""
    model = Plain().to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    x, y = torch.randn(BATCH, 784, device=device), torch.randint(0, 10, (BATCH,), device=device)
    sums = [torch.zeros_like(layer.weight) for layer in model.layers]

    def step() -> None:
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
        if probes:
            for total, layer in zip(sums, model.layers, strict=True):
                total += layer.weight.grad

    took = timed(step, steps, device)
    if probes:
        found = [lambda W=W: torch.linalg.svd(W) for layer, s in zip(model.layers, sums, strict=True)
                 for W in (layer.weight.detach(), layer.weight.grad, s)]  # fmt: skip
        took += timed(lambda: [svd() for svd in found], 1, device) / probes
    return took


def stacked(replicas: int, steps: int, device: str, probes: int) -> tuple[float, dict[str, float]]:
    """Seconds a step and replica of the stacked program, and where they go."""
    model = ResidualMLP(Shape(Activation("relu")), tuple(Start(s) for s in range(replicas))).to(device)
    optimiser = Optim(lr=LEARNING_RATE).over(model.parameters())
    x, y = torch.randn(replicas, BATCH, 784, device=device), torch.randint(0, 10, (replicas, BATCH), device=device)
    parts = dict.fromkeys(("forward", "backward", "optimiser", "gradient sum", "probe", "spectra"), 0.0)
    probe = LayersProbe(model.W, [Replica(str(s), s) for s in range(replicas)], {0, 1}, spectra={1}, reference=0)
    losses(model, x, y).sum().backward()

    def part(name: str, job: Callable[[], object]) -> object:
        started = time.perf_counter()
        result = job()
        if device != "cpu":
            torch.cuda.synchronize()
        parts[name] += time.perf_counter() - started
        return result

    def step() -> None:
        optimiser.zero_grad()
        loss = part("forward", lambda: losses(model, x, y).sum())
        part("backward", loss.backward)
        if probes:
            part("gradient sum", lambda: probe.after_backward(0))
        part("optimiser", optimiser.step)

    step()
    parts = dict.fromkeys(parts, 0.0)
    for _ in range(steps):
        step()
    each = {name: seconds / steps / replicas for name, seconds in parts.items()}
    if probes:
        light, whole = (timed(lambda at=at: list(probe.rows(at)), 1, device) / replicas for at in (0, 1))
        each |= {"probe": light / probes, "spectra": (whole - light) / SPECTRA}
    return sum(each.values()), each


def timed(job: Callable[[], object], repeat: int, device: str) -> float:
    job()
    started = time.perf_counter()
    for _ in range(repeat):
        job()
    if device != "cpu":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / repeat


def _in_process(queue: object, threads: int, job: Callable[..., object], args: tuple) -> None:
    torch.set_num_threads(threads)
    threadpool_limits(threads)
    queue.put(job(*args))  # type: ignore[attr-defined]


def processes(count: int, threads: int, job: Callable[..., object], *args: object) -> list:
    """The same job in several processes at once."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    running = [context.Process(target=_in_process, args=(queue, threads, job, args)) for _ in range(count)]
    for process in running:
        process.start()
    results = [queue.get() for _ in running]
    for process in running:
        process.join()
    return results


def ways(cores: int) -> Iterator[tuple[int, int]]:
    """(processes, threads of each): all cores in one, or one each."""
    yield 1, cores
    yield cores, 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--replicas", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    cores = len(os.sched_getaffinity(0)) if args.device == "cpu" else 1
    print(f"torch {torch.__version__}, {args.device}, {cores} cores, 16 × 256 residual MLP, batch {BATCH}, float32")
    os.environ |= MEMORY  # for both sides
    every = (0, EPOCH, 10)
    print(f"{'milliseconds a step and replica, probes':<44}{'none':>11}{'an epoch':>11}{'10 steps':>11}")
    best: dict[str, list[float]] = {"loop": [], "stacked": []}
    breakdowns: list[dict[str, float]] = []
    for probes in every:
        loops, stacks = [], []
        for count, threads in ways(cores):
            found = processes(count, threads, loop, args.steps, args.device, probes)
            loops.append(max(found) / count)
            share = max(1, args.replicas // count)
            found = processes(count, threads, stacked, share, args.steps, args.device, probes)
            stacks.append((max(seconds for seconds, _ in found) / count, found[0][1]))
        best["loop"].append(min(loops))
        best["stacked"].append(min(stacks, key=lambda s: s[0])[0])
        breakdowns.append(min(stacks, key=lambda s: s[0])[1])
    for name, label in (("loop", "ordinary loops"), ("stacked", f"{args.replicas} replicas stacked")):
        print(f"{label:<44}" + "".join(f"{seconds * 1e3:>11.2f}" for seconds in best[name]))
    ratios = [a / b for a, b in zip(best["loop"], best["stacked"], strict=True)]
    print(f"{'times faster (goal 1.5; with probes 3)':<44}" + "".join(f"{ratio:>11.2f}" for ratio in ratios))
    parts = breakdowns[1]
    print("where the time goes, probes every epoch: "
          + ", ".join(f"{name} {s / sum(parts.values()):.1%}" for name, s in parts.items()))  # fmt: skip


if __name__ == "__main__":
    main()
