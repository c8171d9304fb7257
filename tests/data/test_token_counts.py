"""Token counts from every kind of file, and what is said of bad ones."""

import json
from pathlib import Path

import numpy as np
import pytest

from drillcore.data.errors import DataError
from drillcore.data.token_counts import counts_from_file, counts_from_text, zipf_exponent


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_ids_and_counts_say_the_same(tmp_path: Path) -> None:
    ids = np.array([[3, 0, 3], [1, 3, 0]], dtype=np.int32)
    np.save(tmp_path / "ids.npy", ids)
    words = write(tmp_path / "ids.txt", "3 0 3\n1 3 0\n")
    table = write(tmp_path / "counts.csv", "count,id\n2,0\n1,1\n2,3\n1,3\n")
    for path in (tmp_path / "ids.npy", words, table):
        assert counts_from_file(path).tolist() == [2, 1, 0, 3]


@pytest.mark.parametrize(("name", "text", "told"), [
    ("a.txt", "one two", "--text"), ("b.txt", "1 -2", "negative"), ("c.csv", "token,n\n1,2\n", "id and count"),
    ("d.csv", "id,count\n1,x\n", "line 2"), ("e.csv", "id,count\n-1,3\n", "line 2"),
    ("f.csv", "id,count\n4,0\n", "counts no"),
    ("g.npy", "not an array", "NumPy"),
])  # fmt: skip
def test_bad_files_are_named_with_what_is_wrong(tmp_path: Path, name: str, text: str, told: str) -> None:
    with pytest.raises(DataError, match=told) as error:
        counts_from_file(write(tmp_path / name, text))
    assert name in str(error.value)


def test_an_array_of_reals_or_of_nothing_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones(3))
    with pytest.raises(DataError, match="float64"):
        counts_from_file(tmp_path / "x.npy")
    np.save(tmp_path / "y.npy", np.ones(0, np.int64))
    with pytest.raises(DataError, match="no token id"):
        counts_from_file(tmp_path / "y.npy")


def tokenizer(folder: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({"<unk>": 0, "the": 1, "drill": 2}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_text_is_cut_by_the_tokenizer(tmp_path: Path) -> None:
    text = write(tmp_path / "text.txt", "the drill\nthe core the\n")
    assert counts_from_text(text, tokenizer(tmp_path)).tolist() == [1, 3, 1]


@pytest.mark.parametrize(("content", "told"), [("{", "no tokenizer"), (json.dumps({"model": {}}), "no vocabulary")])
def test_a_broken_tokenizer_is_told(tmp_path: Path, content: str, told: str) -> None:
    text = write(tmp_path / "text.txt", "the")
    with pytest.raises(DataError, match=told):
        counts_from_text(text, write(tmp_path / "tokenizer.json", content))
    with pytest.raises(DataError, match="--tokens FILE"):
        counts_from_text(text, tmp_path / "none.json")


def test_zipf_exponent_of_a_power_law() -> None:
    counts = (1e9 * np.arange(1, 5001) ** -1.1).astype(np.int64)
    assert zipf_exponent(np.random.default_rng(0).permutation(counts)) == pytest.approx(1.1, abs=1e-3)
    with pytest.raises(DataError, match="too few"):
        zipf_exponent(np.array([5, 4, 0, 1]))
