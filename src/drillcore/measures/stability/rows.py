"""The rows of a survey's stability: gains, budget, and every bound (derived (drillcore) from arXiv 2510.09904)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from drillcore.measures.rollout import growth
from drillcore.measures.stability.certificate import Certificate
from drillcore.table import Row
from drillcore.weights.assign import Assignment
from drillcore.weights.layout import read_norm
from drillcore.weights.norm_names import BRANCHES, branches_of
from drillcore.weights.placement import Placement
from drillcore.weights.role import Norm
from drillcore.weights.source import Source

SITE_BOUNDS = ("mean_abs", "rms", "entry_sd", "data_sd")


def stability_rows(
    source: Source, assignment: Assignment, placed: Mapping[str, Placement], certificates: Sequence[Certificate]
) -> Iterator[Row]:
    """All rows: of the gains of every stack, and what its certificate allows."""
    for own in placed.values():
        yield from gain_rows(source, assignment, own)
    for certificate in certificates:
        yield from bound_rows(certificate)


def gain_rows(source: Source, assignment: Assignment, placed: Placement) -> Iterator[Row]:
    """rms and max of |γ| (as it acts) of every norm in the layers, their growth over depth, and the gain budget.

    `kind` is the branch ("attention+mlp" where one norm feeds both), `subset` the side of the branch.
    """
    sizes: dict[tuple[str, str], list[float]] = {}
    budget: dict[int, list[float]] = {}
    norms = [n for n in assignment.norms if n.stack == placed.stack and n.layer is not None and n.side != "inner"]
    for norm in sorted(norms, key=_order):
        gain, _ = read_norm(source, norm)
        rms, kind = float(gain.square().mean().sqrt()), "+".join(b for b in BRANCHES if b in branches_of(norm))
        base = Row(stack=placed.stack or None, layer=norm.layer, kind=kind, subset=norm.side, unit="1")
        yield replace(base, measure="stability.gain_rms", value=rms)
        yield replace(base, measure="stability.gain_max", value=float(gain.abs().max()))
        sizes.setdefault((kind, norm.side), []).append(rms)
        if norm.side == "out":
            budget.setdefault(norm.layer or 0, []).append(rms)
    for (kind, side), values in sizes.items():
        yield growth_row(placed.stack, kind, values, subset=f"gain {side}")
    total = 0.0
    for layer, added in sorted(budget.items()):
        total += placed.residual_step * sum(added)
        yield Row(stack=placed.stack or None, layer=layer, measure="stability.gain_budget", value=total, unit="1")


def growth_row(stack: str, kind: str, values: Sequence[float], subset: str | None = None) -> Row:
    """How a size grows over the layers: its rate per layer (e^{rate·layer}) or its exponent (layer^exponent).

    The better of two lines is taken, log of the squares against depth or the sizes against depth; `unit` says which.
    """
    found = growth([value * value for value in values])
    base = Row(stack=stack or None, kind=kind, subset=subset, measure="stability.growth", n=len(values))
    if found.kind == "none":
        reason = "fewer than four layers" if len(values) < 4 else "a size is zero"
        return replace(base, status="not-applicable", reason=reason)
    units = {"exponential": "rate per layer", "polynomial": "exponent", "flat": "flat"}
    return replace(base, value=found.value / 2, unit=units[found.kind])


def bound_rows(certificate: Certificate) -> Iterator[Row]:
    """What every place can reach, and the sums over the stack. `subset` is the part, `kind` the branch."""
    base = Row(stack=certificate.stack or None, unit="1")
    if not certificate.places:
        yield replace(base, measure="stability.bound", status="not-bounded", reason=_said(certificate))
    for place in certificate.places:
        row = replace(base, layer=place.layer, site=place.site, kind=place.branch, subset=place.part,
                      measure="stability.bound", value=place.value)  # fmt: skip
        yield row if place.value is not None else replace(row, status="not-bounded", reason=place.reason)
    for site in certificate.sites:
        for name in SITE_BOUNDS:
            yield replace(base, layer=site.layer, site=site.site, measure=f"stability.bound_{name}",
                          value=getattr(site, name))  # fmt: skip
    if certificate.transport is not None:
        yield replace(base, measure="stability.transport_drift", value=certificate.transport.drift)
        yield replace(base, measure="stability.transport_apart", value=certificate.transport.apart)
    if certificate.below_bfloat16 is not None:
        yield replace(base, measure="stability.below_bfloat16", value=certificate.below_bfloat16)


def _said(certificate: Certificate) -> str:
    return f"{certificate.reason}; what to do: {certificate.remedy}"


def _order(norm: Norm) -> tuple[int, int, str]:
    first = min((i for i, b in enumerate(BRANCHES) if b in branches_of(norm)), default=0)
    return norm.layer or 0, first, norm.side
