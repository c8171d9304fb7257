"""Text from files, and its tokens cut into windows."""

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from drillcore.data.errors import DataError

_ENOUGH = 16  # characters a token: more than any tokenizer takes on average


def read_text(path: Path, characters: int | None = None) -> str:
    """The text of a UTF-8 file, plain or .gz; at most so many characters from its beginning.

    Raises:
        DataError: it is missing, empty or binary.
    """
    path = Path(path)
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            found = file.read(-1 if characters is None else characters)
    except IsADirectoryError as error:
        raise DataError(f"{path} is a folder; give a text file") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text: byte {error.start} is no UTF-8; give a plain text file") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if "\0" in found:
        raise DataError(f"{path} is not text: it holds zero bytes; give a plain text file")
    if not found.strip():
        raise DataError(f"{path} holds no text")
    return found


def characters_for(tokens: int) -> int:
    """Characters that surely hold so many tokens."""
    return tokens * _ENOUGH


def windows(ids: Sequence[int], length: int, count: int, *, before: Sequence[int] = (), after: Sequence[int] = ()) \
        -> Tensor:  # fmt: skip
    """`count` windows (count × length) of consecutive tokens, each between the special tokens `before` and `after`.

    Raises:
        DataError: the text is too short for one window.
    """
    room = length - len(before) - len(after)
    found = min(count, len(ids) // room) if room > 0 else 0
    if found < 1:
        raise DataError(
            f"the text has {len(ids)} tokens, a window of {length} needs {max(room, 1)}; "
            "give a longer text or shorter windows (--context)"
        )
    cut = [[*before, *ids[i * room : (i + 1) * room], *after] for i in range(found)]
    return torch.tensor(cut)
