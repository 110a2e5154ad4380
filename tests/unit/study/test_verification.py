"""`glassloop verify`: all claims hold on a tiny model, and a broken promise is detected."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from trials import Servers, Trial

from glassloop.base.errors import SettingsError
from glassloop.cli.verify import verify
from glassloop.models.pooled import PooledClassifier, Pooling
from glassloop.settings.file import GivenSettings
from glassloop.settings.training import DataSettings
from glassloop.study import verification
from glassloop.study.run import train_run
from glassloop.study.verification import Claim, check_claims, weight_difference


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes have tests of their own; here they would only take time."""
    monkeypatch.setattr(verification, "two_processes", lambda trial: trial.train(dropout=False)[0][:, 0])


@pytest.fixture
def unkilled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "killed_and_resumed", lambda trial, network: 0.0)


class Forked:
    """A trial with the methods of a `subprocess.Popen` that `verify` uses."""

    def __init__(self, trial: Trial) -> None:
        self.trial, self.returncode = trial, None

    def poll(self) -> int | None:
        return self.trial.poll()

    def kill(self) -> None:
        self.trial.send(signal.SIGKILL)

    def communicate(self) -> tuple[str, str]:
        ended = self.trial.wait()
        self.returncode = ended.code
        return ended.out, ended.err


@pytest.fixture
def forked(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that are killed and resumed need not import everything again; the exhaustive tests start new interpreters."""

    def start(folder: Path, *, threads: int, waiting_step: int = 0, resume: bool = False, **settings: Any) -> Forked:
        what = json.dumps([str(folder), threads, waiting_step, resume, {**verification.SETTINGS, **settings}])
        return Forked(servers.start(what, script=folder / "child.py"))

    monkeypatch.setattr(verification, "start_program", start)


@pytest.fixture
def trial(tiny_model_dir: Path, tmp_path: Path) -> verification.Trial:
    return verification.Trial("quickstart", str(tiny_model_dir), DataSettings(rows=60), tmp_path)


@pytest.mark.slow
def test_all_claims_hold(one_process: None, forked: None, tiny_model_dir: Path, capsys: pytest.CaptureFixture) -> None:
    found = verify("quickstart", str(tiny_model_dir), rows=60)
    content = json.loads(str(found))
    assert (found.exit_status, content["ok"]) == (0, True)
    assert all({*claim} == {"name", "difference", "allowed", "holds"} for claim in content["claims"])
    out = capsys.readouterr().out
    assert out.count("✓") == 9
    assert "killed and resumed: weights" in out


@pytest.mark.slow
@pytest.mark.parametrize("method", [{"max_steps": 1}, {"method": "frozen"}], ids=["fine_tune", "frozen"])
def test_a_pooled_run_is_verified_with_its_own_head(
    method: dict[str, object],
    one_process: None,
    unkilled: None,
    tiny_model_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = {"output_dir": str(tmp_path / "run"), "pooling": "mean", "pair_form": "two_towers", **method}
    given = GivenSettings("quickstart", str(tiny_model_dir), {**settings, "baselines": False, "device": "cpu"}, {"rows": 60})
    folder = train_run(given, with_report=False)
    assert verify(str(folder)).exit_status == 0
    assert "and mean pooling, two towers: 6 steps" in "".join(capsys.readouterr())
    trial = verification.Trial("quickstart", str(tiny_model_dir), DataSettings(rows=60), tmp_path, Pooling("mean", towers=True))
    assert isinstance(trial.initial_model(), PooledClassifier)


def test_data_are_verified_with_the_head_that_training_would_choose(packaged: Path) -> None:
    assert verification.usual_pooling("quickstart", str(packaged), {"rows": 60}) == Pooling("mean", normalize=True, towers=True)


@pytest.mark.slow
def test_a_difference_between_backends_is_detected(one_process: None, unkilled: None, tiny_model_dir, monkeypatch) -> None:
    from glassloop.backends import accelerate as backends

    monkeypatch.setattr(backends.AccelerateBackend, "backward", lambda self, loss: self.accelerator.backward(loss * 1.01))
    claims = {claim.name: claim for claim in check_claims("quickstart", str(tiny_model_dir), DataSettings(rows=60))}
    broken = [name for name, claim in claims.items() if not claim.holds]
    assert broken == ["plain loop and Accelerate: weights"]


def test_differences_are_measured() -> None:
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    second.load_state_dict(first.state_dict())
    assert weight_difference(first, second) == 0.0
    with torch.no_grad():
        second.bias[1] += 0.5
    assert weight_difference(first, second) == pytest.approx(0.5)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_run_is_killed_in_the_middle(trial: verification.Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes: the first dies of SIGKILL after a checkpoint, before its end; the second takes the last three steps."""
    codes, found, steps = [], [], []

    def wait_for(process: Any, what: str, code: int = 0) -> str:
        said = kept(process, what, code)
        codes.append(process.returncode)
        found.append([path.name for path in trial.folder.glob("killed/run/checkpoint-*")])
        history = (trial.folder / "killed/run/history.jsonl").read_text()
        steps.append([json.loads(line)["step"] for line in history.splitlines()])
        return said

    kept = verification.wait_for
    monkeypatch.setattr(verification, "wait_for", wait_for)
    assert verification.killed_and_resumed(trial, trial.train()[1]) == 0.0
    assert codes == [-signal.SIGKILL, 0]
    assert found == [["checkpoint-3"]] * 2
    assert [taken[-1] for taken in steps] == [3, 6]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "broken", "at_least"),
    [  # other masks, and a run from scratch, which ends in the right weights
        ("        if state.step == waiting_step:", "        if resume and state.step == 4: torch.manual_seed(7)\n", 1e-6),
        ("trainer.train(resume_from", "import glob, shutil; [*map(shutil.rmtree, glob.glob(folder + '/run/ch*'))]\n", math.inf),
    ],
)
def test_a_run_that_is_not_resumed_exactly_is_detected(
    trial: verification.Trial, forked: None, monkeypatch: pytest.MonkeyPatch, line: str, broken: str, at_least: float
) -> None:
    assert line in verification.CHILD
    monkeypatch.setattr(verification, "CHILD", verification.CHILD.replace(line, broken + line))
    assert verification.killed_and_resumed(trial, trial.train()[1]) >= at_least


def test_a_run_that_dies_by_itself_is_an_error(trial: verification.Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "CHILD", "raise SystemExit('no room here')")
    with pytest.raises(SettingsError, match=r"a run to be killed failed on this machine: no room here"):
        verification.killed_and_resumed(trial, None)
    failed = SimpleNamespace(returncode=1, communicate=lambda: ("", "first\nno network here"))
    monkeypatch.setattr(verification.subprocess, "Popen", lambda *_, **__: failed)
    with pytest.raises(SettingsError, match="no network here"):
        verification.two_processes(trial)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_two_processes_have_the_losses_of_one(trial: verification.Trial) -> None:
    one, _ = trial.train(dropout=False)
    assert (verification.two_processes(trial) - one[:, 0]).abs().max() < 1e-6


# --- The table of `glassloop verify`: one row per claim, and whether it holds.
def test_one_row_per_claim(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    claims = [Claim("equal", 0.0, 0.0), Claim("close", 2e-6, 1e-4), Claim("far", math.inf, 0.0), Claim("no", math.nan, 1.0)]
    monkeypatch.setattr(verification, "check_claims", lambda *_: claims)
    assert verify().exit_status == 1
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["claim", "largest", "difference", "allowed"],
        ["✓", "equal", "none", "none"],
        ["✓", "close", "2.0e-06", "1e-04"],
        ["✗", "far", "inf", "none"],
        ["✗", "no", "nan", "1e+00"],
    ]
