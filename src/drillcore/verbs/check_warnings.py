"""Soft warnings of a check: what no class says, with the reason and the remedy (shared notes §4.4)."""

from collections.abc import Iterator, Sequence

from drillcore.measures.stability_rules import LIMITS, Finding
from drillcore.measures.zero_start import pooled_variance
from drillcore.verbs.check_probes import Evidence, Stack
from drillcore.verbs.check_subject import FoundNorm, Subject


def warnings(
    subject: Subject, found: Evidence, norms: Sequence[FoundNorm], stacked: Stack, ratio: float | None, decay: float,
    mixes: bool,
) -> Iterator[Finding]:  # fmt: skip
    """Every warning that applies, the gravest first."""
    overflows = [r for r in found.rows if r.measure == "roll_out" and r.status == "overflow"]
    if overflows:
        yield Finding("stream overflows", f"{overflows[0].subset}: {overflows[0].reason}",
                      "norm the branch's input or output")  # fmt: skip
    yield from _of_decay(found, decay)
    yield from _of_norms(norms, stacked, ratio)
    yield from _of_attention(subject, found, mixes)
    if stacked.inflated.kind == "exponential":
        yield Finding("grows exponentially", "with weights that rise by 3 % per half-step the variance grows by "
                      f"{stacked.inflated.value:.3f} in log per copy", "a norm on the branch's output ends that; a "
                      "residual step below 1 delays it")  # fmt: skip
    if zero := subject.zero_started():
        yield Finding("starts at zero", f"{', '.join(zero)} {'is' if len(zero) == 1 else 'are'} zero: exponents and "
                      "roll-outs take the nominal size instead, since training moves it", "nothing to do")  # fmt: skip


def _of_decay(found: Evidence, decay: float) -> Iterator[Finding]:
    rows = [r for r in found.rows if r.measure == "hamiltonian" and r.subset == f"decay {decay:g}"]
    diverged = sum(r.status == "diverged" for r in rows)
    if diverged:
        yield Finding("Hamiltonian diverges", f"at the decay of {decay:g} the best parameters have no finite size "
                      f"({diverged} of {len(rows)} directions)",
                      "raise the decay, clip gradients, or put a norm on the branch's output")  # fmt: skip


def _of_norms(norms: Sequence[FoundNorm], stacked: Stack, ratio: float | None) -> Iterator[Finding]:
    small = [pooled_variance([n.given]) for n in norms if pooled_variance([n.given]) < LIMITS.eps_share * n.eps]
    if small:
        share = f", {ratio:.0f} times that of the usual start" if ratio is not None else ""
        yield Finding("output norm starts on its ε", f"what enters the output norm has the variance "
                      f"{min(small):.1e}, below {LIMITS.eps_share:.0f} ε: the last matrix's first gradient is up to "
                      f"γ/√ε steep{share}",
                      "start the last matrix away from zero, or warm up slowly")  # fmt: skip
    if any(n.trained for n in norms):
        yield Finding("gains are controls", "the bounds hold for given output gains, and usual training does not decay "
                      "them (it decays matrices only)",
                      "decay the output gains, cap them, or watch the gain budget")  # fmt: skip
    if stacked.largest is not None and stacked.largest > LIMITS.float16_largest:
        yield Finding("fp16 not certain", f"the bound on a coordinate is {stacked.largest:.3g}, above 65504",
                      "use bf16 or fp32 for the stream, or a smaller residual step")  # fmt: skip


def _of_attention(subject: Subject, found: Evidence, mixes: bool) -> Iterator[Finding]:
    if not mixes or subject.normed_queries():
        return
    p_s, j_all = found.exponents.get("p_s"), found.exponents.get("j_all")
    if p_s is not None and p_s.value > LIMITS.input_growth:
        yield Finding("attention without any norm", "neither its input nor its queries and keys are normalised: logits "
                      "grow as the square of the stream", "norm the input, or queries and keys")  # fmt: skip
    elif j_all is not None and j_all.high is not None and j_all.high > j_all.value + 0.5:
        yield Finding("softmax sharpens", "without QK-norm sensitivity falls at most states as weights grow, but near "
                      f"ties it rises (exponents {j_all.low:.1f} to {j_all.high:.1f} at {j_all.n} scales)",
                      "norm queries and keys: a guard of the logits, not of the stream")  # fmt: skip
