"""What a study must agree on with itself, told when it is written and not when its runs are done."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from drillcore.study.errors import StudyError
from drillcore.table import COLUMNS

if TYPE_CHECKING:
    from drillcore.study.spec import Study

_TAKEN = {*COLUMNS, "study"} - {"seed"}  # the seed of a row is that of its run


def check(study: "Study") -> None:
    """Names are unique and none is taken, grids and figures name what there is.

    Raises:
        StudyError: says which name, and what there is instead.
    """
    if not study.axes or not study.presets:
        raise StudyError(f"{study.name}: a study needs an axis and a preset at least")
    axes = [axis.name for axis in study.axes]
    for what, names in (("axes", axes), ("claims", [c.name for c in study.claims]),
                        ("figures", [f.name for f in study.figures])):  # fmt: skip
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise StudyError(f"{study.name}: two {what} are called {twice[0]!r}; rename one")
    for axis in study.axes:
        if axis.name in _TAKEN:
            raise StudyError(f"{study.name}: axis {axis.name!r} has the name of a column of the table; give it another")
        if not axis.values:
            raise StudyError(f"{study.name}: axis {axis.name!r} has no value; its first is the default")
    _known(study, "stack", study.stack, axes)
    for figure in study.figures:
        columns = (figure.x, *figure.keys, *figure.where, *filter(None, (figure.y, figure.slope)))
        _known(study, f"figure {figure.name!r}", columns, [*axes, *COLUMNS])
    for name, preset in study.presets.items():
        for grid in preset.grids:
            _known(study, f"preset {name!r}", grid, axes)
            _listed(study, name, grid)


def _known(study: "Study", where: str, names: Iterable[str], there: list[str]) -> None:
    for name in names:
        if name not in there:
            raise StudyError(
                f"{study.name}: {where} names {name!r}; there is no axis {name!r}, only {', '.join(there)}"
            )


def _listed(study: "Study", preset: str, grid: Mapping[str, tuple[object, ...]]) -> None:
    """The values of a scientific axis are listed by it: one that is not is a slip of the pen."""
    for axis in study.axes:
        strange = [value for value in grid.get(axis.name, ()) if value not in axis.values]
        if axis.role == "scientific" and strange:
            there = ", ".join(map(str, axis.values))
            raise StudyError(
                f"{study.name}: preset {preset!r} gives {axis.name} the value {strange[0]!r}; it has {there}"
            )
