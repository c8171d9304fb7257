"""Check: probe a residual branch or block before it is trained, and say with reasons what will hold."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from drillcore.measures.stability_rules import (
    BACKWARD,
    FORWARD,
    IN_PRACTICE,
    LIMITS,
    Finding,
    backward_class,
    carry_findings,
    continuity_forecast,
    forward_class,
)
from drillcore.models.blocks.variants import of_class
from drillcore.progress import Progress, Step, unwatched
from drillcore.runs import write_text
from drillcore.table import Table
from drillcore.verbs.check_continuity import continuity
from drillcore.verbs.check_probes import Evidence, Stack, hamiltonian, local, scales, stack
from drillcore.verbs.check_subject import Subject
from drillcore.verbs.check_target import load
from drillcore.verbs.check_warnings import warnings
from drillcore.verbs.provenance import circumstances
from drillcore.weights import InputError

PARTS = 11  # as many as progress is told
_ONE_THREAD = 512  # up to this width
_CLASSES: Mapping[str, tuple[str, ...]] = {"forward": (*FORWARD, "state-reset"), "backward": BACKWARD}


@dataclass(frozen=True)
class Check:
    """The result of a check: classes with reasons, warnings, rows, provenance.

    `carried` are the faults of the skip path (vanishing, carry-explodes), which count to the backward class.
    `gain_budget` is Δt Σ rms(γ) over the stack: what output norms let the stream grow by, per entry.
    """

    target: str
    about: str
    rows: Table
    forward: Finding
    backward: Finding
    carried: tuple[Finding, ...]
    continuity: Finding
    warnings: tuple[Finding, ...]
    gain_budget: float | None
    practice: str
    same_class: tuple[str, ...]
    provenance: Mapping[str, Any]

    @property
    def backward_names(self) -> tuple[str, ...]:
        """The backward class and the faults of the skip path."""
        return (self.backward.name, *(finding.name for finding in self.carried))

    def unmet(self, require: Mapping[str, str]) -> list[str]:
        """The requirements that are not met, in words.

        `require` holds classes by "forward" and "backward". A better class meets them as well; `state-reset` is met by
        itself alone; a backward requirement is not met where the skip path vanishes or explodes.

        Raises:
            InputError: a key or class does not exist.
        """
        missed = []
        for side, wanted in _known(require).items():
            order = _CLASSES[side]
            found = self.forward.name if side == "forward" else self.backward.name
            alone = "state-reset" in (found, wanted)
            good = found == wanted if alone else order.index(found) <= order.index(wanted)
            names = found if side == "forward" else ", ".join(self.backward_names)
            if not good or (side == "backward" and self.carried):
                missed.append(f"{side} is {names}, not {wanted}")
        return missed

    def save(self, folder: Path) -> list[Path]:
        """Write check.json and rows.parquet into `folder`, each atomically."""
        summary, rows = Path(folder) / "check.json", Path(folder) / "rows.parquet"
        write_text(summary, json.dumps(self.as_json(), indent=1, ensure_ascii=False))
        self.rows.save(rows)
        return [summary, rows]

    def as_json(self) -> dict[str, Any]:
        """Classes, warnings, exponents and provenance as plain values."""
        exponents = {
            r.measure.removeprefix("exponent."): r.value if r.value is not None else r.status
            for r in self.rows if r.measure.startswith("exponent.")
        }  # fmt: skip
        return {
            "target": self.target, "about": self.about, "forward": asdict(self.forward),
            "backward": {**asdict(self.backward), "names": list(self.backward_names)},
            "carried": [asdict(f) for f in self.carried], "continuity": asdict(self.continuity),
            "warnings": [asdict(f) for f in self.warnings], "gain_budget": self.gain_budget,
            "practice": self.practice, "same_class": list(self.same_class), "exponents": exponents,
            "limits": asdict(LIMITS), "provenance": dict(self.provenance),
        }  # fmt: skip


def check(
    target: object, *, width: int = 512, half_steps: int | None = None, residual_step: float | None = None,
    decay: float = 0.1, block: bool = False, dtype: Literal["float32", "float64"] = "float32",
    require: Mapping[str, str] | None = None, progress: Progress = unwatched,
) -> Check:  # fmt: skip
    """Check a residual branch or block before it is trained (shared notes §4; the rules are derived (drillcore)).

    Args:
        target: "FILE.py:FACTORY", where the file is executed and FACTORY returns a torch.nn.Module (given the width, if
            it takes one argument); a variant by name; a config.json or its folder; or a module, which is copied.
        width: of the stream.
        half_steps: residual adds of the stack; 48, or two per layer of a configuration.
        residual_step: Δt of a branch; 1, or what the module has.
        decay: weight decay λ of the training that is planned.
        block: the module maps the stream to the stream and holds two residual adds. A module says so itself by its
            attribute `residual_adds`, the number of adds inside (0: a branch).
        dtype: what is computed in.
        require: classes that will be asked for (`Check.unmet`): names that do not exist are refused at once.
        progress: called after every part.

    Raises:
        InputError: the target cannot be checked; says why and what to do.
    """
    started = time.perf_counter()
    _known(require or {})
    if decay < 0:
        raise InputError(f"a decay is not negative, got {decay}", where="--decay")
    loaded = load(target, width=width, half_steps=half_steps, residual_step=residual_step, block=block)
    settings = {
        "width": width, "half_steps": loaded.half_steps, "copies": loaded.copies, "residual_adds": loaded.adds,
        "residual_step": loaded.residual_step, "decay": decay, "dtype": dtype,
    }  # fmt: skip
    with _quiet_arithmetic(width):
        made = _Run(Subject(loaded, getattr(torch, dtype)), decay, progress).result()
    facts = circumstances(settings, time.perf_counter() - started, {"source": loaded.label})
    table = Table(tuple(replace(r, source=loaded.label) for r in made.rows), facts)
    return replace(made, rows=table, provenance=facts)


def _known(require: Mapping[str, str]) -> Mapping[str, str]:
    for side, wanted in require.items():
        if wanted not in _CLASSES.get(side, ()):
            remedy = "; ".join(f"{side}= one of {', '.join(names)}" for side, names in _CLASSES.items())
            raise InputError(f"there is no class {side}={wanted}", where="--require", remedy=remedy)
    return require


@contextmanager
def _quiet_arithmetic(width: int) -> Iterator[None]:
    """Denormals of a saturated tanh are slow, and threads cost more than they give on products of a few tokens."""
    threads = torch.get_num_threads()
    torch.set_flush_denormal(True)
    torch.set_num_threads(1 if width <= _ONE_THREAD else threads)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


class _Run:
    """The probes one after the other, and the verdicts."""

    def __init__(self, subject: Subject, decay: float, progress: Progress) -> None:
        self.subject, self.decay, self.progress, self.done = subject, decay, progress, 0
        self.found = Evidence()

    def result(self) -> Check:
        subject, found = self.subject, self.found
        norms = subject.output_norms()
        self._told(scales(subject, found))
        ratio = local(subject, found, norms)
        self._tell("start")
        self._told(hamiltonian(subject, found, norms, self.decay))
        stacked = next(x for x in self._told(stack(subject, found, norms)) if isinstance(x, Stack))
        shared = continuity(subject)
        self._tell("continuity")
        rows = (*found.rows, *shared.rows)
        e = {name: exponent.value for name, exponent in found.exponents.items()}
        forward = forward_class(e.get("q_all", 0.0), found.plateau, e.get("p_s", 0.0), resets=found.resets)
        budget = next((r.value for r in rows if r.measure == "gain_budget"), None)
        return Check(
            subject.where, subject.target.about, Table(rows), forward,
            backward_class(e.get("j_all", 0.0), e.get("j_last", 0.0)),
            tuple(carry_findings(stacked.carried, stacked.carried_large, stacked.carry, subject.target.half_steps)),
            continuity_forecast(shared.coherence, shared.null, shared.breaking, shared.mixes),
            tuple(warnings(subject, found, norms, stacked, ratio, self.decay, shared.mixes)),
            budget, IN_PRACTICE[forward.name], tuple(dict.fromkeys(of_class(forward.name))), {},
        )  # fmt: skip

    def _told(self, parts: Iterator[Any]) -> list[Any]:
        seen = []
        for part in parts:
            seen.append(part)
            if isinstance(part, str):
                self._tell(part)
        return seen

    def _tell(self, what: str) -> None:
        self.done += 1
        self.progress(Step(what, min(self.done, PARTS), PARTS))
