"""The module of a check, prepared: proved usable, its parameters grouped, its maps and the stack of its copies."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import combinations
from math import sqrt

import torch
from torch import Tensor, nn

from drillcore.measures.exponents import by_parameters
from drillcore.measures.gauge import replaced
from drillcore.measures.output_norm import OutputNorm, recognise_norm
from drillcore.measures.sensitivity import Jacobian, Map, plain_attention
from drillcore.models.blocks import HalfStep
from drillcore.seeds import generator
from drillcore.verbs.check_target import Target, foreign
from drillcore.weights import InputError

TOKENS = 8
_NORM_WORDS = ("norm", "dyt", "ln_", "_ln")


@dataclass(frozen=True)
class Parameters:
    """The parameters of a module in groups, each by name. A gain outside the norms that multiplies the whole branch
    (LayerScale, ReZero) is a control like a matrix: `branch_gains`."""

    matrices: Mapping[str, Tensor]  # in the order in which the module uses them
    branch_gains: Mapping[str, Tensor]
    gains: Mapping[str, Tensor]
    shifts: Mapping[str, Tensor]

    @property
    def controls(self) -> list[Tensor]:
        """What a parameter sweep multiplies: the matrices and the gains that multiply the branch."""
        return [*self.matrices.values(), *self.branch_gains.values()]

    @property
    def last(self) -> Tensor:
        """The matrix that writes to the stream last."""
        return list(self.matrices.values())[-1]


class Subject:
    """A target made ready. `velocity` is what is added to the stream; `update` the stream after it.

    Raises:
        InputError: the module cannot be checked; says why.
    """

    def __init__(self, target: Target, dtype: torch.dtype) -> None:
        self.target, self.dtype = target, dtype
        self.module = target.module.to(dtype).eval().requires_grad_(True)
        self.where = target.label
        _check_arguments(self.module, self.where)
        self.x = self.states(1)[0]
        self._check_runs()
        self.parameters = self._grouped()
        self._check_gradients()

    def states(self, count: int, *words: object) -> list[Tensor]:
        """Sample states from N(0, 1), each 1 × tokens × width."""
        shape = (1, TOKENS, self.target.width)
        return [
            torch.randn(shape, generator=generator("state", i, *words), dtype=torch.float64).to(self.dtype)
            for i in range(count)
        ]

    @property
    def is_map(self) -> bool:
        """Whether the module maps the stream to the stream (a half-step or block), not to a branch's output."""
        return self.target.adds > 0

    def run(self, x: Tensor) -> Tensor:
        """What the module gives for … × tokens × width."""
        if isinstance(self.module, HalfStep) and not self.is_map:
            return self.module.velocity(x)
        result: Tensor = self.module(x)
        return result

    def velocity(self, x: Tensor) -> Tensor:
        """What is added to the stream before the residual step; of a map, its output less its input."""
        return self.run(x) - x if self.is_map else self.run(x)

    def update(self, x: Tensor) -> Tensor:
        """The stream after the half-step or block."""
        return self.run(x) if self.is_map else x + self.target.residual_step * self.run(x)

    def _check_runs(self) -> None:
        x, where = self.x, self.where
        widths = sorted({p.shape[-1] for p in self.module.parameters() if p.dim() >= 2})
        remedy = f"its matrices have inputs of width {', '.join(map(str, widths))}: try --width {widths[0]}" \
            if widths and self.target.width not in widths else ""  # fmt: skip
        with foreign(f"{where}, called with 1 × {TOKENS} × {x.shape[-1]} ({x.dtype})", remedy), plain_attention():
            first, again = self.run(x), self.run(x)
        if not isinstance(first, Tensor):
            raise InputError(f"it returns a {type(first).__name__}, not a tensor", where=where,
                             remedy="wrap it in a module that returns the stream alone")  # fmt: skip
        if first.shape != x.shape:
            raise InputError(f"it changes the shape {tuple(x.shape)} to {tuple(first.shape)}", where=where,
                             remedy="a residual branch gives back the width that it gets")  # fmt: skip
        if not bool(torch.isfinite(first).all()):
            raise InputError("it gives NaN or infinity for a standard normal input", where=where)
        if not torch.equal(first, again):
            raise InputError("it gives two answers to one input, though it is in eval mode", where=where,
                             remedy="switch its noise or dropout off where self.training is False")  # fmt: skip
        if not any(p.dim() >= 2 for p in self.module.parameters()):
            raise InputError("it has no matrix, so there is nothing to train", where=where,
                             remedy="give the module its weights as parameters")  # fmt: skip

    def _check_gradients(self) -> None:
        remedy = "remove detach, no_grad, rounding or argmax from its forward"
        with self.nominal(), foreign(f"{self.where}, differentiated", "use operations that have derivatives"):
            J = Jacobian(self.run, self.x)
            u = J.push(torch.ones_like(self.x))
            (trained,) = torch.autograd.grad(
                self.run(self.x).square().sum(), [self.parameters.last], allow_unused=True
            ) if J.y.requires_grad else (None,)  # fmt: skip
        if not bool(u.any()):
            raise InputError("its output has no gradient by its input", where=self.where, remedy=remedy)
        if trained is None or not bool(trained.any()):
            raise InputError("its last matrix gets no gradient", where=self.where, remedy=remedy)

    def _grouped(self) -> Parameters:
        order = self._use_order()
        named = dict(self.module.named_parameters())
        matrices = {n: p for n, p in named.items() if p.dim() >= 2}
        matrices = dict(sorted(matrices.items(), key=lambda item: order.get(_owner(item[0]), len(order))))
        small = {n: p for n, p in named.items() if p.dim() < 2}
        shifts = {n: p for n, p in small.items() if n.rpartition(".")[2] in ("bias", "shift", "beta", "b")}
        rest = {n: p for n, p in small.items() if n not in shifts}
        free = {n: p for n, p in rest.items() if not self._in_norm(n)}
        with replaced({p: _sized(p, 1 / sqrt(p.shape[-1]), n) for n, p in matrices.items()}):
            branch = {n: p for n, p in free.items() if self._multiplies(p)}
        return Parameters(matrices, branch, {n: p for n, p in rest.items() if n not in branch}, shifts)

    def _use_order(self) -> dict[str, int]:
        """Modules that hold a matrix themselves, by the order in which they are left."""
        names = {module: name for name, module in self.module.named_modules()}
        left: list[str] = []

        def note(module: nn.Module, *_: object) -> None:
            left.append(names[module])

        with ExitStack() as stack, torch.no_grad():
            for module in names:
                if any(p.dim() >= 2 for p in module.parameters(recurse=False)):
                    stack.callback(module.register_forward_hook(note).remove)
            self.run(self.x)
        return {name: place for place, name in enumerate(dict.fromkeys(left))}

    def _in_norm(self, name: str) -> bool:
        owner = self.module.get_submodule(_owner(name))
        return _is_norm(_owner(name), owner)

    def _multiplies(self, p: Tensor) -> bool:
        """Whether the branch is proportional to this gain."""
        size = float(p.detach().abs().max())
        base = p.detach().clone() if size > 0 else torch.ones_like(p)
        with torch.no_grad(), replaced({p: base}):
            once = self.velocity(self.x)
            with replaced({p: 2 * base}):
                twice = self.velocity(self.x)
        return bool((twice - 2 * once).norm() < 1e-3 * once.norm())

    @contextmanager
    def nominal(self) -> Iterator[None]:
        """Within it each matrix has the RMS 1/√fan_in and each branch gain the RMS 1, so that no start hides a degree.

        What is zero is drawn anew (matrices) or set to 1 (gains).
        """
        values = {p: _sized(p, 1 / sqrt(p.shape[-1]), name) for name, p in self.parameters.matrices.items()}
        values |= {p: _sized(p, 1.0, "") for p in self.parameters.branch_gains.values()}
        with replaced(values):
            yield

    def zero_started(self) -> list[str]:
        """Names of the controls that are zero as given."""
        named = {**self.parameters.matrices, **self.parameters.branch_gains}
        return [name for name, p in named.items() if not bool(p.detach().any())]

    @contextmanager
    def copies(self, scale: float = 1.0, inflation: float = 1.0) -> Iterator[Callable[[int], Map]]:
        """Give `step(k)`: the update of the k-th copy, its matrices and biases drawn anew with the RMS of those given.

        Matrices are multiplied by scale · inflation^k, k counted in half-steps. A matrix of zeros takes its nominal
        size. Norms stay as they are.
        """
        matrices = self.parameters.matrices
        biases = {n: p for n, p in self.parameters.shifts.items() if not self._in_norm(n)}
        given = {p: p.detach().clone() for p in (*self.parameters.controls, *biases.values())}
        sizes = {n: _rms(p) for n, p in biases.items()}
        sizes |= {n: _rms(p) or 1 / sqrt(p.shape[-1]) for n, p in matrices.items()}
        gains = {p: _sized(p, 1.0, "") for p in self.parameters.branch_gains.values() if not bool(p.detach().any())}
        per_copy = max(1, self.target.adds)

        def step(k: int) -> Map:
            random = generator("copy", k)
            with torch.no_grad():
                for name, p in {**biases, **matrices}.items():
                    drawn = torch.randn(p.shape, generator=random, dtype=torch.float32).to(p)
                    grown = scale * inflation ** (k * per_copy) if name in matrices else 1.0
                    p.copy_(drawn.mul_(sizes[name] * grown))
            return self.update

        with replaced(gains):
            try:
                yield step
            finally:
                with torch.no_grad():
                    for p, before in given.items():
                        p.copy_(before)

    def without_branch(self) -> "ExitStack":
        """A context in which all controls are zero: what is left is the skip path."""
        stack = ExitStack()
        stack.enter_context(by_parameters(self.parameters.controls)(0.0))
        return stack

    def mixes_tokens(self) -> bool:
        """Whether the last token's output depends on the others: attention."""
        moved = self.x.clone()
        moved[:, 0] = -moved[:, 0]
        with torch.no_grad(), self.nominal():
            return not torch.equal(self.run(self.x)[:, -1], self.run(moved)[:, -1])

    def normed_queries(self) -> bool:
        """Whether a norm of queries or keys is there, by its name."""
        words = ("q_norm", "k_norm", "qk_norm", "q_ln", "k_ln", "query_norm", "key_norm", "q_layernorm", "k_layernorm")
        return any(
            name.rpartition(".")[2].lower() in words and not isinstance(module, nn.Identity)
            for name, module in self.module.named_modules()
        )

    def output_norms(self) -> "list[FoundNorm]":
        """The norms whose outputs are what is added to the stream (one for each residual add), or none."""
        given, _ = self._through_norms()
        with self.nominal():  # a norm of zeros gives nothing to know it by
            seen, y = self._through_norms()
        close = 1e-4 * float(y.norm())
        for chosen in combinations(range(len(seen)), max(1, self.target.adds)):
            if float((sum(seen[i].output for i in chosen) - y).norm()) <= close:
                found = [_found(seen[i], given[i].given) for i in chosen]
                return [f for f in found if f is not None] if None not in found else []
        return []

    def _through_norms(self) -> "tuple[list[_Pass], Tensor]":
        """What goes into and comes out of every norm for one state, in order, and the velocity."""
        seen: list[_Pass] = []

        def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if isinstance(output, Tensor) and output.shape == self.x.shape:
                seen.append(_Pass(module, inputs[0].detach(), output.detach()))

        with ExitStack() as stack, torch.no_grad(), plain_attention():
            for name, module in self.module.named_modules():
                if _is_norm(name, module):
                    stack.callback(module.register_forward_hook(note).remove)
            y = self.velocity(self.x)
        return seen, y


@dataclass(frozen=True)
class _Pass:
    module: nn.Module
    given: Tensor
    output: Tensor


@dataclass(frozen=True)
class FoundNorm:
    """An output norm, what it got, its ε, and whether its gain is trained."""

    norm: OutputNorm
    given: Tensor
    eps: float
    trained: bool


def _found(seen: _Pass, given: Tensor) -> FoundNorm | None:
    module, output = seen.module, seen.output
    own = dict(module.named_parameters(recurse=False))
    gain = next((own[n] for n in ("weight", "gain", "gamma", "scale", "g") if n in own), None)
    shift = next((own[n] for n in ("bias", "shift", "beta") if n in own), None)
    norm = recognise_norm(output, gain, shift)
    eps = next((getattr(module, n) for n in ("eps", "variance_epsilon", "epsilon") if hasattr(module, n)), 1e-5)
    return None if norm is None else FoundNorm(norm, given, float(eps or 1e-5), gain is not None)


def _is_norm(name: str, module: nn.Module) -> bool:
    words = f"{name.rpartition('.')[2]} {type(module).__name__}".lower()
    known = any(word in words for word in _NORM_WORDS) or name.rpartition(".")[2].lower() in ("ln", "ln1", "ln2")
    return known and not isinstance(module, nn.Identity) and not any(p.dim() >= 2 for p in module.parameters())


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _rms(p: Tensor) -> float:
    return float(p.detach().double().square().mean().sqrt())


def _sized(p: Tensor, rms: float, name: str) -> Tensor:
    own = _rms(p)
    if own > 0:
        return p.detach() * (rms / own)
    if p.dim() < 2:
        return torch.full_like(p, rms)
    return torch.randn(p.shape, generator=generator("nominal", name), dtype=torch.float32).to(p) * rms


def _check_arguments(module: nn.Module, where: str) -> None:
    parameters = list(inspect.signature(module.forward).parameters.values())
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind in (*positional, p.KEYWORD_ONLY)]
    if len(needed) > 1:
        raise InputError(
            f"its forward needs more than the stream: {', '.join(needed[1:])}", where=where,
            remedy="wrap it in a module whose forward(x) makes its mask and positions from x",
        )  # fmt: skip
    if not needed and not any(p.kind in (*positional, p.VAR_POSITIONAL) for p in parameters):
        raise InputError("its forward takes no input", where=where)
