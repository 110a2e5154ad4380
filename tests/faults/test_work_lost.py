"""Work that was done is not lost: not to rotation, stray files, a second run in the folder, or the end of a run.

Each of these lost a checkpoint, a model or a whole training before, or trained it again.
"""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from trials import EVALUATION, HUP, INT, KILL, SAVING, STEP, TERM, Hook, await_file, flags, same_end, told

from glassloop.runs.record import checkpoints_in
from glassloop.training.checkpoints import open_checkpoint

NEVER = {"save_strategy": "no", "eval_strategy": "no", "save_steps": None, "eval_steps": None, "max_steps": 4}
NO_STEP = Hook(STEP, 1, "bug")  # a run that trains again fails
LOADING, PREDICTIONS = "glassloop.study.run:tensor_digests", "glassloop.study.run:write_predictions"
MODEL = "glassloop.trainer:Trainer.write_model"


def contents(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("[!.]*") if path.is_file()}


@pytest.fixture(scope="module")
def stopped(runs: Any) -> Path:
    """A run killed after its checkpoints of steps 5 and 10."""
    run = runs.new()
    assert runs.train(run, [Hook(SAVING, 3, KILL)]).code == -signal.SIGKILL
    assert [path.name for path in checkpoints_in(run)] == ["checkpoint-10", "checkpoint-5"]
    return run


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))


# 1 and 2: checkpoints that cannot be read
def test_rotation_keeps_the_checkpoint_just_written(runs: Any, run: Path) -> None:
    """The newest by name is damaged: it was counted as the one to keep, and the two good ones were removed."""
    (run / "checkpoint-10/state.json").write_text("{")
    told(runs.resume(run, *flags(save_total_limit=1), hooks=[Hook(STEP, 2, TERM)]), 143, "resuming after step 5 ")
    assert open_checkpoint(run / "checkpoint-7")
    assert "resuming after step 7 " in runs.resumes_the_same(run).err


def test_no_checkpoint_that_can_be_used_is_an_error_and_restart_insists(runs: Any, run: Path) -> None:
    for path in checkpoints_in(run):
        (path / "state.json").write_text("{")
    before = contents(run)
    told(runs.resume(run), 4, "--restart", *(f"{path}: state.json is damaged" for path in checkpoints_in(run)))
    assert contents(run) == before
    ended = runs.resume(run, "--restart", hooks=[Hook(STEP, 3, TERM)])
    assert ended.code == 143, ended.err
    assert [open_checkpoint(path).manifest["step"] for path in checkpoints_in(run)] == [3]
    assert "resuming after step 3 " in runs.resumes_the_same(run).err
    kept = {f"checkpoints.kept-1/{name}": content for name, content in before.items() if name.startswith("checkpoint-")}
    assert kept.items() <= contents(run).items()


def test_checkpoints_of_a_newer_format_are_reported_and_left_alone(runs: Any, run: Path) -> None:
    for path in checkpoints_in(run):
        manifest = json.loads((path / "manifest.json").read_text()) | {"format": 2}
        (path / "manifest.json").write_text(json.dumps(manifest))
    before = contents(run)
    ended = runs.resume(run)
    assert ended.code == 4, ended.err
    assert ended.err.count("written in format 2 by a newer version of Glassloop") == 2
    assert contents(run) == before


def test_restart_needs_a_run_that_is_not_finished(runs: Any) -> None:
    ended = runs.servers.run(*runs.arguments(runs.new()), "--restart")
    assert (ended.code, "--restart needs a run to restart" in ended.err) == (2, True), ended.err
    run = runs.reference()
    before = contents(run)
    ended = runs.resume(run, "--restart")
    assert (ended.code, "is finished and will not be overwritten" in ended.err) == (2, True), ended.err
    assert contents(run) == before


# 3: two runs, one folder
@pytest.mark.parametrize("resumed", [False, True])
def test_a_folder_is_looked_at_again_under_the_lock(runs: Any, stopped: Path, tmp_path: Path, resumed: bool) -> None:
    """The second run looked at the folder before the first took the lock, and loads its model until the first has finished."""
    run = Path(shutil.copytree(stopped, tmp_path / "run")) if resumed else runs.new()
    loading, go_on = tmp_path / "loading", tmp_path / "go-on"
    arguments = ["train", "--resume", run] if resumed else runs.arguments(run)
    hooks = [Hook(LOADING, 1, f"touch:{loading}"), Hook(LOADING, 1, f"await:{go_on}")]
    second = runs.servers.start(*arguments, hooks=hooks[::-1])
    await_file(loading)
    first = runs.servers.run(*arguments)
    assert first.code == 0, first.err
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    go_on.touch()
    ended = second.wait()
    assert ended.code == (7 if resumed else 2), ended.err
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    same_end(runs.reference(), run)


def test_two_starts_at_once_into_one_folder(runs: Any) -> None:
    run = runs.new()
    started = [runs.start(run) for _ in range(2)]
    codes = sorted(trial.wait().code for trial in started)
    assert codes in ([0, 7], [0, 2])
    same_end(runs.reference(), run)


# 4: the end of a run
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", [TERM, INT, HUP])
@pytest.mark.parametrize("target", [EVALUATION, MODEL, PREDICTIONS], ids=["evaluation", "model", "predictions"])
def test_a_signal_in_the_final_phase_loses_no_training(runs: Any, name: str, target: str) -> None:
    run = runs.new()
    ended = runs.train(run, [Hook(target, 1, name)], **NEVER)
    told(ended, 128 + getattr(signal, name), f"stopped by {name} after the last step; the model is saved")
    told(runs.resume(run, hooks=[NO_STEP]), 0, "resuming after the last step, 4 ")
    same_end(runs.reference(**NEVER), run)
    assert not (run / "trained.json").exists()


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "hook",
    [
        Hook(EVALUATION, 1, f"{TERM}+{TERM}"),
        Hook(EVALUATION, 1, KILL),
        Hook(PREDICTIONS, 1, KILL, after=True),
        Hook("glassloop.runs.record:write_run", 2, KILL, after=True),
    ],
    ids=["two signals", "killed in the evaluation", "killed after the predictions", "killed at the very end"],
)  # fmt: skip
def test_a_run_killed_after_its_last_step_trains_nothing_again(runs: Any, hook: Hook) -> None:
    run = runs.new()
    assert runs.train(run, [hook], **NEVER).code < 0
    told(runs.resume(run, hooks=[NO_STEP]), 0)
    same_end(runs.reference(**NEVER), run)


def test_a_hangup_is_a_signal_like_others(runs: Any) -> None:
    run = runs.new()
    told(runs.train(run, [Hook(STEP, 7, HUP)]), 129, "stopped by SIGHUP after step 7; resume with --resume")
    runs.resumes_the_same(run)


def test_a_finished_training_refuses_other_settings_and_names_a_damaged_model(runs: Any) -> None:
    run = runs.new()
    assert runs.train(run, [Hook(EVALUATION, 1, TERM)], **NEVER).code == 143
    told(runs.resume(run, *flags(learning_rate=0.5)), 4, "learning_rate: 0.001 then, 0.5 now")
    (run / "model/config.json").write_text("{}")
    told(runs.resume(run), 4, "model/config.json is damaged")
    weights = (run / "model/model.safetensors").read_bytes()
    told(runs.resume(run, "--restart"), 0, f"moved aside: {run / 'model'} is now model.kept-1")
    assert (run / "model.kept-1/model.safetensors").read_bytes() == weights
    assert (run / "trained.json.kept-1").is_file()
    same_end(runs.reference(**NEVER), run)
