"""What a live model reaches in a forward pass, place by place, to be held against a certificate."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from tests.weights.tiny import StateSource
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from drillcore.measures.stability import Certificate, read_certificates
from drillcore.measures.stream import Block, HalfStep, blocks_of, watching
from drillcore.weights import assign
from drillcore.weights.placement import placements

Place = tuple[str, str, int, str]  # stack, part, layer, branch; the branch is "" where it is not told apart
_BRANCH = {"o": "attention", "cross_o": "cross", "down": "mlp", "shared_down": "mlp"}
_PROJECTED = {"q": "attention", "k": "attention", "v": "attention", "cross_q": "cross", "cross_k": "cross",
              "cross_v": "cross"}  # fmt: skip


@dataclass
class Reaching(TorchFunctionMode):
    """Looks at the stream (a `Watcher`), at the products of attention and at the outputs of matrices."""

    largest: dict[Place, float] = field(default_factory=lambda: defaultdict(float))
    sites: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    stacked: dict[int, str] = field(default_factory=dict)  # id of a parameter that holds all experts → kind
    block: Block | None = None

    def __post_init__(self) -> None:
        super().__init__()

    def note(self, part: str, layer: int, branch: str, x: Tensor, stack: str) -> None:
        self.largest[stack, part, layer, branch] = max(
            self.largest[stack, part, layer, branch], float(x.detach().abs().max())
        )

    def entered(self, block: Block, site: int, stream: Tensor) -> None:
        self.block = block
        self.sites.setdefault((block.stack, site), stream.detach())
        self.note("stream", block.layer, "", stream, block.stack)

    def added(self, step: HalfStep) -> Tensor:
        self.note("stream", step.block.layer, "", step.after, step.block.stack)
        return step.after

    def left(self, block: Block, site: int, before: Tensor, after: Tensor) -> None:
        self.sites[block.stack, site] = after.detach()
        self.note("stream", block.layer, "", after, block.stack)
        self.block = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if (
            self.block is not None
            and name in ("linear", "_grouped_mm")
            and (kind := self.stacked.get(id(args[1]._base)))
        ):
            seen = args[0] if kind == "down" else result
            if seen.numel():
                self.note("hidden values", self.block.layer, "mlp", seen, self.block.stack)
        if self.block is not None and name in ("softmax", "matmul", "bmm", "baddbmm", "__matmul__"):
            seen = args[0] if name == "softmax" else result
            square = isinstance(seen, Tensor) and seen.dim() >= 3 and seen.shape[-1] == seen.shape[-2]
            if square and (name == "softmax" or args[0].shape[-1] != seen.shape[-1]):
                kept = seen.detach()[(seen.abs() < 1e30)]
                if kept.numel():
                    self.note("attention logits", self.block.layer, "", kept, self.block.stack)
        return result


@contextmanager
def reaching(model: nn.Module) -> Iterator[Reaching]:
    """Within it every run of the model is followed."""
    source = StateSource(dict(model.state_dict()), model.config.to_dict())
    assignment = assign(source)
    modules, parameters, own = dict(model.named_modules()), dict(model.named_parameters()), Reaching()
    writers: dict[tuple[str, int], dict[str, str]] = defaultdict(dict)
    with ExitStack() as stack:
        for weight in assignment.weights:
            role, module = weight.role, modules.get(weight.tensor.rpartition(".")[0])
            if role.layer is None:
                continue
            writers[role.stack, role.layer][weight.tensor] = role.kind
            if weight.tensor in parameters:
                own.stacked[id(parameters[weight.tensor])] = role.kind
            if module is not None and not role.stacked:
                stack.callback(module.register_forward_hook(_hook(own, role.kind, role.layer, role.stack)).remove)
        with watching(blocks_of(model, writers), own), own:
            yield own


def _hook(own: Reaching, kind: str, layer: int, stack: str) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if kind in _BRANCH:
            own.note("branch outputs", layer, _BRANCH[kind], output, stack)
            if _BRANCH[kind] == "mlp":
                own.note("hidden values", layer, "mlp", args[0], stack)
        elif kind in ("up", "gate", "shared_up", "shared_gate"):
            own.note("hidden values", layer, "mlp", output, stack)
        elif kind in _PROJECTED:
            own.note("projections", layer, _PROJECTED[kind], output, stack)

    return hook


def certificates(model: nn.Module) -> dict[str, Certificate]:
    """What the weights of a live model say, by stack."""
    return certificates_of(dict(model.state_dict()), model.config.to_dict())


def certificates_of(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Certificate]:
    """The same of tensors and a configuration."""
    source = StateSource(state, config)
    assignment = assign(source)
    placed = placements(source, assignment)
    return {c.stack: c for c in read_certificates(source, assignment, placed)}


def bounds(found: Mapping[str, Certificate]) -> dict[Place, float]:
    """What the certificates allow, in the words of `Reaching`."""
    allowed: dict[Place, float] = defaultdict(float)
    for stack, certificate in found.items():
        for place in certificate.places:
            branch = "" if place.part in ("stream", "attention logits") else place.branch
            key = (stack, place.part, place.layer, branch)
            allowed[key] = max(allowed[key], float("inf") if place.value is None else place.value)
    return allowed


def shake(model: nn.Module, amplify: float, seed: int = 0) -> None:
    """Random gains with outliers, random shifts and biases, matrices made larger."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 1 and name.endswith("bias"):
                p.normal_(0, 0.5, generator=generator)
            elif p.ndim == 1:
                p.uniform_(-2, 2, generator=generator)
                p[torch.randint(len(p), (2,), generator=generator)] *= 5
            elif p.ndim >= 2:
                p.mul_(amplify)
