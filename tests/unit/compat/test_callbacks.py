"""Callbacks of transformers: their control acts, early stopping goes on counting after a resume, and the state they see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from families import tiny_model
from small_training import small_rows
from transformers import DefaultFlowCallback, EarlyStoppingCallback, PrinterCallback, ProgressCallback, TrainerCallback
from transformers import TrainerState as TheirState

from glassloop import Callback, Trainer
from glassloop.compat.trainer import TrainerState, is_for_transformers
from glassloop.runs.record import Plan, checkpoints_in
from glassloop.training.callbacks import State
from glassloop.training.checkpoints import open_checkpoint


@pytest.fixture
def watched(make) -> Any:
    """Make a Trainer with callbacks, on the plain backend unless a test says otherwise."""

    def made(*callbacks: Any, kind: Any = Trainer, folder: str = "out", **settings: Any) -> Any:
        return make(kind, folder, {"callbacks": callbacks}, **{"max_steps": 6, "backend": "plain"} | settings)

    return made


def test_callbacks_of_both_packages_and_the_progress_display_can_be_added_and_removed(watched) -> None:
    assert [is_for_transformers(one) for one in (EarlyStoppingCallback, EarlyStoppingCallback(), Callback())] == [1, 1, 0]
    ours, theirs = Callback(), EarlyStoppingCallback()
    trainer = watched(ours, theirs, disable_tqdm=False)
    assert trainer.callbacks[0] is ours
    names = ["DefaultFlowCallback", "EarlyStoppingCallback", "ProgressCallback"]
    assert [type(one).__name__ for one in trainer.callback_handler.callbacks] == names
    trainer.add_callback(TrainerCallback)
    assert type(trainer.callback_handler.callbacks[-1]) is TrainerCallback
    assert trainer.pop_callback(EarlyStoppingCallback) is theirs
    assert trainer.pop_callback(EarlyStoppingCallback) is None
    trainer.remove_callback(ours)
    assert len(trainer.callbacks) == 1  # those of transformers
    trainer = watched()
    assert isinstance(trainer.pop_callback(PrinterCallback), PrinterCallback)
    assert not trainer._shows_progress()
    trainer.add_callback(ProgressCallback)
    assert trainer._shows_progress()
    patient = type("Patient", (EarlyStoppingCallback,), {"on_save": lambda self, *given, **others: None})
    for kind, waits in ((EarlyStoppingCallback, False), (patient, True), (TrainerCallback, False)):
        assert bool(watched(kind).callbacks[-1].listeners("on_save")) == waits


def test_without_the_default_flow_nothing_is_asked_for(watched, tmp_path) -> None:
    trainer = watched(logging_steps=1, save_steps=1, save_strategy="steps")
    trainer.remove_callback(DefaultFlowCallback)
    trainer.train()
    assert [*tmp_path.glob("*/checkpoint-*")] == []
    assert [[*entry] for entry in trainer.state.log_history if "loss" in entry] == []


def test_an_epoch_may_be_ended_also_before_its_first_step(watched, tmp_path) -> None:
    class Cutting(TrainerCallback):
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            control.should_epoch_stop = True

        def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            control.should_epoch_stop = control.should_save = True  # too late: it has ended

    trainer, again = (watched(Cutting, max_steps=-1, num_train_epochs=3) for _ in range(2))
    trainer.train()
    assert (trainer.state.step, trainer.state.loop.epoch) == (3, 3)
    again.train(resume_from_checkpoint=tmp_path / "out" / "checkpoint-2")
    assert again.state.step == 3


def test_files_that_a_callback_writes_leave_a_checkpoint_intact(watched, tmp_path) -> None:
    class Adding(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
            folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
            model.save_pretrained(folder)  # again, and in a folder for an adapter
            model.save_pretrained(folder / "adapter")
            (folder / "note.txt").write_text("mine")

    for backend in ("plain", "auto"):
        given = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 1, "backend": backend}
        watched(Adding, folder=backend, **given).train()
        assert [path.name for path in checkpoints_in(tmp_path / backend)] == ["checkpoint-6"]
        assert open_checkpoint(tmp_path / backend / "checkpoint-6").manifest["step"] == 6


def test_patience_is_not_lost_by_a_resume(watched) -> None:
    """Nothing improves: three evaluations in all, however often the run was resumed."""
    given = {"max_steps": 9, "learning_rate": 0.0, "metric_for_best_model": "loss", "greater_is_better": False}
    given |= {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            control.should_training_stop = state.global_step == 2

    watched(EarlyStoppingCallback(2), Stop, **given).train()
    again = watched(EarlyStoppingCallback(2), **given)
    again.train(resume_from_checkpoint=True)
    assert again.state.step == 3


class Drawn:
    """Rows of words that the training rows do not have. Reading one draws a random number."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"input_ids": [2, 46 + number % 3, 5 + int(torch.randint(0, 9, ())), 3], "labels": 1}


class Passes(TrainerCallback):
    """Evaluates, predicts and logs while a model is trained, as scripts do."""

    trainer: Any

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step in (1, 5, 11):
            self.trainer.evaluate(self.trainer.train_dataset, metric_key_prefix="train")
            self.trainer.evaluate()
            self.trainer.predict(Drawn())
            self.trainer.log({"mine": float(state.global_step)})


@pytest.mark.parametrize("backend", ["plain", "packed"])
def test_passes_of_a_callback_change_neither_weights_nor_best_step_nor_resume(backend, make, tmp_path) -> None:
    given = {"max_steps": 12, "per_device_train_batch_size": 4, "learning_rate": 2e-2, "backend": backend}
    given |= {"save_strategy": "steps", "save_steps": 3, "eval_strategy": "steps", "eval_steps": 3, "save_total_limit": 10}
    given |= {"load_best_model_at_end": True, "metric_for_best_model": "accuracy"}
    rows = {"model": tiny_model(), "train_dataset": small_rows(24), "eval_dataset": small_rows(24)}

    def trained(folder: str, *callbacks: Passes, resume: Any = None) -> Any:
        trainer = make(Trainer, folder, {**rows, "model": tiny_model(), "callbacks": callbacks}, **given)
        for callback in callbacks:
            callback.trainer = trainer
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    plain, found = trained("plain"), trained("passes", Passes())
    assert found.backend.name == backend
    for weight, other in zip(plain.model.parameters(), found.model.parameters(), strict=True):
        assert torch.equal(weight, other)
    of_loop = [entry for place, entry in enumerate(found.state.history) if place not in found.state.own_entries]
    assert [entry for entry in of_loop if "eval_loss" in entry] == [e for e in plain.state.history if "eval_loss" in e]
    assert (found.state.best_step, found.state.best_metric) == (plain.state.best_step, plain.state.best_metric)
    own = [entry for entry in found.state.log_history if "train_accuracy" in entry or "mine" in entry]
    assert [entry["step"] for entry in own] == [1, 1, 5, 5, 11, 11]
    assert "train_runtime" in own[0]
    again = trained("passes", Passes(), resume=tmp_path / "passes" / "checkpoint-6")
    assert again.state.history == found.state.history
    assert (again.state.best_global_step, again.state.best_metric) == (plain.state.best_step, plain.state.best_metric)


def test_a_callback_that_reads_gradients_trains_on_the_plain_backend(watched, capsys) -> None:
    norms: list[float] = []

    class Reading(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any, **others: Any) -> None:
            norms.append(sum(float(weight.grad.norm()) for weight in model.parameters()))
            control.should_training_stop = len(norms) == 2

    trainer = watched(Reading, backend="auto")
    trainer.train()
    assert trainer.state.global_step == len(norms) == 2
    assert min(norms) > 0
    assert "backend plain instead of packed: Reading.on_pre_optimizer_step may read gradients" in capsys.readouterr().err


# --- logs, and the state under the names of transformers
EVERY = {"accumulate": 1, "warmup_steps": 0, "log_every": 1, "eval_every": 0, "save_every": 0}
PLAN = Plan(max_steps=4, steps_per_epoch=2, batches_per_epoch=2, **EVERY)


def test_the_state_follows_the_loop_and_keeps_what_scripts_add(tmp_path: Path) -> None:
    loop = State(step=2, epoch=1, history=[{"step": 2, "epoch": 1.0, "loss": 0.5}])
    state = TrainerState.of(loop).follow(PLAN, batch_size=8)
    assert (state.global_step, state.max_steps, state.num_train_epochs, state.epoch) == (2, 4, 2, 1.0)
    assert (state.step, state.history, state.best_metric) == (2, loop.history, None)
    state.log_history.append({"mine": 1.0, "step": 2})
    loop.history.append({"step": 2, "epoch": 1.0, "eval_loss": 0.4})
    kinds = [[*entry] for entry in state.follow(PLAN, batch_size=8).log_history]
    assert kinds == [["epoch", "loss", "step"], ["mine", "step"], ["epoch", "eval_loss", "step"]]
    state.save_to_json(str(tmp_path / "trainer_state.json"))
    loaded = TheirState.load_from_json(str(tmp_path / "trainer_state.json"))
    assert (loaded.global_step, loaded.epoch, loaded.log_history) == (2, 1.0, state.log_history)
    with pytest.raises(AttributeError):
        _ = state.nothing


def test_metrics_are_printed_and_collected(watched, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = watched()
    trainer.log_metrics("eval", {"eval_loss": 0.123456, "epoch": 1.0})
    lines = ["***** eval metrics *****", "  epoch     =        1.0", "  eval_loss =     0.1235"]
    assert capsys.readouterr().out.splitlines() == lines
    trainer.save_metrics("train", {"train_loss": 1.0})
    trainer.save_metrics("eval", {"eval_loss": 2.0})
    trainer.save_metrics("test", {"test_loss": 3.0}, combined=False)
    assert json.loads((tmp_path / "out" / "all_results.json").read_text()) == {"train_loss": 1.0, "eval_loss": 2.0}
    assert json.loads((tmp_path / "out" / "test_results.json").read_text()) == {"test_loss": 3.0}
