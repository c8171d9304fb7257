"""drillcore fit: examples, files, what cannot be identified, and bad tables."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from drillcore.cli.app import run

WIDTHS = [64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048]


def table(folder: Path, **changed: object) -> Path:
    random = np.random.default_rng(0)
    rows = [{"m": m, "family": f, "loss": 40 * m**-0.8 + off + 1e-3 * random.normal(), "model": f"{f}-{m}"}
            for f, off in (("a", 1.7), ("b", 2.0)) for m in WIDTHS]  # fmt: skip
    path = folder / "losses.csv"
    pl.DataFrame(rows).with_columns(**{k: pl.lit(v) for k, v in changed.items()}).write_csv(path)
    return path


def test_an_example_runs_and_writes_page_rows_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", "--example", "toy-large", "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert "0.8864" in told
    assert "0.89 ± 0.05" in told
    summary = json.loads((tmp_path / "out" / "fit.json").read_text())
    assert {f["label"] for f in summary["fits"]} == {"exponential", "linear", "power"}
    rows = pl.read_parquet(tmp_path / "out" / "rows.parquet")
    assert rows.filter(pl.col("measure") == "law.alpha_m").height == 3
    assert "1.01 ± 0.05" in (tmp_path / "out" / "report.html").read_text()


def test_a_table_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = table(tmp_path)
    arguments = ["fit", str(path), "--x", "m", "--group", "family", "--cluster", "model", "--draws", "300"]
    assert run([*arguments, "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert "bootstrap over 20 clusters" in told
    assert "L0[a]" in told
    (one,) = json.loads((tmp_path / "out" / "fit.json").read_text())["fits"]
    (alpha,) = one["exponents"]
    assert alpha["low"] < 0.8 < alpha["high"]
    assert set(one["without"]["family"]) == {"a", "b"}


def test_an_exponent_that_the_data_do_not_determine_is_not_quoted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(1)
    path = tmp_path / "flat.csv"
    pl.DataFrame({"m": WIDTHS, "loss": 2 + 0.01 * random.normal(size=10)}).write_csv(path)
    assert run(["fit", str(path), "--x", "m"]) == 1
    told = capsys.readouterr().out
    assert "not identifiable" in told
    assert "measure" in told


@pytest.mark.parametrize(("arguments", "told"), [
    (["--x", "width"], "no column 'width'"), (["--x", "family"], "not numbers"),
    (["--y", "nothing", "--x", "m"], "no column"),
    ([], "--x"), (["--x", "m,loss"], "--law sum"),
])  # fmt: skip
def test_bad_options_are_told(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fit", str(table(tmp_path)), *arguments]) == 2
    assert told in " ".join(capsys.readouterr().err.split())


def test_bad_tables_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    negative = table(tmp_path, loss=-1.0)
    assert run(["fit", str(negative), "--x", "m"]) == 2
    assert run(["fit", str(table(tmp_path, m=5)), "--x", "m"]) == 2
    assert run(["fit", str(tmp_path / "none.csv"), "--x", "m"]) == 2
    (tmp_path / "gap.csv").write_text("m,loss\n1,2\n2,\n3,1\n")
    assert run(["fit", str(tmp_path / "gap.csv"), "--x", "m"]) == 2
    (tmp_path / "bad.parquet").write_text("nothing")
    assert run(["fit", str(tmp_path / "bad.parquet"), "--x", "m"]) == 2
    assert run(["fit"]) == 2
    assert run(["fit", "--example", "other"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    for words in ("above 0", "one value only", "no file", "row 2", "can be read", "one of them", "no example"):
        assert words in told
