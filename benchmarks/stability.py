"""What a survey's certificate costs, and how far its bounds are above what a text reaches.

python benchmarks/stability.py CHECKPOINT --text book.txt     # about a minute for a small encoder, on two cores
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import drillcore
from drillcore.measures import MEASURES
from drillcore.measures.stability import Certificate
from drillcore.table import Table


def cost(checkpoint: str, rounds: int) -> tuple[float, float]:
    """Seconds of a survey without and with the certificate, in turns so that both see the same machine."""
    everything = [name for name in MEASURES if not name.startswith("stability")] + ["superposition"]
    choices, seconds = (everything, [*everything, "stability"]), ([], [])  # type: ignore[var-annotated]
    for _ in range(rounds):
        for measures, taken in zip(choices, seconds, strict=True):
            start = time.perf_counter()
            drillcore.survey(checkpoint, measures=measures)
            taken.append(time.perf_counter() - start)
    return median(seconds[0]), median(seconds[1])


def tightness(certificate: Certificate, seen: Table) -> Iterator[tuple[str, float, float]]:
    """(part, bound, reached) of the stream at its largest add, and of the largest branch."""
    for part, measure in (("stream", "add.max_abs"), ("branch outputs", "branch.max_abs")):
        reached = max((r.value for r in seen.where(measure=measure) if r.value), default=0.0)
        yield part, certificate.bound(part) or 0.0, reached  # type: ignore[arg-type]


def main() -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--text", type=Path, help="also run the model on this, and compare ('.[hf]')")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    without, with_it = cost(options.checkpoint, options.rounds)
    print(f"survey {without:.2f} s, with the certificate {with_it:.2f} s: {with_it / without:.3f}")
    if options.text is None:
        return
    (certificate,) = drillcore.survey(options.checkpoint, measures=["stability"]).certificates
    seen = drillcore.signal(options.checkpoint, text=options.text, backward=False, sensitivity=False)
    for part, bound, reached in tightness(certificate, seen.rows):
        print(f"{part:<16}bound {bound:10,.1f}  reached {reached:10,.1f}  {reached / bound:.4f}")


if __name__ == "__main__":
    main()
