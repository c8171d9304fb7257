"""The study machine: axes, runs, tasks, claims and verdicts; it does not know what a cell does."""

from drillcore.study.claims import Claim, Verdict
from drillcore.study.done import Coverage, coverage, provenance, results
from drillcore.study.errors import StudyError
from drillcore.study.figure import Figure
from drillcore.study.machine import Plan, plan, run, work
from drillcore.study.spec import Axis, Preset, Run, Study, Task
from drillcore.study.stored import load_verdicts, publish, save_verdicts
from drillcore.study.verify import Decided, verify

__all__ = [
    "Axis", "Claim", "Coverage", "Decided", "Figure", "Plan", "Preset", "Run", "Study", "StudyError", "Task", "Verdict",
    "coverage", "load_verdicts", "plan", "provenance", "publish", "results", "run", "save_verdicts",
    "verify", "work",
]  # fmt: skip
