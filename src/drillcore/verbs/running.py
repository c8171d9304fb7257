"""Load a model that can be run: from a folder or the hub through transformers, or as it is given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drillcore.data.text import characters_for, read_text, windows
from drillcore.measures.stream import Block, blocks_of
from drillcore.weights import Assignment, InputError, Source, assign, open_source
from drillcore.weights.hub import find_model

_HF = "install it with: pip install 'drillcore[hf]'"


@dataclass(frozen=True)
class Running:
    """A model in memory, in evaluation mode, its roles and its blocks."""

    model: nn.Module
    label: str
    source: Source
    assignment: Assignment
    blocks: tuple[Block, ...]
    place: Path | None = None  # the folder it came from
    fresh: tuple[str, ...] = field(default=())  # parameters that the checkpoint lacks: they hold random numbers

    @property
    def config(self) -> Any:
        """The configuration of a Hugging Face model; None for others."""
        return getattr(self.model, "config", None)

    def run(self, ids: Tensor) -> Any:
        """One pass over tokens (windows × positions)."""
        if self.config is None:
            return self.model(ids)
        more = {"decoder_input_ids": ids} if getattr(self.config, "is_encoder_decoder", False) else {}
        return self.model(input_ids=ids, use_cache=False, **more) if self._takes("use_cache") else self.model(
            input_ids=ids, **more
        )  # fmt: skip

    def _takes(self, name: str) -> bool:
        from inspect import signature

        return name in signature(self.model.forward).parameters


def load(target: object, *, dtype: torch.dtype, device: str, roles: Path | None = None) -> Running:
    """Make a model ready to run.

    Raises:
        InputError: it cannot be loaded, does not fit into memory, or has no blocks that are known.
    """
    if isinstance(target, nn.Module):
        return _ready(target, type(target).__name__, None, (), roles)
    path = Path(str(target)).expanduser()
    path = path if path.exists() else find_model(str(target))
    if not path.is_dir():
        raise InputError("is one file; to run a model its folder is needed, with config.json", where=path,
                         remedy="give the folder")  # fmt: skip
    source = open_source(path)
    numbers = sum(_count(spec.shape) for spec in source.specs.values())
    require_memory(numbers * dtype.itemsize, device, path)
    model, fresh = _from_folder(path, dtype, source.config)
    return _ready(model.to(device), str(target), path, fresh, roles)


def _ready(model: nn.Module, label: str, place: Path | None, fresh: Sequence[str], roles: Path | None) -> Running:
    source = open_source(model)
    assignment = assign(source, roles=roles)
    writers: dict[tuple[str, int], dict[str, str]] = {}
    for weight in assignment.weights:
        if weight.role.layer is not None:
            writers.setdefault((weight.role.stack, weight.role.layer), {})[weight.tensor] = weight.role.kind
    if not writers:
        raise InputError("no layer was recognised, so its blocks are not known", where=label,
                         remedy="see `drillcore describe`, or name the roles with --roles FILE")  # fmt: skip
    return Running(model.eval(), label, source, assignment, tuple(blocks_of(model, writers)), place, tuple(fresh))


def _from_folder(path: Path, dtype: torch.dtype, config: Mapping[str, Any]) -> tuple[nn.Module, list[str]]:
    transformers = _transformers(path)
    if config.get("auto_map"):
        raise InputError("its code is not part of transformers and would have to be executed", where=path,
                         remedy="load it yourself and call drillcore.signal(model, ...) from Python")  # fmt: skip
    known = [getattr(transformers, name, None) for name in config.get("architectures") or ()]
    cls = next((c for c in known if c is not None), transformers.AutoModel)
    try:
        model, info = cls.from_pretrained(
            path, dtype=dtype, attn_implementation="eager", local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise InputError(f"transformers cannot load it: {_first_line(error)}", where=path) from error
    fresh = sorted(info["missing_keys"])
    if broken := sorted(str(key) for key in info["mismatched_keys"]):
        raise InputError(f"{len(broken)} tensors have another shape than the configuration says, first {broken[0]}",
                         where=path)  # fmt: skip
    return model, fresh


def _transformers(path: object) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise InputError("to run a model, transformers is needed", where=path, remedy=_HF) from error
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def tokens_of(
    running: Running, *, text: Path | None, given: Tensor | None, tokenizer: str | None, context: int | None, count: int
) -> Tensor:
    """Windows of tokens (count × context) for the model: those given, or of a text.

    Raises:
        InputError: no text and no tokens; no tokenizer; tokens that the model does not know.
        DataError: the text is empty, binary or too short.
    """
    if given is None and text is None:
        raise InputError(
            "there is nothing to run the model on", where=running.label, remedy="give a text (--text FILE)"
        )
    if given is None:
        assert text is not None
        length = min(context or 512, _longest(running))
        coder = _tokenizer(tokenizer or running.place, running)
        raw = coder(read_text(text, characters_for(length * count)), add_special_tokens=False)["input_ids"]
        special = coder("")["input_ids"]
        given = windows(raw, length, count, before=special[:1], after=special[1:2])
    vocabulary = getattr(running.config, "vocab_size", None)
    if vocabulary is not None and given.numel() and int(given.max()) >= vocabulary:
        raise InputError(f"token {int(given.max())} is beyond its vocabulary of {vocabulary}", where=running.label,
                         remedy="give the tokenizer that belongs to it (--tokenizer)")  # fmt: skip
    if given.dim() != 2 or given.numel() == 0:
        raise InputError(f"tokens are windows × positions, these are {list(given.shape)}", where=running.label)
    return given.long()


def _longest(running: Running) -> int:
    names = ("max_position_embeddings", "n_positions", "max_seq_len")
    found = [getattr(running.config, name, None) for name in names]
    longest = next((int(n) for n in found if isinstance(n, int) and n > 0), 1 << 20)
    return (
        longest - 2 if getattr(running.config, "model_type", "") in ("roberta", "xlm-roberta", "camembert") else longest
    )


def _tokenizer(place: object, running: Running) -> Any:
    if place is None:
        raise InputError("a model in memory brings no tokenizer", where=running.label,
                         remedy="give tokenizer=FOLDER, or tokens")  # fmt: skip
    transformers = _transformers(place)
    try:
        return transformers.AutoTokenizer.from_pretrained(str(place), local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise InputError(f"no tokenizer could be loaded: {_first_line(error)}", where=place,
                         remedy="give the folder of its tokenizer (--tokenizer)") from error  # fmt: skip


def require_memory(nbytes: int, device: str, where: object) -> None:
    """Refuse what cannot fit before anything is loaded.

    Raises:
        InputError: less memory is free.
    """
    free = free_memory(device)
    if free is not None and nbytes > free:
        raise InputError(f"needs {nbytes / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free", where=where,
                         remedy="run it where there is more memory, or in bfloat16 (--dtype)")  # fmt: skip


def free_memory(device: str) -> int | None:
    """Free bytes of a device; None where the system does not say."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)


def _count(shape: Sequence[int]) -> int:
    total = 1
    for side in shape:
        total *= side
    return total


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
