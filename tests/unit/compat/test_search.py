"""A search for hyperparameters: independent trials, recorded in study.json and continued after a stop."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from families import tiny_model, weights_hash
from transformers import EarlyStoppingCallback
from transformers.trainer_utils import default_compute_objective

from glassloop import Callback, Trainer
from glassloop.base.errors import DivergedError, SettingsError
from glassloop.compat.trials import BestRun, SearchRecord, rows_text
from glassloop.runs.study import read_study
from glassloop.settings.file import GivenSettings
from glassloop.settings.study import StudySettings
from glassloop.study.study import study

optuna = pytest.importorskip("optuna")
EVERY_STEP = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}


@pytest.fixture(autouse=True)
def quiet() -> Any:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    optuna.logging.set_verbosity(before)


@pytest.fixture
def searching(make) -> Any:
    """Make a Trainer that makes its model itself."""

    def made(folder: str = "out", parts: Any = None, **given: Any) -> Any:
        return make(folder=folder, parts={"model_init": lambda: tiny_model(), **(parts or {})}, logging_steps=2, **given)

    return made


def space(trial: Any) -> dict[str, Any]:
    return {"learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True), "warmup_ratio": 0.5}


def wild_space(trial: Any) -> dict[str, Any]:
    wild = trial.number == 1  # diverges
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e20, 1e21) if wild else trial.suggest_float("rate", 1e-4, 1e-2),
        "weight_decay": trial.suggest_categorical("weight_decay", [0.0, 0.1]),
        "max_grad_norm": 0.0,
    }


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
def test_the_best_trial_is_returned_and_the_settings_stay(searching, tmp_path) -> None:
    trainer = searching(push_to_hub=True)  # not the trials
    trainer.push_to_hub = lambda: pytest.fail("a trial was uploaded")
    before = dict(vars(trainer.args))
    best = trainer.hyperparameter_search(space, n_trials=3)
    assert names_in(tmp_path / "out") == ["run-0", "run-1", "run-2", "study.json"]
    assert best._fields == ("run_id", "objective", "hyperparameters", "run_summary")
    assert [*best.hyperparameters] == ["learning_rate"]
    assert dict(vars(trainer.args)) == before
    again = searching("again", learning_rate=best.hyperparameters["learning_rate"], warmup_steps=0.5)
    again.train()
    assert again.evaluate()["eval_loss"] == best.objective, "a trial is a training like any other"
    assert searching("second").hyperparameter_search(space, n_trials=3) == best, "the choice of values has a seed"


@pytest.mark.slow
def test_trials_do_not_depend_on_each_other(searching) -> None:
    """One trial uses another optimizer and stops early; the next is what it would be alone."""
    hashes: list[str] = []
    stops: list[int] = []

    class Kept(Trainer):
        def train(self, *given: Any, **named: Any) -> Any:
            found = super().train(*given, **named)
            hashes.append(weights_hash(self.model))
            stops.append(found.global_step)
            return found

    def choices(trial: Any) -> dict[str, Any]:
        return [{"optim": "sgd", "learning_rate": 1e-9, "max_steps": 9}, {"learning_rate": 1e-3}][trial.number]

    best = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": False}
    trainer = searching(parts={"callbacks": [EarlyStoppingCallback(1, 0.01)]}, **EVERY_STEP, **best)
    trainer.__class__ = Kept
    trainer.hyperparameter_search(choices, n_trials=2)
    assert trainer.backend.name == "packed"
    alone = searching("alone", {"callbacks": [EarlyStoppingCallback(1, 0.01)]}, learning_rate=1e-3, **EVERY_STEP, **best)
    assert stops == [2, alone.train().global_step]
    assert hashes[1] == weights_hash(alone.model)


def test_names_trial_and_default_space(searching, tmp_path) -> None:
    seen: list[Any] = []

    def model_init(trial: Any) -> Any:
        seen.append(None if trial is None else trial.number)
        return tiny_model()

    trainer = searching()
    trainer.model_init = model_init
    best = trainer.hyperparameter_search(n_trials=2, hp_name=lambda trial: f"try {trial.number}", backend="optuna")
    assert {*best.hyperparameters} == {"learning_rate", "num_train_epochs", "seed", "per_device_train_batch_size"}
    assert names_in(tmp_path / "out") == ["study.json", "try 0", "try 1"]
    trainer.train()
    assert seen == [0, 1, None]


@pytest.mark.parametrize("own", [False, True])
def test_the_default_objective_is_that_of_transformers(searching, own: bool) -> None:
    scores = {"compute_metrics": lambda found: {"half": 0.5, "mean": float(found.predictions.mean())}} if own else {}
    best = searching(parts=scores).hyperparameter_search(space, n_trials=1, direction="maximize")
    again = searching("again", scores, learning_rate=best.hyperparameters["learning_rate"], warmup_steps=0.5)
    again.train()
    metrics = again.evaluate()
    assert best.objective == pytest.approx(default_compute_objective(metrics) if own else metrics["eval_loss"])


def test_pruned_and_several_objectives(searching) -> None:
    class Prune(optuna.pruners.BasePruner):
        def prune(self, study: Any, trial: Any) -> bool:
            return trial.number == 1

    seen: list[float] = []

    def objective(metrics: dict[str, float]) -> float:
        seen.append(metrics["eval_loss"])
        return 1.0 - len(seen)  # the pruned one would be the best

    trainer = searching(eval_strategy="steps", eval_steps=1)
    assert trainer.hyperparameter_search(space, objective, n_trials=2, pruner=Prune()).run_id == "0"
    assert len(seen) == 5, "four evaluations of the first trial, one of the second"
    two = {"compute_objective": lambda metrics: (metrics["eval_loss"], 1.0), "direction": ["minimize", "maximize"]}
    both = searching("both").hyperparameter_search(space, n_trials=2, **two)
    assert both[0].objective[1] == 1.0


def test_what_cannot_be_searched_is_refused_and_without_optuna_the_error_names_the_extra(searching, monkeypatch) -> None:
    for change, given, problem in (
        ({}, {"backend": "ray"}, 'hyperparameter_search does not support the backend "ray"'),
        ({}, {"direction": "up"}, 'direction is "up"'),
        ({}, {"n_jobs": 2}, "n_jobs is 2, but a Trainer runs one trial at a time"),
        ({}, {"hp_space": lambda trial: {"learning_rat": 1}}, 'hp_space returned "learning_rat", which is not a setting'),
        ({}, {"hp_space": lambda trial: None}, "hp_space returned a NoneType for trial 0"),
        ({"model_init": None}, {}, "hyperparameter_search needs a new model for each trial"),
        ({"eval_dataset": None}, {}, "hyperparameter_search compares evaluations"),
    ):
        trainer = searching()
        for name, value in change.items():
            setattr(trainer, name, value)
        with pytest.raises(SettingsError) as caught:
            trainer.hyperparameter_search(n_trials=1, **given)
        assert caught.value.problem.startswith(problem)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SettingsError, match="needs the package optuna") as caught:
        searching().hyperparameter_search()
    assert caught.value.remedy == "pip install 'glassloop[optuna]'"


# --- study.json
def recorded(folder: Path) -> dict[str, Any]:
    """study.json without timings and without places."""
    record = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    for run in record["runs"].values():
        run.pop("seconds")
    del record["base"], record["seconds"]
    return record


def test_trials_are_recorded_as_runs_of_a_study_and_a_diverged_one_does_not_end_it(searching, tmp_path, capsys) -> None:
    best = searching().hyperparameter_search(wild_space, n_trials=3)
    record = recorded(tmp_path / "out")
    statuses = {name: run["status"] for name, run in record["runs"].items()}
    assert statuses == {"run-0": "finished", "run-1": "failed", "run-2": "finished"}
    assert (record["status"], str(record["chosen"])) == ("finished", best.run_id)
    chosen = record["runs"][f"run-{best.run_id}"]
    assert chosen["selection"] == {"objective": best.objective}
    assert {"loss", "accuracy"} <= {*chosen["validation"]}
    assert record["tried"][int(best.run_id)] == best.hyperparameters
    assert record["runs"]["run-1"]["exit_code"] == 5
    said = capsys.readouterr().err
    assert "failed: run-1, learning_rate" in said
    assert "3 trials, 1 failed; the best: rate" in said
    assert searching().hyperparameter_search(wild_space, n_trials=3) == best, "nothing is trained again"
    assert "continuing the search in" in capsys.readouterr().err


class StoppedError(Exception):
    """What ends a search in the middle of a trial, as a kill does."""


@pytest.mark.slow
@pytest.mark.parametrize("given", [{}, EVERY_STEP], ids=["no checkpoints", "from a checkpoint"])
def test_a_search_that_was_stopped_ends_like_one_that_was_not(searching, tmp_path: Path, given: Any) -> None:
    whole = searching("whole", **given).hyperparameter_search(wild_space, n_trials=4)

    class Stop(Callback):
        def on_step(self, state: Any, batches: Any) -> None:
            if state.step == 3 and (tmp_path / "stopped" / "run-2").exists():
                raise StoppedError

    stopped = searching("stopped", **given)
    stopped.add_callback(Stop())
    with pytest.raises(StoppedError):
        stopped.hyperparameter_search(wild_space, n_trials=4)
    assert [run["status"] for run in recorded(tmp_path / "stopped")["runs"].values()] == ["finished", "failed", "waiting"]
    assert searching("stopped", **given).hyperparameter_search(wild_space, n_trials=4) == whole
    assert recorded(tmp_path / "stopped") == recorded(tmp_path / "whole")


def test_another_search_in_the_same_folder_moves_the_record_aside(searching, tmp_path: Path, capsys) -> None:
    same = partial(searching().hyperparameter_search, lambda trial: {}, n_trials=2)
    assert same(hp_name=lambda trial: "same").hyperparameters == {}
    assert {"same", "same-1"} < {*names_in(tmp_path / "out")}, "trials of one name have folders of their own"
    other = searching().hyperparameter_search(lambda trial: {"learning_rate": 1e-3}, n_trials=1)
    assert other == BestRun("0", other.objective, {})
    assert "moved aside: the earlier search" in capsys.readouterr().err
    assert (tmp_path / "out" / "study.json.kept-1").exists()


def test_an_objective_that_is_not_finite_is_a_failure(searching, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no trial of the search was completed"):
        searching().hyperparameter_search(lambda trial: {}, lambda metrics: float("nan"), n_trials=1)
    (run,) = recorded(tmp_path / "out")["runs"].values()
    assert (run["status"], run["error"][0]) == ("failed", "the objective of trial 0 is nan")


def test_rows_are_told_apart_by_their_content(few) -> None:
    rows = [{"input_ids": [1, 2], "labels": 0}, {"input_ids": [3], "labels": 1}]
    assert rows_text(rows).startswith("2 rows (")
    assert rows_text(rows) != rows_text([*reversed(rows)])
    assert rows_text(few["train"]) == rows_text(few["train"])
    assert rows_text(iter(rows)) == "a stream of rows"


LOG = '{"name": "FloatDistribution", "attributes": {"step": null, "low": 1e-06, "high": 0.0001, "log": true}}'


def opened(folder: Path, rows: str = "8 rows") -> SearchRecord:
    return SearchRecord(folder, {"train": rows}, 42, greater_is_better=False, base=GivenSettings())


@pytest.fixture
def filled(tmp_path: Path) -> SearchRecord:
    search = opened(tmp_path)
    for number, name in enumerate(("good", "pruned", "failed", "running")):
        assert search.begin(number, name, 42, {"learning_rate": 1e-5 * (number + 1)}, {"learning_rate": LOG}) is None
        search.note(name, rungs={"4": {"objective": 0.5}})
    search.finished("good", [0.5, 2.0], {"accuracy": 0.9}, 1.0)
    search.note("pruned", status="paused", seconds=1.0)
    search.failed("failed", DivergedError("the loss is nan", "lower the rate"), 1.0)
    return search


def test_a_new_process_finds_and_counts_all_trials_and_a_study_does_not_continue_them(filled, tmp_path: Path, capsys) -> None:
    again = opened(tmp_path)
    good, pruned, failed = again.known()
    assert (good.values, good.pruned, good.params) == ((0.5, 2.0), False, {"learning_rate": 1e-5})
    assert (pruned.values, pruned.pruned, pruned.reports) == (None, True, {4: 0.5})
    assert (failed.values, failed.pruned) == (None, False)
    assert again.waiting == {"learning_rate": 4e-5}
    assert again.begin(3, "running", 42, {"learning_rate": 4e-5}, {}) == {4: 0.5}, "what it had reported"
    assert read_study(tmp_path).failed["failed"].error == ("the loss is nan", "lower the rate")
    filled.end(0)
    assert f"4 trials, 1 pruned, 1 failed; the best: learning_rate 1e-05 → {tmp_path}/study.json" in capsys.readouterr().err
    assert (read_study(tmp_path).status, read_study(tmp_path).chosen) == ("finished", 0)
    with pytest.raises(SettingsError, match="is the search of a script") as raised:
        study(GivenSettings(), str(tmp_path))
    assert raised.value.remedy == "run the script again: it continues its search"
    with pytest.raises(SettingsError, match='strategy is "script", not one of auto, grid'):
        study(GivenSettings("rows.csv", study={"strategy": "script", "vary": {"learning_rate": "1e-3"}}))
    assert StudySettings(strategy="script").vary == {}


def test_other_rows_and_a_damaged_record_are_another_search(filled, tmp_path: Path, capsys) -> None:
    assert not opened(tmp_path, "9 rows").record.runs
    (tmp_path / "study.json").write_text("damaged")
    assert not opened(tmp_path).record.runs
    assert names_in(tmp_path) == ["study.json.kept-1", "study.json.kept-2"]
    assert capsys.readouterr().err.count("moved aside") == 2
