"""SCENARIOS 48 to 51: two processes on the CPU. None hangs when the other dies, all stop at one step, all go on as one.

Most trials are two forked children that find each other as those of a launcher do; the last ones start the real launcher.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from families import tiny_model, tiny_tokenizer
from trials import (
    EVALUATION,
    KILL,
    SAVING,
    STEP,
    STEP_SETTINGS,
    TERM,
    Ended,
    Hook,
    await_file,
    flags,
    json_lines,
    same_end,
    weights_of,
)

from glassloop.runs.record import checkpoints_in
from glassloop.training.checkpoints import open_checkpoint

TWO = {"per_device_train_batch_size": 4}  # eight rows a step, as in the small settings


def both(runs: Any, *arguments: object, hooks: Any = (), timeout: float = 60.0) -> list[Ended]:
    """The command in two processes; each must end within the time."""
    return [trial.wait(timeout) for trial in runs.servers.start_group(2, *arguments, hooks=hooks)]


def train_both(runs: Any, run: Path, hooks: Any = (), **settings: Any) -> list[Ended]:
    return both(runs, *runs.arguments(run, **{**TWO, **settings}), hooks=hooks)


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without dropout."""
    folder = tmp_path_factory.mktemp("models") / "still"
    tiny_model(dropout=0.0, max_position_embeddings=64, initializer_range=0.3).base_model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def reference(runs: Any) -> Path:
    """The run of two processes that was never stopped."""
    run = runs.new()
    ended = train_both(runs, run)
    assert [end.code for end in ended] == [0, 0], ended[0].err + ended[1].err
    return run


def goes_on(runs: Any, run: Path, reference: Path) -> None:
    ended = both(runs, "train", "--resume", run)
    assert [end.code for end in ended] == [0, 0], ended[0].err + ended[1].err
    same_end(reference, run)


@pytest.mark.sample(1)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("target", "call"), [(STEP, 8), (EVALUATION, 2)], ids=["step", "evaluation"])
def test_48_one_process_is_killed(runs: Any, reference: Path, target: str, call: int, rank: int) -> None:
    run = runs.new()
    ended = train_both(runs, run, [Hook(target, call, KILL, rank=rank)])
    assert ended[rank].code == -signal.SIGKILL
    assert ended[1 - rank].code not in (0, -signal.SIGKILL), ended[1 - rank].err
    assert "another process of this run ended" in ended[1 - rank].err
    goes_on(runs, run, reference)


def test_48_the_writing_process_is_killed_in_a_save(runs: Any, reference: Path) -> None:
    run = runs.new()
    ended = train_both(runs, run, [Hook(SAVING, 2, KILL)])
    assert ended[0].code == -signal.SIGKILL
    assert ended[1].code not in (0, -signal.SIGKILL), ended[1].err
    goes_on(runs, run, reference)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("action", "code", "text"), [("bug", 1, "ZeroDivisionError"), ("nospace", 6, "No space left on device")]
)
@pytest.mark.parametrize("rank", [0, 1])
def test_49_one_process_raises(runs: Any, action: str, code: int, text: str, rank: int) -> None:
    ended = train_both(runs, runs.new(), [Hook(STEP, 5, action, rank=rank)])
    assert ended[rank].code == code, ended[rank].err
    assert ended[1 - rank].code != 0
    assert (ended[0].err + ended[1].err).count(text) == 1


def test_49_a_full_disk_of_the_writing_process(runs: Any, reference: Path) -> None:
    run = runs.new()
    ended = train_both(runs, run, [Hook(SAVING, 2, "nospace")])
    assert ended[0].code == 6, ended[0].err
    assert ended[1].code != 0
    assert (ended[0].err + ended[1].err).count("No space left") == 1
    goes_on(runs, run, reference)


def test_49_what_all_processes_find_is_reported_once(runs: Any, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\ngood,1\nfine,0\nbad,-7\n")
    ended = both(runs, *runs.arguments(runs.new(), data=tmp_path / "train.csv"))
    assert ended[0].code == 3
    assert ended[1].code != 0
    assert (ended[0].err + ended[1].err).count("-7") == 1, ended[1].err


@pytest.mark.sample(1)
@pytest.mark.parametrize("rank", [0, 1])
def test_50_a_signal_to_one_process_stops_all_at_one_step(runs: Any, reference: Path, rank: int) -> None:
    run = runs.new()
    ended = train_both(runs, run, [Hook(STEP, 7, TERM, rank=rank)])
    assert [end.code for end in ended] == [143, 143], ended[0].err + ended[1].err
    assert open_checkpoint(checkpoints_in(run)[0]).manifest["step"] == 7
    assert (ended[0].err + ended[1].err).count("stopped by SIGTERM after step 7") == 1
    goes_on(runs, run, reference)


def test_50_a_signal_in_the_final_evaluation_loses_no_training(runs: Any) -> None:
    never = {"save_strategy": "no", "save_steps": None, "eval_strategy": "no", "eval_steps": None, "max_steps": 4}
    whole, run = runs.new(), runs.new()
    assert [end.code for end in train_both(runs, whole, **never)] == [0, 0]
    ended = train_both(runs, run, [Hook(EVALUATION, 1, TERM, rank=1)], **never)
    assert [end.code for end in ended] == [143, 143], ended[0].err + ended[1].err
    assert "stopped by SIGTERM after the last step; the model is saved" in ended[0].err
    again = both(runs, "train", "--resume", run, hooks=[Hook(STEP, 1, "bug")])
    assert [end.code for end in again] == [0, 0], again[0].err + again[1].err
    same_end(whole, run)


# A head that was fitted to embeddings enlarges rounding errors, and much more so at a high learning rate.
@pytest.mark.parametrize(
    ("form", "rtol"), [({"pooling": "head"}, 0.0), ({"learning_rate": 2e-5}, 1e-5)], ids=["head of the family", "fitted head"]
)
def test_51_one_process_of_sixteen_rows_and_two_of_eight(runs: Any, still: Path, form: dict[str, Any], rtol: float) -> None:
    settings = {"model": still, "logging_steps": 1, "group_by_length": True, **form}
    one, two = runs.new(), runs.new()
    assert runs.train(one, per_device_train_batch_size=16, **settings).code == 0
    ended = train_both(runs, two, per_device_train_batch_size=8, **settings)
    assert ended[0].code == 0, ended[0].err
    stories = [json_lines(run / "history.jsonl") for run in (one, two)]
    assert [entry["step"] for entry in stories[0]] == [entry["step"] for entry in stories[1]]
    for name in ("loss", "grad_norm", "eval_loss"):
        figures = [torch.tensor([entry[name] for entry in found if name in entry]) for found in stories]
        torch.testing.assert_close(figures[0], figures[1], rtol=rtol, atol=1e-5)


def test_51_a_frozen_encoder_in_one_process_and_in_two(runs: Any, still: Path) -> None:
    settings = {**dict.fromkeys(STEP_SETTINGS), "model": still, "method": "frozen"}
    one, two, killed = runs.new(), runs.new(), runs.new()
    assert runs.train(one, **settings).code == 0
    assert [end.code for end in both(runs, *runs.arguments(two, **settings))] == [0, 0]
    assert weights_of(one) == weights_of(two), "the head is fitted once, by the first process"
    hooks = [Hook(EVALUATION, 1, KILL, rank=0)]
    assert -signal.SIGKILL in [end.code for end in both(runs, *runs.arguments(killed, **settings), hooks=hooks)]
    again = both(runs, "train", "--resume", killed)
    assert [end.code for end in again] == [0, 0], again[0].err + again[1].err
    same_end(two, killed)


def test_51_a_checkpoint_of_one_process_is_resumed_by_two_if_the_global_batch_size_is_equal(runs: Any, still: Path) -> None:
    settings = {"model": still, "logging_steps": 1, "per_device_train_batch_size": 8}
    whole, run = runs.new(), runs.new()
    assert runs.train(whole, **settings).code == 0
    assert runs.train(run, hooks=[Hook(STEP, 8, TERM)], **settings).code == 143
    refused = both(runs, "train", "--resume", run)
    assert {end.code for end in refused} == {4}
    assert "batch_size: 8 then, 16 now" in refused[0].err + refused[1].err
    ended = both(runs, "train", "--resume", run, "--per_device_train_batch_size", "4")
    assert [end.code for end in ended] == [0, 0], ended[0].err
    assert "2 processes instead of 1: every step has the same rows, but different dropout masks" in ended[0].err
    stories = [json_lines(place / "history.jsonl") for place in (whole, run)]
    figures = [torch.tensor([entry["loss"] for entry in found if "loss" in entry]) for found in stories]
    torch.testing.assert_close(figures[0], figures[1], rtol=0, atol=1e-5)


# The real launcher
LONG = {**TWO, "num_train_epochs": 400, "eval_strategy": "no", "eval_steps": None}


def launched(runs: Any, *arguments: str, hooks: Any = ()) -> subprocess.Popen[str]:
    """`glassloop train --processes 2` in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"}
    environment |= {"GLASSLOOP_CACHE": str(runs.folder / "cache")}
    return subprocess.Popen(
        [sys.executable, "-m", "glassloop", *arguments, "--processes", "2"], env=environment, cwd=runs.folder,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_50_a_signal_to_the_launcher_saves(runs: Any, number: int) -> None:
    run = runs.new()
    process = launched(runs, *runs.arguments(run, **LONG))
    await_file(run / "checkpoint-5")
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number, said
    stopped = open_checkpoint(checkpoints_in(run)[0]).manifest["step"]
    assert said.count(f"stopped by {signal.Signals(number).name} after step {stopped:,}") == 1
    assert "Traceback" not in said


@pytest.mark.exhaustive
def test_48_the_launcher_ends_when_a_process_is_killed(runs: Any) -> None:
    run = runs.new()
    process = launched(runs, *runs.arguments(run, **LONG))
    await_file(run / "checkpoint-5")
    holder = json.loads((run / ".lock").read_text())["process"]
    os.kill(holder, signal.SIGKILL)
    said, _ = process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    assert f"process {holder} (1 of 2) was killed by SIGKILL" in said
    ended = both(runs, "train", "--resume", run, *flags(logging_steps=100), hooks=[Hook(STEP, 3, TERM)])
    assert [end.code for end in ended] == [143, 143], ended[0].err


@pytest.mark.exhaustive
def test_49_an_error_of_all_processes_is_one_message_with_its_exit_code(runs: Any) -> None:
    process = launched(runs, *runs.arguments(runs.new(), **{**TWO, "learning_rate": 1e25, "save_strategy": "no"}))
    said, _ = process.communicate(timeout=90)
    lines = said.splitlines()
    assert process.returncode == 5, said
    assert [line.startswith("diverged: step ") for line in lines].count(True) == 1, said
    assert lines[-1].startswith("try:  lower learning_rate")
    assert "torch" not in said
