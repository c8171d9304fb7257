"""The coefficients that `drillcore plan` ships: our fit of width, depth and data to the Chinchilla table.

DRILLCORE_REFERENCE=FOLDER python benchmarks/plan_coefficients.py > src/drillcore/data/published/width_depth_data.csv

The table itself (245 runs, reconstructed by others) is read from the folder and not part of drillcore. As in
arXiv 2602.05970 the 40 runs of highest loss are dropped. Row 0 is the fit; the others refit draws of whole shapes.
"""

import csv
import os
import sys
from pathlib import Path

import numpy as np

from drillcore.laws import Law, LawError, Sizes, solve
from drillcore.seeds import seed_of

NAMES = ("d_model", "n_layers", "num_tokens")
LAW = Law(NAMES, "shared", residual="log")
DRAWS = 200


def points(folder: Path) -> Sizes:
    """The 205 runs that are fitted, clustered by shape."""
    text = (folder / "chinchilla_245_points_with_width_depth.csv").read_text(encoding="utf-8")
    rows = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(text.splitlines())]
    kept = sorted(rows, key=lambda row: row["loss"])[:205]
    shape = [f"{row['d_model']:g}x{row['n_layers']:g}" for row in kept]
    return Sizes.of([row["loss"] for row in kept], {n: [row[n] for row in kept] for n in NAMES}, (), shape)


def main() -> None:
    """Write the rows as CSV."""
    data = points(Path(os.environ["DRILLCORE_REFERENCE"]))
    found = solve(LAW, data)
    writer = csv.writer(sys.stdout)
    writer.writerow(found.names)
    writer.writerow([f"{v:.6g}" for v in found.values.values()])
    random, k = np.random.default_rng(seed_of("plan draws")), len(data.clusters)
    done = 0
    while done < DRAWS:
        weight = random.multinomial(k, np.full(k, 1 / k))[data.cluster].astype(float)
        try:
            drawn = solve(LAW, data.take(weight > 0), weight=np.sqrt(weight[weight > 0]), start=found.exponents)
        except LawError:
            continue
        writer.writerow([f"{v:.6g}" for v in drawn.values.values()])
        done += 1


if __name__ == "__main__":
    main()
