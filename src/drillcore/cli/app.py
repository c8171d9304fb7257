"""Commands, exit codes and errors. Nothing heavy is imported before a command runs."""

import re
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter, Token

import drillcore
from drillcore.cli import screen
from drillcore.cli.bars import progress_bar
from drillcore.cli.check_command import check
from drillcore.cli.compare_command import compare, is_list
from drillcore.cli.fit_command import fit
from drillcore.cli.options import check_folder, use_threads
from drillcore.cli.plan_command import plan
from drillcore.cli.rescale_command import rescale
from drillcore.cli.signal_command import signal
from drillcore.errors import UserError

_LAYER = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)
DONE, LEFT_OUT, BAD_INPUT, STOPPED = 0, 1, 2, 130

app = App(
    name="drillcore",
    version=drillcore.__version__,
    help="""Drill through the layers of a deep network: what they share, what they pack, whether they hold.

    Start with `drillcore survey CHECKPOINT`, where CHECKPOINT is a safetensors, .bin, .pt or .gguf file, a folder,
    or a Hugging Face id.
    """,
    help_epilogue="Exit codes: 0 done · 1 done, with named tensors left out · 2 bad input · 130 stopped.",
)

app.command(signal)
app.command(check)
app.command(rescale)
app.command(fit)
app.command(plan)
_STUDY_HELP = """Run an experiment of many small trainings and decide its claims.

`drillcore study run continuity-mlp` does what is missing, `verify` decides the claims, `report` draws the page. A
study of your own is one Python file (CONTRIBUTING.md), given by its path.
"""
# By its import path: what a study needs is imported when one is asked for.
app.command("drillcore.cli.study_commands:study_app", name="study", help=_STUDY_HELP)


def _whole(_: Any, tokens: Sequence[Token]) -> int:
    """A whole number as it is written: Cyclopts itself would round 1.5."""
    return int(tokens[0].value)


Checkpoint = Annotated[str, Parameter(help="File, folder or Hugging Face id of the model.")]
Roles = Annotated[Path | None, Parameter(help="TOML file with the roles of an unknown family (see CONTRIBUTING.md).")]
ConfigFile = Annotated[Path | None, Parameter(help="config.json to use instead of the one beside the weights.")]
Base = Annotated[str | None, Parameter(help="Base model of a LoRA folder, where its configuration is not found.")]


@app.command
def survey(
    *checkpoints: Checkpoint,
    out: Annotated[Path | None, Parameter(help="Folder for the results; ./survey-NAME by default.")] = None,
    rank: Annotated[int, Parameter(converter=_whole, help="Dimension of the leading subspaces.")] = 8,
    measures: Annotated[
        str | None, Parameter(help="Comma list of measures or groups, e.g. v1,u1 or stability.")
    ] = None,
    kinds: Annotated[str | None, Parameter(help="Comma list of kinds, e.g. q,k,up or embed.")] = None,
    layers: Annotated[str | None, Parameter(help="Layers, e.g. 0-7,12.")] = None,
    spectrum: Annotated[
        Literal["auto", "full"], Parameter(help="full: every singular value of every matrix.")
    ] = "auto",
    fold_norms: Annotated[bool, Parameter(help="Multiply input-norm gains into the matrices they feed.")] = False,
    exact_max: Annotated[bool, Parameter(help="Exact maximum overlap of vocabularies above 50,000 rows.")] = False,
    tokens: Annotated[
        Path | None, Parameter(help="Token ids (.npy, text) or counts (.csv: id,count): superposition by frequency.")
    ] = None,
    text: Annotated[
        Path | None, Parameter(help="Text to count the tokens of instead, by the checkpoint's tokenizer.json.")
    ] = None,
    roles: Roles = None,
    config: ConfigFile = None,
    base: Base = None,
    norm_placement: Annotated[str | None, Parameter(help="Where the norms stand, if it cannot be decided.")] = None,
    device: Annotated[str, Parameter(help="cpu, or a CUDA device such as cuda:0.")] = "cpu",
    threads: Annotated[int | None, Parameter(converter=_whole, help="CPU threads; all cores by default.")] = None,
    quiet: Annotated[bool, Parameter(help="No progress bar and no table; only errors and the paths.")] = False,
) -> int:
    """Survey a checkpoint from its weights alone: what its layers share and what its embedding packs.

    Writes rows.parquet, survey.json and report.html, and prints one line per kind. No data and no GPU are needed;
    the weights are streamed, so that a model larger than the memory can be surveyed.

    Several checkpoints, or a .txt file that lists them one a line, give one page that compares what their embeddings
    and heads pack.

    Examples:

    `drillcore survey ./Llama-3.1-8B --out results`

    `drillcore survey ./model.gguf --measures v1,u1 --quiet`

    `drillcore survey facebook/opt-125m facebook/opt-1.3b ./mine --text corpus.txt`
    """
    use_threads(threads)
    if len(checkpoints) != 1 or is_list(checkpoints[0]):
        given = {"--rank": rank != 8, "--measures": measures, "--kinds": kinds, "--layers": layers, "--roles": roles,
                 "--spectrum": spectrum != "auto", "--fold-norms": fold_norms, "--config": config,
                 "--base": base, "--norm-placement": norm_placement}  # fmt: skip
        return compare(checkpoints, out or Path("survey-comparison"), {name for name, used in given.items() if used},
                       tokens=tokens, text=text, exact_max=exact_max, device=device, quiet=quiet)  # fmt: skip
    (checkpoint,) = checkpoints
    folder = out or Path(f"survey-{Path(checkpoint.rstrip('/')).name}")
    check_folder(folder)
    with progress_bar("bytes", quiet=quiet) as bar:
        result = drillcore.survey(
            checkpoint, rank=rank, measures=_words(measures), kinds=_words(kinds), layers=_layers(layers),
            spectrum=spectrum, fold_norms=fold_norms, exact_max=exact_max, tokens=tokens, text=text, roles=roles,
            config=config, base=base, norm_placement=norm_placement, device=device, progress=bar,
        )  # fmt: skip
    paths = [*result.save(folder), drillcore.report(result, folder / "report.html")]
    if not quiet:
        screen.show_survey(result)
    screen.show_paths(paths)
    return _code(result.census)


@app.command
def describe(
    checkpoint: Checkpoint,
    *,
    every: Annotated[bool, Parameter(name="--all", help="List every tensor, not one line per pattern.")] = False,
    roles: Roles = None,
    config: ConfigFile = None,
    base: Base = None,
) -> int:
    """Print the census of a checkpoint without reading a weight: what each tensor is, or why it has no role.

    Tensors that were not recognised are listed with the way to map them.

    Examples:

    `drillcore describe ./Llama-3.1-8B`
    """
    found = drillcore.describe(checkpoint, roles=roles, config=config, base=base)
    screen.show_census(found, every=every)
    return _code(found.census)


def main() -> None:
    """Run the command line and leave with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a sign is no reason to stop
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command; errors of the input are shown without a traceback."""
    try:
        command, bound, _ = app.parse_args(arguments, exit_on_error=False, print_error=True)
    except Exception as error:
        if type(error).__module__.split(".")[0] != "cyclopts":
            raise
        return BAD_INPUT
    return _guarded(lambda: command(*bound.args, **bound.kwargs))


def _guarded(job: Callable[[], Any]) -> int:
    try:
        code = job()
    except KeyboardInterrupt:
        screen.error("stopped; no half-written file is left")
        return STOPPED
    except UserError as problem:
        screen.error(str(problem))
        return BAD_INPUT
    except OSError as problem:
        screen.error(f"{problem.filename or 'output'}: {problem.strerror or problem}")
        return BAD_INPUT
    return code if isinstance(code, int) else DONE


def _code(census: Any) -> int:
    return LEFT_OUT if census.left_out else DONE


def _words(text: str | None) -> list[str] | None:
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


def _layers(text: str | None) -> list[int] | None:
    """Numbers and ranges: "0-3,7" is 0, 1, 2, 3, 7."""
    if text is None:
        return None
    chosen: list[int] = []
    for word in _words(text) or []:
        found = _LAYER.fullmatch(word)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if first > last:
            what = "counts down" if found else "is not a layer"
            raise drillcore.InputError(f"{word!r} {what}", where="--layers", remedy="write for example 0-7,12")
        chosen += range(first, last + 1)
    return chosen
