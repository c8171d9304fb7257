"""The page of a survey: one HTML file that needs no network, written in one piece or not at all."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from drillcore.pages import colours, stability_words, words
from drillcore.pages.continuity_figures import EXPERTS, VIEWS, captions, continuity_figures, expert_figures
from drillcore.pages.heat_maps import MEASURES, UNIT, colour_scales, heat_figures, heat_maps
from drillcore.pages.packing import packed, packing_figures
from drillcore.pages.rows import Kind, RowIndex, cosine, count, size, text
from drillcore.pages.spectra_figures import BY_DEPTH, depth_figures, spectrum_figures
from drillcore.pages.stability_figures import stability_figures
from drillcore.pages.tables import census_data, flat, parameters, status_groups
from drillcore.runs import write_text

if TYPE_CHECKING:
    from drillcore.verbs.survey import Survey

_PAGES = files("drillcore.pages")


def report(survey: "Survey", path: Path) -> Path:
    """Write the survey as one offline HTML page and return its path.

    The page holds plotly.js, its styles and every number it shows; a content policy in it forbids any request.

    Raises:
        OSError: the folder cannot be made or written, or the disk is full; an older page stays as it was.
    """
    path = Path(path)
    write_text(path, render(survey))
    return path


def render(survey: "Survey") -> str:
    """Return the HTML text of the page."""
    return environment().get_template("survey.html.j2").render(**_context(survey))


def environment() -> Environment:
    """The templates of all pages, with the filters for numbers."""
    found = Environment(
        loader=PackageLoader("drillcore.pages", "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    found.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    found.filters |= {"num": text, "cos": cosine, "size": size, "count": count}
    return found


def _context(survey: "Survey") -> dict[str, Any]:
    index = RowIndex(survey.rows)
    faces = {Kind(s.stack, s.kind): s.faces for s in survey.summary}
    kinds = index.kinds(*BY_DEPTH, *MEASURES, "continuity.s2_weighted")
    matrices = packed(index)
    figures = {
        **continuity_figures(index, faces), **depth_figures(index, kinds), **spectrum_figures(index),
        **packing_figures(matrices), **expert_figures(index),
    }  # fmt: skip
    stability = stability_figures(survey.rows)
    figures |= {picture.name: picture.figure for own in stability.values() for picture in own}
    maps = heat_maps(index)
    data = {
        "figures": figures, "heat": {"maps": maps, "unit": UNIT, **heat_figures(), "scales": colour_scales()},
        "census": census_data(survey.census), "dark": colours.DARK, "captions": captions(index, faces),
    }  # fmt: skip
    return {
        "survey": survey, "words": words, "title": _title(survey), "parameters": parameters(survey.census),
        "findings": words.findings(survey, matrices), "warnings": words.warnings(survey, index), "kinds": kinds,
        "layers": _layers(index, kinds),
        "continuity": _views(figures, kinds), "views": VIEWS, "by_depth": BY_DEPTH, "figures": figures,
        "ratios": [k for k in kinds if f"spectrum/{k.key}" in figures], "kind_style": colours.kind_style,
        "spectra": any(name.startswith(("depth/", "spectrum/")) for name in figures), "maps": maps,
        "heat_measures": MEASURES, "heat_first": _first(maps, survey), "matrices": matrices,
        "certificates": survey.certificates, "stability": stability,
        "growth": stability_words.growths(survey.rows), "sentence": stability_words.sentence,
        "experts": index.kinds(*EXPERTS), "statuses": status_groups(survey.rows),
        "provenance": flat(survey.provenance), "data": data, "style": asset("style.css"),
        "script": asset("script.js"), "plotly": plotly(),
    }  # fmt: skip


def _views(figures: dict[str, Any], kinds: Sequence[Kind]) -> dict[str, list[Kind]]:
    """Ways to look at continuity that have a figure, each with its kinds."""
    found = {view: [k for k in kinds if f"continuity/{view}/{k.key}" in figures] for view in VIEWS}
    return {view: chosen for view, chosen in found.items() if chosen}


def _title(survey: "Survey") -> str:
    """The last two parts of a path, which say more than the last ("model"); any other name as it is."""
    source = str(survey.provenance.get("source", "checkpoint"))
    return "/".join(Path(source).parts[-2:]) if Path(source).is_absolute() else source


def _layers(index: RowIndex, kinds: Sequence[Kind]) -> int:
    return len({(k.stack, r.layer) for k in kinds for m in BY_DEPTH for r in index.of(m, k) if r.layer is not None})


def _first(maps: dict[str, Any], survey: "Survey") -> str:
    """The map to begin with: the facing side of the kind that shares most."""
    ranked = sorted(survey.summary, key=lambda s: words.facing(s).mean or 0.0, reverse=True)
    wanted = [f"continuity.{'u' if s.faces == 'out' else 'v'}1/{Kind(s.stack, s.kind).key}" for s in ranked]
    return next((name for name in wanted if name in maps), next(iter(maps), ""))


def asset(name: str) -> Markup:
    """The text of a style or script of the pages."""
    return Markup((_PAGES / name).read_text(encoding="utf-8"))  # noqa: S704 (our own file)


def plotly() -> Markup:
    """plotly.js from the installed package; read as a file, since importing plotly's figures takes a second."""
    source = (files("plotly.package_data") / "plotly.min.js").read_text(encoding="utf-8")
    return Markup(source.replace("</script", "<\\/script"))  # noqa: S704 (plotly's own file)
