"""The command line: what it prints, what it writes, its exit codes, and that bad input gives no traceback."""

import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from drillcore.cli.app import run

COMMAND = [sys.executable, "-c", "from drillcore.cli import main; main()"]


def drillcore(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
    words = [*COMMAND, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120, **options)


def test_survey_writes_its_files_and_prints_a_line_per_kind(small: Path, tmp_path: Path) -> None:
    done = drillcore("survey", small, "--out", tmp_path / "out", "--threads", 2)
    assert done.returncode == 0, done.stderr
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"rows.parquet", "survey.json", "report.html"}
    for kind, verdict in (("q", "shared input space"), ("down", "shared output space")):
        assert any(kind in line.split() and verdict in line for line in done.stdout.splitlines())
    assert "Superposition" in done.stdout
    assert done.stdout.strip().endswith("report.html")


def test_quiet_prints_only_the_paths(small: Path, tmp_path: Path) -> None:
    done = drillcore("survey", small, "--out", tmp_path, "--quiet", "--measures", "v1,u1", "--layers", "0-1,3")
    assert done.returncode == 0
    assert len(done.stdout.split()) == 3
    assert done.stderr == ""


def test_describe_lists_what_it_does_not_know(small: Path, tmp_path: Path) -> None:
    done = drillcore("describe", small)
    assert done.returncode == 0
    assert "llama" in done.stdout
    shutil.copytree(small, tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.safetensors.index.json").unlink()
    extra = {"model.layers.0.adapter.weight": torch.ones(4, 4)}
    save_file(load_file(tmp_path / "norm.safetensors") | extra, tmp_path / "norm.safetensors")
    done = drillcore("describe", tmp_path)
    assert done.returncode == 1
    assert "model.layers.0.adapter.weight" in done.stdout
    assert "--roles" in done.stdout
    assert "every layer" not in drillcore("describe", tmp_path, "--all").stdout


def test_help_teaches() -> None:
    front = drillcore("--help").stdout
    assert "Exit codes" in front
    page = drillcore("survey", "--help").stdout
    for option in ("--out", "--rank", "--measures", "--kinds", "--layers", "--spectrum", "--fold-norms", "--roles",
                   "--config", "--device", "--threads", "--quiet"):  # fmt: skip
        assert option in page


def test_the_options_of_survey_are_those_we_promised() -> None:
    """A new option is a decision: change this list with it."""
    import inspect

    from drillcore.cli.app import survey

    assert list(inspect.signature(survey).parameters) == [
        "checkpoints", "out", "rank", "measures", "kinds", "layers", "spectrum", "fold_norms", "exact_max", "tokens",
        "text", "roles", "config", "base", "norm_placement", "device", "threads", "quiet",
    ]  # fmt: skip


class Malicious:
    def __reduce__(self):
        return (os.system, ("touch executed",))


def _lfs(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")


def _truncated(folder: Path) -> None:
    save_file({"a": torch.ones(100, 100)}, folder / "model.safetensors")
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-100])


def _header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((2**60).to_bytes(8, "little") + b"{}" * 10)


def _missing_shard(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}')


def _pickle(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Malicious()}))


def _two_families(folder: Path) -> None:
    names = [f"model.layers.{i}.self_attn.{p}_proj" for i in range(4) for p in "qkvo"]
    names += [f"encoder.layer.{i}.attention.self.{p}" for i in range(4) for p in ("query", "key", "value")]
    save_file({f"{n}.weight": torch.ones(8, 8) for n in names}, folder / "model.safetensors")


def _broken_config(folder: Path) -> None:
    save_file({"a": torch.ones(4, 4)}, folder / "model.safetensors")
    (folder / "config.json").write_text("{not json")


BAD = {
    "Git-LFS pointer": _lfs, "truncated": _truncated, "claims": _header, "shard(s) that are not": _missing_shard,
    "holds no weights": lambda _: None, "more than tensors": _pickle, "two families": _two_families,
    "JSON": _broken_config,
}  # fmt: skip


@pytest.mark.parametrize("words", BAD)
def test_bad_input_says_what_is_wrong_and_what_to_do(words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str],
                                                     monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "model"
    folder.mkdir()
    BAD[words](folder)
    for verb in (["survey", str(folder), "--out", str(tmp_path / "out")], ["describe", str(folder)]):
        assert run(verb) == 2
        error = " ".join(capfd.readouterr().err.split())
        assert words in error
        assert "What to do" in error
        assert "Traceback" not in error
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--measures", "nonsense"], "no measure called"),
        (["--kinds", "nonsense"], "no matrix of kind"),
        (["--layers", "two"], "is not a layer"),
        (["--layers", "77"], "no layer 77"),
        (["--roles", "nowhere.toml"], "cannot be read"),
        (["--config", "nowhere.json"], "nowhere.json"),
        (["--device", "cuda:99"], "cuda:99"),
        (["--rank", "0"], "rank"),
        (["--spectrum", "half"], "half"),
        (["--no-such-option"], "no-such-option"),
    ],
)
def test_bad_options(small: Path, tmp_path: Path, options: list[str], words: str,
                     capfd: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    assert run(["survey", str(small), "--out", str(tmp_path / "out"), *options]) == 2
    printed = capfd.readouterr()
    assert words in printed.err + printed.out
    assert "Traceback" not in printed.err
    assert not (tmp_path / "out").exists()


def test_a_left_out_tensor_gives_exit_code_one(tmp_path: Path) -> None:
    good = {f"model.layers.{i}.self_attn.q_proj.weight": torch.randn(16, 16) for i in range(3)}
    good["model.layers.1.self_attn.q_proj.weight"][0, 0] = float("inf")
    save_file(good, tmp_path / "model.safetensors")
    done = drillcore("survey", tmp_path, "--out", tmp_path / "out", "--measures", "v1")
    assert done.returncode == 1
    assert "model.layers.1.self_attn.q_proj.weight" in done.stdout
    assert "NaN or infinity" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full stands for a full disk")
def test_a_full_disk_is_said(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                             capfd: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    from drillcore import table

    def full(self: table.Table, path: Path) -> None:
        with Path("/dev/full").open("w") as file:
            file.write("x" * 100_000)

    monkeypatch.setattr(table.Table, "save", full)
    assert run(["survey", str(small), "--out", str(tmp_path), "--measures", "v1", "--quiet"]) == 2
    assert "No space left" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_place_is_said(small: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    assert run(["survey", str(small), "--out", str(tmp_path / "file"), "--measures", "v1", "--quiet"]) == 2
    assert "file" in capfd.readouterr().err


def test_ctrl_c_leaves_no_half_file(small: Path, tmp_path: Path) -> None:
    code = (
        "import drillcore.verbs.survey as s, time\n"
        "from drillcore.cli import main\n"
        "old = s.read_kind\n"
        "def slow(*a, **k): print('reading', flush=True); time.sleep(30); return old(*a, **k)\n"
        "s.read_kind = slow\n"
        "main()"
    )
    words = [sys.executable, "-c", code, "survey", str(small), "--out", str(tmp_path / "out")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "stopped" in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


def test_help_imports_nothing_of_the_studies() -> None:
    code = (
        "import sys\n"
        "from drillcore.cli.app import run\n"
        "run(['--help'])\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('torch', 'polars', 'numpy') or 'stud' in m))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "Run an experiment of many small trainings" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_what_has_no_number_is_said_with_its_reason(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    zero = {f"model.layers.{i}.self_attn.q_proj.weight": torch.zeros(16, 16) for i in range(2)}
    save_file(zero | {"model.embed_tokens.weight": torch.randn(9, 16)}, tmp_path / "model.safetensors")
    words = ["survey", str(tmp_path), "--out", str(tmp_path / "out"), "--measures"]
    assert run([*words, "v1,superposition"]) == 0
    printed = capfd.readouterr().out
    assert "continuity.v1 of q 0: the matrix of layer 0 is all zero" in printed
    assert "not measured" not in printed
    assert re.search(r"^ embed +9 +16 ", printed, flags=re.MULTILINE)
    assert run([*words, "sigma1"]) == 0
    assert "spectrum.sigma1: 2 numbers, in rows.parquet and the report" in capfd.readouterr().out


def test_a_control_above_chance_is_said_in_a_line_of_its_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that share a large constant align on the side of the heads as well: one-signed, and only a control."""
    monkeypatch.setenv("COLUMNS", "80")
    random = torch.Generator().manual_seed(3)
    v = torch.randn(64, generator=random)
    layers = {f"model.layers.{i}.mlp.up_proj.weight": torch.ones(96, 1) * v + torch.randn(96, 64, generator=random) / 4
              for i in range(4)}  # fmt: skip
    save_file(layers, tmp_path / "model.safetensors")
    assert run(["survey", str(tmp_path), "--out", str(tmp_path / "out"), "--measures", "v1,u1"]) == 0
    lines = capfd.readouterr().out.splitlines()
    (at,) = (i for i, line in enumerate(lines) if line.split()[:1] == ["up"])
    assert lines[at].rstrip().endswith("shared input space")
    assert lines[at + 1].strip() == "u1: one-signed"


LIMITED = (
    "import resource, sys\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)),) * 2)\n"
    "from drillcore.cli import main; main()"
)


@pytest.mark.parametrize(("limit", "name", "kept"), [(2000, "rows.parquet", 0), (100_000, "report.html", 2)])
def test_a_disk_that_takes_no_more_is_said_with_the_file(
    limit: int, name: str, kept: int, small: Path, tmp_path: Path
) -> None:
    """A limit on the size of files stands for the disk: here the libraries that write meet it, not a stand-in."""
    words = [
        sys.executable,
        "-c",
        LIMITED,
        str(limit),
        "survey",
        str(small),
        "--out",
        str(tmp_path),
        "--measures",
        "v1",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert f"{name}:Filetoolarge" in "".join(done.stderr.split())  # a long path is folded
    assert len(list(tmp_path.iterdir())) == kept


def test_a_terminal_of_few_signs_is_no_fault(small: Path) -> None:
    done = drillcore("describe", small, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert r"\xd7" in done.stdout


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/model\xff")
    Path(folder).mkdir()
    assert run(["describe", folder]) == 2
    assert "the name is not UTF-8" in " ".join(capfd.readouterr().err.split())
