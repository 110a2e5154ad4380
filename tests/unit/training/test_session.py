"""One training from its first or next step to its end: signals, resume, restart."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from families import tiny_model, weights_hash
from small_training import StopAt, trained

from glassloop import Callback, Trainer, TrainingArguments
from glassloop.base.errors import ModelError
from glassloop.runs.layout import checkpoints_in


@pytest.mark.slow
@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gradient_accumulation_steps": 2, "group_by_length": True, "max_steps": 7},
        {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, "metric_for_best_model": "accuracy"},
        {"lr_scheduler_type": "cosine", "warmup_steps": 3, "weight_decay": 0.1, "optim": "adamw_torch"},
    ],
)
@pytest.mark.parametrize("stop", [1, 5, 6])
def test_stopping_anywhere_and_resuming_equals_never_stopping(
    settings: dict, stop: int, rows: Dataset, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    whole = trained(tmp_path / "whole", rows, tiny_tokenizer, **settings)
    with pytest.raises(SystemExit) as caught:
        trained(tmp_path / "parts", rows, tiny_tokenizer, callbacks=[StopAt(stop)], **settings)
    assert caught.value.code == 143
    parts = trained(tmp_path / "parts", rows, tiny_tokenizer, resume=True, **settings)
    assert weights_hash(parts.model) == weights_hash(whole.model)
    assert parts.state.history == whole.state.history
    assert parts.state.mean_loss == whole.state.mean_loss
    assert parts.state.best_step == whole.state.best_step


def test_without_a_checkpoint_the_run_starts_again_and_says_so(
    rows: Dataset, tiny_tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    whole = trained(tmp_path / "whole", rows, tiny_tokenizer)
    args = whole.args
    again = Trainer(tiny_model(), args, train_dataset=rows, processing_class=tiny_tokenizer)
    for path in checkpoints_in(tmp_path / "whole"):
        shutil.rmtree(path)
    again.train(resume_from_checkpoint=True)
    assert "no checkpoint to resume from, so training starts at step 0" in capsys.readouterr().err
    assert weights_hash(again.model) == weights_hash(whole.model)


class StopAtTheEnd(Callback):
    """A signal after the last step's own look for one."""

    def on_fit_end(self, state: Any) -> None:
        state.asked_to_stop = 15


@pytest.mark.parametrize("strategy", ["no", "steps"])
def test_a_signal_after_the_last_step_loses_nothing(strategy: str, rows: Dataset, tiny_tokenizer: Any, tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", rows, tiny_tokenizer, save_strategy=strategy)
    with pytest.raises(SystemExit) as caught:
        trained(tmp_path / "run", rows, tiny_tokenizer, callbacks=[StopAtTheEnd()], save_strategy=strategy)
    assert caught.value.code == 143
    assert (tmp_path / "run/checkpoint-12").is_dir()
    again = trained(tmp_path / "run", rows, tiny_tokenizer, resume=True, save_strategy=strategy)
    assert weights_hash(again.model) == weights_hash(whole.model)
    assert again.state.history == whole.state.history


def test_checkpoints_that_cannot_be_used_stop_the_run_and_restart_insists(
    rows: Dataset, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    whole = trained(tmp_path, rows, tiny_tokenizer)
    for path in checkpoints_in(tmp_path):
        (path / "state.json").write_text("{")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("checkpoint-*/*")}
    with pytest.raises(ModelError, match=r"2 checkpoints, none of which can be used: .*12.*state.json.*9.*state.json"):
        trained(tmp_path, rows, tiny_tokenizer, resume=True)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("checkpoint-*/*")} == before
    again = trained(tmp_path, rows, tiny_tokenizer, resume=True, restart=True)
    assert weights_hash(again.model) == weights_hash(whole.model)
    assert len(list((tmp_path / "checkpoints.kept-1").iterdir())) == 2
    assert len(checkpoints_in(tmp_path)) == 2


def test_a_signal_that_comes_after_training_is_only_noted(rows: Dataset, tiny_tokenizer: Any, tmp_path: Path) -> None:
    args = TrainingArguments(tmp_path, max_steps=2, save_strategy="no", device="cpu", disable_tqdm=True)
    trainer = Trainer(tiny_model(), args, train_dataset=rows, processing_class=tiny_tokenizer)
    trainer._quiet = True
    with trainer._training() as output:
        signal.raise_signal(signal.SIGHUP)
        assert trainer.state.asked_to_stop == signal.SIGHUP
    assert output.global_step == 2


class NoRoomForLines(Callback):
    """A history that cannot be written between two steps."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_step(self, state: Any, batches: list[Any]) -> None:
        if state.step == 3:
            self.path.unlink()
            self.path.mkdir()
        elif state.step == 8:
            self.path.rmdir()


def test_a_history_that_cannot_be_written_for_a_while_ends_no_training(
    rows: Dataset, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    trainer = trained(tmp_path, rows, tiny_tokenizer, callbacks=[NoRoomForLines(tmp_path / "history.jsonl")])
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == trainer.state.history
    assert len(lines) == 6
