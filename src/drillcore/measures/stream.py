"""The true residual stream of a model, seen while it runs: every add, told apart into stream and branch.

Nothing is known of the model but which modules are its blocks. A block's input is the stream; wherever the block adds
something to the stream (or to its norm, as post-norm models do) the result is the stream after that half-step. This
holds whatever the block calls its modules and wherever its norms stand, and it does not depend on `hidden_states`,
whose last entry is taken after the final norm.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_ADDS = frozenset({torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__})
_SCALES = frozenset({torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__})
_VIEWS = frozenset({torch.reshape, Tensor.reshape, Tensor.view})
_BRANCHES = {"o": "attention", "cross_o": "cross", "down": "mlp", "shared_down": "mlp"}


@dataclass(frozen=True, eq=False)
class Block:
    """One layer of one stack, equal to itself only: its module, and those whose output says which branch it is."""

    stack: str
    layer: int
    module: nn.Module
    writers: Mapping[nn.Module, str] = field(default_factory=dict)  # module → "attention", "cross" or "mlp"


@dataclass(frozen=True)
class HalfStep:
    """One residual add: after = stream + branch. Tensors are batch × positions × width, as the model has them."""

    block: Block
    site: int  # of the stream before, in its stack, from 0
    kind: str  # attention, cross, mlp, parallel (both in one add), or branch where it is not known
    before: Tensor
    branch: Tensor
    after: Tensor
    direct: bool  # `before` is what the last add gave, not a norm or a multiple of it


class Watcher(Protocol):
    """What looks at the stream."""

    def entered(self, block: Block, site: int, stream: Tensor) -> None:
        """A block begins."""
        ...

    def added(self, step: HalfStep) -> Tensor:
        """A residual add; what is returned goes on in the model's place of `after`."""
        ...

    def left(self, block: Block, site: int, before: Tensor, after: Tensor) -> None:
        """A block has ended; `before` and `after` are its input and output."""
        ...


class _Recorder(TorchFunctionMode):
    """Follows the stream through one block at a time, by the identity of tensors."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self.watcher = watcher
        self.block: Block | None = None
        self.stream: Tensor | None = None
        self.aliases: list[Tensor] = []  # norms and multiples of the stream, which some models add to
        self.views: list[Tensor] = []  # the stream with its positions flattened
        self.written: dict[str, Any] = {}  # kind → what its writer gave, since the last add
        self.shape = torch.Size()
        self.sites: dict[str, int] = {}

    def enter(self, block: Block, stream: Tensor) -> None:
        self.block, self.stream, self.aliases, self.written = block, stream, [], {}
        self.shape, self.views = stream.shape, []
        self.watcher.entered(block, self.sites.setdefault(block.stack, 0), stream)

    def leave(self, before: Tensor, after: Tensor) -> None:
        assert self.block is not None
        self.watcher.left(self.block, self.sites[self.block.stack], before, after)
        self.block, self.stream, self.aliases = None, None, []

    def normed(self, module: nn.Module, args: tuple[Any, ...], after: Any) -> None:
        """A norm was applied; its output counts as the stream where its input did."""
        if args and isinstance(after, Tensor) and self._is_stream(args[0]):
            self.aliases.append(after)

    def wrote(self, kind: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """The last matrix of a branch was applied."""
        self.written[kind] = output

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.block is None or func not in _ADDS | _SCALES | _VIEWS:
            return func(*args, **kwargs)
        if func in _VIEWS:
            return self._viewed(args[0], func(*args, **kwargs))
        if len(args) != 2:
            return func(*args, **kwargs)
        first, second = args
        if func in _SCALES:
            result = func(first, second)
            if self._scaled(first, second) or self._scaled(second, first):
                self.aliases.append(result)
            return result
        for stream, branch in ((first, second), (second, first)):
            if self._is_stream(stream) and isinstance(branch, Tensor) and branch.shape == stream.shape:
                return self._add(stream, branch, kwargs.get("alpha", 1) if branch is second else 1)
        return func(first, second, **kwargs)

    def _add(self, stream: Tensor, branch: Tensor, alpha: float) -> Tensor:
        """The add, never in place: both operands are still looked at, in the shape of the block's input."""
        assert self.block is not None
        site, shape = self.sites[self.block.stack], stream.shape
        branch = branch if alpha == 1 else branch * alpha
        before, added, after = (_shaped(x, self.shape) for x in (stream, branch, stream + branch))
        direct = stream is self.stream or any(stream is view for view in self.views)
        step = HalfStep(self.block, site, self._kind(branch), before, added, after, direct)
        after = _shaped(self.watcher.added(step), shape)
        self.sites[self.block.stack] = site + 1
        self.stream, self.aliases, self.views = after, [], []
        return after

    def _viewed(self, before: object, after: Tensor) -> Tensor:
        """A model may flatten the positions before it adds; its heads are not the stream."""
        if after.shape[-1:] == self.shape[-1:] and self._is_stream(before):
            (self.views if before is self.stream else self.aliases).append(after)
        return after

    def _is_stream(self, tensor: object) -> bool:
        return tensor is self.stream or any(tensor is known for known in (*self.aliases, *self.views))

    def _scaled(self, tensor: object, factor: object) -> bool:
        single = isinstance(factor, int | float) or (isinstance(factor, Tensor) and factor.dim() == 0)
        return single and self._is_stream(tensor)

    def _kind(self, branch: Tensor) -> str:
        """Of which writer the branch is, or which have run since the last add."""
        for kind, output in self.written.items():
            if output is branch:
                del self.written[kind]
                return kind
        kind = "parallel" if len(self.written) > 1 else next(iter(self.written), "branch")
        self.written = {}
        return kind


def _shaped(x: Tensor, shape: torch.Size) -> Tensor:
    """The same tensor where it has the shape: who holds it is told by its identity."""
    return x if x.shape == shape else x.reshape(shape)


@contextmanager
def watching(blocks: Sequence[Block], watcher: Watcher) -> Iterator[None]:
    """Within it every run of the blocks is followed and told to the watcher.

    Hooks are taken away at the end. A model that is compiled, or whose block is one fused kernel, shows no adds.
    """
    recorder = _Recorder(watcher)
    with ExitStack() as stack:
        norms = {m for block in blocks for m in block.module.modules() if "norm" in type(m).__name__.lower()}
        for block in blocks:
            _hook_block(block, recorder, stack)
            for module, kind in block.writers.items():
                stack.callback(module.register_forward_hook(partial(recorder.wrote, kind)).remove)
        for norm in norms:
            stack.callback(norm.register_forward_hook(recorder.normed).remove)
        stack.enter_context(recorder)
        yield


def _hook_block(block: Block, recorder: _Recorder, stack: ExitStack) -> None:
    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        recorder.enter(block, _stream_of(args, kwargs))

    def after(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        recorder.leave(_stream_of(args, kwargs), output if isinstance(output, Tensor) else output[0])

    stack.callback(block.module.register_forward_pre_hook(before, with_kwargs=True).remove)
    stack.callback(block.module.register_forward_hook(after, with_kwargs=True).remove)


def _stream_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    found = args[0] if args else kwargs.get("hidden_states", next(iter(kwargs.values()), None))
    if not isinstance(found, Tensor):
        raise TypeError(f"a block's first argument is {type(found).__name__}, not the stream")
    return found


def blocks_of(model: nn.Module, writers: Mapping[tuple[str, int], Mapping[str, str]]) -> list[Block]:
    """The blocks of a model from the names of the tensors that its layers hold.

    Args:
        model: the live module.
        writers: (stack, layer) → tensor name → kind, of every matrix of the layer.

    Returns:
        One block a layer: the smallest module that holds all of the layer's matrices.
    """
    modules = dict(model.named_modules())
    found = []
    for (stack, layer), tensors in sorted(writers.items()):
        owners = {name: modules[name.rpartition(".")[0]] for name in tensors}
        common = _common([name.split(".") for name in tensors])
        while isinstance(modules[common], nn.ModuleList):  # it only holds the parts of a layer
            common = common.rpartition(".")[0]
        own = {owners[name]: _BRANCHES[kind] for name, kind in tensors.items() if kind in _BRANCHES}
        found.append(Block(stack, layer, modules[common], own))
    return found


def _common(paths: Sequence[Sequence[str]]) -> str:
    """The longest path that begins all of these, without the last part of any."""
    shared = []
    for parts in zip(*(path[:-1] for path in paths), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)
