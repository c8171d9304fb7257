"""Local sensitivity of every branch of a running model: how much it answers to its input (arXiv 2510.09904, §2.5 of
our notes, derived).

`sensitivity.local` is ‖∂branch/∂x‖₂ with x the stream at that half-step, norms and residual step included; in models
with post-norm x of the second half-step is the sum before its norm. `sensitivity.relative` is κ = ‖∂g/∂z‖₂ / sd(g(z))
with z the normed input and g(z) the branch before any output norm: what such a norm makes of the branch, whatever the
size of its matrices.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from drillcore.measures.sensitivity import JacobianNorm, jacobian_norm
from drillcore.measures.stream import Block, HalfStep, watching
from drillcore.table import Row

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Calls:
    """Remembers with what the blocks were called, and the residual adds that each made."""

    def __init__(self) -> None:
        self.streams: dict[Block, Tensor] = {}
        self.adds: dict[Block, list[str]] = {}
        self.sums: dict[Block, list[Tensor]] = {}  # the stream after each add
        self.rest: dict[Block, Call] = {}

    def entered(self, block: Block, site: int, stream: Tensor) -> None:
        """See `stream.Watcher`."""
        self.streams[block], self.adds[block], self.sums[block] = stream.detach(), [], []

    def added(self, step: HalfStep) -> Tensor:
        """See `stream.Watcher`."""
        self.adds[step.block].append(step.kind)
        self.sums[step.block].append(step.after.detach())
        return step.after

    def left(self, block: Block, site: int, before: Tensor, after: Tensor) -> None:
        """Nothing is kept."""

    def remember(self, block: Block, stack: ExitStack) -> None:
        """Keep what the block is given beside the stream."""

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            named = {k: v for k, v in kwargs.items() if k != "hidden_states"} if not args else kwargs
            self.rest[block] = (args[1:], named)

        stack.callback(block.module.register_forward_pre_hook(before, with_kwargs=True).remove)


@dataclass
class _Cut:
    """Replaces the stream at one half-step of a block by a tensor of ours, and catches that half-step's branch."""

    half: int
    x: Tensor
    seen: int = 0
    branch: Tensor | None = None

    def entered(self, block: Block, site: int, stream: Tensor) -> None:
        """See `stream.Watcher`."""

    def added(self, step: HalfStep) -> Tensor:
        """See `stream.Watcher`."""
        if self.seen == self.half:
            self.branch = step.branch
        self.seen += 1
        return self.x if self.seen == self.half else step.after

    def left(self, block: Block, site: int, before: Tensor, after: Tensor) -> None:
        """Nothing is seen here."""


def branch_of(block: Block, calls: Calls, half: int) -> Callable[[Tensor], Tensor]:
    """The map from the stream at half-step `half` of a block to that half-step's branch."""
    args, kwargs = calls.rest[block]
    start = calls.streams[block]

    def branch(x: Tensor) -> Tensor:
        cut = _Cut(half, x)
        with watching([block], cut):
            block.module(x if half == 0 else start, *args, **kwargs)
        assert cut.branch is not None
        return cut.branch

    return branch


def inner_of(block: Block, calls: Calls, norm: nn.Module | None, writer: nn.Module) -> Callable[[Tensor], Tensor]:
    """The map from the output of a branch's input norm to what its last matrix gives; without a norm, from the stream.

    Where two branches share the norm, both see the new value.
    """
    args, kwargs = calls.rest[block]
    start = calls.streams[block]

    def inner(z: Tensor) -> Tensor:
        caught: list[Tensor] = []
        with ExitStack() as stack:
            if norm is not None:
                stack.callback(
                    norm.register_forward_hook(lambda module, inputs, output: z.reshape(output.shape)).remove
                )
            stack.callback(writer.register_forward_hook(lambda module, inputs, out: caught.append(_tensor(out))).remove)
            block.module(z if norm is None else start, *args, **kwargs)
        return caught[-1]

    return inner


def sensitivity_rows(
    blocks: Sequence[Block], calls: Calls, norms: dict[tuple[Block, str], nn.Module], rounds: int,
    advance: Callable[[], None] = lambda: None,
) -> Iterator[Row]:  # fmt: skip
    """Rows of both measures for every half-step; `norms` gives the input norm of a block's branch, where it has one."""
    sites: dict[str, int] = {}
    for block in blocks:
        x = calls.streams[block]
        writers = {kind: module for module, kind in block.writers.items()}
        for half, kind in enumerate(calls.adds[block]):
            site = sites.get(block.stack, 0)
            sites[block.stack] = site + 1
            base = {"stack": block.stack or None, "layer": block.layer, "site": site, "kind": kind, "unit": "1"}
            at = x if half == 0 else calls.sums[block][half - 1]
            local = jacobian_norm(branch_of(block, calls, half), at, rounds, key=f"{block.stack}/{block.layer}/{half}")
            yield _row(local, local.value, "sensitivity.local", base)
            if kind in writers:
                norm = norms.get((block, kind))
                inner = inner_of(block, calls, norm, writers[kind])
                z = at if norm is None else _normed(block, calls, norm)
                with torch.no_grad():
                    spread = float(inner(z).float().std(dim=-1, correction=0).mean())
                found = jacobian_norm(inner, z, rounds, key=f"inner/{block.stack}/{block.layer}/{half}")
                yield _row(found, found.value / spread if spread > 0 else float("inf"), "sensitivity.relative", base)
            advance()


def _row(found: JacobianNorm, value: float, measure: str, base: dict[str, Any]) -> Row:
    """Power iteration gives the norm from below; its last relative change is the doubt."""
    if not torch.isfinite(torch.tensor(value)):
        return Row(**base, measure=measure, status="non-finite",
                   reason="the branch or its derivative is not finite here, or the branch is constant")  # fmt: skip
    return Row(**base, measure=measure, value=value, stderr=found.change * value, n=found.rounds)


def _normed(block: Block, calls: Calls, norm: nn.Module) -> Tensor:
    caught: list[Tensor] = []
    args, kwargs = calls.rest[block]
    handle = norm.register_forward_hook(lambda module, inputs, output: caught.append(output.detach()))
    with torch.no_grad():
        block.module(calls.streams[block], *args, **kwargs)
    handle.remove()
    return caught[0].reshape(calls.streams[block].shape)


def _tensor(output: Any) -> Tensor:
    found: Tensor = output if isinstance(output, Tensor) else output[0]
    return found
