"""A search for hyperparameters: independent trials in folders of their own, and the Trainer as it was before."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from families import tiny_model, weights_hash
from transformers import EarlyStoppingCallback
from transformers.trainer_utils import default_compute_objective

from glassloop import Trainer, TrainingArguments
from glassloop.base.errors import SettingsError

optuna = pytest.importorskip("optuna")
USUAL = {"max_steps": 4, "device": "cpu", "precision": "fp32", "disable_tqdm": True, "save_strategy": "no", "logging_steps": 2}


@pytest.fixture(autouse=True)
def quiet() -> Any:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    optuna.logging.set_verbosity(before)


@pytest.fixture
def make(few, tiny_tokenizer, tmp_path) -> Any:
    def made(parts: Any = None, model_init: Any = tiny_model, folder: str = "out", **given: Any) -> Any:
        args = TrainingArguments(tmp_path / folder, **USUAL | given)
        rows = {"train_dataset": few["train"], "eval_dataset": few["validation"], "processing_class": tiny_tokenizer}
        return Trainer(args=args, model_init=lambda: model_init(), **rows | (parts or {}))

    return made


def space(trial: Any) -> dict[str, Any]:
    return {"learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True), "warmup_ratio": 0.5}


@pytest.mark.slow
def test_the_best_trial_is_returned_and_the_settings_stay(make, tmp_path) -> None:
    trainer = make(push_to_hub=True)  # not the trials
    trainer.push_to_hub = lambda: pytest.fail("a trial was uploaded")
    before = dict(vars(trainer.args))
    best = trainer.hyperparameter_search(space, n_trials=3)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["run-0", "run-1", "run-2", "study.json"]
    assert best._fields == ("run_id", "objective", "hyperparameters", "run_summary")
    assert [*best.hyperparameters] == ["learning_rate"]
    assert dict(vars(trainer.args)) == before
    again = make(learning_rate=best.hyperparameters["learning_rate"], warmup_steps=0.5, folder="again")
    again.train()
    assert again.evaluate()["eval_loss"] == best.objective, "a trial is a training like any other"
    assert make(folder="second").hyperparameter_search(space, n_trials=3) == best, "the choice of values has a seed"


@pytest.mark.slow
def test_trials_do_not_depend_on_each_other(make) -> None:
    """One trial uses another optimizer and stops early; the next is what it would be alone."""
    hashes: dict[int, str] = {}
    stops: list[int] = []

    class Kept(Trainer):
        def train(self, *given: Any, **named: Any) -> Any:
            found = super().train(*given, **named)
            hashes[len(hashes)] = weights_hash(self.model)
            stops.append(found.global_step)
            return found

    def choices(trial: Any) -> dict[str, Any]:
        kinds = [{"optim": "sgd", "learning_rate": 1e-9, "max_steps": 9}, {"learning_rate": 1e-3}]
        return kinds[trial.number]

    patience = EarlyStoppingCallback(early_stopping_patience=1, early_stopping_threshold=0.01)
    given = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    given |= {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": False}
    trainer = make({"callbacks": [patience]}, **given)
    trainer.__class__ = Kept
    trainer.hyperparameter_search(choices, n_trials=2)
    assert trainer.backend.name == "packed"
    alone = make({"callbacks": [EarlyStoppingCallback(1, 0.01)]}, folder="alone", learning_rate=1e-3, **given)
    steps = alone.train().global_step
    assert stops == [2, steps]
    assert hashes[1] == weights_hash(alone.model)


def test_names_trial_and_default_space(make, tmp_path) -> None:
    seen: list[Any] = []

    def model_init(trial: Any) -> Any:
        seen.append(None if trial is None else trial.number)
        return tiny_model()

    trainer = make()
    trainer.model_init = model_init
    best = trainer.hyperparameter_search(n_trials=2, hp_name=lambda trial: f"try {trial.number}", backend="optuna")
    assert {*best.hyperparameters} == {"learning_rate", "num_train_epochs", "seed", "per_device_train_batch_size"}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["study.json", "try 0", "try 1"]
    assert seen == [0, 1]
    trainer.train()
    assert seen[2:] == [None]


@pytest.mark.parametrize("own", [False, True])
def test_the_default_objective_is_that_of_transformers(make, own: bool) -> None:
    scores = {"compute_metrics": lambda found: {"half": 0.5, "mean": float(found.predictions.mean())}} if own else {}
    trainer = make(scores)
    best = trainer.hyperparameter_search(space, n_trials=1, direction="maximize")
    again = make(scores, folder="again", learning_rate=best.hyperparameters["learning_rate"], warmup_steps=0.5)
    again.train()
    metrics = again.evaluate()
    assert best.objective == pytest.approx(default_compute_objective(metrics) if own else metrics["eval_loss"])


def test_pruned_and_several_objectives(make) -> None:
    class Prune(optuna.pruners.BasePruner):
        def prune(self, study: Any, trial: Any) -> bool:
            return trial.number == 1

    trainer = make(eval_strategy="steps", eval_steps=1)
    seen: list[float] = []

    def objective(metrics: dict[str, float]) -> float:
        seen.append(metrics["eval_loss"])
        return 1.0 - len(seen)  # the pruned one would be the best

    assert trainer.hyperparameter_search(space, objective, n_trials=2, pruner=Prune()).run_id == "0"
    assert len(seen) == 5, "four evaluations of the first trial, one of the second"
    both = make(folder="both").hyperparameter_search(
        space, lambda metrics: (metrics["eval_loss"], 1.0), n_trials=2, direction=["minimize", "maximize"]
    )
    assert both[0].objective[1] == 1.0


def test_a_diverged_trial_does_not_end_the_search(make) -> None:
    def wild(trial: Any) -> dict[str, Any]:
        return {"learning_rate": 1e20 if trial.number == 0 else 1e-4, "max_grad_norm": 0.0}

    assert make().hyperparameter_search(wild, n_trials=2).run_id == "1"
    with pytest.raises(SettingsError, match="no trial of the search was completed"):
        make(folder="none").hyperparameter_search(wild, n_trials=1)


@pytest.mark.parametrize(
    ("change", "given", "problem"),
    [
        ({}, {"backend": "ray"}, 'hyperparameter_search does not support the backend "ray"'),
        ({}, {"backend": "sigopt"}, 'hyperparameter_search does not support the backend "sigopt"'),
        ({}, {"backend": "wandb"}, 'hyperparameter_search does not support the backend "wandb"'),
        ({}, {"direction": "up"}, 'direction is "up"'),
        ({}, {"n_jobs": 2}, "n_jobs is 2, but a Trainer runs one trial at a time"),
        ({}, {"hp_space": lambda trial: {"learning_rat": 1}}, 'hp_space returned "learning_rat", which is not a setting'),
        ({}, {"hp_space": lambda trial: None}, "hp_space returned a NoneType for trial 0"),
        ({"model_init": None}, {}, "hyperparameter_search needs a new model for each trial"),
        ({"eval_dataset": None}, {}, "hyperparameter_search compares evaluations"),
    ],
)
def test_what_cannot_be_searched_is_refused(make, change: Any, given: Any, problem: str) -> None:
    trainer = make()
    for name, value in change.items():
        setattr(trainer, name, value)
    with pytest.raises(SettingsError) as caught:
        trainer.hyperparameter_search(n_trials=1, **given)
    assert caught.value.problem.startswith(problem)


def test_without_optuna_the_error_names_the_extra(make, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SettingsError, match="needs the package optuna") as caught:
        make().hyperparameter_search()
    assert caught.value.remedy == "pip install 'glassloop[optuna]'"
