"""A live torch.nn.Module: its state dict is the checkpoint, its config the configuration."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from drillcore.weights.source import Config, InputError, Note
from drillcore.weights.tied import settle_ties
from drillcore.weights.torch_files import tensor_spec


class ModuleSource:
    """The weights of a module in memory, as they are when read: nothing is copied."""

    def __init__(self, module: nn.Module, *, config: Config | None = None) -> None:
        self.label = type(module).__name__
        state = module.state_dict()  # without the buffers that the module does not save
        self._tensors = {name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor)}
        _refuse_meta(self._tensors, self.label)
        others = [Note(name, "ignored", f"a {type(value).__name__}, not a tensor")
                  for name, value in state.items() if name not in self._tensors]  # fmt: skip
        specs = {name: tensor_spec(name, tensor) for name, tensor in self._tensors.items()}
        own = module_config(module) if config is None else config
        self.specs, tied, self.config = settle_ties(specs, self._tensors, own)
        self.notes = (*others, *tied)

    def read(self, name: str, rows: slice | None = None) -> Tensor:
        """See `Source.read`."""
        tensor = self._tensors[name].detach()
        return tensor if rows is None else tensor[rows]


def module_config(module: nn.Module) -> Config:
    """The configuration that a Hugging Face model carries, or an empty one."""
    config: Any = getattr(module, "config", None)
    to_dict = getattr(config, "to_dict", None)
    found = to_dict() if callable(to_dict) else config
    return found if isinstance(found, Mapping) else {}


def _refuse_meta(tensors: Mapping[str, Tensor], label: str) -> None:
    empty = [name for name, tensor in tensors.items() if tensor.is_meta]
    if empty:
        raise InputError(f"{len(empty)} of its {len(tensors)} tensors are on the meta device and hold no numbers, "
                         f"first {empty[0]!r}", where=label,
                         remedy="load the weights first, or give the checkpoint's folder instead")  # fmt: skip
