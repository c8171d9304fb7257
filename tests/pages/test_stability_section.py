"""The survey's section on stability: numbers of the certificate, figures of the rows, words of the verdict."""

from dataclasses import replace

import plotly.graph_objects as go
import pytest
from surveys import NASTY, kind_rows, made_survey
from tests.measures.test_certificate import ALL, overflowing, shaken
from tests.weights.tiny import CASES

import drillcore
from drillcore.measures.stability import Certificate, PartVerdict
from drillcore.pages.page import render
from drillcore.pages.stability_figures import FP16_MAX, stability_figures
from drillcore.pages.stability_words import findings, growth_words, growths
from drillcore.table import Row, Table
from drillcore.verbs.survey import Survey


@pytest.fixture(scope="module")
def wild() -> Survey:
    """A Gemma 3 that may overflow from its second layer."""
    return drillcore.survey(overflowing("gemma3_text", 1, "post_feedforward_layernorm"))


def certificate(*parts: PartVerdict, stack: str = "", reason: str = "") -> Certificate:
    placed = drillcore.survey(CASES["llama"].build()).placements[""]
    return Certificate(stack, placed, parts, (), (), None, None, reason=reason)


SAFE = PartVerdict("stream", "cannot overflow", 6550.4, 3, "mlp", None)
OVER = PartVerdict("branch outputs", "may overflow", 655_040.0, 5, "mlp", 2)
OPEN = PartVerdict("stream", "not bounded", None, 0, "mlp", None, reason=f"it reads {NASTY}")


def test_the_lines_hold_the_rows_and_the_limit(wild: Survey) -> None:
    (pictures,) = stability_figures(wild.rows).values()
    by_name = {p.name.split("/")[1]: p.figure for p in pictures}
    assert set(by_name) == {"parts", "stream", "gains", "budget"}
    lines = {trace["name"]: trace for trace in by_name["parts"]["data"]}
    assert lines["fp16 maximum"]["y"] == [FP16_MAX, FP16_MAX]
    for part in wild.certificates[0].parts:
        drawn = max(lines[part.part]["y"])
        assert drawn == pytest.approx(part.bound, rel=1e-4)
        assert lines[part.part]["x"][lines[part.part]["y"].index(drawn)] == part.layer
    budget = [r.value for r in wild.rows if r.measure == "stability.gain_budget"]
    assert by_name["budget"]["data"][0]["y"] == pytest.approx(budget, rel=1e-4)
    rms = {r.site: r.value for r in wild.rows if r.measure == "stability.bound_rms"}
    drawn = next(t for t in by_name["stream"]["data"] if t["name"] == "root mean square")
    assert dict(zip(drawn["x"], drawn["y"], strict=True)) == pytest.approx(rms, rel=1e-4)
    for figure in by_name.values():
        go.Figure(data=figure["data"], layout=figure["layout"])


def test_the_lines_of_a_figure_differ(wild: Survey) -> None:
    for picture in stability_figures(wild.rows)[""]:
        looks = [(t["line"]["color"], t.get("marker", {}).get("symbol")) for t in picture.figure["data"]]
        assert len(set(looks)) == len(looks)


def test_the_page_says_what_the_certificate_says(wild: Survey) -> None:
    html = render(wild)
    assert '<section id="stability">' in html
    assert "may overflow from layer 1" in html
    assert "In fp16 it may overflow: its stream from layer 1" in html
    assert "derived (drillcore)" in html
    assert "drillcore signal" in html
    assert "bf16 has the range of float32" in html


def test_two_stacks_have_a_part_each() -> None:
    found = drillcore.survey(shaken(ALL["bart"]))
    html = render(found)
    assert "Encoder: " in html
    assert "Decoder: " in html
    assert set(stability_figures(found.rows)) == {"encoder", "decoder"}


def test_a_survey_without_certificates_has_no_section() -> None:
    html = render(made_survey(list(kind_rows("q", [0, 1, 2]))))
    assert 'id="stability"' not in html
    assert "#stability" not in html


def test_a_reason_is_text() -> None:
    html = render(replace(made_survey(list(kind_rows("q", [0, 1]))), certificates=(certificate(OPEN, reason=NASTY),)))
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert" in html
    assert "Stream: not bounded" in html


def test_sentences_of_each_verdict() -> None:
    (safe,) = findings([certificate(SAFE)])
    assert "nothing in the blocks can overflow, whatever the input" in safe
    assert "head-room of 10" in safe
    (over,) = findings([certificate(SAFE, OVER)])
    assert "its branch outputs from layer 2; stream cannot" in over
    assert not list(findings([certificate(OPEN)]))
    (stack,) = findings([certificate(OVER, stack="decoder")])
    assert "the decoder stack may overflow" in stack


def test_growth_in_words() -> None:
    assert growth_words(0.045, "rate per layer") == "exponential, +4.5 % a layer"
    assert growth_words(-0.02, "exponent") == "as depth to the power −0.02"
    rows = Table((
        Row(measure="stability.norm_growth", kind="o", value=0.5, unit="exponent"),
        Row(measure="stability.growth", kind="mlp", subset="gain out", value=0.0, unit="flat", stack="decoder"),
        Row(measure="stability.norm_growth", kind="v", status="not-applicable"),
    ))  # fmt: skip
    assert growths(rows) == [("σ₁ of o", "as depth to the power 0.50"), ("decoder mlp: gain out", "flat")]
