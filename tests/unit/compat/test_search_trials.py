"""The trials of a search: recorded in study.json, continued after a stop as if there had been none, failures counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from families import tiny_model

from glassloop import Callback, Trainer, TrainingArguments
from glassloop.base.errors import SettingsError
from glassloop.compat.trials import BestRun, rows_text

optuna = pytest.importorskip("optuna")
USUAL = {"max_steps": 4, "device": "cpu", "precision": "fp32", "disable_tqdm": True, "save_strategy": "no", "logging_steps": 2}
REPORTS = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}


@pytest.fixture(autouse=True)
def quiet() -> Any:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    optuna.logging.set_verbosity(before)


@pytest.fixture
def make(few, tiny_tokenizer, tmp_path) -> Any:
    def made(folder: str = "out", kind: type[Trainer] = Trainer, **given: Any) -> Trainer:
        rows = {"train_dataset": few["train"], "eval_dataset": few["validation"], "processing_class": tiny_tokenizer}
        return kind(args=TrainingArguments(tmp_path / folder, **USUAL | given), model_init=lambda: tiny_model(), **rows)

    return made


def space(trial: Any) -> dict[str, Any]:
    wild = trial.number == 1  # diverges
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e20, 1e21) if wild else trial.suggest_float("rate", 1e-4, 1e-2),
        "weight_decay": trial.suggest_categorical("weight_decay", [0.0, 0.1]),
        "max_grad_norm": 0.0,
    }


def recorded(folder: Path) -> dict[str, Any]:
    """study.json without timings and without places."""
    record = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    for run in record["runs"].values():
        run.pop("seconds")
    del record["base"], record["seconds"]
    return record


def test_trials_are_recorded_as_runs_of_a_study(make, tmp_path: Path, capsys) -> None:
    best = make().hyperparameter_search(space, n_trials=3)
    record = recorded(tmp_path / "out")
    assert [*record["runs"]] == ["run-0", "run-1", "run-2"]
    assert [run["status"] for run in record["runs"].values()] == ["finished", "failed", "finished"]
    assert (record["status"], str(record["chosen"])) == ("finished", best.run_id)
    chosen = record["runs"][f"run-{best.run_id}"]
    assert chosen["selection"] == {"objective": best.objective}
    assert {"loss", "accuracy"} <= {*chosen["validation"]}
    assert record["tried"][int(best.run_id)] == best.hyperparameters
    assert record["runs"]["run-1"]["exit_code"] == 5
    said = capsys.readouterr().err
    assert "failed: run-1, learning_rate" in said
    assert "3 trials, 1 failed; the best: rate" in said
    assert make().hyperparameter_search(space, n_trials=3) == best, "nothing is trained again"
    assert "continuing the search in" in capsys.readouterr().err


class StoppedError(Exception):
    """What ends a search in the middle of a trial, as a kill does."""


@pytest.mark.slow
@pytest.mark.parametrize("given", [{}, REPORTS], ids=["no checkpoints", "from a checkpoint"])
def test_a_search_that_was_stopped_ends_like_one_that_was_not(make, tmp_path: Path, given: Any) -> None:
    whole = make("whole", **given).hyperparameter_search(space, n_trials=4)

    stopped = make("stopped", **given)

    class Stop(Callback):
        def on_step(self, state: Any, batches: Any) -> None:
            if state.step == 3 and (tmp_path / "stopped" / "run-2").exists():
                raise StoppedError

    stopped.add_callback(Stop())
    with pytest.raises(StoppedError):
        stopped.hyperparameter_search(space, n_trials=4)
    assert [run["status"] for run in recorded(tmp_path / "stopped")["runs"].values()] == ["finished", "failed", "waiting"]
    assert make("stopped", **given).hyperparameter_search(space, n_trials=4) == whole
    assert recorded(tmp_path / "stopped") == recorded(tmp_path / "whole")


def test_another_search_in_the_same_folder_moves_the_record_aside(make, tmp_path: Path, capsys) -> None:
    make().hyperparameter_search(space, n_trials=1)
    other = make().hyperparameter_search(lambda trial: {"learning_rate": 1e-3}, n_trials=1)
    assert other == BestRun("0", other.objective, {})
    assert "moved aside: the earlier search" in capsys.readouterr().err
    assert (tmp_path / "out" / "study.json.kept-1").exists()


def test_trials_of_one_name_have_folders_of_their_own(make, tmp_path: Path) -> None:
    make().hyperparameter_search(lambda trial: {}, n_trials=2, hp_name=lambda trial: "same")
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir()) == ["same", "same-1"]


def test_an_objective_that_is_not_finite_is_a_failure(make, tmp_path: Path) -> None:
    def objective(metrics: dict[str, float]) -> float:
        return float("nan")

    with pytest.raises(SettingsError, match="no trial of the search was completed"):
        make().hyperparameter_search(lambda trial: {}, objective, n_trials=1)
    (run,) = recorded(tmp_path / "out")["runs"].values()
    assert (run["status"], run["error"][0]) == ("failed", "the objective of trial 0 is nan")


def test_rows_are_told_apart_by_their_content(few) -> None:
    rows = [{"input_ids": [1, 2], "labels": 0}, {"input_ids": [3], "labels": 1}]
    assert rows_text(rows).startswith("2 rows (")
    assert rows_text(rows) != rows_text([*reversed(rows)])
    assert rows_text(few["train"]) == rows_text(few["train"])
    assert rows_text(iter(rows)) == "a stream of rows"
