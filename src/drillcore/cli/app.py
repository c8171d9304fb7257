"""Commands, exit codes and errors. Nothing heavy is imported before a command runs."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

import drillcore
from drillcore.cli import screen
from drillcore.cli.check_command import check
from drillcore.cli.study_commands import study_app
from drillcore.errors import UserError

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

app.command(study_app)
app.command(check)

Checkpoint = Annotated[str, Parameter(help="File, folder or Hugging Face id of the model.")]
Roles = Annotated[Path | None, Parameter(help="TOML file with the roles of an unknown family (see CONTRIBUTING.md).")]
ConfigFile = Annotated[Path | None, Parameter(help="config.json to use instead of the one beside the weights.")]
Base = Annotated[str | None, Parameter(help="Base model of a LoRA folder, where its configuration is not found.")]


@app.command
def survey(
    checkpoint: Checkpoint,
    *,
    out: Annotated[Path | None, Parameter(help="Folder for the results; ./survey-NAME by default.")] = None,
    rank: Annotated[int, Parameter(help="Dimension of the leading subspaces.")] = 8,
    measures: Annotated[str | None, Parameter(help="Comma list of measures or groups, e.g. v1,u1 or spectrum.")] = None,
    kinds: Annotated[str | None, Parameter(help="Comma list of kinds, e.g. q,k,up or embed.")] = None,
    layers: Annotated[str | None, Parameter(help="Layers, e.g. 0-7,12.")] = None,
    spectrum: Annotated[
        Literal["auto", "full"], Parameter(help="full: every singular value of every matrix.")
    ] = "auto",
    fold_norms: Annotated[bool, Parameter(help="Multiply input-norm gains into the matrices they feed.")] = False,
    exact_max: Annotated[bool, Parameter(help="Exact maximum overlap of vocabularies above 50,000 rows.")] = False,
    roles: Roles = None,
    config: ConfigFile = None,
    base: Base = None,
    device: Annotated[str, Parameter(help="cpu, or a CUDA device such as cuda:0.")] = "cpu",
    threads: Annotated[int | None, Parameter(help="CPU threads; all cores by default.")] = None,
    quiet: Annotated[bool, Parameter(help="No progress bar and no table; only errors and the paths.")] = False,
) -> int:
    """Survey a checkpoint from its weights alone: what its layers share and what its embedding packs.

    Writes rows.parquet, survey.json and report.html, and prints one line per kind. No data and no GPU are needed;
    the weights are streamed, so that a model larger than the memory can be surveyed.

    Examples:

    `drillcore survey ./Llama-3.1-8B --out results`

    `drillcore survey ./model.gguf --measures v1,u1 --quiet`
    """
    _use_threads(threads)
    folder = out or Path(f"survey-{Path(checkpoint.rstrip('/')).name}")
    with screen.progress(quiet=quiet) as bar:
        result = drillcore.survey(
            checkpoint, rank=rank, measures=_words(measures), kinds=_words(kinds), layers=_layers(layers),
            spectrum=spectrum, fold_norms=fold_norms, exact_max=exact_max, roles=roles, config=config, base=base,
            device=device, progress=bar,
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


def _use_threads(threads: int | None) -> None:
    """Settings that the numeric libraries read when they start.

    torch and NumPy bring a thread pool each, whose idle threads spin for the work of the other: they are told to sleep.
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    if threads is not None:
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"):
            os.environ[name] = str(max(1, threads))


def _words(text: str | None) -> list[str] | None:
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


def _layers(text: str | None) -> list[int] | None:
    """Numbers and ranges: "0-3,7" is 0, 1, 2, 3, 7."""
    if text is None:
        return None
    chosen: list[int] = []
    for word in _words(text) or []:
        first, dash, last = word.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise drillcore.InputError(f"{word!r} is not a layer", where="--layers", remedy="write for example 0-7,12")
        chosen += range(int(first), int(last or first) + 1)
    return chosen
