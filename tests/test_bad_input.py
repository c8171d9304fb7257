"""The whole command on input that people and downloads spoil: a clear error, a named tensor, never a traceback."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import drillcore
from drillcore.cli.app import run

Q, UP, EMBED = (
    "model.layers.1.self_attn.q_proj.weight",
    "model.layers.1.mlp.up_proj.weight",
    "model.embed_tokens.weight",
)
CONFIG = {"model_type": "llama", "num_hidden_layers": 3, "hidden_size": 16, "num_attention_heads": 4}
ROLES = 'family = "mine"\n[[part]]\nprefix = "layers.{layer}."\n[part.matrix]\n"self_attn.q_proj" = '
Build = Callable[[Path], list[str]]


def llama() -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(0)
    shapes = {"self_attn.q_proj": (16, 16), "self_attn.k_proj": (16, 16), "self_attn.v_proj": (16, 16),
              "self_attn.o_proj": (16, 16), "mlp.gate_proj": (24, 16), "mlp.up_proj": (24, 16),
              "mlp.down_proj": (16, 24)}  # fmt: skip
    tensors = {f"model.layers.{i}.{n}.weight": torch.randn(s, generator=random) for i in range(3)
               for n, s in shapes.items()}  # fmt: skip
    return tensors | {EMBED: torch.randn(40, 16, generator=random), "model.norm.weight": torch.ones(16)}


def put(folder: Path, *options: str, config: Any = None, **changed: Tensor) -> list[str]:
    """A small Llama with some tensors changed; the arguments of the command."""
    folder.mkdir(exist_ok=True)
    save_file(llama() | changed, folder / "model.safetensors")
    text = config if isinstance(config, str) else json.dumps(CONFIG | (config or {}))
    (folder / "config.json").write_text(text, encoding="utf-8")
    return [str(folder), *options]


def index(text: str) -> Build:
    def build(folder: Path) -> list[str]:
        (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")
        return [str(folder)]

    return build


def link(folder: Path) -> list[str]:
    (folder / "model.safetensors").symlink_to("../blobs/none")
    return [str(folder)]


def roles(text: str) -> Build:
    def build(folder: Path) -> list[str]:
        (folder / "mine.toml").write_text(text, encoding="utf-8")
        return put(folder, "--roles", str(folder / "mine.toml"))

    return build


def lora(**config: Any) -> Build:
    def build(folder: Path) -> list[str]:
        name = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
        save_file({f"{name}A.weight": torch.ones(4, 16), f"{name}B.weight": torch.ones(16, 4)},
                  folder / "adapter_model.safetensors")  # fmt: skip
        (folder / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 8} | config), encoding="utf-8")
        return [str(folder)]

    return build


REFUSED: dict[str, tuple[Build, str]] = {
    "deep config": (lambda f: put(f, config="[" * 200_000), "is not readable JSON"),
    "deep index": (index("[" * 200_000), "is not an index of shards"),
    "index that points elsewhere": (index('{"weight_map": {"a": "../a.safetensors"}}'), "'../a.safetensors'"),
    "index that names the folder": (index('{"weight_map": {"a": "."}}'), "names a shard that is not a file"),
    "link to nothing": (link, "a link to a file that is not there: model.safetensors"),
    "no name": (lambda _: [""], "an empty name is no checkpoint"),
    "nobody's home": (lambda _: ["~no-such-user/model"], "no such user"),
    "a base for no LoRA": (lambda f: put(f, "--base", "other"), "this is no LoRA folder"),
    "rank 0": (lora(r=0), "r is 0, not a number of at least 1"),
    "rank in words": (lora(r="four"), "r is 'four'"),
    "no alpha": (lora(lora_alpha=None), "lora_alpha is None"),
    "NaN alpha": (lora(lora_alpha=float("nan")), "lora_alpha is nan"),
    "pattern of words": (lora(rank_pattern={"q_proj": "four"}), "q_proj is 'four'"),
    "broken pattern": (lora(rank_pattern={"(": 4}), "'(' is not a regular expression"),
    "patterns in a list": (lora(alpha_pattern=[4]), "alpha_pattern is not an object"),
    "roles without tables": (roles('family = "x"\n[[part]]\nmatrix = "q"'), "has no attribute"),
    "roles without a case": (roles(f"{ROLES}[]"), "expected a table"),
    "roles with a word": (roles(f'{ROLES}{{ kind = "q", when = 3 }}'), "expected a table"),
    "split in one word": (roles(f'{ROLES}{{ split = "qk", layout = "equal" }}'), "split is a list"),
    "sizes that lack one": (
        roles(f'{ROLES}{{ split = ["q", "k"], layout = "contiguous", sizes = ["hidden"] }}'), "1 sizes for 2 parts"),
    "two of three": (roles(f'{ROLES}{{ split = ["q", "k"], layout = "contiguous" }}'), "has three parts"),
    "prefixes in one word": (roles(f'prefixes = "model."\n{ROLES}{{ kind = "q" }}'), "prefixes: expected a list"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("verb", ["describe", "survey"])
def test_what_cannot_be_read_is_refused(
    name: str, verb: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "model"
    folder.mkdir()
    build, words = REFUSED[name]
    assert run([verb, *build(folder)]) == 2
    printed = " ".join(capfd.readouterr().err.split())
    assert words in printed
    assert "What to do" in printed
    assert not list(tmp_path.glob("survey-*"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--layers", "9-1"], "'9-1' counts down"),
        (["--layers", ""], "--layers: is empty"),
        (["--layers", "²"], "'²' is not a layer"),
        (["--layers", "9" * 5000], "is not a layer"),
        (["--measures", ","], "--measures: is empty"),
        (["--measures", "superposition.phi_half"], "say superposition"),
        (["--kinds", ""], "--kinds: is empty"),
        (["--kinds", "embed", "--measures", "v1"], "continuity is between layers"),
        (["--threads", "0"], "--threads: is 1 to 1024, not 0"),
        (["--device", "meta"], "no device 'meta'"),
        (["--device", "mps"], "no device 'mps'"),
        (["--rank", "1.5"], "1.5"),
    ],
)
def test_options_that_would_survey_nothing_or_something_else(
    options: list[str], words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["survey", *put(tmp_path / "model"), "--out", str(tmp_path / "out"), *options]) == 2
    printed = capfd.readouterr()
    assert words in " ".join((printed.err + printed.out).split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/none"])
def test_a_place_that_cannot_be_written_is_said_before_the_work(
    place: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drillcore, "survey", lambda *_, **__: pytest.fail("the work began"), raising=False)
    (tmp_path / "file").write_text("in the way")
    if place.startswith("/proc"):
        access = os.access  # root may write anywhere
        monkeypatch.setattr("os.access", lambda path, mode: str(path) != "/proc" and access(path, mode))
    assert run(["survey", *put(tmp_path / "model"), "--out", str(tmp_path / place)]) == 2
    assert "--out" in capfd.readouterr().err


def _torch_file(folder: Path, value: Tensor) -> list[str]:
    folder.mkdir()
    torch.save(llama() | {Q: value}, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return [str(folder)]


LEFT_OUT: dict[str, tuple[Build, str, str]] = {
    "bool": (lambda f: put(f, **{Q: torch.ones(16, 16) > 0}), Q, "bool numbers (q) are not read as weights"),
    "complex": (lambda f: put(f, **{Q: torch.ones(16, 16, dtype=torch.complex64)}), Q, "complex64 numbers (q)"),
    "complex pickle": (lambda f: _torch_file(f, torch.ones(16, 16, dtype=torch.complex64)), Q, "complex64 numbers"),
    "meta": (lambda f: _torch_file(f, torch.empty(16, 16, device="meta")), Q, "on the meta device, without numbers"),
    "sparse": (lambda f: _torch_file(f, torch.eye(16).to_sparse()), Q, "a tensor stored as sparse_coo"),
    "equal rows of NaN": (lambda f: put(f, **{EMBED: torch.full((40, 16), float("nan"))}), EMBED, "holds NaN"),
    "equal rows of infinity": (lambda f: put(f, **{EMBED: torch.full((40, 16), float("inf"))}), EMBED, "holds NaN"),
    "huge": (lambda f: put(f, **{UP: torch.full((24, 16), 1e30)}), UP, "too large for float32 arithmetic"),
    "tiny": (lambda f: put(f, **{UP: torch.full((24, 16), 1e-30)}), UP, "too small for float32 arithmetic"),
    "huge rows": (lambda f: put(f, **{EMBED: torch.randn(40, 16) * 1e30}), EMBED, "rows longer than 1e+18"),
    "far too many layers": (
        lambda f: put(f, config={"num_hidden_layers": 10**12}), "(layers 3 to 999999999999)", "no tensor of this"),
    "a number that is no layer": (
        lambda f: put(f, **{f"model.layers.{'9' * 20}.self_attn.q_proj.weight": torch.ones(16, 16)}), "9" * 20,
        "a matrix that no llama pattern names"),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_tensor_that_cannot_be_used_is_named_and_the_others_are_surveyed(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    build, tensor, words = LEFT_OUT[name]
    measures = "v1,superposition"
    assert run(["survey", *build(tmp_path / "model"), "--out", str(tmp_path / "out"), "--measures", measures]) == 1
    printed = capfd.readouterr().out
    assert any(tensor in line and words in line for line in printed.splitlines())
    assert any(line.split()[:1] == ["v"] and line.split()[1] != "–" for line in printed.splitlines())


def test_nothing_usable_at_all_is_an_error_of_a_few_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "model"
    put(folder)
    save_file({name: t * float("nan") for name, t in llama().items()}, folder / "model.safetensors")
    assert run(["survey", str(folder), "--out", str(tmp_path / "out")]) == 2
    printed = " ".join(capfd.readouterr().err.split())
    assert "no matrix could be measured, 22 are left out" in printed
    assert printed.count("holds NaN") == 3


def test_rows_too_short_for_float32_count_as_zero(tmp_path: Path) -> None:
    """A row of denormals has no direction that float32 can hold; without it nothing else changes."""
    rows = llama()[EMBED]
    frames = []
    for value in (0.0, 1e-40):
        rows[7] = value
        found = drillcore.survey(put(tmp_path / "model", **{EMBED: rows})[0], measures=["superposition"])
        frames.append(found.rows.frame)
    assert frames[0].equals(frames[1])
    (counted,) = (r.value for r in found.rows if r.measure == "superposition.n")
    assert counted == 39


@pytest.mark.parametrize("said", ["yes", 1, None])
def test_a_tie_is_true_or_false_or_not_said(said: object, tmp_path: Path) -> None:
    census = drillcore.describe(put(tmp_path / "model", config={"tie_word_embeddings": said})[0]).census
    assert [e.state for e in census.entries if e.tensor == "(output head)"] == ["missing"]


# A name of a file, and how it is shown.
NASTY = {
    "[bold]x[/bold].weight": "[bold]x[/bold].weight",
    "[/red]": "[/red]",
    "\\[bold]oh\\": "\\[bold]oh\\",
    ":smile:": ":smile:",
    "<script>alert(1)</script>": "<script>alert(1)",
    "a\nb\x1b[31mc\x9b0m": r"a\nb\x1b[31mc\x9b0m",
    "\u202ereversed": r"\u202ereversed",
    "": "",
}


def test_names_are_shown_as_they_are_and_move_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    folder = put(tmp_path / "model", **{name: torch.ones(4, 4) for name in NASTY})
    assert run(["describe", *folder]) == 1
    printed = capfd.readouterr().out
    for shown in NASTY.values():
        assert shown in printed
    assert not set("\x1b\x9b\u202e") & set(printed)
    table, _, _ = printed.partition("left out")
    assert max(map(len, table.splitlines())) <= 80
    assert run(["survey", *folder, "--out", str(tmp_path / "out"), "--measures", "v1"]) == 1
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "<script>alert(1)" not in page
