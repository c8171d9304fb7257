"""Rescale: the same model with a residual stream that fits half precision."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2
from pathlib import Path

from drillcore.measures.stability import Certificate, PartVerdict, read_certificates
from drillcore.progress import Progress, Step, unwatched
from drillcore.table import Table
from drillcore.weights import InputError, assign, open_source
from drillcore.weights.gauge import Gauge, check_exact, residual_gauge
from drillcore.weights.hub import find_model
from drillcore.weights.placement import Placement, placements
from drillcore.weights.rewrite import Stored, rewrite

FP16_MAX = 65504.0
_MEASURE = "run `drillcore signal` and give its folder with --signal, or give --peak or --k"
ROOM = 2.0  # the largest number is to lie this factor below fp16's maximum


@dataclass(frozen=True)
class Rescaled:
    """What was written: k, the changes with the error of storing each, and that of ε by site."""

    out: Path
    k: float
    gauge: Gauge
    placed: Mapping[str, Placement]
    stored: tuple[Stored, ...]
    eps_errors: Mapping[int, float]  # site → relative error that ε adds there; empty where it adds none
    peak: float | None  # the largest number of the stream that k was chosen for
    certificates: tuple[Certificate, ...] = ()  # where `peak` is a bound for any input; otherwise it was seen or given

    @property
    def still(self) -> tuple[PartVerdict, ...]:
        """The parts other than the stream that may leave the range afterwards, as far as the certificates tell."""
        return tuple(p for c in self.certificates for p in c.parts if p.bound and p.bound / self._by(c, p) > c.limit)

    def _by(self, certificate: Certificate, part: PartVerdict) -> float:
        """What the part is divided by: a branch's output with the stream, unless a norm stands on it."""
        with_stream = part.part == "stream" or (
            part.part == "branch outputs" and certificate.placed.norm_placement == "pre"
        )
        return self.k if with_stream else 1.0

    @property
    def worst(self) -> Stored | None:
        """The tensor whose stored numbers are furthest off."""
        return max(self.stored, key=lambda s: s.error, default=None)


def rescale(
    checkpoint: str | Path, out: Path, *, k: float | None = None, signal: Path | None = None, peak: float | None = None,
    residual_step: float | None = None, scale_eps: bool = True, float32_gains: bool = False, tolerance: float = 1e-3,
    norm_placement: str | None = None, roles: Path | None = None,
    progress: Progress = unwatched,
) -> Rescaled:  # fmt: skip
    """Write a checkpoint whose stream is divided by k and whose output is the same.

    Args:
        checkpoint: a folder of safetensors, or a Hugging Face id that is in the cache.
        out: the new folder.
        k: what to divide by, a power of two; None finds the smallest that is enough for `signal` or `peak`, or without
            them for the bound on the stream that the weights give.
        signal: rows of `drillcore signal` of this model (its folder, or rows.parquet).
        peak: the largest |x| that the stream reaches, where it is known.
        residual_step: fold the model's residual step into its branches, so that the configuration states this one.
        scale_eps: divide ε by k² where only norms that read the stream use it; then the division is exact.
        float32_gains: store changed gains in float32; a model loaded in float32 then agrees to rounding.
        tolerance: largest relative error of a stored tensor.
        norm_placement: where the norms stand, if it cannot be decided.
        roles: a TOML file that gives the roles of an unknown family.
        progress: called after every matrix that is read for the bound, and after every shard that is written.

    Raises:
        InputError: it would not be exact, `out` exists, or an option cannot be used; the original is untouched.
        OSError: the disk is full; nothing is left behind.
    """
    folder = Path(checkpoint).expanduser()
    folder = folder if folder.exists() else find_model(str(checkpoint))
    if not folder.is_dir():
        raise InputError("is one file; a folder with config.json is needed", where=folder, remedy="give the folder")
    rows = _rows(signal)
    largest = peak if peak is not None else _peak(rows)
    source = open_source(folder)
    assignment = assign(source, roles=roles)
    placed = placements(source, assignment, given=norm_placement)
    check_exact(source, assignment, placed)
    certificates: tuple[Certificate, ...] = ()
    if k is None and largest is None and residual_step is None:
        weights = [w for w in assignment.weights if w.role.layer is not None]
        reading = _Told("reading", sum(w.nbytes for w in weights), progress)
        certificates = read_certificates(source, assignment, placed, reading)
        chosen, largest = _by_bound(certificates)
    else:
        chosen = _power(k, largest)
    gauge = residual_gauge(source, assignment, placed, chosen, step=residual_step, scale_eps=scale_eps)
    writing = _Told("writing", sum(spec.nbytes for spec in source.specs.values()), progress)
    changes = {change.tensor: change for change in gauge.changes}
    stored = rewrite(folder, Path(out), changes, gauge.config, float32_gains=float32_gains, tolerance=tolerance,
                     advance=writing)  # fmt: skip
    return Rescaled(Path(out), chosen, gauge, placed, tuple(stored), _eps_errors(gauge, rows, chosen), largest,
                    certificates)  # fmt: skip


class _Told:
    """Adds up bytes and tells how far it is."""

    def __init__(self, what: str, total: int, progress: Progress) -> None:
        self.what, self.total, self.progress, self.done = what, total, progress, 0

    def __call__(self, nbytes: int) -> None:
        self.done += nbytes
        self.progress(Step(self.what, self.done, self.total))


def _by_bound(certificates: Sequence[Certificate]) -> tuple[float, float]:
    """The smallest power of two that is enough for every input, and the bound that asks for it."""
    found = [(c.divisor, bound) for c in certificates if (bound := c.bound("stream")) and c.divisor]
    if len(found) < len(certificates) or not found:
        reason = next((c.reason for c in certificates if not c.divisor), "it has no stack of layers")
        raise InputError(f"how large the stream becomes is not known: {reason}", where="--k", remedy=_MEASURE)
    return max(k for k, _ in found), max(bound for _, bound in found)


def _power(k: float | None, peak: float | None) -> float:
    """The k that was given, or the smallest power of two that brings the peak into the range; 1 where none is known."""
    if k is not None:
        if not k > 0 or log2(k) != int(log2(k)):
            raise InputError(f"{k:g} is no power of two; another k would round every number", where="--k")
        return k
    if peak is None:
        return 1.0
    return 2.0 ** max(0, ceil(log2(max(peak, 1e-30) * ROOM / FP16_MAX)))


def _rows(signal: Path | None) -> Table | None:
    if signal is None:
        return None
    path = Path(signal) / "rows.parquet" if Path(signal).is_dir() else Path(signal)
    if not path.exists():
        raise InputError("is not there", where=path, remedy="give the folder that `drillcore signal` wrote")
    return Table.load(path)


def _peak(rows: Table | None) -> float | None:
    if rows is None:
        return None
    seen = [row for row in rows if row.measure in ("stream.max_abs", "add.max_abs")]
    if not seen or any(row.value is None for row in seen):
        raise InputError("its rows show no finite stream", where="--signal",
                         remedy="run `drillcore signal` in float32")  # fmt: skip
    return max(row.value for row in seen if row.value is not None)


def _eps_errors(gauge: Gauge, rows: Table | None, k: float) -> dict[int, float]:
    """(k² − 1)·ε/2σ² at each site, σ² the mean square of the stream that was seen; derived (drillcore)."""
    if gauge.exact_eps or rows is None:
        return {}
    found = [row for row in rows if row.measure == "stream.rms" and row.subset == "all" and row.value]
    return {row.site or 0: (k**2 - 1) * gauge.eps / (2 * (row.value or 1.0) ** 2) for row in found}
