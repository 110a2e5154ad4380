"""SCENARIOS 19 to 26: a figure that is not finite ends the run, memory that is not enough is told, and no row counts twice.

The numbers in the test names are those of the scenarios.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trials
from families import tiny_model
from safetensors.torch import load_file
from trials import FORWARD, KILL, STEP, Hook, told

from glassloop import Trainer, TrainingArguments, encode, load_examples
from glassloop.backends.plain import PlainBackend, SingleProcess
from glassloop.scores.metrics import metrics_for
from glassloop.training.loop import groups_of, train_step


def all_weights_finite(run: Path) -> bool:
    return all(bool(torch.isfinite(value).all()) for path in run.rglob("*.safetensors")
               for value in load_file(path).values() if value.is_floating_point())  # fmt: skip


@pytest.mark.parametrize("evaluated", [False, True])
def test_19_a_loss_that_is_not_finite_ends_the_run(runs: Any, evaluated: bool) -> None:
    run = runs.new()
    settings = {"learning_rate": 1e25, "save_steps": 1, "logging_steps": 4, "save_total_limit": 9, "pooling": "head"}
    settings |= {"eval_steps": 1} if evaluated else {"eval_strategy": "no", "eval_steps": None}
    ended = runs.train(run, **settings)
    told(ended, 5, "diverged: step ", "learning rate 1e+25", "last finite loss 0.", "lower learning_rate")
    assert int(ended.err.partition("diverged: step ")[2].partition(":")[0]) <= 4
    assert all_weights_finite(run)
    assert not (run / "model").exists()
    assert json.loads((run / "run.json").read_text())["status"] == "running"


def test_19_the_last_step_makes_weights_that_are_not_finite(runs: Any) -> None:
    """The loss of the last step is finite, what it does to the weights is not: no model is written."""
    run = runs.new()
    none = {"save_strategy": "no", "eval_strategy": "no", "eval_steps": None, "save_steps": None}
    told(runs.train(run, learning_rate=1e39, max_steps=1, **none), 5, "is not finite")
    assert not (run / "model").exists()


@pytest.mark.parametrize("kind", ["cuda", "cpu", "memory"])
def test_20_a_batch_too_large_for_memory(runs: Any, kind: str) -> None:
    remedy = "lower per_device_train_batch_size and raise gradient_accumulation_steps by the same factor, or lower max_length"
    told(runs.train(runs.new(), [Hook(FORWARD, 3, kind)]), 6, "not enough memory for a batch of 8 rows of up to ", remedy)


def test_20_an_evaluation_too_large_for_memory(runs: Any) -> None:
    ended = runs.train(runs.new(), [Hook(trials.EVALUATION, 1, "cpu")])
    told(ended, 6, "a batch of 32 rows", "lower per_device_eval_batch_size")
    assert "gradient_accumulation_steps" not in ended.err


def test_20_memory_or_disk_elsewhere_in_a_command(runs: Any) -> None:
    model = runs.reference() / "model"
    for action, text in (("cpu", "not enough memory"), ("memory", "not enough memory"), ("nospace", "No space left on device")):
        hook = Hook("glassloop.predictor:Predictor.__init__", 1, action)
        told(runs.servers.run("predict", model, "good film", hooks=[hook]), 6, text)
        assert "Traceback" in runs.servers.run("predict", model, "good film", "--debug", hooks=[hook]).err


def test_20_other_errors_are_not_swallowed(runs: Any) -> None:
    ended = runs.train(runs.new(), [Hook(STEP, 2, "bug")])
    assert ended.code == 1
    assert "ZeroDivisionError" in ended.err


@pytest.fixture(scope="module")
def rows408(tiny_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = trials.write_data(tmp_path_factory.mktemp("rows408"), 40, 408)
    return encode(load_examples(str(folder)), tiny_tokenizer, 64)


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_21_every_row_is_counted_once(rows408: Any, tiny_tokenizer: Any, tmp_path: Path, processes: int) -> None:
    """The shares of all processes, put together as gather_objects does; real processes: tests/contract."""
    from glassloop.training.evaluate import run_over

    args = TrainingArguments(tmp_path, per_device_eval_batch_size=7, device="cpu", backend="plain")
    rows = rows408["validation"].rows
    trainer = Trainer(tiny_model(), args, eval_dataset=rows, processing_class=tiny_tokenizer)
    whole = trainer.evaluation()
    shares: list[Any] = []

    class Share(SingleProcess):
        num_processes = processes

        def gather_objects(self, mine: list[Any]) -> list[Any]:
            shares.extend(mine)
            return list(shares)

    for rank in range(processes):
        backend = PlainBackend()
        backend.processes = Share()
        backend.processes.rank = rank
        found = run_over(trainer.model, trainer._batches(rows, training=False), backend, trainer._loss_sum())
    numbers = np.concatenate([part for share in shares for part in share[0]])
    assert sorted(numbers.tolist()) == list(range(408))
    assert np.array_equal(found.logits, whole.logits)
    assert found.labels.tolist() == list(rows["labels"])
    assert math.isclose(found.loss, whole.loss, rel_tol=1e-6)


@pytest.mark.parametrize("batch_size", [60, 100, 4])
def test_22_a_last_batch_of_one_row_and_a_batch_above_all_rows(runs: Any, batch_size: int) -> None:
    run = runs.new()
    ended = runs.train(run, per_device_train_batch_size=batch_size, num_train_epochs=1, logging_steps=1, eval_strategy="no")
    assert ended.code == 0, ended.err
    logged = trials.json_lines(run / "history.jsonl")
    assert len(logged) == math.ceil(61 / batch_size)
    assert all(math.isfinite(entry["loss"]) for entry in logged)


def test_22_rows_weigh_the_same_in_every_batch(rows408: Any, tiny_tokenizer: Any, tmp_path: Path) -> None:
    """Forty rows as 13x3+1 in one group: the loss is the mean over forty rows, not over four batches."""
    figures = {}
    for size, accumulate in ((40, 1), (100, 1), (13, 4)):
        args = TrainingArguments(
            tmp_path / str(size), per_device_train_batch_size=size, gradient_accumulation_steps=accumulate, num_train_epochs=1,
            logging_steps=1, device="cpu", precision="fp32", disable_tqdm=True, save_strategy="no",
        )  # fmt: skip
        trainer = Trainer(tiny_model(dropout=0.0), args, train_dataset=rows408["train"].rows, processing_class=tiny_tokenizer)
        trainer.train()
        figures[size] = [[entry["loss"], entry["grad_norm"]] for entry in trainer.state.history]
    torch.testing.assert_close(torch.tensor(figures[13]), torch.tensor(figures[40]), rtol=0, atol=1e-6)
    assert figures[100] == figures[40]


def test_23_rare_and_absent_classes(runs: Any, tmp_path: Path) -> None:
    data = trials.write_data(tmp_path / "data", 20, 6)
    with (data / "train.csv").open("a") as opened:
        opened.write("one odd film,odd\n")
    run = runs.new()
    told(runs.train(run, data=data, num_train_epochs=1), 0, 'label "odd" has 1 row', 'validation: label "odd" has no rows')
    for path in (run / "run.json", run / "history.jsonl", run / "validation-predictions.jsonl"):
        assert not re.search("NaN|Infinity", path.read_text())
    figures = json.loads((run / "run.json").read_text())["evaluation"]
    assert all(math.isfinite(value) for value in figures.values())


def test_24_accumulated_batches_have_the_gradient_of_one(rows408: Any, tiny_tokenizer: Any, tmp_path: Path) -> None:
    """24x1, 8x3 and 9+9+6, without dropout."""
    found = {}
    for size in (24, 8, 9):
        args = TrainingArguments(tmp_path, per_device_train_batch_size=size, device="cpu", precision="fp32")
        rows = rows408["train"].rows.select(range(24))
        trainer = Trainer(tiny_model(dropout=0.0), args, train_dataset=rows, processing_class=tiny_tokenizer)
        batches = trainer._batches(rows, training=True)
        (group,) = groups_of(3, batches.epoch(0))
        gradients: dict[str, torch.Tensor] = {}

        def keep(model: Any, kept: dict[str, torch.Tensor] = gradients) -> None:
            kept.update({name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None})

        optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.0)
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
        figures = train_step(trainer.model, group, trainer._loss_sum(), optimizer, scheduler,
                             backend=PlainBackend(), on_gradients=keep)  # fmt: skip
        found[size] = (figures, gradients)
    for size in (8, 9):
        torch.testing.assert_close(found[size][0], found[24][0], rtol=0, atol=1e-6)
        for name, gradient in found[24][1].items():
            torch.testing.assert_close(found[size][1][name], gradient, rtol=0, atol=1e-6)


def test_25_the_mean_loss_after_a_resume(runs: Any) -> None:
    run = runs.new()
    assert runs.train(run, [Hook(STEP, 12, KILL)]).code == -9
    assert runs.resume(run).code == 0
    stories = [json.loads((folder / "run.json").read_text()) for folder in (run, runs.reference())]
    assert stories[0]["result"]["train_loss"] == stories[1]["result"]["train_loss"]
    plain = runs.reference(logging_steps=1)
    losses = [entry["loss"] for entry in trials.json_lines(plain / "history.jsonl") if "loss" in entry]
    assert len(losses) == 16
    assert stories[0]["result"]["train_loss"] == pytest.approx(sum(losses) / 16, rel=1e-12)


def test_26_metrics_again_from_the_predictions(runs: Any) -> None:
    run = runs.reference()
    rows = trials.json_lines(run / "validation-predictions.jsonl")
    described = json.loads((run / "run.json").read_text())
    names = described["data"]["labels"]
    assert [row["row"] for row in rows] == list(range(13))
    assert [names[int(np.argmax(row["logits"]))] for row in rows] == [row["prediction"] for row in rows]
    positive = names.index(described["positive_label"]) if described["positive_label"] else None
    keys = tuple(described["metrics"])
    again = metrics_for(described["data"]["task"], len(names), keys=keys, positive=positive).compute(
        predictions=np.array([names.index(row["prediction"]) for row in rows]),
        references=np.array([names.index(row["label"]) for row in rows]),
    )
    for name, value in again.items():
        assert described["evaluation"][f"eval_{name}"] == value
    logits = torch.tensor([row["logits"] for row in rows])
    labels = torch.tensor([names.index(row["label"]) for row in rows])
    loss = torch.nn.functional.cross_entropy(logits, labels).item()
    assert described["evaluation"]["eval_loss"] == pytest.approx(loss, abs=1e-6)
