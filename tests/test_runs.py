"""Atomic writes: the old file or the new one, never half of one."""

from pathlib import Path

import pytest

from drillcore.runs import atomic_path, write_text
from drillcore.seeds import generator, seed_of


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    write_text(path, "old")
    for error in (OSError(28, "No space left on device"), KeyboardInterrupt()):
        with pytest.raises(type(error)), atomic_path(path) as temporary:
            temporary.write_text("half")
            raise error
    assert path.read_text() == "old"
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]


def test_a_write_replaces_the_file_and_keeps_usual_permissions(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_text(path, "one")
    write_text(path, "two ½")
    assert path.read_text(encoding="utf-8") == "two ½"
    assert path.stat().st_mode & 0o444 == 0o444


def test_streams_are_named() -> None:
    assert seed_of("a", 1) == seed_of("a", "1")
    assert seed_of("a", "b") != seed_of("ab")
    draws = [float(generator(name).initial_seed()) for name in ("x", "y", "x")]
    assert draws[0] == draws[2] != draws[1]
