"""Saving changes nothing, and a checkpoint restores only the training it was made from."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from families import VOCABULARY, tiny_model, weights_hash
from small_training import Augmented, StopAt, small_rows, trained
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification, BartConfig, BartForSequenceClassification, TrainerState
from transformers.trainer_utils import get_last_checkpoint

from glassloop import Callback, Trainer, TrainingArguments
from glassloop.base.errors import DivergedError, ModelError, ResourceError, SettingsError
from glassloop.runs.record import checkpoints_in, is_timing, step_of
from glassloop.trainer import Trainer as RunTrainer
from glassloop.training import session
from glassloop.training.session import Session, log_history


def test_saving_disturbs_nothing(rows: Dataset, tiny_tokenizer: Any, tmp_path: Path) -> None:
    often = trained(tmp_path / "often", rows, tiny_tokenizer, save_steps=1)
    never = trained(tmp_path / "never", rows, tiny_tokenizer, save_strategy="no")
    assert weights_hash(often.model) == weights_hash(never.model)
    assert often.state.history == never.state.history
    assert len(checkpoints_in(tmp_path / "often")) == 2
    assert not checkpoints_in(tmp_path / "never")


def test_a_weight_that_is_not_finite_at_the_end_is_refused(rows: Dataset, tiny_tokenizer: Any, tmp_path: Path) -> None:
    """Its losses were finite: without this check the model would be returned, or saved."""
    model = tiny_model()

    class Spoiling(Callback):
        def on_step(self, state: Any, batches: list[Any]) -> None:
            model.classifier.bias.data[0] = float("inf")

    args = TrainingArguments(tmp_path, max_steps=1, device="cpu", precision="fp32", backend="plain", save_strategy="no")
    trainer = Trainer(model, args, train_dataset=rows, processing_class=tiny_tokenizer, callbacks=[Spoiling()])
    trainer._quiet = True
    with pytest.raises(DivergedError, match=r"step 1: the weight classifier\.bias is not finite"):
        trainer.train()


def test_the_seed_draws_the_dropout_of_a_training(rows: Dataset, tiny_tokenizer: Any, tmp_path: Path) -> None:
    given = {"data_seed": 1, "max_steps": 2, "save_strategy": "no"}
    hashes = [weights_hash(trained(tmp_path / str(n), rows, tiny_tokenizer, seed=n % 2, **given).model) for n in range(3)]
    assert hashes[0] == hashes[2] != hashes[1]


def test_other_intervals_are_accepted_other_numbers_refused(rows: Dataset, tiny_tokenizer: Any, tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", rows, tiny_tokenizer)
    with pytest.raises(SystemExit):
        trained(tmp_path / "run", rows, tiny_tokenizer, callbacks=[StopAt(5)])
    for name, value in (("learning_rate", 2e-3), ("seed", 7), ("per_device_train_batch_size", 3), ("max_steps", 13)):
        with pytest.raises(ModelError, match=r"then.*now") as caught:
            trained(tmp_path / "run", rows, tiny_tokenizer, resume=True, **{name: value})
        assert caught.value.exit_code == 4
        assert ("batch_size" if "batch" in name else name) in caught.value.problem
    edited = rows.map(lambda row, number: {"labels": 1 - row["labels"] if number == 4 else row["labels"]}, with_indices=True)
    for changed, text in (
        (edited, "1 rows edited"),
        (rows.select(range(20)), "1 removed"),
        (rows.select([1, 0, *range(2, 21)]), "another order"),
    ):
        with pytest.raises(ModelError, match=text):
            trained(tmp_path / "run", changed, tiny_tokenizer, resume=True)
    other = trained(tmp_path / "run", rows, tiny_tokenizer, resume=True, logging_steps=5, save_steps=4, eval_strategy="epoch")
    assert weights_hash(other.model) == weights_hash(whole.model)


# --- What stops a training: not enough disk space or memory, and figures that are not finite.


def test_no_space_for_two_checkpoints_is_refused_before_the_first_step(
    rows: Dataset, tiny_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassloop.training.session.shutil.disk_usage", lambda folder: shutil._ntuple_diskusage(1, 1, 1000))
    with pytest.raises(ResourceError, match=r"bytes are needed for two checkpoints, 1,000 are free"):
        trained(tmp_path, rows, tiny_tokenizer)


def test_room_for_the_final_model_of_a_run_is_checked_and_reserved(
    rows: Dataset, tiny_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = TrainingArguments(tmp_path, max_steps=1, save_strategy="no", device="cpu", disable_tqdm=True)
    trainer = Trainer(tiny_model(), args, train_dataset=rows, processing_class=tiny_tokenizer, quiet=True)
    found: list[int] = []
    trainer.on_gradients = lambda model: found.append((tmp_path / ".model.reserved").stat().st_size)
    with session.trained(trainer.training_parts(in_run=True)):
        pass
    (size,) = found
    assert size > sum(weight.nbytes for weight in trainer.model.parameters())
    assert not (tmp_path / ".model.reserved").exists()
    monkeypatch.setattr("glassloop.training.session.shutil.disk_usage", lambda folder: shutil._ntuple_diskusage(1, 1, 1000))
    with (
        pytest.raises(ResourceError, match=rf"{size:,} bytes are needed for .*the final model, 1,000 are free"),
        session.trained(trainer.training_parts(in_run=True)),
    ):
        pass


@pytest.mark.parametrize("evaluated", [False, True])
def test_before_the_first_update_the_learning_rate_is_not_blamed(
    rows: Dataset, tiny_tokenizer: Any, tmp_path: Path, evaluated: bool
) -> None:
    """Weights that are finite, but too large for a finite loss."""
    model = tiny_model()
    with torch.no_grad():
        model.bert.embeddings.LayerNorm.weight.mul_(1e38)
    more = {"eval_on_start": True, "eval_strategy": "epoch"} if evaluated else {}
    args = TrainingArguments(
        tmp_path, max_steps=2, save_strategy="no", device="cpu", disable_tqdm=True, backend="plain", **more
    )
    trainer = Trainer(model, args, train_dataset=rows, eval_dataset=rows, processing_class=tiny_tokenizer)
    trainer._quiet = True
    with pytest.raises(DivergedError) as caught:
        trainer.train()
    assert caught.value.problem.startswith("step 0: the loss of the evaluation" if evaluated else "step 1: the loss is nan")
    rows_named = "its rows" if evaluated else "these rows"
    assert caught.value.remedy == f"no weight was updated yet: use another model, use precision fp32, or look at {rows_named}"


# --- The trained model of a run is saved first; what is saved is put back, or named when it cannot be.


@pytest.fixture(scope="module")
def rows_final_model() -> Dataset:
    return small_rows(9)


def in_run(
    folder: Path,
    rows_final_model: Dataset,
    tokenizer: Any,
    resume: bool = False,
    make: Callable[[], Any] = tiny_model,
    **settings: Any,
) -> Trainer:
    """A trainer after its training in a run folder."""
    chosen = {"max_steps": 3, "save_strategy": "no", "device": "cpu", "disable_tqdm": True} | settings
    folder.mkdir(exist_ok=True)
    args = TrainingArguments(folder, **chosen)
    trainer = Trainer(make(), args, train_dataset=rows_final_model, processing_class=tokenizer, quiet=True)
    with session.trained(trainer.training_parts(in_run=True), resume):
        return trainer


def test_a_training_that_took_its_last_step_is_put_back(rows_final_model: Dataset, tiny_tokenizer: Any, tmp_path: Path) -> None:
    first = in_run(tmp_path, rows_final_model, tiny_tokenizer)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["history.jsonl", "model", "sessions.jsonl", "trained.json"]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "model").iterdir()}
    again = in_run(tmp_path, rows_final_model, tiny_tokenizer, resume=True)
    assert weights_hash(again.model) == weights_hash(first.model)
    assert again.state.to_dict() == first.state.to_dict()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "model").iterdir()} == before, "not written again"


def tied_model() -> Any:
    """An encoder and a decoder that share their word vectors, which are saved once."""
    sizes = dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim"), 16)
    sizes |= dict.fromkeys(("encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"), 1)
    ends = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 3}
    torch.manual_seed(3)
    return BartForSequenceClassification(BartConfig(vocab_size=len(VOCABULARY), num_labels=2, **sizes, **ends))


def test_a_model_that_is_saved_under_other_names_than_it_has_is_put_back(
    rows_final_model: Dataset, tiny_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = in_run(tmp_path, rows_final_model, tiny_tokenizer, make=tied_model)
    monkeypatch.setattr(session, "train_step", lambda *args, **given: 1 / 0)
    again = in_run(tmp_path, rows_final_model, tiny_tokenizer, resume=True, make=tied_model)
    assert weights_hash(again.model) == weights_hash(first.model)
    (tmp_path / "trained.safetensors").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"trained.safetensors is damaged"):
        in_run(tmp_path, rows_final_model, tiny_tokenizer, resume=True, make=tied_model)


def test_other_settings_and_rows_are_refused(rows_final_model: Dataset, tiny_tokenizer: Any, tmp_path: Path) -> None:
    in_run(tmp_path, rows_final_model, tiny_tokenizer)
    with pytest.raises(ModelError, match=r"learning_rate: .* then, 0.5 now"):
        in_run(tmp_path, rows_final_model, tiny_tokenizer, resume=True, learning_rate=0.5)
    with pytest.raises(ModelError, match=r"training rows: .* then"):
        in_run(tmp_path, rows_final_model.select([1, 0, *range(2, 9)]), tiny_tokenizer, resume=True)


def test_a_damaged_model_is_named_and_nothing_starts_again(
    rows_final_model: Dataset, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    in_run(tmp_path, rows_final_model, tiny_tokenizer)
    (tmp_path / "model" / ".DS_Store").write_text("x")
    in_run(tmp_path, rows_final_model, tiny_tokenizer, resume=True)
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"model/config.json is damaged") as caught:
        in_run(tmp_path, rows_final_model, tiny_tokenizer, resume=True)
    assert "--restart" in caught.value.remedy
    (tmp_path / "trained.json").write_text("{")
    with pytest.raises(ModelError, match=r"trained.json is missing or damaged"):
        in_run(tmp_path, rows_final_model, tiny_tokenizer, resume=True)


@pytest.mark.parametrize(
    ("strategy", "repeats"), [("no", "trains again from the first step"), ("steps", "resumes from checkpoint-3")]
)
def test_a_full_disk_names_path_bytes_and_the_retry(
    strategy: str, repeats: str, rows_final_model: Dataset, tiny_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Trainer.write_model

    def full(trainer: Trainer, folder: Path, weights: Any = None) -> None:
        if weights is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / "model.safetensors"))
        real(trainer, folder, weights)

    monkeypatch.setattr(Trainer, "write_model", full)
    with pytest.raises(
        ResourceError, match=r"No space left on device while writing the trained model \([\d,]+ bytes needed"
    ) as caught:
        in_run(tmp_path, rows_final_model, tiny_tokenizer, save_strategy=strategy, save_steps=3)
    assert str(tmp_path) in caught.value.problem
    assert f"glassloop train --resume {tmp_path}" in caught.value.remedy
    assert repeats in caught.value.remedy
    assert not (tmp_path / "model").exists()
    monkeypatch.setattr(Trainer, "write_model", real)
    again = in_run(tmp_path, rows_final_model, tiny_tokenizer, resume=True, save_strategy=strategy, save_steps=3)
    whole = in_run(tmp_path / "whole", rows_final_model, tiny_tokenizer)
    if strategy == "steps":
        assert weights_hash(again.model) == weights_hash(whole.model)
    assert json.loads((tmp_path / "trained.json").read_text())["step"] == 3


# --- One training from its first or next step to its end: signals, resume, restart.


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
    trainer = Trainer(tiny_model(), args, train_dataset=rows, processing_class=tiny_tokenizer, quiet=True)
    with session.trained(trainer.training_parts()):
        signal.raise_signal(signal.SIGHUP)
        assert trainer.state.asked_to_stop == signal.SIGHUP
    assert trainer.state.step == 2


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


# --- What is checked and made before the first step: losses, random rows, callbacks.


def test_a_loss_inside_the_models_forward_is_refused_unless_a_loss_is_given(
    rows: Dataset, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    """It was never used: the model trained on the usual loss instead. Runs of the command do not use it."""
    model = tiny_model()
    usual = type(model).forward

    def doubled(*given: Any, labels: Any = None, **named: Any) -> Any:
        found = usual(model, *given, labels=labels, **named)
        found.loss = None if labels is None else 2 * found.loss
        return found

    model.forward = doubled
    args = TrainingArguments(tmp_path, max_steps=1, device="cpu", precision="fp32", backend="plain", save_strategy="no")
    parts = {"args": args, "train_dataset": rows, "processing_class": tiny_tokenizer}
    with pytest.raises(
        SettingsError, match=r"the model's forward computes its own loss[^\0]*pass the loss to train with as loss="
    ):
        RunTrainer(model, **parts).train()
    RunTrainer(model, **parts, loss=lambda logits, labels: 2 * cross_entropy(logits, labels, reduction="none")).train()


def test_weights_and_smoothing_of_the_settings_are_not_taken_for_another_loss(
    rows: Dataset, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    settings = {"max_steps": 1, "save_strategy": "no", "label_smoothing_factor": 0.1, "class_weights": "1,3"}
    trained(tmp_path, rows, tiny_tokenizer, **settings)


def test_several_processes_cannot_group_rows_of_a_generator_of_their_own_by_length(
    tiny_tokenizer: Any, tmp_path: Path, says: Any
) -> None:
    """Each process would read other lengths, and so train on another order."""
    args = TrainingArguments(tmp_path, group_by_length=True, device="cpu", precision="fp32", backend="plain")
    trainer = Trainer(tiny_model(), args, train_dataset=Augmented(seed=1), processing_class=tiny_tokenizer)
    parts = replace(trainer.training_parts(), backend=SimpleNamespace(processes=SimpleNamespace(num_processes=2)))
    with says("group_by_length orders rows by lengths that differ in each process"):
        Session.report_random_rows(SimpleNamespace(parts=parts, fixed={}))


def test_gradient_checkpointing_is_refused_by_name_if_a_model_cannot_do_it(
    rows: Dataset, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    trained(tmp_path / "a", rows, tiny_tokenizer, gradient_checkpointing=True, max_steps=1)
    args = TrainingArguments(tmp_path / "b", gradient_checkpointing=True, device="cpu")
    trainer = Trainer(tiny_model(), args, train_dataset=rows, processing_class=tiny_tokenizer, quiet=True)
    trainer.model.supports_gradient_checkpointing = False
    with pytest.raises(SettingsError, match="BertForSequenceClassification does not support gradient_checkpointing"):
        trainer.train()


# --- trainer_state.json of a checkpoint, as transformers reads it.


def test_the_step_comes_last_in_the_history() -> None:
    assert [*log_history([{"step": 1, "loss": 2.0}])[0]] == ["loss", "step"]


@pytest.mark.parametrize("strategy", ["steps", "best"])
def test_transformers_reads_a_checkpoint(strategy: str, rows: Dataset, tiny_tokenizer: Any, tmp_path: Path) -> None:
    given = {"eval_strategy": "steps", "eval_steps": 3, "save_total_limit": 1, "save_strategy": strategy}
    trainer = trained(tmp_path, rows, tiny_tokenizer, **given | {"load_best_model_at_end": True})
    last = Path(str(get_last_checkpoint(str(tmp_path))))
    best = trainer.state.best_step
    assert {*map(step_of, checkpoints_in(tmp_path))} == {best, step_of(last)}
    state = TrainerState.load_from_json(str(last / "trainer_state.json"))
    assert (state.global_step, state.max_steps, state.best_global_step) == (step_of(last), 12, best)
    assert state.best_model_checkpoint == trainer.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{best}")
    seen = [{name: value for name, value in entry.items() if not is_timing(name)} for entry in trainer.state.log_history]
    seen = [{**entry, "epoch": round(entry["epoch"], 4)} for entry in seen]
    assert state.log_history == seen[: len(state.log_history)]
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / f"checkpoint-{best}")
    assert (loaded.classifier.weight == trainer.model.classifier.weight).all()
    assert type(tiny_tokenizer).from_pretrained(last).vocab_size == tiny_tokenizer.vocab_size
