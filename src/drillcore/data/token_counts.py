"""How often each token of a vocabulary occurs: from token ids, from a table of counts, or from text and a tokenizer."""

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from drillcore.data.errors import DataError
from drillcore.data.text import read_text

Counts = np.ndarray[Any, np.dtype[np.int64]]

_LINES = 4096  # encoded at once


def counts_from_file(path: Path) -> Counts:
    """Counts by token id from a file: .npy of ids, .csv with the columns id and count, or ids as words in a text file.

    Raises:
        DataError: the file cannot be read, or holds something else; says what.
    """
    path = Path(path)
    if path.suffix == ".npy":
        ids = _array(path)
    elif path.suffix == ".csv":
        return _table(path)
    else:
        ids = _words(path)
    if ids.size == 0 or ids.min() < 0:
        raise DataError(f"{path} holds {'no token id' if ids.size == 0 else 'a negative token id'}")
    return np.bincount(ids.ravel()).astype(np.int64)


def counts_from_text(path: Path, tokenizer: Path) -> Counts:
    """Counts by token id in a text, without special tokens, by a `tokenizer.json`.

    Raises:
        DataError: the text or the tokenizer cannot be read, or the `tokenizers` package is missing.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise DataError("counting the tokens of a text needs tokenizers: pip install 'drillcore[hf]'") from error
    _check_tokenizer(Path(tokenizer))
    found = Tokenizer.from_file(str(tokenizer))
    found.no_truncation()
    found.no_padding()
    counts = np.zeros(found.get_vocab_size(with_added_tokens=True), np.int64)
    lines = read_text(path).splitlines(keepends=True)
    for start in range(0, len(lines), _LINES):
        encoded = found.encode_batch(lines[start : start + _LINES], add_special_tokens=False)
        ids = np.fromiter((i for one in encoded for i in one.ids), np.int64)
        counts += np.bincount(ids, minlength=len(counts))[: len(counts)]
    return counts


def _check_tokenizer(path: Path) -> None:
    """tokenizers itself raises bare exceptions."""
    if not path.is_file():
        raise DataError(f"there is no {path} to cut the text with; give the counts themselves with --tokens FILE")
    try:
        model = json.loads(read_text(path)).get("model")
    except (json.JSONDecodeError, AttributeError) as error:
        raise DataError(f"{path} is no tokenizer: {error}") from error
    if not isinstance(model, dict) or "vocab" not in model:
        raise DataError(f"{path} is no tokenizer: it has no vocabulary")


def zipf_exponent(counts: Counts) -> float:
    """Minus the slope of ln count on ln rank, over 1,000 ranks even in their logarithm (arXiv 2505.10465, appendix).

    Raises:
        DataError: fewer than ten different tokens occur.
    """
    ranked = np.sort(counts[counts > 0])[::-1]
    if len(ranked) < 10:
        raise DataError(f"only {len(ranked)} different tokens occur: too few for a law of their frequencies")
    ranks = np.unique(np.round(10 ** np.linspace(0, np.log10(len(ranked)), 1000)).astype(np.int64))
    return float(-np.polyfit(np.log(ranks), np.log(ranked[ranks - 1]), 1)[0])


def _array(path: Path) -> Counts:
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} is not a NumPy array of token ids: {error}") from error
    if not isinstance(found, np.ndarray) or not np.issubdtype(found.dtype, np.integer):
        raise DataError(f"{path} holds {getattr(found, 'dtype', 'no array')}, not whole numbers: token ids are wanted")
    return found.astype(np.int64)


def _words(path: Path) -> Counts:
    try:
        return np.array(read_text(path).split(), dtype=np.int64)
    except (ValueError, OverflowError) as error:
        raise DataError(f"{path} does not hold token ids: {error}; for text give --text FILE") from error


def _table(path: Path) -> Counts:
    reader = csv.DictReader(read_text(path).splitlines())
    if not {"id", "count"} <= set(reader.fieldnames or ()):
        raise DataError(f"{path} needs the columns id and count; it has {', '.join(reader.fieldnames or ()) or 'none'}")
    pairs = list(_pairs(path, reader))
    counts = np.zeros(max((i for i, _ in pairs), default=-1) + 1, np.int64)
    for i, count in pairs:
        counts[i] += count
    if not counts.sum():
        raise DataError(f"{path} counts no token")
    return counts


def _pairs(path: Path, reader: Iterable[dict[str, str]]) -> Iterable[tuple[int, int]]:
    for line, row in enumerate(reader, start=2):
        try:
            i, count = int(row["id"]), int(row["count"])
        except (TypeError, ValueError) as error:
            raise DataError(f"{path}, line {line}: id and count are whole numbers, not {row}") from error
        if i < 0 or count < 0:
            raise DataError(f"{path}, line {line}: id and count are 0 or more, not {i} and {count}")
        yield i, count
