"""drillcore: what the layers of a deep network share, what they pack, and whether they hold.

The public functions are listed in ``_PUBLIC`` and loaded on first use, so that ``import drillcore`` costs
nothing. No module of the package carries the name of a public function.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "survey": "drillcore.verbs.survey",
    "describe": "drillcore.verbs.describe",
    "check": "drillcore.verbs.check",
    "compare": "drillcore.verbs.comparison",
    "fit": "drillcore.verbs.fit",
    "fit_example": "drillcore.verbs.fit",
    "fit_report": "drillcore.pages.fit_page",
    "compare_report": "drillcore.pages.compare_page",
    "listed": "drillcore.verbs.comparison",
    "plan": "drillcore.verbs.plan",
    "report": "drillcore.pages.page",
    "rescale": "drillcore.verbs.rescale",
    "signal": "drillcore.verbs.signal",
    "signal_report": "drillcore.pages.signal_page",
    "study_report": "drillcore.pages.study_page",
    "check_report": "drillcore.pages.check_page",
    "open_source": "drillcore.weights",
    "InputError": "drillcore.weights",
}

__all__ = [
    "InputError",
    "check",
    "check_report",
    "compare",
    "compare_report",
    "describe",
    "fit",
    "fit_example",
    "fit_report",
    "listed",
    "open_source",
    "plan",
    "report",
    "rescale",
    "signal",
    "signal_report",
    "study_report",
    "survey",
]

if TYPE_CHECKING:
    from drillcore.pages.check_page import check_report as check_report
    from drillcore.pages.compare_page import compare_report as compare_report
    from drillcore.pages.fit_page import fit_report as fit_report
    from drillcore.pages.page import report as report
    from drillcore.pages.signal_page import signal_report as signal_report
    from drillcore.pages.study_page import study_report as study_report
    from drillcore.verbs.check import check as check
    from drillcore.verbs.comparison import compare as compare
    from drillcore.verbs.comparison import listed as listed
    from drillcore.verbs.describe import describe as describe
    from drillcore.verbs.fit import fit as fit
    from drillcore.verbs.fit import fit_example as fit_example
    from drillcore.verbs.plan import plan as plan
    from drillcore.verbs.rescale import rescale as rescale
    from drillcore.verbs.signal import signal as signal
    from drillcore.verbs.survey import survey as survey
    from drillcore.weights import InputError as InputError
    from drillcore.weights import open_source as open_source


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'drillcore' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
