"""Verdicts on disk: what another day ran is added to what is there, and a claim that fails hides no other."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from drillcore.cli.study_screen import markdown
from drillcore.study import Axis, Claim, Figure, Preset, Study, StudyError, Verdict, load_verdicts, publish, verify
from drillcore.study.claims import at_least, not_run


def _value(x: int) -> Any:
    def decide(frame: pl.DataFrame) -> Verdict:
        found = frame.filter(pl.col("x") == x)
        return at_least({r["seed"]: r["value"] for r in found.iter_rows(named=True)}, 8.0)

    return decide


def study(*more: Claim, name: str = "squares", text: str = "at least eight") -> Study:
    claims = (*(Claim(f"c{x}", f"{x}: {text}", "–", _value(x)) for x in (1, 2, 3)), *more)
    return Study(
        name=name, axes=(Axis("x", (1, 2, 3)), Axis("seed", (0, 1), role="nuisance")), cell=lambda task: None,
        presets={"quick": Preset(({"x": (1,)},))}, claims=claims,
        figures=(Figure("by-x", "Squares", "square", kind="bars", x="layer", series="x"),),
    )  # fmt: skip


def results(xs: Sequence[int], add: float = 0.0) -> pl.DataFrame:
    rows = [{"run": f"{x}.{seed}", "x": x, "seed": seed, "step": 0, "layer": layer, "measure": "square",
             "value": x * x + add + seed / 10, "adjacent": None, "null": 0.5, "null_sd": None}
            for x in xs for seed in (0, 1) for layer in (0,)]  # fmt: skip
    return pl.DataFrame(rows, schema_overrides={"adjacent": pl.Boolean, "null_sd": pl.Float64})


def published(folder: Path, xs: Sequence[int], day: str, add: float = 0.0, of: Study | None = None) -> dict[str, Any]:
    of = of or study()
    frame = results(xs, add)
    publish(folder, of, frame, verify(of, frame), {"day": day})
    stored: dict[str, Any] = json.loads((folder / "verdicts.json").read_text(encoding="utf-8"))
    return stored


def outcomes(folder: Path) -> dict[str, str]:
    return {d.name: d.verdict.outcome for d in load_verdicts(folder / "verdicts.json")[1]}


def drawn(folder: Path) -> dict[int, float]:
    frame = pl.read_parquet(folder / "figures.parquet").sort("x")
    assert frame["figure"].unique().to_list() == ["by-x"]
    return dict(zip(frame["x"].to_list(), frame["value"].to_list(), strict=True))


def test_what_is_run_later_is_added_and_says_on_which_runs_it_rests(tmp_path: Path) -> None:
    stored = published(tmp_path, [1], "Monday")
    assert "earlier" not in stored
    assert outcomes(tmp_path) == {"c1": "refuted", "c2": "not-run", "c3": "not-run"}
    stored = published(tmp_path, [3], "Tuesday")
    assert outcomes(tmp_path) == {"c1": "refuted", "c2": "not-run", "c3": "supported"}
    assert stored["provenance"] == {"day": "Tuesday"}
    assert stored["earlier"] == [{"runs": 2, "rows": 2, "provenance": {"day": "Monday"}, "claims": ["c1"]}]
    assert drawn(tmp_path) == {1: pytest.approx(1.05), 3: pytest.approx(9.05)}
    stored = published(tmp_path, [2], "Wednesday")
    assert [(p["provenance"]["day"], p["claims"]) for p in stored["earlier"]] == [
        ("Monday", ["c1"]),
        ("Tuesday", ["c3"]),
    ]
    assert list(drawn(tmp_path)) == [1, 2, 3]
    assert "1 claims wait" not in markdown([tmp_path / "verdicts.json"])


def test_what_is_run_again_replaces_what_was_there(tmp_path: Path) -> None:
    published(tmp_path, [1, 3], "Monday")
    stored = published(tmp_path, [1], "Tuesday", add=10.0)
    assert outcomes(tmp_path) == {"c1": "supported", "c2": "not-run", "c3": "supported"}
    assert [p["claims"] for p in stored["earlier"]] == [["c3"]]
    assert drawn(tmp_path) == {1: pytest.approx(11.05), 3: pytest.approx(9.05)}
    assert published(tmp_path, [1, 3], "Thursday")["earlier"] == []


def test_a_claim_that_reads_otherwise_is_not_kept(tmp_path: Path) -> None:
    published(tmp_path, [1], "Monday")
    published(tmp_path, [3], "Tuesday", of=study(text="at least nine"))
    assert outcomes(tmp_path) == {"c1": "not-run", "c2": "not-run", "c3": "supported"}


def test_another_study_in_the_folder_is_not_written_over(tmp_path: Path) -> None:
    published(tmp_path, [1], "Monday")
    with pytest.raises(StudyError, match="is of the study squares"):
        published(tmp_path, [3], "Tuesday", of=study(name="cubes"))
    assert outcomes(tmp_path)["c1"] == "refuted"
    (tmp_path / "verdicts.json").write_text("{}")
    with pytest.raises(StudyError, match="not a file of verdicts"):
        published(tmp_path, [3], "Tuesday")


def test_a_claim_that_raises_is_said_and_hides_no_other(tmp_path: Path) -> None:
    def wrong(frame: pl.DataFrame) -> Verdict:
        raise KeyError("no such column")

    of = study(Claim("broken", "a mistake", "–", wrong), Claim("later", "not yet", "–", lambda f: not_run()))
    decided = {d.name: d.verdict for d in verify(of, results([3]))}
    assert {name: v.outcome for name, v in decided.items()} == {
        "c1": "not-run", "c2": "not-run", "c3": "supported", "broken": "failed", "later": "not-run"
    }  # fmt: skip
    assert decided["broken"].how == "its function raised KeyError: 'no such column'"
    published(tmp_path, [3], "Monday", of=of)
    assert "| its function raised KeyError: 'no such column' | failed |" in markdown([tmp_path / "verdicts.json"])
