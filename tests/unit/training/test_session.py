"""One training: saving changes nothing, a resumed one equals one that never stopped, and what changes it is refused."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from datasets import Dataset
from families import VOCABULARY, tiny_model, weights_hash
from run_folders import RECORD
from small_training import Augmented, StopAt, small_rows
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification, BartConfig, BartForSequenceClassification, TrainerState
from transformers.trainer_utils import get_last_checkpoint

from glassloop import Callback, Trainer, TrainingArguments
from glassloop.base.errors import DivergedError, ModelError, ResourceError, SettingsError
from glassloop.runs.record import checkpoints_in, is_timing, step_of, write_run
from glassloop.trainer import Trainer as RunTrainer
from glassloop.training import checkpoints, session
from glassloop.training.session import Session, log_history

Made = Callable[..., Any]


@pytest.fixture
def make(rows: Dataset, tiny_tokenizer: Any, tmp_path: Path) -> Made:
    """Makes a quiet Trainer of one step on the plain backend; options override."""

    def trainer(model: Any = None, kind: type = Trainer, parts: Any = None, **settings: Any) -> Any:
        chosen = {"max_steps": 1, "device": "cpu", "precision": "fp32", "backend": "plain", "save_strategy": "no"}
        args = TrainingArguments(**{"output_dir": tmp_path, **chosen, "disable_tqdm": True, **settings})
        given = {"train_dataset": rows, "processing_class": tiny_tokenizer, "quiet": True, **(parts or {})}
        return kind(tiny_model() if model is None else model, args, **given)

    return trainer


def test_the_parts_are_those_of_the_trainer_and_are_trained_as_built(make: Made, rows: Dataset, tmp_path: Path) -> None:
    trainer = make(parts={"eval_dataset": rows.select([0])}, max_steps=2, per_device_train_batch_size=2)
    parts = trainer.training_parts()
    assert parts.model is trainer.model
    assert parts.state is trainer.state.loop
    assert (parts.folder, parts.plan.max_steps, len(parts.batches)) == (tmp_path, 2, 11)
    assert [len(rows) for rows in parts.use.data_sets] == [21, 1]
    assert [*map(parts.metric_title, parts.measures().keys)] == ["accuracy", "f1 (LABEL_1)"]
    with session.trained(parts) as metrics:
        assert metrics["epoch"] == 0.1818
        assert parts.state.step == trainer.state.step == 2
        signal.raise_signal(signal.SIGHUP)  # after the training it is only noted
        assert trainer.state.asked_to_stop == signal.SIGHUP
    trainer.compute_metrics = lambda found: {"skill": 1.0}
    parts = trainer.training_parts()
    assert parts.measures() is None
    assert parts.metric_title("skill") == "skill"


def test_room_for_checkpoints_and_the_model_is_reserved(make: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, sizes = make(), []
    trainer.on_gradients = lambda model: sizes.append((tmp_path / ".model.reserved").stat().st_size)
    with session.trained(trainer.training_parts(in_run=True)):
        pass
    (size,) = sizes
    weights = sum(weight.nbytes for weight in trainer.model.parameters())
    assert size > weights
    assert not (tmp_path / ".model.reserved").exists()
    monkeypatch.setattr(session.shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(1, 1, 1000))
    needed = f"{size:,} bytes are needed for the final model, 1,000 are free"
    with pytest.raises(ResourceError, match=needed), session.trained(trainer.training_parts(in_run=True)):
        pass
    with pytest.raises(ResourceError, match=f"{6 * weights:,} bytes are needed for two checkpoints, 1,000 are free"):
        make(save_strategy="steps").train()


def test_what_is_not_finite_is_refused_and_the_rate_is_not_blamed_before_the_first_update(make: Made, rows: Dataset) -> None:
    model, spoiling = tiny_model(), Mock(spec=Callback)
    spoiling.on_step.side_effect = lambda *given, **facts: model.classifier.bias.data.fill_(float("inf"))
    with pytest.raises(DivergedError, match=r"step 1: the weight classifier\.bias is not finite"):
        make(model, parts={"callbacks": [spoiling]}).train()
    for evaluated in [False, True]:
        model = tiny_model()
        with torch.no_grad():
            model.bert.embeddings.LayerNorm.weight.mul_(1e38)
        more = {"eval_on_start": True, "eval_strategy": "epoch"} if evaluated else {}
        with pytest.raises(DivergedError) as caught:
            make(model, parts={"eval_dataset": rows}, max_steps=2, **more).train()
        assert caught.value.problem.startswith("step 0: the loss of the evaluation" if evaluated else "step 1: the loss is nan")
        remedy = "no weight was updated yet: use another model, use precision fp32, or look at"
        assert caught.value.remedy == f"{remedy} {'its rows' if evaluated else 'these rows'}"


@pytest.fixture
def in_run(tiny_tokenizer: Any, tmp_path: Path) -> Made:
    """Trains in a run folder, and returns the Trainer."""

    def run(resume: bool = False, *, rows: Dataset | None = None, make: Any = tiny_model, **settings: Any) -> Trainer:
        chosen = {"max_steps": 3, "save_strategy": "no", "device": "cpu", "disable_tqdm": True} | settings
        rows = small_rows(9) if rows is None else rows
        folder = Path(chosen.pop("folder", tmp_path))
        folder.mkdir(exist_ok=True)
        args = TrainingArguments(folder, **chosen)
        trainer = Trainer(make(), args, train_dataset=rows, processing_class=tiny_tokenizer, quiet=True)
        with session.trained(trainer.training_parts(in_run=True), resume):
            return trainer

    return run


def tied_model() -> Any:
    """An encoder and a decoder that share their word vectors, which are saved once."""
    sizes = dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim"), 16)
    sizes |= dict.fromkeys(("encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"), 1)
    ends = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 3}
    torch.manual_seed(3)
    return BartForSequenceClassification(BartConfig(vocab_size=len(VOCABULARY), num_labels=2, **sizes, **ends))


def test_a_run_leaves_out_checkpoints_of_epochs_while_one_is_being_written(
    make: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, write, wait = threading.Event(), checkpoints.write_checkpoint, checkpoints.CheckpointFolder.wait

    def slow(*given: Any) -> None:
        gate.wait(30)
        write(*given)

    def opened(folder: checkpoints.CheckpointFolder) -> None:
        gate.set()
        wait(folder)

    monkeypatch.setattr(checkpoints, "write_checkpoint", slow)
    monkeypatch.setattr(checkpoints.CheckpointFolder, "wait", lambda folder: opened(folder) if folder.thread else None)
    found = {}
    for strategy in ("epoch", "steps"):
        gate.clear()
        settings = {"max_steps": 8, "save_strategy": strategy, "save_steps": 2, "save_total_limit": 9}
        trainer = make(kind=RunTrainer, parts={"train_dataset": small_rows(9)}, output_dir=str(tmp_path / strategy), **settings)
        (tmp_path / strategy).mkdir()
        with session.trained(trainer.training_parts(in_run=True)):
            pass
        found[strategy] = [step_of(path) for path in checkpoints_in(tmp_path / strategy)]
    assert found == {"epoch": [2], "steps": [8, 6, 4, 2]}, "two steps are an epoch"
    make(parts={"train_dataset": small_rows(9)}, max_steps=8, save_strategy="epoch", save_total_limit=9).train()
    assert [step_of(path) for path in checkpoints_in(tmp_path)] == [8, 6, 4, 2], "which scripts look for"


@pytest.mark.parametrize("model", [tiny_model, tied_model])
def test_a_finished_training_is_put_back(in_run: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    first = in_run(make=model)
    apart = [] if model is tiny_model else ["trained.safetensors"]
    names = ["history.jsonl", "model", "sessions.jsonl", "trained.json", *apart]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "model").iterdir()}
    monkeypatch.setattr(session, "train_step", lambda *args, **given: 1 / 0)
    (tmp_path / "model" / ".DS_Store").write_text("x")
    again = in_run(True, make=model)
    assert weights_hash(again.model) == weights_hash(first.model)
    assert again.state.to_dict() == first.state.to_dict()
    assert {path: path.stat().st_mtime_ns for path in before} == before, "not written again"


def test_other_settings_rows_and_damaged_files_of_a_finished_training_are_refused(in_run: Made, tmp_path: Path) -> None:
    in_run(make=tied_model)
    with pytest.raises(ModelError, match=r"learning_rate: .* then, 0.5 now"):
        in_run(True, make=tied_model, learning_rate=0.5)
    with pytest.raises(ModelError, match=r"training rows: .* then"):
        in_run(True, make=tied_model, rows=small_rows(9).select([1, 0, *range(2, 9)]))
    for name in ["model/config.json", "trained.json", "trained.safetensors"]:
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_text("{")
        with pytest.raises(ModelError, match=rf"{name} is (missing or )?damaged") as caught:
            in_run(True, make=tied_model)
        assert "--restart" in caught.value.remedy, "nothing starts again"
        (tmp_path / name).write_bytes(whole)


@pytest.mark.parametrize("strategy", ["no", "steps"])
def test_a_full_disk_is_named(strategy: str, in_run: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Trainer.write_model

    def full(trainer: Trainer, folder: Path, weights: Any = None) -> None:
        if weights is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / "model.safetensors"))
        real(trainer, folder, weights)

    monkeypatch.setattr(Trainer, "write_model", full)
    problem = r"No space left on device while writing the trained model \([\d,]+ bytes needed"
    with pytest.raises(ResourceError, match=problem) as caught:
        in_run(save_strategy=strategy, save_steps=3)
    assert str(tmp_path) in caught.value.problem
    assert f"glassloop train --resume {tmp_path}" in caught.value.remedy
    repeats = {"no": "trains again from the first step", "steps": "resumes from checkpoint-3"}
    assert repeats[strategy] in caught.value.remedy
    assert not (tmp_path / "model").exists()
    monkeypatch.setattr(Trainer, "write_model", real)
    again = in_run(True, save_strategy=strategy, save_steps=3)
    if strategy == "steps":
        assert weights_hash(again.model) == weights_hash(in_run(folder=tmp_path / "whole").model)
    assert json.loads((tmp_path / "trained.json").read_text())["step"] == 3


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
def test_stopped_and_resumed_equals_never_stopped(settings: dict[str, Any], stop: int, train: Made, tmp_path: Path) -> None:
    whole = train("whole", **settings)
    with pytest.raises(SystemExit) as caught:
        train("parts", callbacks=[StopAt(stop)], **settings)
    assert caught.value.code == 143
    parts = train("parts", resume=True, **settings)
    assert weights_hash(parts.model) == weights_hash(whole.model)
    assert parts.state.history == whole.state.history
    assert (parts.state.mean_loss, parts.state.best_step) == (whole.state.mean_loss, whole.state.best_step)


def test_other_intervals_are_accepted_other_numbers_refused(train: Made, rows: Dataset) -> None:
    whole = train("whole")
    with pytest.raises(SystemExit):
        train("run", callbacks=[StopAt(5)])
    for name, value in (("learning_rate", 2e-3), ("seed", 7), ("per_device_train_batch_size", 3), ("max_steps", 13)):
        with pytest.raises(ModelError, match=rf"{name.removeprefix('per_device_train_')}: .*then.*now") as caught:
            train("run", resume=True, **{name: value})
        assert caught.value.exit_code == 4
    edited = rows.map(lambda row, number: {"labels": 1 - row["labels"] if number == 4 else row["labels"]}, with_indices=True)
    swapped = rows.select([1, 0, *range(2, 21)])
    for changed, text in ((edited, "1 rows edited"), (rows.select(range(20)), "1 removed"), (swapped, "another order")):
        with pytest.raises(ModelError, match=text):
            train("run", rows=changed, resume=True)
    other = train("run", resume=True, logging_steps=5, save_steps=4, eval_strategy="epoch")
    assert weights_hash(other.model) == weights_hash(whole.model)


@pytest.mark.parametrize("strategy", ["no", "steps"])
def test_a_signal_after_the_last_step_loses_nothing(strategy: str, train: Made, tmp_path: Path) -> None:
    whole, late = train("whole", save_strategy=strategy), Mock(spec=Callback)
    late.on_fit_end.side_effect = lambda state: setattr(state, "asked_to_stop", 15)  # after the last step's own look for one
    with pytest.raises(SystemExit) as caught:
        train("run", callbacks=[late], save_strategy=strategy)
    assert caught.value.code == 143
    assert (tmp_path / "run/checkpoint-12").is_dir()
    again = train("run", resume=True, save_strategy=strategy)
    assert weights_hash(again.model) == weights_hash(whole.model)
    assert again.state.history == whole.state.history


def test_unusable_checkpoints_stop_a_run_and_without_one_it_starts_again(train: Made, tmp_path: Path, capsys: Any) -> None:
    whole = train()
    for path in checkpoints_in(tmp_path):
        (path / "state.json").write_text("{")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("checkpoint-*/*")}
    with pytest.raises(ModelError, match=r"2 checkpoints, none of which can be used: .*12.*state.json.*9.*state.json"):
        train(resume=True)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("checkpoint-*/*")} == before
    again = train(resume=True, restart=True)
    assert weights_hash(again.model) == weights_hash(whole.model)
    assert len(list((tmp_path / "checkpoints.kept-1").iterdir())) == 2
    assert len(checkpoints_in(tmp_path)) == 2
    again = Trainer(tiny_model(), whole.args, train_dataset=whole.train_dataset, processing_class=whole.processing_class)
    for path in checkpoints_in(tmp_path):
        shutil.rmtree(path)
    again.train(resume_from_checkpoint=True)
    assert "no checkpoint to resume from, so training starts at step 0" in capsys.readouterr().err
    assert weights_hash(again.model) == weights_hash(whole.model)


def test_a_history_that_cannot_be_written_for_a_while_ends_no_training(train: Made, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"

    class NoRoomForLines(Callback):
        def on_step(self, state: Any, batches: list[Any]) -> None:
            if state.step == 3:
                path.unlink()
                path.mkdir()
            elif state.step == 8:
                path.rmdir()

    trainer = train(callbacks=[NoRoomForLines()])
    lines = path.read_text().splitlines()
    assert [json.loads(line) for line in lines] == trainer.state.history
    assert len(lines) == 6


def test_a_loss_inside_the_models_forward_is_refused_unless_a_loss_is_given(make: Made) -> None:
    """It was never used: the model trained on the usual loss instead. Runs of the command do not use it."""
    model = tiny_model()
    usual = type(model).forward

    def twice(*given: Any, labels: Any = None, **named: Any) -> Any:
        found = usual(model, *given, labels=labels, **named)
        found.loss = None if labels is None else 2 * found.loss
        return found

    model.forward = twice
    with pytest.raises(SettingsError, match="the model's forward computes its own loss") as caught:
        make(model, RunTrainer).train()
    assert caught.value.remedy.startswith("pass the loss to train with as loss=")
    make(model, RunTrainer, {"loss": doubled}).train()
    make(kind=RunTrainer, label_smoothing_factor=0.1, class_weights="1,3").train()


def test_what_several_processes_or_the_model_cannot_do_is_refused(make: Made, says: Any) -> None:
    parts = make(parts={"train_dataset": Augmented(seed=1)}, group_by_length=True).training_parts()
    parts = replace(parts, backend=SimpleNamespace(processes=SimpleNamespace(num_processes=2)))
    with says("group_by_length orders rows by lengths that differ in each process"):
        Session.report_random_rows(SimpleNamespace(parts=parts, fixed={}))
    trainer = make(gradient_checkpointing=True)
    trainer.train()
    assert trainer.model.is_gradient_checkpointing
    trainer.model.supports_gradient_checkpointing = False
    with pytest.raises(SettingsError, match="BertForSequenceClassification does not support gradient_checkpointing"):
        trainer.train()


@pytest.mark.parametrize("strategy", ["steps", "best"])
def test_transformers_reads_a_checkpoint(strategy: str, train: Made, tiny_tokenizer: Any, tmp_path: Path) -> None:
    given = {"eval_strategy": "steps", "eval_steps": 3, "save_total_limit": 1, "save_strategy": strategy}
    trainer = train(**given | {"load_best_model_at_end": True})
    last, best = Path(str(get_last_checkpoint(str(tmp_path)))), trainer.state.best_step
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
    assert [*log_history([{"step": 1, "loss": 2.0}])[0]] == ["loss", "step"], "the step comes last"


BEST = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 2}
STOPS = BEST | {"load_best_model_at_end": False, "early_stopping_patience": 3}


def summed(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits, labels, reduction="none")


def doubled(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return 2 * summed(logits, labels)


def share(found: Any) -> dict[str, float]:
    return {"share": float((found.predictions.argmax(-1) == found.label_ids).mean())}


def error(found: Any) -> dict[str, float]:
    return {"share": 1 - share(found)["share"]}


smoothed = partial(torch.nn.CrossEntropyLoss, reduction="sum")


class Attempt:
    """Trainings of the same rows into one folder, each a little different."""

    def __init__(self, folder: Path, tokenizer: Any) -> None:
        self.folder, self.tokenizer = folder, tokenizer

    def __call__(
        self, *, resume: bool | None = True, change: Any = None, optimizer: Any = None, validation: int = 9,
        settings: dict[str, Any] | None = None, **parts: Any,
    ) -> Trainer:  # fmt: skip
        chosen = {"max_steps": 5, "per_device_train_batch_size": 4, "save_strategy": "steps", "save_steps": 2}
        chosen |= {"learning_rate": 1e-3, "device": "cpu", "precision": "fp32", "backend": "plain", **(settings or {})}
        model = tiny_model()
        if change:
            change(model)
        trainer = Trainer(
            model, TrainingArguments(self.folder, **chosen), train_dataset=small_rows(21), eval_dataset=small_rows(validation),
            processing_class=self.tokenizer, callbacks=[StopAt(3)] if resume is False else None,
            optimizers=optimizer(model) if optimizer else (None, None), **parts,
        )  # fmt: skip
        trainer._quiet = True
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    def stop(self, **parts: Any) -> None:
        with pytest.raises(SystemExit):
            self(resume=False, **parts)


@pytest.fixture
def attempt(tmp_path: Path, tiny_tokenizer: Any) -> Attempt:
    return Attempt(tmp_path / "run", tiny_tokenizer)


def halve(model: torch.nn.Module) -> None:
    for weight in model.parameters():
        weight.grad = None if weight.grad is None else weight.grad / 2


def first_tokens(rows: Any, number: int = 3) -> dict[str, torch.Tensor]:
    ids = torch.tensor([row["input_ids"][:number] for row in rows])
    return {"input_ids": ids, "labels": torch.tensor([row["labels"] for row in rows])}


def sgd(rate: float, end: float = 0.5) -> Callable[[Any], tuple[Any, Any]]:
    def make(model: Any) -> tuple[Any, Any]:
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: end**step)

    return make


def first_layer(model: Any) -> Any:
    return model.bert.encoder.layer[0]


def chosen_by(metric: str, **more: Any) -> dict[str, Any]:
    return {"settings": BEST | {"metric_for_best_model": metric, **more}}


FIRST, SECOND = (chosen_by("f1", positive_label=label) for label in ("LABEL_0", "LABEL_1"))
PARTS = "parts without weights: "
F1_OF_ANOTHER = "metrics: accuracy, f1 (LABEL_0) then, accuracy, f1 (LABEL_1) now"
SHARE, ERROR = (chosen_by("share") | {"compute_metrics": metric} for metric in (share, error))
DROP_MORE = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3}
OF_THE_USUAL = [
    ({"change": lambda model: model.config.update(DROP_MORE)}, "config.hidden_dropout_prob: 0.1 then, 0.3 now"),
    ({"change": lambda model: setattr(first_layer(model).output.dropout, "p", 0.3)}, PARTS),
    ({"change": lambda model: setattr(first_layer(model).intermediate, "intermediate_act_fn", torch.nn.SiLU())}, PARTS),
    ({"change": lambda model: model.bert.embeddings.requires_grad_(False)}, "frozen: [] then, ['bert.embeddings.LayerN"),
    ({"on_gradients": halve}, "on_gradients: None then, halve ("),
    ({"loss": summed}, "loss: single_label_classification then, summed ("),
    ({"optimizer": sgd(0.1)}, "optimizer: None then, {'class': 'SGD'"),
]
OF_SGD = [({"optimizer": sgd(0.2)}, "groups.0.lr: 0.1 then, 0.2 now"), ({"optimizer": sgd(0.1, 0.9)}, "schedule.functions: ")]
CHANGES: list[tuple[dict[str, Any], list[tuple[dict[str, Any], str]]]] = [
    ({}, OF_THE_USUAL),
    ({"data_collator": first_tokens}, [({"data_collator": partial(first_tokens, number=2)}, "collator: ")]),
    ({"loss": summed}, [({"loss": doubled}, "loss: summed (")]),
    ({"loss": smoothed(label_smoothing=0.1)}, [({"loss": smoothed(label_smoothing=0.2)}, "loss: CrossEntropyLoss (")]),
    ({"optimizer": sgd(0.1)}, OF_SGD),
    ({"settings": BEST}, [({"settings": BEST, "validation": 8}, "validation: 9 rows (")]),
    ({"settings": STOPS}, [({"settings": STOPS, "validation": 8}, "validation: 9 rows (")]),
    (FIRST, [(SECOND, F1_OF_ANOTHER)]),
    (SHARE, [(ERROR, "metrics: share (")]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("then", "changes"), CHANGES, ids=[" ".join(then) or "usual" for then, _ in CHANGES])
def test_what_changes_the_weights_is_refused(attempt: Attempt, then: Any, changes: list[Any]) -> None:
    attempt.stop(**then)
    for now, problem in changes:
        with pytest.raises(ModelError, match=r"then.*now") as caught:
            attempt(**now)
        assert problem in caught.value.problem
    attempt(**then)


def test_what_changes_no_weight_is_accepted_and_an_earlier_training_is_moved_aside_unless_resumed(attempt: Attempt) -> None:
    """Other validation rows where they decide nothing, and a model that starts from the weights of a checkpoint."""
    attempt.stop()

    def load(model: Any) -> None:
        model.load_state_dict(type(model).from_pretrained(attempt.folder / "checkpoint-2").state_dict())

    resumed = attempt(validation=7, change=load, settings={"overwrite_output_dir": True})
    whole = Attempt(attempt.folder.with_name("whole"), attempt.tokenizer)(resume=None)
    assert weights_hash(resumed.model) == weights_hash(whole.model)
    assert not [*attempt.folder.glob("*.kept-*")]
    attempt(resume=None, settings={"max_steps": 3})
    assert [path.name for path in checkpoints_in(attempt.folder)] == ["checkpoint-3", "checkpoint-2"]
    assert {"checkpoint-4", "checkpoint-5"} <= {path.name for path in (attempt.folder / "checkpoints.kept-1").iterdir()}


def test_a_run_of_the_command_is_not_overwritten_by_a_trainer(attempt: Attempt) -> None:
    """Not even if asked: the folder would then hold the record of one training and the history of another."""
    for settings in [{}, {"overwrite_output_dir": True}]:
        write_run(attempt.folder, RECORD)
        with pytest.raises(SettingsError, match=f"output_dir {attempt.folder} contains a run of glassloop train"):
            attempt(resume=None, settings=settings)
        assert [path.name for path in attempt.folder.iterdir()] == ["run.json"]
