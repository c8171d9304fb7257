"""One task of the study `hamiltonian`: a design's Hamiltonian by ascent, beside its closed form where it has one."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from drillcore.measures.exponents import INPUT_SCALES, PARAMETER_SCALES, by_input, by_parameters, size_exponent, sweep
from drillcore.measures.hamiltonian import Ascent, ascend, ellipsoid_value
from drillcore.models.blocks.half_step import HalfStep
from drillcore.models.blocks.variants import VARIANTS
from drillcore.seeds import generator
from drillcore.study import Run, Task
from drillcore.table import Row

TOKENS, STARTS, STEPS, ALIGN = 8, (0.3, 3.0, 30.0), 400, 40


def cell(task: Task) -> None:
    """All runs of a task: one design, its seeds and decays."""
    torch.set_num_threads(task.threads)
    rows: list[Row] = []
    for done, run in enumerate(task.runs, start=1):
        rows += rows_of(run)
        task.progress(done / len(task.runs))
    task.rows(rows)


def rows_of(run: Run) -> Iterator[Row]:
    """Whether the Hamiltonian is finite, its value, and how the branch grows with its input and its parameters."""
    module = VARIANTS[run["design"]].make(run["width"], 2, run["seed"]).double().requires_grad_(True)
    assert isinstance(module, HalfStep)
    x = _drawn("state", run["seed"], (1, TOKENS, run["width"]))
    p = _drawn("direction", run["seed"], (run["width"],))
    p = p / p.norm()
    controls = controls_of(module, run["gains"])
    ends = ascend(lambda: module.velocity(x)[0, -1], controls, p, decay=run["decay"], starts=STARTS, steps=STEPS,
                  align=ALIGN)  # fmt: skip
    key = {"run": run.id, "seed": run["seed"]}
    yield _finite(ends, key)
    settled = [end for end in ends if end.outcome == "converged"]
    value = max((end.value for end in settled), default=0.0 if _collapsed(ends) else None)
    if value is not None:
        yield Row(**key, measure="hamiltonian.value", value=value, n=len(ends), unit="1")
    closed = closed_form(module, p) if run["gains"] == "fixed" and run["decay"] == 0 else None
    if closed is not None and settled:
        error = abs(max(end.value for end in settled) - closed) / closed
        yield Row(**key, measure="hamiltonian.relative_error", value=error, unit="1")
    for name, scales, scaled in (("input", INPUT_SCALES, by_input),
                                 ("parameters", PARAMETER_SCALES, by_parameters(controls))):  # fmt: skip
        with torch.no_grad():
            found = size_exponent(sweep(module.velocity, [x], scales, scaled, rounds=0))
        if found is not None:
            yield Row(**key, measure=f"exponent.{name}", value=found.value, stderr=found.stderr, unit="1")


def controls_of(module: nn.Module, gains: str) -> list[Tensor]:
    """The matrices; with "trained" gains the gains of norms and branches too."""
    wanted = [
        (name, p) for name, p in module.named_parameters() if p.dim() >= 2 or (gains == "trained" and "gain" in name)
    ]
    return [p for _, p in wanted]


def closed_form(module: HalfStep, p: Tensor) -> float | None:
    """H(p) of a branch that ends in a LayerNorm with fixed gains (derived (drillcore)); None for others."""
    if module.form.norm_placement not in ("peri", "branch_out") or module.form.norm_kind != "layernorm":
        return None
    norm: nn.Module = module.norm_out
    gain, shift = (getattr(norm, name).detach() for name in ("gain", "shift"))
    return ellipsoid_value(p, gain, shift, centred=True)


def _finite(ends: list[Ascent], key: dict[str, object]) -> Row:
    """1 where every start settled or fell into the origin, 0 where one grew without a limit."""
    row = {**key, "measure": "hamiltonian.finite", "n": len(ends), "unit": "1"}
    if any(end.outcome == "diverged" for end in ends):
        return Row(**row, value=0.0)  # type: ignore[arg-type]
    if any(end.outcome == "not-converged" for end in ends):
        best = max(end.value for end in ends)
        return Row(**row, status="not-converged", reason=f"{best:.4g} after {STEPS} steps, still moving")  # type: ignore[arg-type]
    return Row(**row, value=1.0)  # type: ignore[arg-type]


def _collapsed(ends: list[Ascent]) -> bool:
    return all(end.outcome == "collapsed" for end in ends)


def _drawn(what: str, seed: int, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=generator("hamiltonian", what, seed), dtype=torch.float64)
