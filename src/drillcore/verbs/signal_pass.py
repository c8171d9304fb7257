"""The passes of a signal: forward, backward and through each branch; each gives rows."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from drillcore.measures.branch_jacobian import Calls, sensitivity_rows
from drillcore.measures.coherence import gradient_cosines
from drillcore.measures.reading import Options, read_kind
from drillcore.measures.signal import Backward, Forward
from drillcore.measures.stream import Block, watching
from drillcore.measures.transport import transport_rows
from drillcore.seeds import generator
from drillcore.table import Row
from drillcore.verbs.running import Running
from drillcore.weights.role import SINGLE_KINDS, Norm
from drillcore.weights.source import TensorSpec

_BRANCH_KINDS = {"attention": {"q", "k", "v"}, "cross": {"cross_q"}, "mlp": {"gate", "up"}}


def forward_pass(running: Running, ids: Tensor, batch: int, advance: Callable[[int], None]) -> Forward:
    """Run all windows without gradients."""
    looked = Forward(last_layers(running))
    for part in torch.split(ids, batch):
        with torch.no_grad(), watching(running.blocks, looked):
            running.run(part)
        advance(len(part))
    return looked


def backward_pass(running: Running, ids: Tensor) -> tuple[Backward, list[Row], str]:
    """One forward and backward pass, block by block; also rows of the weights' gradients, and which loss it was."""
    looked = Backward(last_layers(running))
    with _checkpointed(running.blocks):
        with torch.enable_grad(), watching(running.blocks, looked):
            output = running.run(ids)
        value, name = loss(running, output, ids)
        running.model.zero_grad(set_to_none=True)
        torch.autograd.backward(value)
    rows = list(_gradient_rows(running))
    running.model.zero_grad(set_to_none=True)
    return looked, rows, name


def loss(running: Running, output: Any, ids: Tensor) -> tuple[Tensor, str]:
    """Cross-entropy of the next token where the model predicts it; else a fixed random direction of its last output."""
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    names = type(running.model).__name__
    causal = running.config is None or any(mark in names for mark in ("CausalLM", "LMHead", "ConditionalGeneration"))
    if logits is not None and causal and logits.dim() == 3 and logits.shape[-1] > int(ids.max()):
        flat = logits[:, :-1].float().flatten(0, 1)
        return nn.functional.cross_entropy(flat, ids[:, 1:].flatten()), "cross-entropy of the next token"
    last = logits if logits is not None else output[0]
    direction = torch.randn(last.shape[-1], generator=generator("signal", "direction")).to(last)
    return (
        last @ direction
    ).mean(), "mean over tokens of a fixed random direction of the output: no next token is predicted"


def last_layers(running: Running) -> dict[str, int]:
    """Stack → its last layer."""
    found: dict[str, int] = {}
    for block in running.blocks:
        found[block.stack] = max(block.layer, found.get(block.stack, 0))
    return found


def sensitivity_pass(running: Running, ids: Tensor, rounds: int, advance: Callable[[int], None]) -> Iterator[Row]:
    """‖∂branch/∂x‖ and κ of every half-step, on these tokens."""
    calls = Calls()
    with torch.no_grad(), ExitStack() as stack:
        for block in running.blocks:
            calls.remember(block, stack)
        with watching(running.blocks, calls):
            running.run(ids)
    learned = [p for p in running.model.parameters() if p.requires_grad]
    for parameter in learned:
        parameter.requires_grad = False
    yield from sensitivity_rows(running.blocks, calls, input_norms(running), rounds, lambda: advance(1))
    for parameter in learned:
        parameter.requires_grad = True


def input_norms(running: Running) -> dict[tuple[Block, str], nn.Module]:
    """(block, branch) → the norm that feeds it, where it has one with a gain."""
    modules, found = dict(running.model.named_modules()), {}
    for norm in running.assignment.norms:
        for block in running.blocks:
            if norm.side == "in" and (norm.stack, norm.layer) == (block.stack, block.layer):
                for branch, kinds in _BRANCH_KINDS.items():
                    if kinds & set(norm.feeds):
                        found[block, branch] = modules[norm.tensor.rpartition(".")[0]]
    return found


def transport_pass(running: Running, looked: Forward) -> Iterator[Row]:
    """W₂ between the first and the last site of every stack, beside what the output gains allow."""
    for stack, ends in looked.ends.items():
        sites = [place for place in looked.branches if place[0] == stack]
        norms = [n for n in running.assignment.norms if n.stack == stack and n.side == "out" and n.layer is not None]
        gains = [_gain(running, norm) for norm in norms] if len(norms) == len(sites) else None
        yield from transport_rows(stack, ends, gains)


def _gain(running: Running, norm: Norm) -> tuple[Tensor, Tensor | None, float]:
    parameters = dict(running.model.named_parameters())
    shift = parameters[norm.bias].detach() if norm.bias else None
    return parameters[norm.tensor].detach() + float(norm.zero_centered), shift, 1.0


class _Gradients:
    """The gradients of a model's parameters, read as a checkpoint is."""

    def __init__(self, running: Running) -> None:
        self.label, self.config, self.notes = running.label, running.source.config, ()
        self._parameters = dict(running.model.named_parameters())
        self.specs: Mapping[str, TensorSpec] = running.source.specs

    def read(self, name: str, rows: slice | None = None) -> Tensor:
        gradient = self._parameters[name].grad
        if gradient is None:
            gradient = torch.zeros_like(self._parameters[name])
        return gradient if rows is None else gradient[rows]


def _gradient_rows(running: Running) -> Iterator[Row]:
    """Norm of each layer's weight gradient, and coherence of the gradients of adjacent layers by kind."""
    for block in running.blocks:
        grads = [p.grad for p in block.module.parameters() if p.grad is not None]
        squares = sum(float(g.double().square().sum()) for g in grads)
        yield Row(stack=block.stack or None, layer=block.layer, measure="gradient.weight_norm", value=squares**0.5,
                  unit="1")  # fmt: skip
    gradients: Any = _Gradients(running)
    options = Options(rank=1, needs=frozenset())
    for stack, kind in running.assignment.kinds:
        if kind not in SINGLE_KINDS:
            reading = read_kind(gradients, running.assignment, stack, kind, options)
            for side in ("v1", "u1"):
                rows = gradient_cosines(reading, f"coherence.step_{side}")
                yield from (replace(row, stack=stack or None) for row in rows)


@contextmanager
def _checkpointed(blocks: tuple[Block, ...]) -> Iterator[None]:
    """Within it a block keeps its input only, and is run again when gradients flow back."""
    forwards = {block.module: block.module.forward for block in blocks}
    for module, forward in forwards.items():
        module.forward = partial(checkpoint, forward, use_reentrant=False)
    try:
        yield
    finally:
        for module in forwards:
            del module.forward
