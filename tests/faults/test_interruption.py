"""SCENARIOS 1 to 18: a run that was stopped in any way goes on and ends as if it never had been, or is refused and says why.

The numbers in the test names are those of the scenarios. "The same" is `trials.same_end`: weights, history, predictions,
figures, and the optimizer and random states of all checkpoints of the same step, to the last bit.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import trials
from safetensors.torch import load_file, save_file
from trials import BACKWARD, EVALUATION, FORWARD, INT, KILL, OPTIMIZER, SAVING, STEP, TERM, Hook, same_end, sha

from glassloop.base.errors import ModelError
from glassloop.base.records import sealed
from glassloop.runs.record import checkpoints_in, step_of
from glassloop.training.checkpoints import open_checkpoint

SHORT = {"max_steps": 6, "save_steps": 3, "save_total_limit": 1, "eval_steps": 2}
NO_STEPS = dict.fromkeys(trials.STEP_SETTINGS)  # left out
ACCUMULATED = {"gradient_accumulation_steps": 3, "save_steps": 2, "eval_steps": 3}  # eight batches: groups of 3, 3 and 2
BEST = {"load_best_model_at_end": True, "metric_for_best_model": "loss"}
BEST |= {"save_total_limit": 1, "eval_steps": 1, "save_steps": 2}


# The step from one point to the next: `make test` kills at some points, the exhaustive tests at each.
def every(step: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("every", [step, pytest.param(1, marks=pytest.mark.exhaustive)])


def killed(runs: Any, *hooks: Hook, **settings: Any) -> Path:
    """A run that killed itself at a hook."""
    run = runs.new()
    ended = runs.train(run, hooks, **settings)
    assert ended.code == -signal.SIGKILL, ended.err
    return run


def stopped_at(runs: Any, step: int, **settings: Any) -> Path:
    """A run that was killed in the call of a step."""
    return killed(runs, Hook(STEP, step, KILL), **settings)


def checkpoints(run: Path) -> list[Path]:
    return checkpoints_in(run)


def fault_points(runs: Any, folder: Path, **settings: Any) -> list[str]:
    """Every write, sync and rename of a run; not those of the cache, which the reference run has filled."""
    runs.reference(**settings)
    counted = folder / "points"
    ended = runs.train(runs.new(), environment={"GLASSLOOP_FAULT": f"count:{counted}"}, **settings)
    assert ended.code == 0, ended.err
    return counted.read_text().splitlines()


# 1 to 7: kills


@every(5)
def test_01_killed_at_random_moments(runs: Any, every: int) -> None:
    """More of these, over more settings: benchmarks/kills.py."""
    reference = runs.reference()

    def trial(seed: int) -> None:
        run, chance = runs.new(), random.Random(seed)
        for _ in range(3):
            running = runs.start(run, resume=run)  # on a folder that is not there: the run starts
            time.sleep(chance.uniform(0.2, 0.8))
            running.send(signal.SIGKILL)
            ended = running.wait()
            assert ended.code in (0, -signal.SIGKILL), ended.err
        ended = runs.train(run, resume=run)
        assert ended.code == 0, ended.err
        same_end(reference, run)

    for case in range(0, 6, every):
        trial(case)


@every(25)
def test_02_killed_after_every_write_sync_and_rename(runs: Any, tmp_path: Path, every: int) -> None:
    """Each in turn, from the first line of run.json to the last; 17: at least one complete checkpoint once there was one."""
    points = fault_points(runs, tmp_path, **SHORT)
    assert len(points) > 40
    renamed = points.index("rename checkpoint-3")

    def trial(number: int) -> None:
        run = runs.new()
        ended = runs.train(run, environment={"GLASSLOOP_FAULT": f"kill:{number}"}, **SHORT)
        assert ended.code == -signal.SIGKILL, f"{number}: {ended.err}"
        goes_on(runs, run, done=finished_before(points, number), saved=number > renamed)

    for case in range(len(points), 0, -every):
        trial(case)


def goes_on(runs: Any, run: Path, *, done: bool = False, saved: bool | None = None, **more: Any) -> None:
    """A killed run of the short settings goes on from what is whole, names what it removes, and ends the same."""
    reference = runs.reference(**SHORT, **more)
    whole = [path for path in checkpoints(run) if open_checkpoint(path)]  # what has its name is whole
    assert saved is None or bool(whole) == saved
    if (run / "model").exists():
        assert sha(run / "model" / "model.safetensors") == sha(reference / "model" / "model.safetensors")
        assert model_files(run) == model_files(reference)
    left = [path.name for path in run.glob(".*.*")]
    trained = (run / "trained.json").exists()
    again = runs.train(run, resume=run, **SHORT, **more)
    assert again.code == 0, again.err
    assert all(name in again.err for name in left), f"{left} are not named: {again.err}"
    if not done:
        line = f"resuming after step {step_of(whole[0])} " if whole else "so training starts at step 0"
        assert ("resuming after the last step, 6 " if trained else line) in again.err
    assert files_of(run / "model") == {*LATER, *model_files(reference)}
    same_end(reference, run)


LATER = {"calibration.json", "README.md"}  # written after the last evaluation, and at the end


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def model_files(run: Path) -> set[str]:
    """The files of the model, without those that are written later, and what a kill leaves of these."""
    return {name for name in files_of(run / "model") if not any(later in name for later in LATER)}


CONFIG, KNOWN_CONFIG = (
    "transformers.configuration_utils:PreTrainedConfig.to_json_file",
    "glassloop.models.described:StoredConfig.to_json_file",
)
TOKENIZER = "glassloop.models.light:copyfile"
FAMILY_WEIGHTS, POOLED_WEIGHTS = "transformers.modeling_utils:safe_save_file", "glassloop.models.pooled:save_file"
# In the order of writing: a function, which of how many of its calls for a model, whether after it, and the files that are new.
END = [(TOKENIZER, 1, 2, True, ["tokenizer.json"]), (TOKENIZER, 2, 2, True, ["tokenizer_config.json"])]
MODULES = ["1_Pooling/config.json", "3_Dense/config.json", "modules.json"]  # of sentence-transformers
WRITTEN = {
    "head": [(CONFIG, 1, 1, True, ["config.json"]), (FAMILY_WEIGHTS, 1, 1, True, ["model.safetensors"]), *END],
    "mean": [
        (KNOWN_CONFIG, 1, 1, True, ["config.json"]),
        (POOLED_WEIGHTS, 1, 2, True, ["model.safetensors"]),
        (POOLED_WEIGHTS, 2, 2, False, MODULES),
        (POOLED_WEIGHTS, 2, 2, True, ["3_Dense/model.safetensors"]),
        *END,
    ],
}


@every(5)
@pytest.mark.parametrize("pooling", WRITTEN)
def test_02_killed_after_every_file_of_a_model(runs: Any, every: int, pooling: str) -> None:
    """Of both checkpoints, and of the model that is exported: transformers writes it, or for pooled tokens Glassloop."""
    runs.reference()  # after which the tokenizer, and a pooled model, are known
    settings, written = {**SHORT, "pooling": pooling}, WRITTEN[pooling]
    runs.reference(**settings)

    def trial(time_of_writing: int, number: int) -> None:
        target, place, calls, after, _ = written[number]
        call = (time_of_writing - 1) * calls + place
        run = killed(runs, Hook(target, call, KILL, after), **settings)
        folder = next(path for path in run.glob(".*.????????") if path.is_dir())
        assert files_of(folder) == {name for entry in written[: number + 1] for name in entry[-1]}
        goes_on(runs, run, saved=time_of_writing > 1, pooling=pooling)

    for case in [(time_of_writing, number) for time_of_writing in (1, 2, 3) for number in range(len(written))][::every]:
        trial(*case)


@every(9)
def test_02_a_frozen_encoder_killed_after_every_write_sync_and_rename(runs: Any, tmp_path: Path, every: int) -> None:
    """It takes no steps; a resumed run keeps the head that was fitted."""
    frozen = {**NO_STEPS, "method": "frozen"}
    points = fault_points(runs, tmp_path, **frozen)
    assert len(points) > 20
    reference = runs.reference(**frozen)

    def trial(number: int) -> None:
        run = runs.new()
        ended = runs.train(run, environment={"GLASSLOOP_FAULT": f"kill:{number}"}, **frozen)
        assert ended.code == -signal.SIGKILL, f"{number}: {ended.err}"
        again = runs.train(run, resume=run, **frozen)
        assert again.code == 0, f"{number}: {again.err}"
        same_end(reference, run)

    for case in range(len(points), 0, -every):
        trial(case)


@every(3)
def test_02_killed_after_every_line_of_the_history(runs: Any, every: int) -> None:
    lines = len((runs.reference(**SHORT) / "history.jsonl").read_text().splitlines())
    assert lines > 4
    record = "glassloop.training.callbacks:History.record"
    for number in range(1, lines + 1, every):
        goes_on(runs, killed(runs, Hook(record, number, KILL, True), **SHORT))


def finished_before(points: list[str], number: int) -> bool:
    """Whether the last rename, that of the finished run.json, is done at a point."""
    return number >= len(points) - points[::-1].index("rename run.json")


def test_03_killed_before_the_first_checkpoint(runs: Any) -> None:
    ended = runs.resumes_the_same(stopped_at(runs, 4))
    assert "no checkpoint to resume from, so training starts at step 0" in ended.err


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("hook", "settings"),
    [
        pytest.param(Hook(STEP, 16, KILL), {}, id="before the last step"),
        pytest.param(Hook(STEP, 16, KILL, after=True), {}, id="after the last step"),
        pytest.param(Hook("glassloop.study.run:write_predictions", 1, KILL), {}, id="in the final export"),
        pytest.param(Hook("glassloop.trainer:Trainer.write_model", 4, KILL, after=True), {}, id="with the model half exported"),
        pytest.param(Hook(EVALUATION, 3, KILL), {}, id="in an evaluation"),
        pytest.param(Hook(EVALUATION, 5, KILL), {}, id="in the last evaluation"),
        pytest.param(Hook(STEP, 8, KILL, after=True), {}, id="after the last step of an epoch"),
        pytest.param(Hook(STEP, 9, KILL), {}, id="before the first step of an epoch"),
        pytest.param(Hook(STEP, 13, KILL), {"save_strategy": "epoch"}, id="saved at the end of an epoch"),
        pytest.param(Hook(BACKWARD, 11, KILL), ACCUMULATED, id="in the middle of a group"),
        pytest.param(Hook(FORWARD, 8 + 1 * 2, KILL), ACCUMULATED, id="in the short last group"),
        pytest.param(Hook(OPTIMIZER, 3, KILL, after=True), ACCUMULATED, id="after the short last group"),
        pytest.param(Hook(STEP, 12, KILL), {"group_by_length": True}, id="grouped by length"),
        pytest.param(Hook(STEP, 12, KILL), BEST, id="keeping the best weights"),
        pytest.param(Hook(STEP, 12, KILL), {"lr_scheduler_type": "cosine", "warmup_steps": 0.3}, id="cosine"),
    ],
)  # fmt: skip
def test_04_killed_at_the_edges(runs: Any, hook: Hook, settings: dict[str, Any]) -> None:
    run = killed(runs, hook, **settings)
    if (run / "model").exists():
        assert sha(run / "model/model.safetensors") == sha(runs.reference(**settings) / "model/model.safetensors")
    runs.resumes_the_same(run, **settings)


def test_05_three_kills_in_one_epoch(runs: Any) -> None:
    settings = {"save_steps": 2}
    run = stopped_at(runs, 4, **settings)
    for call in (3, 2):
        assert runs.resume(run, hooks=[Hook(STEP, call, KILL)]).code == -signal.SIGKILL
    runs.resumes_the_same(run, **settings)


def test_06_other_intervals_change_no_weight(runs: Any) -> None:
    run = stopped_at(runs, 12)
    more = {"logging_steps": 1, "eval_steps": 7, "save_steps": 3, "save_total_limit": 4, "per_device_eval_batch_size": 5}
    ended = runs.resume(run, *trials.flags(**more))
    assert ended.code == 0, ended.err
    assert sha(run / "model/model.safetensors") == sha(runs.reference() / "model/model.safetensors")
    again = stopped_at(runs, 12)
    assert runs.resume(again, *trials.flags(eval_strategy="no", save_strategy="no")).code == 0
    assert sha(again / "model/model.safetensors") == sha(runs.reference() / "model/model.safetensors")


def test_07_a_finished_run_is_left_alone(runs: Any) -> None:
    run = runs.new()
    assert runs.train(run, **SHORT).code == 0
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    ended = runs.resume(run)
    assert ended.code == 0
    assert "already complete" in ended.err
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


# 8: signals


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", [TERM, INT])
@pytest.mark.parametrize(
    ("target", "call", "step"),
    [(FORWARD, 7, 6), (BACKWARD, 7, 7), (OPTIMIZER, 7, 7), (EVALUATION, 2, 8), (SAVING, 1, None), (STEP, 16, 16)],
    ids=["forward", "backward", "optimizer", "evaluation", "saving", "the last step"],
)
def test_08_a_signal_saves_after_the_step(runs: Any, name: str, target: str, call: int, step: int | None) -> None:
    runs.reference()  # whose comparison with plain need not be repeated: its passes would be counted
    run = runs.new()
    ended = runs.train(run, [Hook(target, call, name)])
    assert ended.code == {TERM: 143, INT: 130}[name], ended.err
    assert ended.seconds < 30
    newest = open_checkpoint(checkpoints(run)[0])
    assert f"stopped by {name} after step {newest.manifest['step']}; resume with --resume" in ended.err
    assert "Traceback" not in ended.err
    assert step is None or newest.manifest["step"] == step
    assert json.loads((run / "run.json").read_text())["status"] == "running"
    runs.resumes_the_same(run)


def test_08_a_signal_in_a_resumed_evaluation(runs: Any) -> None:
    """The evaluation was due when the run was stopped: stopped in it again, no step is taken before it is done."""
    run = runs.new()
    assert runs.train(run, [Hook(EVALUATION, 2, TERM)]).code == 143
    assert runs.resume(run, hooks=[Hook(EVALUATION, 1, TERM)]).code == 143
    assert checkpoints(run)[0].name == "checkpoint-8"
    runs.resumes_the_same(run)


def test_08_a_signal_in_the_evaluation_on_start(runs: Any) -> None:
    settings = {"eval_on_start": True}
    run = runs.new()
    assert runs.train(run, [Hook(EVALUATION, 1, TERM)], **settings).code == 143
    runs.resumes_the_same(run, **settings)


@pytest.mark.sample(2)
@pytest.mark.parametrize("target", ["glassloop.study.run:write_predictions", "glassloop.study.run:tensor_digests"])
@pytest.mark.parametrize("name", [TERM, INT])
def test_08_a_signal_before_and_after_the_loop(runs: Any, target: str, name: str) -> None:
    run = runs.new()
    ended = runs.train(run, [Hook(target, 1, name)])
    assert ended.code == {TERM: 143, INT: 130}[name], ended.err
    assert "Traceback" not in ended.err
    if (run / "run.json").exists():
        runs.resumes_the_same(run)
    else:
        assert not run.exists()


def test_08_a_second_signal_ends_at_once(runs: Any) -> None:
    run = runs.new()
    held = Hook(SAVING, 2, f"await:{runs.folder / 'never'}")  # that of step 10, which itself waited for that of step 5
    ended = runs.train(run, [held, Hook(BACKWARD, 12, f"{TERM}+{TERM}")])
    assert ended.code == -signal.SIGTERM
    assert [open_checkpoint(path).manifest["step"] for path in checkpoints(run)] == [5]
    runs.resumes_the_same(run)


def test_08_a_second_signal_while_saving(runs: Any) -> None:
    run = runs.new()
    slow = Hook("glassloop.training.checkpoints:sha256_of", 12, f"{TERM}+{TERM}")  # in the second checkpoint
    assert runs.train(run, [Hook(STEP, 10, "SIGTERM"), slow]).code in (-signal.SIGTERM, 143)
    assert open_checkpoint(checkpoints(run)[-1])
    runs.resumes_the_same(run)


# 9 and 10: disk


@every(14)
def test_09_a_full_disk_at_every_point_of_a_checkpoint(runs: Any, tmp_path: Path, every: int) -> None:
    points = fault_points(runs, tmp_path, **SHORT)
    first = points.index("rename checkpoint-3") + 2
    last = points.index("rename checkpoint-6")
    reference = runs.reference(**SHORT)

    def trial(number: int) -> None:
        run = runs.new()
        ended = runs.train(run, environment={"GLASSLOOP_FAULT": f"full:{number}"}, **SHORT)
        assert ended.code == 6, f"{number} ({points[number - 1]}): {ended.code} {ended.err}"
        assert str(run) in ended.err
        assert "No space left on device" in ended.err
        assert "bytes needed" in ended.err
        assert "free" in ended.err
        assert "Traceback" not in ended.err
        assert open_checkpoint(run / "checkpoint-3").manifest["step"] == 3
        assert not list(run.glob(".*.*"))
        assert runs.resume(run).code == 0
        same_end(reference, run)

    for case in range(first + 1, last + 1, every):
        trial(case)


@every(4)
def test_09_a_full_disk_anywhere_else(runs: Any, tmp_path: Path, every: int) -> None:
    """While the run's description, its history, its model or its predictions are written."""
    points = fault_points(runs, tmp_path, **SHORT)
    last = points.index("rename checkpoint-6") + 4
    reference = runs.reference(**SHORT)

    def trial(number: int) -> None:
        run = runs.new()
        ended = runs.train(run, environment={"GLASSLOOP_FAULT": f"full:{number}"}, **SHORT)
        assert ended.code == 6, f"{number} ({points[number - 1]}): {ended.code} {ended.err}"
        assert "No space left on device" in ended.err
        assert "Traceback" not in ended.err
        again = runs.train(run, resume=run, **SHORT)
        assert again.code == 0, again.err
        same_end(reference, run)

    chosen = [*range(1, 9, 2), *range(last, len(points) - 2, 3)]
    for case in chosen[::every]:
        trial(case)


def test_09_a_checkpoint_that_the_writer_of_tensors_cannot_write(runs: Any) -> None:
    """safetensors reports a full disk with an error of its own."""
    from glassloop.base.errors import ResourceError
    from glassloop.training.checkpoints import CheckpointFolder

    checkpoints = CheckpointFolder(runs.folder, print, lambda folder, weights: None)
    checkpoints.error = RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")
    with pytest.raises(ResourceError, match=r"No space left on device.*bytes needed"):
        checkpoints.wait()


def test_09_no_space_for_two_checkpoints_is_refused_at_the_start(runs: Any) -> None:
    run = runs.new()
    ended = runs.train(run, [Hook("shutil:disk_usage", 1, "tiny disk", every=True)])
    assert ended.code == 6, ended.err
    assert str(run) in ended.err
    assert "bytes are needed for two checkpoints and the final model" in ended.err
    assert "1,000 are free" in ended.err
    assert not checkpoints(run)
    assert runs.resume(run).code == 0
    same_end(runs.reference(), run)


def test_10_an_output_folder_that_cannot_be_written_to(runs: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    ended = runs.train(tmp_path / "file" / "run", [Hook(STEP, 1, "bug")])
    assert ended.code == 6, ended.err
    assert str(tmp_path / "file") in ended.err
    assert "Traceback" not in ended.err
    assert (tmp_path / "file").read_text() == "mine"


# 11 and 12: damaged checkpoints


@pytest.fixture(scope="module")
def stopped(runs: Any) -> Path:
    """A run killed after two checkpoints, of the steps 5 and 10; tests work on copies."""
    run = killed(runs, Hook(SAVING, 3, KILL))  # it waited for the second
    assert [path.name for path in checkpoints(run)] == ["checkpoint-10", "checkpoint-5"]
    return run


def copied(run: Path, to: Path) -> Path:
    return Path(shutil.copytree(run, to))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@every(12)
def test_11_any_file_of_the_newest_checkpoint_damaged(runs: Any, stopped: Path, tmp_path: Path, every: int) -> None:
    files = [path.relative_to(stopped) for path in sorted(checkpoints(stopped)[0].rglob("*")) if path.is_file()]
    assert len(files) == 14
    reference = runs.reference()

    def trial(case: tuple[int, Path, Callable[[Path], None]]) -> None:
        number, name, damage = case
        run = copied(stopped, tmp_path / f"run-{number}")
        damage(run / name)
        newest = checkpoints(run)[0]
        short = str(name.relative_to(newest.relative_to(run)))
        with pytest.raises(ModelError, match=f"checkpoint-10: .*{re.escape(Path(short).name)}"):
            open_checkpoint(newest)
        if number % 7 == 0:
            named = runs.resume(newest)
            assert named.code == 4, f"{name}: {named.err}"
            assert short in named.err
            assert "checkpoint-10" in named.err
        ended = runs.resume(run)
        assert ended.code == 0, ended.err
        line = next(line for line in ended.err.splitlines() if "skipped" in line)
        assert short in line
        assert "resuming after step 5 " in ended.err
        assert [open_checkpoint(path).manifest["step"] for path in checkpoints(run)] == [15, 10]
        assert (run / "checkpoint-10.kept-1").is_dir()  # what cannot be read is never overwritten
        same_end(reference, run)

    cases = [(name, damage) for name in files for damage in (truncate, Path.unlink, flip)]
    for case in [(number, *case) for number, case in enumerate(cases)][::every]:
        trial(case)


def test_11_files_that_are_not_of_the_checkpoint_are_ignored(runs: Any, stopped: Path, tmp_path: Path) -> None:
    """They used to make every checkpoint "damaged", and the run start again over the intact ones."""
    run = copied(stopped, tmp_path / "run")
    for path in checkpoints(run):
        (path / ".DS_Store").write_bytes(b"x")
        (path / "config.json~").write_bytes(b"x")
    assert "resuming after step 10 " in runs.resumes_the_same(run).err


def test_11_a_damaged_description_of_the_run(runs: Any, stopped: Path, tmp_path: Path) -> None:
    run = copied(stopped, tmp_path / "run")
    truncate(run / "run.json")
    ended = runs.resume(run)
    assert ended.code == 4
    assert "run.json" in ended.err
    assert "Traceback" not in ended.err


def rewritten(checkpoint: Path, name: str, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Change the tensors of a file, and make the manifest fit them."""
    tensors = load_file(checkpoint / name)
    change(tensors)
    save_file(tensors, checkpoint / name, metadata={"format": "pt"})
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["files"][name] = {"size": (checkpoint / name).stat().st_size, "sha256": sha(checkpoint / name)}
    (checkpoint / "manifest.json").write_text(json.dumps(sealed(manifest)))


WEIGHT = "bert.encoder.layer.0.output.dense.weight"
CHANGES: dict[str, Callable[[dict[str, torch.Tensor], str], None]] = {
    "missing": lambda tensors, name: tensors.__delitem__(name),
    "added": lambda tensors, name: tensors.__setitem__(f"{name}.more", torch.zeros(2)),
    "other shape": lambda tensors, name: tensors.__setitem__(name, tensors[name][:, :3].contiguous()),
    "other kind": lambda tensors, name: tensors.__setitem__(name, tensors[name].double()),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("file", "tensor"), [("model.safetensors", WEIGHT), ("optimizer.safetensors", f"exp_avg/{WEIGHT}")])
def test_12_a_tensor_that_does_not_fit(runs: Any, stopped: Path, tmp_path: Path, change: str, file: str, tensor: str) -> None:
    run = copied(stopped, tmp_path / "run")
    rewritten(checkpoints(run)[0], file, lambda tensors: CHANGES[change](tensors, tensor))
    ended = runs.resume(run)
    assert ended.code == 4, ended.err
    assert tensor in ended.err
    assert "Traceback" not in ended.err


# 13 and 14: changed data and settings


@pytest.mark.parametrize(
    ("change", "expected"), [("added", "61 rows then, 62 now (1 added)"), ("other label", "1 rows edited (first row 8)")]
)
def test_13_changed_training_data_are_refused(runs: Any, stopped: Path, tmp_path: Path, change: str, expected: str) -> None:
    """Every other change: test_what_happened_to_the_rows_is_reported, and test_session.py."""
    run, data = copied(stopped, tmp_path / "run"), copied(runs.data, tmp_path / "data")
    lines = (data / "train.csv").read_text().splitlines()
    if change == "added":
        lines.append("one more film,good")
    else:
        text, _, label = lines[8].rpartition(",")
        lines[8] = f"{text},{'bad' if label == 'good' else 'good'}"
    (data / "train.csv").write_text("\n".join(lines) + "\n")
    ended = runs.servers.run("train", data, "--resume", run)
    assert ended.code == 4, ended.err
    assert "the training data has changed" in ended.err or "max_steps" in ended.err
    assert expected in ended.err
    assert "Traceback" not in ended.err
    runs.resumes_the_same(run)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"learning_rate": 2e-3, "seed": 7}, ["learning_rate: 0.001 then, 0.002 now", "seed: 42 then, 7 now"]),
        ({"per_device_train_batch_size": 4}, ["batch_size: 8 then, 4 now"]),
        ({"max_length": 12}, ["max_length: None then, 12 now"]),
        ({"labels": "good,bad"}, ["labels: ['bad', 'good'] then, ['good', 'bad'] now"]),
        ({"num_train_epochs": 3}, ["num_train_epochs: 2.0 then, 3.0 now", "max_steps: 16 then, 24 now"]),
        ({"weight_decay": 0.1, "warmup_steps": 2}, ["weight_decay: 0.0 then, 0.1 now", "warmup_steps: 0.0 then, 2.0 now"]),
        ({"group_by_length": True}, ["group_by_length: False then, True now"]),
        ({"gradient_accumulation_steps": 2}, ["gradient_accumulation_steps: 1 then, 2 now"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_14_changed_settings_are_refused(
    runs: Any, stopped: Path, tmp_path: Path, settings: dict[str, Any], expected: list[str]
) -> None:
    run = copied(stopped, tmp_path / "run")
    ended = runs.resume(run, *trials.flags(**settings))
    assert ended.code == 4, ended.err
    assert all(part in ended.err for part in expected), ended.err
    assert "Traceback" not in ended.err
    runs.resumes_the_same(run)  # what was refused left no trace


def test_14_another_model_is_refused(runs: Any, stopped: Path, tmp_path: Path) -> None:
    run = copied(stopped, tmp_path / "run")
    other = copied(runs.model, tmp_path / "other")
    ended = runs.resume(run, "--model", str(other))
    assert ended.code == 4, ended.err
    assert f"model: {runs.model} then, {other} now" in ended.err
    assert runs.resume(run, "--model", str(runs.model)).code == 0


# 15 to 18: folders


def test_15_two_runs_into_one_folder(runs: Any) -> None:
    run = runs.new()
    go_on = runs.folder / f"{run.name}-go-on"
    first = runs.start(run, [Hook(STEP, 3, f"await:{go_on}")])
    trials.await_file(run / "history.jsonl")
    for ended in (runs.train(run), runs.resume(run)):
        assert ended.code == 7, ended.err
        assert f"is in use by process {first.pid} on " in ended.err
        assert "Traceback" not in ended.err
    go_on.touch()
    assert first.wait().code == 0
    same_end(runs.reference(), run)
    assert not (run / ".lock").exists()


def test_15_the_lock_of_a_dead_run_is_taken_over(runs: Any) -> None:
    run = stopped_at(runs, 8)
    holder = json.loads((run / ".lock").read_text())["process"]
    ended = runs.resumes_the_same(run)
    assert "took over the lock of a run that was killed" in ended.err
    assert f"process {holder} on " in ended.err


@pytest.mark.parametrize("resumed", [False, True])
def test_16_a_folder_with_other_files_is_not_changed(runs: Any, tmp_path: Path, resumed: bool) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("important")
    arguments = runs.arguments(mine)
    ended = runs.servers.run(*arguments, *(["--resume", mine] if resumed else []))
    assert ended.code == 2, ended.err
    assert str(mine) in ended.err
    assert [path.name for path in mine.iterdir()] == ["notes.txt"]
    assert (mine / "notes.txt").read_text() == "important"


def test_16_a_run_is_not_overwritten(runs: Any) -> None:
    run = runs.reference()
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    ended = runs.train(run)
    assert ended.code == 2
    assert "--resume" in ended.err
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_17_the_best_checkpoint_is_never_rotated_away(runs: Any) -> None:
    """And killed between the new name and the removal of the old one, both are there: test 02 goes over every point."""
    settings = {**BEST, "learning_rate": 3e-2, "save_steps": 1}
    run = runs.reference(**settings)
    best = json.loads((run / "run.json").read_text())["best_step"]
    assert best < 15
    assert {path.name for path in checkpoints(run)} == {f"checkpoint-{best}", "checkpoint-16"}
    hook = Hook("glassloop.training.checkpoints:CheckpointFolder.rotate", best + 2, KILL)
    half = killed(runs, hook, **settings)
    kept = [open_checkpoint(path).manifest["step"] for path in checkpoints(half)]
    assert best in kept
    assert best + 2 in kept
    runs.resumes_the_same(half, **settings)


def test_18_twice_the_same_command_and_other_checkpoints(runs: Any) -> None:
    run = runs.new()
    assert runs.train(run).code == 0
    same_end(runs.reference(), run)
    for settings in ({"save_strategy": "no"}, {"save_steps": 1}, {"save_strategy": "epoch"}):
        other = runs.reference(**settings)
        assert not trials.differences(runs.reference(), other), settings
