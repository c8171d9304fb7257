"""The loop: what it sees, what it leaves alone, and that being killed changes nothing."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drillcore.runs import RunFolder
from drillcore.table import Row, Table
from drillcore.training import CheckpointError, Optim, Training, checkpoint, train

STEPS = 23


class Sums:
    """Rows from the weights and from a running sum of gradients: both must survive a resume."""

    def __init__(self, model: nn.Linear) -> None:
        self.model, self.sum = model, torch.zeros_like(model.weight)

    def due(self, step: int) -> bool:
        return step % 4 == 0 or step == STEPS

    def after_backward(self, step: int) -> None:
        self.sum += self.model.weight.grad

    def rows(self, step: int) -> Iterable[Row]:
        torch.randn(3)  # the loop must not depend on the global stream
        for name, value in (("weight", self.model.weight), ("sum", self.sum), ("gradient", self.model.weight.grad)):
            yield Row(step=step, measure=name, value=float(value.double().sum()))

    def state(self) -> dict[str, Any]:
        return {"sum": self.sum}

    def restore(self, state: dict[str, Any]) -> None:
        self.sum = state["sum"]


def batch(step: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(step))
    return x, x.sum(1, keepdim=True)


def job(probes: bool = True) -> Training:
    model = nn.Linear(5, 1)
    nn.init.constant_(model.weight, 0.1)
    nn.init.zeros_(model.bias)
    loss = lambda m, x, y: (m(x) - y).square().mean().view(1)  # noqa: E731
    watching = (Sums(model),) if probes else ()
    return Training(model, Optim(lr=0.05).over(model.parameters()), batch, loss, STEPS, watching, save_every=5)


def rows(folder: RunFolder) -> list[Row]:
    return [row for part in folder.parts() for row in Table.load(part)]


@pytest.fixture
def unbroken(tmp_path: Path) -> list[Row]:
    folder = RunFolder(tmp_path / "unbroken", "run")
    train(job(), folder)
    return rows(folder)


def test_probes_see_the_weights_after_so_many_steps_and_the_next_gradient(unbroken: list[Row]) -> None:
    training = job(probes=False)
    model, expected = training.model, []
    total = torch.zeros(1, 5)
    for step in range(STEPS + 1):
        training.optimiser.zero_grad()
        x, y = batch(step)
        (model(x) - y).square().mean().backward()
        assert model.weight.grad is not None
        if step % 4 == 0 or step == STEPS:
            expected += [float(t.detach().double().sum()) for t in (model.weight, total, model.weight.grad)]
        total += model.weight.grad
        if step < STEPS:
            training.optimiser.step()
    assert [row.value for row in unbroken] == expected


class Killed(BaseException):
    pass


@pytest.mark.parametrize("where", ["rows", "checkpoint", "mark", "step"])
@pytest.mark.parametrize("when", [1, 3])
def test_killed_anywhere_it_resumes_to_the_same_rows(
    where: str, when: int, tmp_path: Path, unbroken: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, calls = RunFolder(tmp_path / "killed", "run"), 0
    owner, name = {"rows": (Table, "save"), "checkpoint": (torch, "save"), "mark": (checkpoint, "write_text"),
                   "step": (torch.optim.Adam, "step")}[where]  # fmt: skip
    real = getattr(owner, name)

    def dying(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == when * (6 if where == "step" else 1):
            raise Killed
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, dying)
        with pytest.raises(Killed):
            train(job(), folder)
    train(job(), folder)
    assert rows(folder) == unbroken


@pytest.mark.slow
def test_sigkill_loses_nothing(tmp_path: Path, unbroken: list[Row]) -> None:
    script = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[2]); import test_loop as t; from pathlib import Path\n"
        "stop = lambda step: os.kill(os.getpid(), signal.SIGKILL) if step == 12 else None\n"
        "t.train(t.job(), t.RunFolder(Path(sys.argv[1]), 'run'), stop)"
    )
    folder = tmp_path / "killed"
    done = subprocess.run([sys.executable, "-c", script, str(folder), str(Path(__file__).parent)], check=False,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    assert checkpoint.load(RunFolder(folder, "run").checkpoint)[0] == 10  # type: ignore[index]
    train(job(), RunFolder(folder, "run"))
    assert rows(RunFolder(folder, "run")) == unbroken


def test_probes_leave_the_training_untouched_to_the_bit(tmp_path: Path) -> None:
    watched, alone = job(), job(probes=False)
    train(watched, RunFolder(tmp_path / "a", "run"))
    train(alone, RunFolder(tmp_path / "b", "run"))
    assert torch.equal(watched.model.weight, alone.model.weight)  # type: ignore[arg-type]


def test_a_checkpoint_that_is_not_what_was_written_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "run")
    train(job(), folder)
    newest = sorted(folder.checkpoint.glob("*.pt"))[-1]
    content = newest.read_bytes()
    newest.write_bytes(content[:-40] + bytes(40))
    with pytest.raises(CheckpointError, match=r"step-00000020\.pt is not what was written.*delete"):
        train(job(), folder)
    newest.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        train(job(), folder)
    newest.with_suffix(".json").unlink()
    before = checkpoint.load(folder.checkpoint)
    assert before is not None
    assert before[0] == 15  # what the message says can be done
    train(job(), folder)


def test_a_full_disk_is_said_and_the_checkpoint_before_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path, "run")
    calls, real = 0, torch.save

    def full(*args: Any, **kwargs: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError(28, "No space left on device")
        real(*args, **kwargs)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        train(job(), folder)
    found = checkpoint.load(folder.checkpoint)
    assert found is not None
    assert found[0] == 10
    assert not list(folder.checkpoint.glob(".*"))


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    training = job()
    training.loss = lambda m, x, y: (m(x) - y).square().mean().view(1) * float("nan")
    with pytest.raises(FloatingPointError, match="replica 0 is not finite"):
        train(training, RunFolder(tmp_path, "run"))
    assert checkpoint.load(RunFolder(tmp_path, "run").checkpoint) is None
