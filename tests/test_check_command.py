"""`drillcore check` at the command line: exit codes, files, what is printed."""

import json
from pathlib import Path

import pytest

from drillcore.cli.app import run

ROOT = Path(__file__).parents[1]


def test_met_and_not_met(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["check", "peri-gelu", "--width", "16", "--half-steps", "8", "--out", str(tmp_path / "a")]
    assert run([*words, "--require", "forward=bounded,backward=scale-free"]) == 0
    told = capfd.readouterr().out
    for part in ("bounded", "scale-free", "gain budget", "Gemma 3", "met: forward=bounded", "q_all"):
        assert part in told
    assert json.loads((tmp_path / "a" / "check.json").read_text())["forward"]["name"] == "bounded"
    assert (tmp_path / "a" / "rows.parquet").is_file()
    assert (tmp_path / "a" / "check.html").stat().st_size > 1_000_000
    words = ["check", f"{ROOT}/docs/my_block.py:WrongSide", "--width", "16", "--half-steps", "8"]
    assert run([*words, "--out", str(tmp_path / "b"), "--quiet", "--require", "forward=bounded"]) == 1
    quiet = capfd.readouterr()
    assert "not met: forward is threshold, not bounded" in quiet.err
    assert quiet.out.split() == [str(tmp_path / "b" / name) for name in ("check.json", "rows.parquet", "check.html")]


@pytest.mark.parametrize(("words", "told"), [
    (["perry-gelu"], "there is no target 'perry-gelu'"),
    (["peri-gelu", "--require", "forward"], "is not a requirement"),
    (["peri-gelu", "--require", "forward=fine"], "there is no class forward=fine"),
    (["peri-gelu", "--width", "1"], "at least 2"),
    (["peri-gelu", "--dtype", "int8"], "int8"),
])  # fmt: skip
def test_bad_input_is_two(words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                          capfd: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert run(["check", *words]) == 2
    assert told in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_where_the_results_go_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["check", f"{ROOT}/docs/my_block.py:Branch", "--width", "8", "--half-steps", "4", "--quiet"]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["check-my_block-Branch"]
