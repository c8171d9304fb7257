"""The README's code blocks run, its promises hold."""

import re
import shlex
from pathlib import Path

import pytest

from drillcore.cli.app import app
from drillcore.cli.study_screen import markdown
from drillcore.weights.architecture import architectures, load_architecture

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("block", blocks("python"))
def test_python_blocks_run(block: str, minilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                           capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})
    told = capsys.readouterr().out
    if "fit_example" in block:
        assert "linear 0.886" in told
    else:
        assert "up 0.724" in told
        assert (tmp_path / "report.html").stat().st_size > 1_000_000


def test_shell_blocks_name_real_targets_and_options() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    seen = set()
    for line in "\n".join(blocks("sh")).splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if words[0] == "make":
            assert f"\n{words[1]}:" in makefile
        if words[0] == "drillcore":
            command, _, _ = app.parse_args(words[1:], exit_on_error=False)
            assert command.__name__ in (*words[1:3], "list_studies")
        seen.add(words[0])
    assert {"make", "drillcore"} <= seen


def test_every_family_is_named() -> None:
    (line,) = [x for x in README.splitlines() if x.startswith("| families |")]
    named = set(re.findall(r"[\w-]+", line.split("|")[2]))
    assert {a.family for a in architectures()} - {"gguf"} <= named


def test_the_verdicts_are_those_that_are_stored() -> None:
    stored = markdown(sorted((ROOT / "results").glob("*/verdicts.json")))
    (shown,) = re.findall(r"<!-- verdicts -->\n(.*?)\n?<!-- /verdicts -->", README, flags=re.DOTALL)
    assert shown == stored


def test_the_picture_is_small_enough() -> None:
    assert (ROOT / "docs" / "report.png").stat().st_size < 300_000


def test_the_architecture_example_of_contributing_loads(tmp_path: Path) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "mine.toml").write_text(example, encoding="utf-8")
    mine = load_architecture(tmp_path / "mine.toml")
    assert mine.match("model.blocks.3.attn.qkv.weight") is not None
    assert mine.match("model.blocks.3.attn.other.weight") is None


def test_the_study_of_contributing_is_the_file() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Write a study")[2]
    assert re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)[0] == (ROOT / "docs" / "my_study.py").read_text()
