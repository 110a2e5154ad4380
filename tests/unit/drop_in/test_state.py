"""The state under the names of transformers, and the files that scripts write after a training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glassloop.drop_in.state import TrainerState, show_metrics, write_metrics


def test_the_history_has_the_result_where_the_training_ended(tmp_path: Path) -> None:
    state = TrainerState(step=2, history=[{"step": 2, "epoch": 1.0, "loss": 0.5}], max_steps=2)
    state.result, state.result_at = {"train_loss": 0.5, "epoch": 1.0}, 1
    state.history.append({"step": 2, "epoch": 1.0, "eval_loss": 0.4})
    assert [[*entry] for entry in state.log_history] == [
        ["epoch", "loss", "step"],
        ["train_loss", "epoch", "step"],
        ["epoch", "eval_loss", "step"],
    ]
    assert (state.global_step, state.best_metric, state.best_global_step) == (2, None, state.best_step)
    assert state.is_world_process_zero
    assert not {"result", "result_at", "max_steps"} & {*state.to_dict()}
    state.save_to_json(tmp_path / "trainer_state.json")
    stored = json.loads((tmp_path / "trainer_state.json").read_text(encoding="utf-8"))
    assert (stored["global_step"], stored["epoch"], len(stored["log_history"])) == (2, 1.0, 3)


def test_the_best_checkpoint_is_one_that_exists(tmp_path: Path) -> None:
    state = TrainerState(best_step=4, folder=tmp_path)
    assert state.best_model_checkpoint is None
    (tmp_path / "checkpoint-4").mkdir()
    assert state.best_model_checkpoint == str(tmp_path / "checkpoint-4")
    assert {"folder", "facts"}.isdisjoint(state.to_dict())


def test_metrics_are_printed_and_collected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_metrics("eval", {"eval_loss": 0.123456, "epoch": 1.0})
    assert capsys.readouterr().out.splitlines() == [
        "***** eval metrics *****",
        "  epoch     =        1.0",
        "  eval_loss =     0.1235",
    ]
    write_metrics(tmp_path, "train", {"train_loss": 1.0}, combined=True)
    write_metrics(tmp_path, "eval", {"eval_loss": 2.0}, combined=True)
    write_metrics(tmp_path, "test", {"test_loss": 3.0}, combined=False)
    assert json.loads((tmp_path / "all_results.json").read_text()) == {"train_loss": 1.0, "eval_loss": 2.0}
    assert json.loads((tmp_path / "test_results.json").read_text()) == {"test_loss": 3.0}
