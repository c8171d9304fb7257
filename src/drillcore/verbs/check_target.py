"""What `check` is pointed at: a user's file, a variant by name, a module, or the configuration of a known family."""

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from drillcore.models.blocks import VARIANTS, Block, HalfStep, Variant
from drillcore.seeds import seed_of
from drillcore.verbs.check_config import from_config
from drillcore.weights import InputError

HALF_STEPS = 48


@dataclass(frozen=True)
class Target:
    """A module that is to be checked, and what it is.

    `adds` is the number of residual adds inside: 0 for a branch, whose output is added to the stream; more for a map of
    the stream to the stream.
    """

    label: str
    about: str
    module: nn.Module
    adds: int
    width: int
    half_steps: int
    residual_step: float
    variant: Variant | None = None

    @property
    def copies(self) -> int:
        """How many of it make a stack of `half_steps`."""
        return max(1, self.half_steps // max(1, self.adds))


def load(
    target: object, *, width: int = 512, half_steps: int | None = None, residual_step: float | None = None,
    block: bool = False,
) -> Target:  # fmt: skip
    """Load a target; a file is executed, as `python FILE` would.

    Raises:
        InputError: there is no such target, or its file or factory fails.
    """
    if width < 2 or (half_steps is not None and half_steps < 2):
        raise InputError(f"width and half-steps are at least 2, got {width} and {half_steps}", where="--width")
    if isinstance(target, nn.Module):
        return _described(type(target).__name__, deepcopy(target), width, half_steps, residual_step, block)
    if not isinstance(target, str | Path):
        raise InputError(f"a target is a path, a name or a module, not {type(target).__name__}")
    text = str(target)
    path, colon, factory = text.rpartition(":")
    if colon and path.endswith(".py"):
        made = _from_file(Path(path), factory, width)
        return _described(text, made, width, half_steps, residual_step, block)
    if text.endswith(".py"):
        raise InputError("a file needs the name of its factory", where=text,
                         remedy=f"write {text}:NAME, NAME being a function that returns the module")  # fmt: skip
    if text in VARIANTS:
        return _of_variant(text, VARIANTS[text], width, half_steps or HALF_STEPS, residual_step)
    if Path(text).exists():
        variant, layers = from_config(Path(text), width)
        return _of_variant(text, variant, width, half_steps or 2 * layers, residual_step)
    raise InputError(f"there is no target {text!r}", remedy=_hint(text))


def _hint(text: str) -> str:
    close = get_close_matches(text, VARIANTS, n=3)
    names = ", ".join(close or VARIANTS)
    return f"{'did you mean' if close else 'give FILE.py:FACTORY, a config.json or one of'} {names}"


def _of_variant(label: str, variant: Variant, width: int, half_steps: int, step: float | None) -> Target:
    design = variant.design
    if step is not None:
        variant = replace(variant, design=replace(design, form=replace(design.form, residual_step=step)))
    try:
        module = variant.make(width, half_steps, "check")
    except ValueError as error:
        raise InputError(str(error), where=label, remedy="choose a --width that the heads divide") from error
    made = _described(label, module, width, half_steps, None, False)
    return replace(made, about=variant.about, variant=variant)


def _described(label: str, module: nn.Module, width: int, half_steps: int | None, step: float | None, block: bool) \
        -> Target:  # fmt: skip
    """What a module is: our own say it, others by their attribute `residual_adds` or by `block`."""
    if isinstance(module, HalfStep):
        adds, own = int(module.form.resets), module.form.residual_step
    elif isinstance(module, Block):
        adds, own = len(module.half_steps), module.design.form.residual_step
    else:
        adds, own = getattr(module, "residual_adds", 2 if block else 0), 1.0
        if not isinstance(adds, int) or adds < 0:
            raise InputError(f"the attribute residual_adds is a number of residual adds, not {adds!r}", where=label)
    if step is not None and adds:
        raise InputError("a residual step is for a branch; this module adds by itself", where="--residual-step",
                         remedy="give the module its residual step, or check its branch")  # fmt: skip
    if step is not None and isinstance(module, HalfStep):
        module.form = replace(module.form, residual_step=step)
    about = "branch" if not adds else "map of the stream to the stream"
    return Target(label, about, module, adds, width, half_steps or HALF_STEPS, own if step is None else step)


def _from_file(path: Path, name: str, width: int) -> nn.Module:
    factory = getattr(_executed(path), name, None)
    where = f"{path}:{name}"
    if factory is None:
        raise InputError(f"{path} has no {name!r}", where=where, remedy="name a function or class of the file that "
                         "returns a torch.nn.Module")  # fmt: skip
    if isinstance(factory, nn.Module):
        return factory
    if not callable(factory):
        raise InputError(f"it is a {type(factory).__name__}, not a function", where=where)
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p for p in inspect.signature(factory).parameters.values() if p.default is p.empty and p.kind not in free]
    if len(needed) > 1:
        raise InputError(f"it needs {', '.join(p.name for p in needed)}", where=where,
                         remedy="write a factory of the width alone, `def make(width): ...`")  # fmt: skip
    takes = bool(needed) or "width" in inspect.signature(factory).parameters
    with foreign(where), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of("factory"))
        made = factory(width) if needed else factory(width=width) if takes else factory()
    if not isinstance(made, nn.Module):
        raise InputError(f"it returns a {type(made).__name__}, not a torch.nn.Module", where=where)
    return made


def _executed(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError("there is no such file", where=path)
    name = f"drillcore_user_block_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise InputError("it is not a Python file", where=path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with foreign(path):
        spec.loader.exec_module(module)
    return module


@contextmanager
def foreign(where: object, remedy: str = "") -> Iterator[None]:
    """Code of the user's runs within it: whatever it raises is told with its place, as bad input."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # another's code may raise anything
        places = traceback.extract_tb(error.__traceback__)
        place = f" at {Path(places[-1].filename).name}, line {places[-1].lineno}" if places else ""
        message = f"it raises {type(error).__name__}{place}: {error}".rstrip(": ")
        raise InputError(message, where=where, remedy=remedy) from error
