"""The page without a browser: its numbers are the table's, its figures are Plotly's, it needs no network."""

import doctest
import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from surveys import NASTY, entry, expert_rows, kind_rows, made_survey, packing_rows, rich_survey

import drillcore
from drillcore.measures.verdict import KindSummary, SideSummary
from drillcore.pages import rows as page_rows
from drillcore.pages.continuity_figures import continuity_figures
from drillcore.pages.figures import band
from drillcore.pages.heat_maps import UNIT, heat_maps
from drillcore.pages.page import environment, render
from drillcore.pages.rows import RowIndex
from drillcore.pages.tables import status_groups
from drillcore.pages.words import findings, warnings
from drillcore.table import Row
from drillcore.verbs.survey import Survey
from drillcore.weights.census import Census


class Page(HTMLParser):
    """Scripts, links, ids and visible text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.scripts[0])
        return found

    def values(self, name: str) -> list[str]:
        return [value for _, key, value in self.attributes if key == name]


@pytest.fixture(scope="module")
def survey() -> Survey:
    return rich_survey()


@pytest.fixture(scope="module")
def html(survey: Survey) -> str:
    return render(survey)


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_every_figure_is_one_that_plotly_accepts(page: Page) -> None:
    figures = {**page.data["figures"], "heat": page.data["heat"]["heat"], "decay": page.data["heat"]["decay"]}
    assert len(figures) > 40
    for figure in figures.values():
        go.Figure(figure)
    with pytest.raises(ValueError, match="Invalid"):
        go.Figure({"data": [{"type": "scatter", "no_such_key": 1}]})


def test_every_figure_of_the_page_has_its_place_and_its_data(page: Page) -> None:
    places = set(page.values("data-figure"))
    views = {name for name in page.data["figures"] if re.match("continuity/(?!leading)", name)}
    assert places == set(page.data["figures"]) - views


def test_the_curves_hold_the_numbers_of_the_table(page: Page, survey: Survey) -> None:
    for kind, measure, name in (("q", "continuity.v1", "v, input side"), ("down", "continuity.u1", "u, output side")):
        curve = next(t for t in page.data["figures"][f"continuity/leading/{kind}"]["data"] if t["name"] == name)
        rows = survey.rows.where(kind=kind, stack="", measure=measure, adjacent=True)
        assert curve["y"] == pytest.approx([r.value for r in rows], abs=5e-5)
        assert curve["x"] == [((r.layer or 0) + (r.other or 0)) / 2 for r in rows]


def test_a_curve_breaks_where_a_pair_has_no_number(page: Page) -> None:
    curve = page.data["figures"]["continuity/leading/gate"]["data"][-1]
    assert [x for x, y in zip(curve["x"], curve["y"], strict=True) if y is None] == [4.5, 5.5]
    assert curve["connectgaps"] is False


def test_open_markers_stand_for_vectors_that_are_not_identifiable(page: Page) -> None:
    curve = page.data["figures"]["continuity/leading/q"]["data"][-1]
    hollow = [x for x, s in zip(curve["x"], curve["marker"]["symbol"], strict=True) if s == "circle-open"]
    assert hollow == [1.5, 2.5, 3.5]


def test_the_caption_counts_the_single_pairs_above_chance(page: Page, survey: Survey) -> None:
    rows = survey.rows.where(kind="o", stack="vision", measure="continuity.u1", adjacent=True)
    above = sum(r.value > r.null + 4 * r.null_sd for r in rows)
    assert page.data["captions"]["continuity/leading/vision.o"] == f"{above} of 3 pairs above chance"
    assert page.data["captions"]["continuity/leading/v"].startswith("0 of 7")
    assert page.data["captions"]["continuity/leading/gate"] == "5 of 5 pairs above chance"


def test_the_heat_maps_hold_the_numbers_of_the_table(page: Page, survey: Survey) -> None:
    maps = page.data["heat"]["maps"]
    assert {m["measure"] for m in maps.values()} == {r.measure for r in survey.rows if r.measure in
            {f"continuity.{x}" for x in ("v1", "u1", "v_subspace", "u_subspace", "gram_v", "gram_u")}}  # fmt: skip
    for name, triangle in maps.items():
        stack, _, kind = triangle["kind"].rpartition(".")
        rows = {(r.layer, r.other): r for r in survey.rows.where(stack=stack, kind=kind, measure=triangle["measure"])}
        for place, pair in enumerate(combinations(triangle["layers"], 2)):
            whole, row = triangle["value"][place], rows[pair]
            assert (whole is None) == (row.value is None), name
            if row.value is None:
                assert triangle["why"][str(place)] == f"{row.status}: {row.reason}"
            else:
                assert whole / UNIT == pytest.approx(row.value, abs=5.1e-5)


def test_the_small_null_of_gram_cosines_is_drawn_on_both_sides_of_zero() -> None:
    rows = [Row(kind="q", layer=i, other=i + 1, adjacent=True, measure="continuity.gram_v", value=1e-4, null=0.0,
                null_sd=3.45e-4) for i in range(3)]  # fmt: skip
    far = band(rows)[0]
    assert min(far["y"]) == pytest.approx(-4 * 3.45e-4)
    assert max(far["y"]) == pytest.approx(4 * 3.45e-4)
    assert heat_maps(RowIndex(rows))["continuity.gram_v/q"]["sd"] == [3.45e-4, None, None, 3.45e-4, None, 3.45e-4]
    low = continuity_figures(RowIndex(rows), {})["continuity/gram/q"]["layout"]["yaxis"]["range"][0]
    assert low <= -4 * 3.45e-4


def test_the_tick_stands_where_the_verdict_changes() -> None:
    bar: Any = environment().get_template("macros.html.j2").module.bar  # type: ignore[attr-defined]
    one = SideSummary(0.5, 0.1, 0.001, 3, "shared", None, None)
    assert "left: 20.0%" in bar(one, "input")  # twice the null, above null + 4 sd
    assert "left: 30.0%" in bar(replace(one, null_sd=0.05), "input")


def test_eighty_layers_of_seven_kinds_stay_small() -> None:
    one_kind = heat_maps(RowIndex(kind_rows("q", range(80))))
    assert len(one_kind) == 6
    assert 7 * len(json.dumps(one_kind, separators=(",", ":"))) < 4_000_000


def test_the_overlap_figure_shows_the_value_beside_chance_and_welch(page: Page) -> None:
    stored, centred, chance, welch = page.data["figures"]["packing/overlap"]["data"]
    n, m = 50_000, 256
    for trace, value in ((stored, 3.1 / m), (centred, 2.2 / m), (chance, 1 / m), (welch, (n - m) / (m * (n - 1)))):
        assert trace["x"] == pytest.approx([value, value], rel=1e-4)


def test_rows_without_a_number_are_listed_and_counted(page: Page, survey: Survey) -> None:
    not_ok = [r for r in survey.rows if r.status != "ok"]
    shown = " ".join(page.text)
    assert len(not_ok) > 50
    for row in not_ok:
        assert row.status in shown
        assert row.reason is not None
        assert row.reason in shown
    assert sum(group.count for group in status_groups(survey.rows)) == len(not_ok)


def test_the_census_is_whole_and_begins_with_what_was_left_out(page: Page, survey: Survey) -> None:
    entries = page.data["census"]["entries"]
    assert sorted(e[0] for e in entries) == sorted(e.tensor for e in survey.census.entries)
    assert [e[1] for e in entries[:3]] == ["unknown", "missing", "used"]
    assert page.data["census"]["left_out"] == ["missing", "unknown"]


def test_the_page_asks_for_nothing(html: str, page: Page) -> None:
    own = html.replace(page.scripts[1], "")
    assert len(own) < 1_000_000
    assert not re.search(r"(?i)https?://|url\(|@import|//cdn|fetch\(|XMLHttpRequest", own)
    assert page.values("src") == []
    assert all(link.startswith("#") for link in page.values("href"))
    policy = next(v for v in page.values("content") if "default-src" in v)
    assert "default-src 'none'" in policy
    assert "http" not in policy


def test_hostile_names_are_text(html: str, page: Page) -> None:
    assert NASTY in page.data["census"]["entries"][0]
    assert NASTY in " ".join(page.text) or NASTY in "".join(page.text)
    assert "<script>alert" not in html
    assert "<img" not in html.replace(page.scripts[1], "")
    assert len(page.scripts) == 3


def test_a_hostile_kind_is_text_in_every_figure() -> None:
    rows = [*kind_rows("<b>q</b>", range(3)), *packing_rows("<b>e</b>")]
    html = render(made_survey(rows, [entry("a")], {"<b>q</b>": "in"}))
    page = Page(html)
    own = html.replace(page.scripts[1], "")
    assert "<b>q</b>" not in own
    for figure in page.data["figures"].values():
        assert all("<b>" not in str(t.get(k)) for t in figure["data"] for k in ("name", "text", "y"))


def test_the_sentences_say_what_the_verdicts_say(survey: Survey) -> None:
    said = [str(s) for s in findings(survey, [])]
    assert said[0] == (
        "8 of 9 kinds of matrix agree on average between neighbouring layers: <b>q</b>, <b>k</b>, <b>gate</b>, "
        "<b>up</b> and <b>vision q</b> share what they read from the residual stream (input space); <b>o</b>, "
        "<b>down</b> and <b>vision o</b> share what they write to the residual stream (output space)."
    )
    assert "<b>v</b>" in next(s for s in said if s.startswith("At chance"))
    best = max(survey.summary, key=lambda s: (s.u if s.faces == "out" else s.v).mean or 0)
    assert f"The strongest is <b>{best.kind}</b>" in said[1]


def test_a_shared_control_is_explained() -> None:
    survey = rich_survey()
    up = next(s for s in survey.summary if s.kind == "up")
    dull = KindSummary(up.stack, up.kind, up.faces, up.layers, up.identifiable, up.v, _word(up.v, "one-signed"))
    said = findings(Survey(survey.rows, survey.census, survey.provenance, (dull,)), [])
    assert "only because the entries of each vector share one sign) is not." in said[-1]


def _word(side: Any, word: str) -> Any:
    return type(side)(side.mean, side.null, side.null_sd, side.pairs, word, side.subspace, side.subspace_null)


def test_warnings_name_what_was_left_out_and_what_cannot_be_trusted(survey: Survey) -> None:
    left_out, blurred = warnings(survey, RowIndex(survey.rows))
    assert left_out.startswith("2 tensors left out:")
    assert "lost (the configuration promises it)" in left_out
    assert blurred.startswith("The leading vectors of 14 matrices are not identifiable")
    assert "q (layers 2–3)" in blurred
    census = Census((entry("a"),), "unknown", "inferred")
    inferred = Survey(survey.rows, census, survey.provenance, survey.summary)
    assert "inferred from names and shapes" in warnings(inferred, RowIndex([]))[0]


@pytest.mark.parametrize(
    "rows",
    [
        [
            *kind_rows("q", [0]),
            Row(kind="q", stack="", layer=0, measure="continuity.v1", status="one-layer", reason="one layer"),
        ],
        [*packing_rows("embed")],
        [*expert_rows("gate", range(3))],
        [*kind_rows("q", range(2))],
        [Row(kind="embed", stack="", measure="superposition.n", status="non-finite", reason="holds NaN")],
    ],
    ids=["one layer", "superposition only", "experts only", "two layers", "nothing"],
)
def test_partial_surveys_have_a_page(rows: list[Row]) -> None:
    page = Page(render(made_survey(rows)))
    assert "Glossary" in page.text
    for figure in page.data["figures"].values():
        go.Figure(figure)


def test_report_writes_whole_pages_or_none(tmp_path: Path, survey: Survey) -> None:
    target = tmp_path / "out" / "report.html"
    assert drillcore.report(survey, target) == target
    before = target.read_text(encoding="utf-8")
    assert before.endswith("</html>\n") or before.endswith("</html>")
    broken = Survey(survey.rows, survey.census, {"source": "x", "seconds": object}, survey.summary)
    drillcore.report(broken, target)  # any value of the provenance can be shown
    with pytest.raises(OSError, match="report"):
        drillcore.report(survey, target / "below-a-file.html")
    assert [p.name for p in target.parent.iterdir()] == ["report.html"]


def test_pages_load_neither_torch_nor_the_figures_of_plotly() -> None:
    code = "import sys, drillcore.pages.page; print([m for m in ('torch', 'plotly.graph_objects') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_examples_in_the_docstrings() -> None:
    assert doctest.testmod(page_rows).failed == 0
