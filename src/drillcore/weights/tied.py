"""Tensors that share their bytes: one is offered, the others are named, so that nothing is counted twice."""

import re
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from drillcore.weights.source import Config, Note, TensorSpec


def settle_ties(
    specs: Mapping[str, TensorSpec], tensors: Mapping[str, Tensor], config: Config
) -> tuple[dict[str, TensorSpec], list[Note], Config]:
    """Offer each memory once: (specs without the tied names, notes of these, the configuration).

    A layer that reuses another layer's weights (names that differ only in numbers) stays on offer with zero bytes,
    since the network does apply it there. A head that is the embedding becomes a note, and the configuration says so.
    """
    first: dict[tuple[object, ...], str] = {}
    kept, notes = dict(specs), []
    for name, tensor in tensors.items():
        if name not in specs or tensor.numel() == 0:
            continue
        memory = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        owner = first.setdefault(memory, name)
        if owner == name:
            continue
        if _NUMBER.sub("#", owner) == _NUMBER.sub("#", name):
            kept[name] = replace(specs[name], nbytes=0)
        else:
            notes.append(Note(name, "tied", f"shares the bytes of {owner}", spec=kept.pop(name)))
    if any(note.spec is not None and len(note.spec.shape) == 2 for note in notes):
        config = {**config, "tie_word_embeddings": True}
    return kept, notes, config


_NUMBER = re.compile(r"\d+")
