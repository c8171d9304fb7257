"""The token counts that a survey is asked for."""

from pathlib import Path

from drillcore.data.token_counts import Counts, counts_from_file, counts_from_text
from drillcore.weights import InputError
from drillcore.weights.hub import cached_model


def token_counts(target: object, tokens: Path | None, text: Path | None) -> Counts | None:
    """Counts by id from either file, or None where neither is given; the tokenizer lies beside the checkpoint.

    Raises:
        InputError: both are given, or the checkpoint is a live module, which has no tokenizer.
        DataError: a file cannot be used.
    """
    if tokens is not None and text is not None:
        raise InputError("give token ids or a text, not both", where="--tokens, --text", remedy="leave one out")
    if tokens is not None:
        return counts_from_file(tokens)
    if text is None:
        return None
    if not isinstance(target, str | Path):
        raise InputError("a live module has no tokenizer", where="text", remedy="count its tokens and give `tokens`")
    path = Path(target).expanduser()
    folder = path if path.is_dir() else path.parent if path.exists() else cached_model(str(target)) or path
    return counts_from_text(text, folder / "tokenizer.json")
