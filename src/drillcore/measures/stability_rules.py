"""Verdicts on a half-step before training: rules fixed beforehand, thresholds in one table.

The classes and rules are ours (derived (drillcore), shared notes §4.4), after the question of arXiv 2510.09904: is the
Hamiltonian of the branch finite? None of them says "stable": bounded means bounded given the gains, which train too.
"""

from dataclasses import dataclass
from typing import Literal

Forward = Literal["bounded", "needs-decay", "threshold", "ill-posed", "state-reset"]
Backward = Literal["scale-free", "grows", "explodes"]
FORWARD: tuple[Forward, ...] = ("bounded", "needs-decay", "threshold", "ill-posed")  # from good to bad
BACKWARD: tuple[Backward, ...] = ("scale-free", "grows", "explodes")


@dataclass(frozen=True)
class Thresholds:
    """Every number that a verdict depends on."""

    bounded: float = 0.1  # q_all at most
    plateau: float = 1.05  # RMS at the largest parameter scale over that at half of it, below
    needs_decay: float = 1.5
    threshold: float = 2.3
    input_growth: float = 0.1  # p_s above: one class worse
    input_superlinear: float = 1.1  # p_s above: ill-posed
    scale_free: float = 0.1  # max(j_all, j_last) at most
    grows: float = 1.1
    vanishing: float = 1e-3  # ρ^K below
    carry_explodes: float = 1e3  # a^K above
    eps_share: float = 100.0  # σ_a² below so many ε
    float16_largest: float = 65504.0
    coherent: float = 0.3  # mean |cos| of first gradients: continuity forms
    broken: float = 0.1  # relative change under rotations: continuity is held


LIMITS = Thresholds()


@dataclass(frozen=True)
class Finding:
    """A class or a warning, why, and what to do."""

    name: str
    reason: str
    remedy: str


_MEANING = {
    "bounded": ("the branch is bounded whatever its matrices become, given the gains of its output norm",
                "decay or cap the output gains: they are controls too, and the gain budget is the limit"),
    "needs-decay": ("the branch grows in proportion to its parameters: finite under any weight decay, not without",
                    "keep weight decay on the matrices (and gains) that were swept"),
    "threshold": ("the branch grows as the square of its parameters: bounded only where decay exceeds a threshold "
                  "that rises with the loss gradient",
                  "keep weight decay and clip gradients, or put a norm on the branch's output"),
    "ill-posed": ("the branch grows faster than any quadratic decay: the best parameters have no finite size",
                  "put a norm on the branch's output (peri), or watch the stream's RMS while training"),
    "state-reset": ("the norm stands on the stream itself: each half-step starts from a bounded state",
                    "watch the way back: the skip path is damped at each half-step"),
}  # fmt: skip

IN_PRACTICE = {
    "bounded": "The stream grows at most linearly with depth and its variance as the square, with a slope that the "
               "output gains set. Nothing here limits these gains: watch them.",
    "needs-decay": "With weight decay the training problem is well posed; without it nothing limits the branch.",
    "threshold": "Such models train every day: they start small, take finitely many steps and are decayed and "
                 "clipped. But no part of the design limits the stream, and where decay is below the threshold its "
                 "best size is infinite: hidden states that grow with depth, and loss spikes at high learning rates, "
                 "are what to expect.",
    "ill-posed": "Every Llama block is of this class. Such models train every day, because they start small, take "
                 "finitely many steps and are decayed and clipped; but decay alone gives no bound, since a branch of "
                 "degree 3 outgrows it from a large enough start. What goes wrong is seen late: gate × up overflows in "
                 "fp16, states grow with depth, a spike does not come back.",
    "state-reset": "Hidden states cannot grow. What such a stack pays for it is the gradient: warm-up, small learning "
                   "rates and moderate depth are usual (DeepNorm and nGPT change the skip path to avoid that).",
}  # fmt: skip


def forward_class(q_all: float, plateau: float | None, p_s: float, *, resets: bool) -> Finding:
    """The forward class from how the branch grows with its parameters (q_all, plateau ratio) and its input (p_s)."""
    if resets:
        return Finding("state-reset", *_MEANING["state-reset"])
    if q_all <= LIMITS.bounded:
        place = 0 if plateau is None or plateau < LIMITS.plateau else 1
    else:
        place = 1 if q_all <= LIMITS.needs_decay else 2 if q_all <= LIMITS.threshold else 3
    worse = 3 if p_s > LIMITS.input_superlinear else min(3, place + (p_s > LIMITS.input_growth))
    name = FORWARD[worse]
    reason, remedy = _MEANING[name]
    why = f"it grows as its parameters to the power {q_all:.2f}"
    if q_all <= LIMITS.bounded:
        why = "it does not grow with its parameters"
    if p_s > LIMITS.input_growth:
        why += f" and as its input to the power {p_s:.2f}"
        remedy = f"put a norm on its input; then {remedy}"
    return Finding(name, f"{why}: {reason}" if worse == place else f"{why}, so that growth feeds on growth", remedy)


def backward_class(j_all: float, j_last: float) -> Finding:
    """The backward class from how ‖∂f/∂x‖ grows with all matrices and with the last one."""
    j = max(j_all, j_last)
    place = 0 if j <= LIMITS.scale_free else 1 if j <= LIMITS.grows else 2
    why = f"its sensitivity grows as its parameters to the power {j:.2f}"
    reason, remedy = (
        ("its sensitivity does not depend on the size of its parameters", "nothing to do"),
        (why, "keep the weights small: decay, a residual step below 1"),
        (why, "put a norm on the branch's output, or take a residual step below 1 and clip gradients"),
    )[place]
    return Finding(BACKWARD[place], reason, remedy)


def carry_findings(carried: float, carried_large: float, carry: float, half_steps: int) -> list[Finding]:
    """`vanishing` and `carry-explodes` from ρ^K at the start, ρ^K with three times the weights, and a^K."""
    found = []
    if any(kept < LIMITS.vanishing for kept in (carried, carried_large)):  # not where one is NaN
        found.append(Finding(
            "vanishing", f"over {half_steps} half-steps the skip path keeps {carried:.1e} of the signal, and "
            f"{carried_large:.1e} once the weights are three times as large",
            "warm up slowly, make it shallower, or move the norm off the skip path (pre, peri)"))  # fmt: skip
    if carry > LIMITS.carry_explodes:
        found.append(Finding(
            "carry-explodes", f"the skip path alone multiplies the signal by {carry:.1e} over {half_steps} half-steps",
            "keep the factor on the skip path at 1"))  # fmt: skip
    return found


def continuity_forecast(coherence: float | None, null: float | None, breaking: float | None, mixes: bool) -> Finding:
    """Whether geometric continuity will form and hold. The rule is ours, derived (drillcore) from arXiv 2605.04971.

    It forms where the first gradients of adjacent layers agree, and holds where no rotation of a layer is free.
    """
    if coherence is None or null is None:
        return Finding("unknown", "the first gradients of its matrices are zero or have no shape to compare",
                       "check a branch with matrices that start away from zero")  # fmt: skip
    share = f"first gradients of adjacent layers agree to {coherence:.2f} (chance {null:.2f})"
    if coherence < max(LIMITS.coherent, 2 * null):
        return Finding("does not form", f"{share}: nothing common is written into the layers",
                       "give the half-step a residual connection")  # fmt: skip
    if breaking is None:
        why = "attention leaves the head space free to turn; the MLP decides" if mixes else "its shape is not known"
        return Finding("forms, holding unknown", f"{share}; {why}", "check the MLP half-step or the whole block")
    turned = f"turning a layer changes its output by {100 * breaking:.0f} %"
    if breaking < LIMITS.broken:
        return Finding("forms, then drifts", f"{share}, but {turned}: layers can turn away from one another",
                       "use an activation that acts on coordinates (ReLU, GELU, SiLU)")  # fmt: skip
    return Finding("forms and holds", f"{share}, and {turned}", "nothing to do")
