"""Signal: run a model on text and say what its true residual stream does, forward and backward."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from drillcore.measures.signal import Overflow, first_overflow
from drillcore.progress import Progress, Step, unwatched
from drillcore.runs import write_text
from drillcore.table import Row, Table
from drillcore.verbs.provenance import provenance
from drillcore.verbs.running import Running, load, require_memory, tokens_of
from drillcore.verbs.signal_findings import findings
from drillcore.verbs.signal_pass import backward_pass, forward_pass, sensitivity_pass, transport_pass
from drillcore.weights import InputError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PROBED = 64  # tokens on which sensitivity is measured


@dataclass(frozen=True)
class Needs:
    """Bytes that a run needs at once, as far as shapes tell."""

    weights: int
    gradients: int
    activations: int  # block inputs, one block at work, logits

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.activations


@dataclass(frozen=True)
class Signal:
    """The result: rows, the first places out of range, what was seen of the model, provenance."""

    rows: Table
    overflows: tuple[Overflow, ...]
    needs: Needs
    provenance: Mapping[str, Any]

    @property
    def findings(self) -> list[str]:
        """What was seen, in sentences."""
        return list(findings(self.rows, self.overflows))

    def save(self, folder: Path) -> list[Path]:
        """Write rows.parquet and signal.json into `folder`, each atomically."""
        rows, summary = Path(folder) / "rows.parquet", Path(folder) / "signal.json"
        self.rows.save(rows)
        value = {
            "findings": self.findings, "overflows": [asdict(o) for o in self.overflows], "needs": asdict(self.needs),
            "provenance": dict(self.provenance),
        }  # fmt: skip
        write_text(summary, json.dumps(value, indent=1, ensure_ascii=False))
        return [rows, summary]


def signal(
    target: object, *, text: Path | None = None, tokens: Tensor | None = None, tokenizer: str | None = None,
    context: int | None = None, windows: int = 8, batch: int = 4, backward: bool = True, sensitivity: bool = True,
    rounds: int = 12, dtype: Literal["float32", "bfloat16", "float16"] = "float32", device: str = "cpu",
    roles: Path | None = None, told: Callable[[Needs], None] = lambda needs: None,
    progress: Progress = unwatched,
) -> Signal:  # fmt: skip
    """Run a model and measure its residual stream at every half-step.

    Args:
        target: a folder, a Hugging Face id, or a live ``torch.nn.Module`` that takes tokens (windows × positions).
        text: a UTF-8 file, plain or .gz.
        tokens: windows × positions of tokens instead of a text.
        tokenizer: folder or id of a tokenizer, where the model's folder has none.
        context: tokens in a window; 512, or what the model takes, by default.
        windows: how many windows of the text.
        batch: windows that run at once; the backward pass takes one batch.
        backward: measure gradients too.
        sensitivity: measure ‖∂branch/∂x‖ and κ of every half-step by power iteration, on 64 tokens.
        rounds: of that iteration, at most.
        dtype: of the run. In float16 an overflow is seen, in float32 it is foretold.
        device: "cpu" or a CUDA device.
        roles: a TOML file that gives the roles of an unknown family.
        told: called with the memory that is needed before the first pass.
        progress: called after every step.

    Raises:
        InputError: the model or an option cannot be used; says what to do.
        DataError: the text is missing, empty, binary or too short.
    """
    started = time.perf_counter()
    _check(windows, batch, rounds, context)
    running = load(target, dtype=DTYPES[dtype], device=device, roles=roles)
    ids = tokens_of(running, text=text, given=tokens, tokenizer=tokenizer, context=context, count=windows).to(device)
    needs = needed(running, ids[:batch], backward=backward)
    told(needs)
    require_memory(needs.total - needs.weights, device, running.label)
    looked = forward_pass(running, ids, batch, _steps("forward", len(ids), progress))
    if not looked.branches:
        raise InputError("no residual add was seen in its blocks (a compiled model, or another kind of block)",
                         where=running.label, remedy="give the model as plain modules")  # fmt: skip
    rows, back, loss = [*looked.rows(), *transport_pass(running, looked)], None, None
    if backward:
        progress(Step("backward", 0, 1))
        back, more, loss = backward_pass(running, ids[:batch])
        rows += [*back.rows(), *more]
    if sensitivity:
        probed = ids[:1, :PROBED]
        rows += sensitivity_pass(running, probed, rounds, _steps("sensitivity", len(looked.branches), progress))
    settings = {
        "text": None if text is None else str(text), "windows": len(ids), "context": ids.shape[1], "batch": batch,
        "backward": backward, "sensitivity": sensitivity, "rounds": rounds, "dtype": dtype, "device": device,
    }  # fmt: skip
    facts = {
        **provenance(running.source, settings, time.perf_counter() - started), "source": running.label, "loss": loss,
        "model": type(running.model).__name__, "family": running.assignment.census.family,
        "random_parameters": list(running.fresh), "branch_order": branch_order(rows),
    }  # fmt: skip
    table = Table(tuple(replace(row, source=running.label) for row in rows), facts)
    return Signal(table, tuple(first_overflow(looked, back)), needs, facts)


def branch_order(rows: list[Row]) -> list[str]:
    """The kinds of branch, as they come."""
    return list(dict.fromkeys(row.kind for row in rows if row.kind and row.measure.startswith("branch.")))


def needed(running: Running, ids: Tensor, *, backward: bool) -> Needs:
    """Bytes by shapes: a block holds about 16 streams and 3 maps of attention while it works (estimate)."""
    parameters = list(running.model.parameters())
    size = parameters[0].element_size()
    weights = sum(p.numel() for p in parameters) * size
    batch, length = ids.shape
    width = max((w.shape[1] for w in running.assignment.weights if w.role.reads == "residual"), default=1)
    heads = getattr(running.config, "num_attention_heads", None) or 1
    vocabulary = getattr(running.config, "vocab_size", None) or 1
    stream = batch * length * width * size
    working = 16 * stream + 3 * batch * heads * length * length * size + 3 * batch * length * vocabulary * 4
    kept = (len(running.blocks) + 1) * stream if backward else stream
    return Needs(weights, weights if backward else 0, kept + working)


def _steps(what: str, total: int, progress: Progress) -> Callable[[int], None]:
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(Step(what, done, total))

    progress(Step(what, 0, total))
    return advance


def _check(windows: int, batch: int, rounds: int, context: int | None) -> None:
    for name, value in (("--windows", windows), ("--batch", batch), ("--rounds", rounds), ("--context", context)):
        if value is not None and value < (2 if name == "--context" else 1):
            raise InputError(f"{value} is too few", where=name)
