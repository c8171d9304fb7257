"""Every design against the measured table of the shared notes §4.3 (d = 64, float64), and the class it should have."""

from functools import cache

import pytest
import torch

from drillcore.measures.stability_rules import backward_class, carry_findings, forward_class
from drillcore.models.blocks import VARIANTS
from drillcore.verbs.check_probes import Evidence, Stack, scales, stack
from drillcore.verbs.check_subject import Subject
from drillcore.verbs.check_target import load

# p_s, q_all, q_last, j_s, j_all, j_last
TABLE = {
    "none-gelu": (1, 2, 1, 0, 2, 1),
    "none-swiglu": (2, 3, 1, 1, 3, 1),
    "pre-gelu": (0, 2, 1, -1, 2, 1),
    "pre-swiglu": (0, 3, 1, -1, 3, 1),
    "pre-attention-qk": (0, 2, 1, -1, 2, 1),
    "peri-gelu": (0, 0, 0, -1, 0, 0),
    "peri-swiglu": (0, 0, 0, -1, 0, 0),
    "peri-attention-qk": (0, 0, 0, -1, 0, 0),
    "branch-out-gelu": (0, 0, 0, -1, 0, 0),
    "branch-out-swiglu": (0, 0, 0, -1, 0, 0),
    "branch-out-attention-qk": (0, 0, 0, -1, 0, 0),
    "sub-ln-gelu": (0, 1, 1, -1, 1, 1),
    "ln-scaling-gelu": (0, 2, 1, -1, 2, 1),
    "layerscale-gelu": (0, 3, 1, -1, 3, 1),
    "rezero-gelu": (0, 3, 1, -1, 3, 1),
    "skipinit-gelu": (1, 3, 1, 0, 3, 1),  # without a norm its input counts too
    "post-gelu": (0, 0, 0, -1, 0, 0),
    "deepnorm-gelu": (0, 0, 0, -1, 0, 0),
    "ngpt-gelu": (0, 0, 0, -1, 0, 0),
    "dyt-gelu": (0.01, 2, 1, 0, 2, 1),
    "dyt-both-gelu": (0, 0.02, 0.2, 0, 1.45, 0.8),
    "softcap-gelu": (0, 0.14, 0.7, -1, 1.6, 0.9),
}
SATURATING = ("dyt-gelu", "dyt-both-gelu", "softcap-gelu")
KEYS = ("p_s", "q_all", "q_last", "j_s", "j_all", "j_last")


@cache
def probed(name: str) -> Evidence:
    found = Evidence()
    width = 32 if VARIANTS[name].part == "block" else 64  # the table has half-steps only
    for _ in scales(Subject(load(name, width=width), torch.float64), found):
        pass
    return found


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", TABLE)
def test_the_exponents_are_those_of_the_table(name: str) -> None:
    found = [probed(name).exponents[key].value for key in KEYS]
    assert found == pytest.approx(TABLE[name], abs=0.3 if name in SATURATING else 0.1)


@pytest.mark.parametrize(("name", "published"), [
    ("none-attention", (1, 2, 1, None, 0.8, 1)), ("pre-attention", (0, 2, 1, -1, 0.7, 1)),
    ("peri-attention", (0, 0, 0, -1, -1.6, 0)),
])  # fmt: skip
def test_attention_without_qk_norm_depends_on_the_state(name: str, published: tuple[float | None, ...]) -> None:
    """Scaling W_Q and W_K sharpens the softmax: j_all scatters by more than one over states and weights, so that the
    published value, which is of one draw, can only be asked to lie in the range."""
    for key, expected in zip(KEYS, published, strict=True):
        found = probed(name).exponents[key]
        if key == "j_all":
            assert found.low < expected < found.high
        elif expected is not None:
            assert found.value == pytest.approx(expected, abs=0.1)


CARRIED = ("post-gelu", "bert", "deepnorm-gelu", "ngpt-gelu")


@pytest.mark.parametrize("name", VARIANTS)
def test_the_class_of_every_variant_is_the_one_it_is_listed_under(name: str) -> None:
    found = probed(name)
    e = {key: exponent.value for key, exponent in found.exponents.items()}
    forward = forward_class(e["q_all"], found.plateau, e["p_s"], resets=found.resets)
    assert forward.name == VARIANTS[name].forward
    if VARIANTS[name].starred and forward.name in ("threshold", "ill-posed") and VARIANTS[name].part != "mlp":
        assert e["j_last"] == pytest.approx(1, abs=0.1)  # j_all is one draw of a wide scatter: grows or explodes
        return
    names = [backward_class(e["j_all"], e["j_last"]).name]
    if name in CARRIED:
        subject = Subject(load(name, width=64), torch.float64)
        (made,) = (x for x in stack(subject, found, subject.output_norms()) if isinstance(x, Stack))
        names += [f.name for f in carry_findings(made.carried, made.carried_large, made.carry, 48)]
    assert ", ".join(names) == VARIANTS[name].backward


@pytest.mark.parametrize(("name", "plain", "tripled", "tolerance"), [
    ("pre-gelu", (0.99, 1.0), (0.91, 1.0), 0.05),
    ("peri-gelu", (0.98, 1.0), (0.98, 1.0), 0.05),
    ("post-gelu", (0.80, 0.87), (0.14, 0.17), 0.05),
    ("deepnorm-gelu", (0.98, 1.0), (0.97, 0.99), 0.05),
    ("ngpt-gelu", (0.99, 0.99), (0.99, 0.99), 0.05),
])  # fmt: skip
def test_skip_retention(name: str, plain: tuple[float, float], tripled: tuple[float, float], tolerance: float) -> None:
    """The middle half of 48 half-steps lies in the range of the table; ρ of one half-step scatters by its probes."""
    found = Evidence()
    subject = Subject(load(name, width=64), torch.float64)
    for _ in stack_after_scales(subject, found, name):
        pass
    for subset, (low, high) in (("as given", plain), ("weights × 3", tripled)):
        values = sorted(r.value for r in found.rows if r.measure == "retention" and r.subset == subset)
        middle = values[12:36]
        assert low - tolerance <= middle[0] <= middle[-1] <= high + tolerance, (subset, middle)


def stack_after_scales(subject: Subject, found: Evidence, name: str):
    found.resets = probed(name).resets
    return stack(subject, found, subject.output_norms())
