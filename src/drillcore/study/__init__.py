"""The study machine: axes, runs, tasks, claims and verdicts; it does not know what a cell does."""

from drillcore.study.claims import Claim, Verdict
from drillcore.study.figure import Figure
from drillcore.study.machine import Plan, plan, results, run, work
from drillcore.study.spec import Axis, Preset, Run, Study, StudyError, Task
from drillcore.study.verify import Decided, load_verdicts, save_verdicts, verify

__all__ = [
    "Axis", "Claim", "Decided", "Figure", "Plan", "Preset", "Run", "Study", "StudyError", "Task", "Verdict",
    "load_verdicts", "plan", "results", "run", "save_verdicts", "verify", "work",
]  # fmt: skip
