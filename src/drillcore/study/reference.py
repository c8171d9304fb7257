"""Studies by reference: a name of the package, or a file of the user's."""

import importlib
import importlib.util
import sys
from difflib import get_close_matches
from pathlib import Path

from drillcore.study.errors import StudyError
from drillcore.study.spec import Study

# name → module with an attribute `study`
BUILT_IN = {
    "continuity-mlp": "drillcore.studies.continuity_mlp",
    "hamiltonian": "drillcore.studies.hamiltonian",
    "superposition-density": "drillcore.studies.superposition_density",
    "superposition-large": "drillcore.studies.superposition_large",
    "superposition-llm": "drillcore.studies.superposition_llm",
    "superposition-small": "drillcore.studies.superposition_small",
    "superposition-toy-gallery": "drillcore.studies.superposition_gallery",
}
# listed without loading torch
TITLES = {
    "continuity-mlp": "Why geometric continuity emerges: residual MLPs on MNIST",
    "hamiltonian": "Which norm placements make training well posed: Hamiltonians by ascent",
    "superposition-density": "Loss against the number of active features",
    "superposition-large": "One exponent for three families of frequencies, n = 10240",
    "superposition-llm": "Heads of open language models: overlap against width",
    "superposition-small": "How loss falls with width: a phase map of the toy model",
    "superposition-toy-gallery": "Five features in two dimensions, and other small pictures",
}


def load(reference: str) -> Study:
    """The study of a name, or of a Python file that has one as `study`.

    A file is executed, as `python FILE` would.

    Raises:
        StudyError: there is no such study, or the file has none.
    """
    path = Path(reference)
    if path.suffix == ".py":
        if not path.is_file():
            raise StudyError(f"there is no file {reference}")
        module = _module(path)
    elif reference in BUILT_IN:
        module = importlib.import_module(BUILT_IN[reference])
    else:
        close = get_close_matches(reference, BUILT_IN, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(BUILT_IN)}, or give a .py file"
        raise StudyError(f"there is no study {reference!r}; {hint}")
    study = getattr(module, "study", None)
    if not isinstance(study, Study):
        raise StudyError(f"{reference} has no Study named `study` (from drillcore.study import Study)")
    return study


def _module(path: Path) -> object:
    name = f"drillcore_user_study_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise StudyError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
