"""Small scripts in the habits of transformers' users: run with transformers and with Glassloop, they give the same numbers.

Each script gets the package, and returns what it found: losses, scores, steps or names. Rows come in a fixed order, and
there is no dropout, so that losses can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from datasets import Dataset
from families import tiny_model
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler, TensorDataset
from transformers import EarlyStoppingCallback, TrainerCallback
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.trainer_utils import get_last_checkpoint

import glassloop

Found = list[float] | list[str] | float | int
SCRIPTS: dict[str, Callable[[ModuleType, Path], Found]] = {}
QUICK = ("weighted_loss", "early_stopping", "passes_that_callbacks_make", "gradients_that_callbacks_read", "own_optimizer",
         "callback_events", "plain_module_with_a_config", "accumulation", "saved_files", "last_checkpoint",
         "adversarial_step", "numbers_of_a_step")  # fmt: skip


def script(function: Callable[[ModuleType, Path], Found]) -> Callable[[ModuleType, Path], Found]:
    """Add a script to the collection."""
    SCRIPTS[function.__name__] = function
    return function


def padded_rows(number: int = 48) -> list[dict[str, Any]]:
    """Rows of one length, with labels that alternate."""
    draw = np.random.default_rng(0)
    rows = []
    for place in range(number):
        ids = [2, *map(int, draw.integers(5, 45, 3 + place % 5)), 3]
        mask = [1] * len(ids) + [0] * (10 - len(ids))
        rows.append({"input_ids": ids + [0] * (10 - len(ids)), "attention_mask": mask, "labels": place % 2})
    return rows


def calm_model(**options: Any) -> Any:
    torch.manual_seed(0)
    return tiny_model(dropout=0.0, **options)


def settings(lib: ModuleType, folder: Path, **given: Any) -> Any:
    usual = {"max_steps": 6, "per_device_train_batch_size": 8, "learning_rate": 1e-3, "logging_steps": 1, "save_strategy": "no"}
    quiet = {"disable_tqdm": True, "report_to": "none", "seed": 1, "use_cpu": True}
    return lib.TrainingArguments(output_dir=str(folder / lib.__name__), **usual | quiet | given)


def in_order(lib: ModuleType) -> Any:
    """A Trainer that reads its rows in their order."""

    class InOrder(lib.Trainer):
        def get_train_dataloader(self) -> Any:
            size, collate = self.args.per_device_train_batch_size, transformers.default_data_collator
            return DataLoader(
                self.train_dataset, batch_size=size, sampler=SequentialSampler(self.train_dataset), collate_fn=collate
            )

    return InOrder


def losses(trainer: Any, name: str = "loss") -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def trained(
    lib: ModuleType, folder: Path, kind: Any = None, model: Any = None, parts: dict[str, Any] | None = None, **given: Any
) -> Any:
    """A Trainer after its training."""
    kind = in_order(lib) if kind is None else kind
    parts = {"train_dataset": padded_rows(), **(parts or {})}
    trainer = kind(model=calm_model() if model is None else model, args=settings(lib, folder, **given), **parts)
    trainer.train()
    return trainer


# --- settings ------------------------------------------------------------------------------------------------------

# Scripts that only set something: the settings, and the figure of the log that is compared.
ONLY_SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "plain_training": ({}, "loss"),
    "weight_decay_and_warmup": ({"weight_decay": 0.1, "warmup_steps": 3}, "loss"),
    "cosine_schedule": ({"lr_scheduler_type": "cosine"}, "learning_rate"),
    "epochs_and_epoch_logging": ({"max_steps": -1, "num_train_epochs": 2, "logging_strategy": "epoch"}, "loss"),
    "sgd_by_name": ({"optim": "sgd", "learning_rate": 0.1, "optim_args": "momentum=0.9"}, "loss"),
    "adafactor_by_name": ({"optim": "adafactor"}, "loss"),
    "adagrad_by_name": ({"optim": "adagrad"}, "loss"),
    "rmsprop_by_name": ({"optim": "rmsprop"}, "loss"),
    "gradient_checkpointing": ({"gradient_checkpointing": True}, "loss"),
    "no_clipping": ({"max_grad_norm": 0.0}, "loss"),
    "first_step_logged": ({"logging_steps": 3, "logging_first_step": True}, "loss"),
    "fractions_of_all_steps": ({"eval_strategy": "steps", "eval_steps": 0.5, "logging_steps": 0.5}, "eval_loss"),
    "label_smoothing": ({"label_smoothing_factor": 0.1}, "loss"),
}


def settings_script(name: str) -> Callable[[ModuleType, Path], Found]:
    given, figure = ONLY_SETTINGS[name]
    return lambda lib, folder: losses(trained(lib, folder, parts={"eval_dataset": padded_rows(8)}, **given), figure)


SCRIPTS |= {name: settings_script(name) for name in ONLY_SETTINGS}


@script
def evaluation_delayed(lib: ModuleType, folder: Path) -> Found:
    parts = {"eval_dataset": padded_rows(8)}
    trainer = trained(lib, folder, parts=parts, eval_strategy="steps", eval_steps=1, eval_delay=4)
    return [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry]


@script
def assigned_settings(lib: ModuleType, folder: Path) -> Found:
    args = settings(lib, folder)
    args.learning_rate, args.max_steps = 5e-3, 4
    trainer = in_order(lib)(model=calm_model(), args=args, train_dataset=padded_rows())
    trainer.train()
    return losses(trainer)


@script
def settings_by_setters(lib: ModuleType, folder: Path) -> Found:
    args = settings(lib, folder).set_training(learning_rate=5e-3, batch_size=4, max_steps=3, seed=1)
    trainer = in_order(lib)(model=calm_model(), args=args.set_logging(steps=1, report_to="none"), train_dataset=padded_rows())
    trainer.train()
    return losses(trainer)


# --- a loss of one's own -------------------------------------------------------------------------------------------


@script
def weighted_loss(lib: ModuleType, folder: Path) -> Found:
    class Weighted(in_order(lib)):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **others: Any) -> Any:
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            loss = functional.cross_entropy(outputs.logits, labels, weight=torch.tensor([1.0, 3.0]))
            return (loss, outputs) if return_outputs else loss

    parts = {"eval_dataset": padded_rows(20)}
    trainer = trained(lib, folder, Weighted, parts=parts, eval_strategy="steps", eval_steps=3, per_device_eval_batch_size=20)
    return losses(trainer) + losses(trainer, "eval_loss")


@script
def focal_loss_with_count(lib: ModuleType, folder: Path) -> Found:
    class Focal(in_order(lib)):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            each = functional.cross_entropy(outputs.logits, labels, reduction="none")
            loss = ((1 - torch.exp(-each)) ** 2 * each).mean()
            return (loss, outputs) if return_outputs else loss

    return losses(trained(lib, folder, Focal))


@script
def loss_function_argument(lib: ModuleType, folder: Path) -> Found:
    def loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        return functional.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch

    return losses(trained(lib, folder, parts={"compute_loss_func": loss}))


@script
def loss_in_forward(lib: ModuleType, folder: Path) -> Found:
    class Doubled(transformers.BertForSequenceClassification):
        def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None, **others: Any) -> Any:
            found = super().forward(input_ids=input_ids, attention_mask=attention_mask)
            loss = None if labels is None else 2 * functional.cross_entropy(found.logits, labels)
            return SequenceClassifierOutput(loss=loss, logits=found.logits)

    usual = calm_model()
    model = Doubled(usual.config)
    model.load_state_dict(usual.state_dict())
    return losses(trained(lib, folder, model=model))


class Bag(nn.Module):
    """A classifier without a config, as tutorials write it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words, self.head = nn.Embedding(60, 8), nn.Linear(8, 2)

    def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None) -> dict[str, Any]:
        logits = self.head(self.words(input_ids).mean(1))
        return {"logits": logits} if labels is None else {"loss": functional.cross_entropy(logits, labels), "logits": logits}


@script
def plain_module(lib: ModuleType, folder: Path) -> Found:
    trainer = trained(lib, folder, model=Bag(), parts={"eval_dataset": padded_rows(16)})
    return [*losses(trainer), trainer.evaluate()["eval_loss"]]


@script
def plain_module_with_a_config(lib: ModuleType, folder: Path) -> Found:
    """Competition code: a torch module around an encoder, with a config of any kind. It is saved and resumed."""
    found: list[float] = []
    for number, config in enumerate((calm_model().config, type("CFG", (), {"lr": 1e-5}))):

        class Configured(Bag):
            def __init__(self, config: Any = config) -> None:
                super().__init__()
                self.config = config

        given = {"save_strategy": "steps", "save_steps": 3, "eval_strategy": "steps", "eval_steps": 3}
        parts = {"eval_dataset": padded_rows(16), "train_dataset": padded_rows()}
        trainer = in_order(lib)(Configured(), settings(lib, folder / str(number), **given), **parts)
        trainer.train()
        again = in_order(lib)(Configured(), settings(lib, folder / str(number), **given), **parts)
        again.train(resume_from_checkpoint=f"{again.args.output_dir}/checkpoint-3")
        trainer.save_model()
        assert trainer.model.config is config
        assert Path(trainer.args.output_dir, "model.safetensors").is_file()
        found += [*losses(again), *losses(trainer, "eval_loss"), trainer.evaluate()["eval_loss"]]
    return found


@script
def multi_label(lib: ModuleType, folder: Path) -> Found:
    rows = [{**row, "labels": [float(row["labels"]), 1.0, 0.0]} for row in padded_rows()]
    model = calm_model(num_labels=3, problem_type="multi_label_classification")
    return losses(trained(lib, folder, model=model, parts={"train_dataset": rows}))


@script
def regression(lib: ModuleType, folder: Path) -> Found:
    rows = [{**row, "labels": row["labels"] / 2} for row in padded_rows()]
    return losses(trained(lib, folder, model=calm_model(num_labels=1), parts={"train_dataset": rows}))


@script
def accumulation(lib: ModuleType, folder: Path) -> Found:
    """transformers forgets to divide by the number of batches, so it takes one batch of the same rows."""
    sizes = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2} if lib is glassloop else {}

    class Mean(in_order(lib)):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **others: Any) -> Any:
            outputs = model(**inputs)
            return (outputs.loss, outputs) if return_outputs else outputs.loss

    return losses(trained(lib, folder, Mean, **sizes))


# --- optimizers ----------------------------------------------------------------------------------------------------


@script
def own_optimizer(lib: ModuleType, folder: Path) -> Found:
    class Momentum(in_order(lib)):
        def create_optimizer(self, model: Any = None) -> Any:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
            return self.optimizer

    return losses(trained(lib, folder, Momentum))


@script
def own_scheduler(lib: ModuleType, folder: Path) -> Found:
    class Steps(in_order(lib)):
        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            self.lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer or self.optimizer, 2, 0.1)
            return self.lr_scheduler

    return losses(trained(lib, folder, Steps))


@script
def optimizers_argument(lib: ModuleType, folder: Path) -> Found:
    model = calm_model()
    optimizer = torch.optim.AdamW(
        [{"params": model.classifier.parameters(), "lr": 1e-2}, {"params": model.bert.parameters()}], lr=1e-3
    )
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 2, 6)
    return losses(trained(lib, folder, model=model, parts={"optimizers": (optimizer, schedule)}))


@script
def optimizer_class_argument(lib: ModuleType, folder: Path) -> Found:
    return losses(trained(lib, folder, parts={"optimizer_cls_and_kwargs": (torch.optim.NAdam, {"lr": 1e-3})}, weight_decay=0.1))


@script
def frozen_encoder(lib: ModuleType, folder: Path) -> Found:
    model = calm_model()
    for weight in model.bert.parameters():
        weight.requires_grad = False
    return losses(trained(lib, folder, model=model))


# --- data ----------------------------------------------------------------------------------------------------------


@script
def arrow_rows(lib: ModuleType, folder: Path) -> Found:
    rows = Dataset.from_list(padded_rows())
    rows.set_format("torch")
    return losses(trained(lib, folder, parts={"train_dataset": rows}))


@script
def extra_columns_and_label(lib: ModuleType, folder: Path) -> Found:
    rows = Dataset.from_list([{**row, "idx": place, "label": row["labels"]} for place, row in enumerate(padded_rows())])
    trainer = lib.Trainer(calm_model(), settings(lib, folder), eval_dataset=rows.remove_columns("labels"))
    return [trainer.evaluate()["eval_loss"]]


@script
def tuples_with_own_collator(lib: ModuleType, folder: Path) -> Found:
    rows = padded_rows()
    columns = [torch.tensor([row[name] for row in rows]) for name in ("input_ids", "attention_mask", "labels")]

    def collate(found: Any) -> dict[str, Any]:
        return dict(zip(("input_ids", "attention_mask", "labels"), map(torch.stack, zip(*found, strict=True)), strict=True))

    trainer = lib.Trainer(calm_model(), settings(lib, folder), data_collator=collate, eval_dataset=TensorDataset(*columns))
    return [trainer.evaluate()["eval_loss"]]


@script
def stream_of_rows(lib: ModuleType, folder: Path) -> Found:
    class Stream(IterableDataset):
        def __iter__(self) -> Any:
            yield from padded_rows()

    return losses(trained(lib, folder, lib.Trainer, parts={"train_dataset": Stream()}, max_steps=9))


@script
def several_evaluation_sets(lib: ModuleType, folder: Path) -> Found:
    sets = {"seen": padded_rows(), "few": padded_rows(10)}
    trainer = trained(lib, folder, parts={"eval_dataset": sets}, eval_strategy="steps", eval_steps=3)
    return losses(trainer, "eval_seen_loss") + losses(trainer, "eval_few_loss")


@script
def own_evaluation_loader(lib: ModuleType, folder: Path) -> Found:
    class Half(lib.Trainer):
        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            return DataLoader(padded_rows(24), batch_size=8, collate_fn=transformers.default_data_collator)

    return [Half(calm_model(), settings(lib, folder), eval_dataset=padded_rows()).evaluate()["eval_loss"]]


# --- evaluation ----------------------------------------------------------------------------------------------------


@script
def compute_metrics(lib: ModuleType, folder: Path) -> Found:
    def scores(found: Any) -> dict[str, float]:
        logits, labels = found
        return {"accuracy": float((np.argmax(logits, -1) == labels).mean())}

    trainer = trained(lib, folder, parts={"eval_dataset": padded_rows(), "compute_metrics": scores})
    return [trainer.evaluate()["eval_accuracy"], trainer.predict(padded_rows(10)).metrics["test_accuracy"]]


@script
def preprocessed_logits(lib: ModuleType, folder: Path) -> Found:
    def scores(found: Any) -> dict[str, float]:
        return {"ones": float(found.predictions.sum()), "dimensions": float(found.predictions.ndim)}

    parts = {"compute_metrics": scores, "preprocess_logits_for_metrics": lambda logits, labels: logits.argmax(-1)}
    found = lib.Trainer(calm_model(), settings(lib, folder), eval_dataset=padded_rows(), **parts).evaluate()
    return [found["eval_ones"], found["eval_dimensions"]]


@script
def own_prediction_step(lib: ModuleType, folder: Path) -> Found:
    class Doubled(lib.Trainer):
        def prediction_step(self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None) -> Any:
            with torch.no_grad():
                found = model(**{name: value for name, value in inputs.items() if name != "labels"})
            return functional.cross_entropy(found.logits, inputs["labels"]), found.logits * 2, inputs["labels"]

    found = Doubled(calm_model(), settings(lib, folder)).predict(padded_rows())
    return [*found.predictions[3].tolist(), found.metrics["test_loss"]]


@script
def loss_only(lib: ModuleType, folder: Path) -> Found:
    args = settings(lib, folder, prediction_loss_only=True)
    found = lib.Trainer(calm_model(), args, eval_dataset=padded_rows(), compute_metrics=lambda found: {"never": 1.0}).evaluate()
    return sorted(name for name in found if name in ("eval_loss", "eval_never"))


@script
def predictions(lib: ModuleType, folder: Path) -> Found:
    found = lib.Trainer(calm_model(), settings(lib, folder)).predict(padded_rows(5))
    return [*found.predictions.ravel().tolist(), *found.label_ids.tolist()]


@script
def metrics_that_are_no_finite_numbers(lib: ModuleType, folder: Path) -> Found:
    """NaN, texts, lists and nested scores among the metrics; NaN is never the best, and early stopping counts it."""
    scores = iter([0.5, float("nan"), float("nan"), float("nan"), 0.9, 1.0])

    def compute(found: Any) -> dict[str, Any]:
        report = {"0": {"precision": 0.5}}
        return {"f1": next(scores), "note": "text", "all": [0.5, 0.25], "report": report, "auc": np.float64("nan")}

    parts = {"eval_dataset": padded_rows(8), "compute_metrics": compute, "callbacks": [EarlyStoppingCallback(3)]}
    given = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    trainer = trained(lib, folder, parts=parts, metric_for_best_model="f1", load_best_model_at_end=True, **given)
    state = trainer.state
    entry = next(entry for entry in state.log_history if "eval_note" in entry)
    kinds = [f"{name} {type(value).__name__}" for name, value in sorted(entry.items()) if "second" not in name]
    return [str(state.global_step), str(state.best_global_step), f"{state.best_metric:.2f}", *kinds]


@script
def own_evaluate(lib: ModuleType, folder: Path) -> Found:
    class Counted(in_order(lib)):
        def evaluate(self, *given: Any, **named: Any) -> Any:
            return super().evaluate(*given, **named) | {"eval_mine": 7.0}

    parts = {"eval_dataset": padded_rows(8)}
    trainer = trained(lib, folder, Counted, parts=parts, eval_strategy="steps", eval_steps=3, metric_for_best_model="loss")
    return losses(trainer)


# --- callbacks -----------------------------------------------------------------------------------------------------


@script
def early_stopping(lib: ModuleType, folder: Path) -> Found:
    parts = {"eval_dataset": padded_rows(), "callbacks": [EarlyStoppingCallback(early_stopping_patience=2)]}
    best = {"metric_for_best_model": "loss", "greater_is_better": False, "eval_strategy": "steps", "eval_steps": 1}
    return trained(lib, folder, parts=parts, max_steps=40, learning_rate=0.05, **best).state.global_step


@script
def gradients_that_callbacks_read(lib: ModuleType, folder: Path) -> Found:
    """Norms of the gradients, after clipping and while the weights change, and a callback that changes gradients."""
    seen: list[float] = []

    class Reading(TrainerCallback):
        def note(self, state: Any, model: Any, optimizer: Any) -> None:
            grads = [weight.grad for weight in model.parameters() if weight.grad is not None]
            norm = torch.stack([grad.norm() for grad in grads]).norm().item() if grads else -1.0
            rate, weight = optimizer.param_groups[0]["lr"], model.classifier.weight.abs().sum().item()
            seen.extend([float(state.global_step), float(len(grads)), norm, rate, weight])

        def on_substep_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            seen.append(-2.0)

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any, optimizer: Any, **others: Any) -> None:
            self.note(state, model, optimizer)
            model.classifier.weight.grad.mul_(0.5)

        def on_optimizer_step(self, args: Any, state: Any, control: Any, model: Any, optimizer: Any, **others: Any) -> None:
            self.note(state, model, optimizer)

        def on_step_end(self, args: Any, state: Any, control: Any, model: Any, optimizer: Any, **others: Any) -> None:
            self.note(state, model, optimizer)

    given = {"max_steps": 3, "max_grad_norm": 1e-3, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    trained(lib, folder, parts={"callbacks": [Reading]}, optim="sgd", learning_rate=50.0, **given)
    return seen


@script
def loaders_that_callbacks_get(lib: ModuleType, folder: Path) -> Found:
    seen: list[str] = []

    class Reading(TrainerCallback):
        def note(self, event: str, train: Any, held_out: Any) -> None:
            sizes = [f"{len(one)} of {len(one.dataset)}" if one is not None else "none" for one in (train, held_out)]
            seen.append(f"{event}: {' '.join(sizes)}")

        def on_init_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            self.note("init", others["train_dataloader"], others["eval_dataloader"])

        def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            batch = next(iter(others["train_dataloader"]))
            seen.append(f"{sorted(batch)} {tuple(batch['input_ids'].shape)}")

        def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            self.note("evaluate", others["train_dataloader"], others["eval_dataloader"])

        def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            self.note("end", others["train_dataloader"], others["eval_dataloader"])

    given = {"eval_strategy": "steps", "eval_steps": 3, "per_device_eval_batch_size": 5}
    parts = {"eval_dataset": padded_rows(12), "callbacks": [Reading]}
    for kind in (lib.Trainer, in_order(lib)):
        trained(lib, folder, kind, parts=parts, **given).predict(padded_rows(7))
    return seen


@script
def callback_events(lib: ModuleType, folder: Path) -> Found:
    seen: list[str] = []

    class Watching(TrainerCallback):
        def __getattribute__(self, name: str) -> Any:
            quiet = ("on_log", "on_evaluate", "on_step_end", "on_prediction_step", "on_init_end")
            if name.startswith("on_") and name not in quiet:
                seen.append(name)
            return super().__getattribute__(name)

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            seen.append(f"step {state.global_step} of {state.max_steps}")
            control.should_evaluate = state.global_step == 2
            control.should_training_stop = state.global_step == 4

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, **others: Any) -> None:
            seen.append("evaluated" if "eval_loss" in metrics else "nothing")

        def on_log(self, args: Any, state: Any, control: Any, logs: Any, model: Any = None, **others: Any) -> None:
            seen.append(f"log {[name for name in ('loss', 'eval_loss', 'train_loss') if name in logs]} {model is not None}")

    trained(lib, folder, parts={"callbacks": [Watching], "eval_dataset": padded_rows(8)}, logging_steps=2)
    return seen


@script
def callbacks_added_and_removed(lib: ModuleType, folder: Path) -> Found:
    class Stop(TrainerCallback):
        def __init__(self, step: int = 1) -> None:
            self.step = step

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> Any:
            control.should_training_stop = state.global_step >= self.step
            return control

    trainer = in_order(lib)(calm_model(), settings(lib, folder), train_dataset=padded_rows(), callbacks=[Stop])
    removed = trainer.pop_callback(Stop)
    trainer.add_callback(Stop(3))
    trainer.remove_callback(TrainerCallback)
    trainer.train()
    return [float(removed.step), float(trainer.state.global_step)]


@script
def own_log(lib: ModuleType, folder: Path) -> Found:
    seen: list[str] = []

    class Logging(in_order(lib)):
        def log(self, logs: Any, *given: Any, **named: Any) -> None:
            seen.append(",".join(name for name in ("loss", "learning_rate", "train_loss") if name in logs))
            super().log(logs, *given, **named)

    trained(lib, folder, Logging, logging_steps=3)
    return seen


# --- what scripts read afterwards ----------------------------------------------------------------------------------


@script
def model_from_function(lib: ModuleType, folder: Path) -> Found:
    trainer = in_order(lib)(model_init=lambda trial: calm_model(), args=settings(lib, folder), train_dataset=padded_rows())
    trainer.train()
    first = losses(trainer)
    trainer.train()
    return first + losses(trainer)


@script
def saved_files(lib: ModuleType, folder: Path) -> Found:
    trainer = trained(lib, folder, parts={"eval_dataset": padded_rows(8)})
    trainer.save_metrics("train", {"train_loss": 1.0})
    trainer.save_metrics("eval", trainer.evaluate())
    trainer.log_metrics("train", {"train_loss": 1.0})
    trainer.save_state()
    trainer.save_model()
    place = Path(trainer.args.output_dir)
    stored = json.loads((place / "trainer_state.json").read_text(encoding="utf-8"))
    again = transformers.AutoModelForSequenceClassification.from_pretrained(place)
    assert torch.equal(again.classifier.weight, trainer.model.classifier.weight)
    names = sorted(path.name for path in place.glob("*results.json"))
    return [*names, str(stored["global_step"]), *(str("eval_loss" in entry) for entry in stored["log_history"])]


@script
def what_train_returns(lib: ModuleType, folder: Path) -> Found:
    trainer = in_order(lib)(calm_model(), settings(lib, folder), train_dataset=padded_rows())
    found = trainer.train()
    return [found.global_step, found.training_loss, found.metrics["train_loss"], found.metrics["epoch"]]


@script
def optimizer_and_device_afterwards(lib: ModuleType, folder: Path) -> Found:
    trainer = trained(lib, folder)
    rate = trainer.lr_scheduler.get_last_lr()[0] + trainer.optimizer.param_groups[0]["lr"]
    return [rate, float(torch.zeros(1, device=trainer.args.device).sum()), float(trainer.is_world_process_zero())]


@script
def last_checkpoint(lib: ModuleType, folder: Path) -> Found:
    given = {"save_strategy": "steps", "save_steps": 3, "max_steps": 9, "save_total_limit": 2}
    first = trained(lib, folder, **given)
    place = first.args.output_dir
    found = str(get_last_checkpoint(place))
    stored = transformers.TrainerState.load_from_json(f"{found}/trainer_state.json")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(f"{place}/checkpoint-6")
    names = sorted(path.name for path in Path(place).glob("checkpoint-*"))
    again = in_order(lib)(calm_model(), settings(lib, folder, **given), train_dataset=padded_rows())
    again.train(resume_from_checkpoint=f"{place}/checkpoint-6")
    return [*names, Path(found).name, str(stored.global_step), *(f"{loss:.4f}" for loss in losses(again)),
            f"{model.classifier.weight.abs().sum().item():.4f}"]  # fmt: skip


@script
def best_checkpoint(lib: ModuleType, folder: Path) -> Found:
    given = {"save_strategy": "best", "eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "eval_loss"}
    parts = {"eval_dataset": padded_rows(8)}
    trainer = trained(lib, folder, parts=parts, load_best_model_at_end=True, save_total_limit=1, **given)
    best = Path(str(trainer.state.best_model_checkpoint))
    assert best.is_dir()
    scores = [trainer.state.best_metric, trainer.evaluate()["eval_loss"]]
    return [best.name, str(trainer.state.best_global_step), *(f"{score:.4f}" for score in scores)]


@script
def own_saving(lib: ModuleType, folder: Path) -> Found:
    class Noting(in_order(lib)):
        def save_model(self, output_dir: Any = None, _internal_call: bool = False) -> None:
            super().save_model(output_dir, _internal_call)
            Path(output_dir or self.args.output_dir, "note.txt").write_text("mine")

    trainer = trained(lib, folder, Noting, save_strategy="steps", save_steps=4)
    trainer.save_model()
    return sorted(str(path.relative_to(trainer.args.output_dir)) for path in Path(trainer.args.output_dir).rglob("note.txt"))


@script
def files_beside_a_checkpoint(lib: ModuleType, folder: Path) -> Found:
    class Keeping(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            parts["model"].save_pretrained(Path(args.output_dir, f"checkpoint-{state.global_step}", "kept"))

    trainer = trained(lib, folder, parts={"callbacks": [Keeping]}, save_strategy="epoch", num_train_epochs=2, max_steps=-1)
    return sorted(path.parent.name for path in Path(trainer.args.output_dir).glob("*/kept"))


@script
def epoch_ended_by_a_callback(lib: ModuleType, folder: Path) -> Found:
    class Ending(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            control.should_epoch_stop = state.global_step == 2

    given = {"max_steps": -1, "num_train_epochs": 3, "eval_strategy": "epoch"}
    trainer = trained(lib, folder, parts={"callbacks": [Ending], "eval_dataset": padded_rows(8)}, **given)
    epochs = [round(epoch, 3) for epoch in losses(trainer, "epoch")]
    return [*losses(trainer), *losses(trainer, "eval_loss"), *epochs, trainer.state.global_step]


# --- habits of tutorials, notebooks and kernels --------------------------------------------------------------------


class Reviews(torch.utils.data.Dataset):
    """The data set class of most tutorials: encodings and labels, and a dict of tensors per row."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.encodings = {name: [row[name] for row in rows] for name in ("input_ids", "attention_mask")}
        self.labels = [row["labels"] for row in rows]

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        item = {name: torch.tensor(cells[place]) for name, cells in self.encodings.items()}
        item["labels"] = torch.tensor(self.labels[place])
        return item

    def __len__(self) -> int:
        return len(self.labels)


@script
def tutorial_data_set_and_label_names(lib: ModuleType, folder: Path) -> Found:
    model = calm_model()
    model.config.id2label, model.config.label2id = {0: "bad", 1: "good"}, {"bad": 0, "good": 1}
    trainer = trained(lib, folder, model=model, parts={"train_dataset": Reviews(padded_rows())})
    return [*losses(trainer), *trainer.predict(Reviews(padded_rows(4))).predictions.ravel().tolist()]


@script
def columns_in_torch_format(lib: ModuleType, folder: Path) -> Found:
    rows = Dataset.from_list(padded_rows()).map(lambda row: {"text": "never read", **row})
    rows.set_format("torch", columns=["input_ids", "attention_mask", "labels"])
    return losses(trained(lib, folder, parts={"train_dataset": rows}))


@script
def folds_in_one_folder(lib: ModuleType, folder: Path) -> Found:
    """Kernels train a new Trainer per fold, all into one folder."""
    found = []
    for fold in range(2):
        rows = [row for place, row in enumerate(padded_rows()) if place % 2 == fold]
        parts = {"train_dataset": rows, "eval_dataset": padded_rows(8)}
        found += losses(trained(lib, folder, parts=parts, save_strategy="steps", save_steps=3, max_steps=3))
    return found


@script
def scores_of_the_training_rows(lib: ModuleType, folder: Path) -> Found:
    """A well-known answer on the web: a callback that evaluates the training rows, too, at the end of each epoch."""

    class OnTrainingRows(TrainerCallback):
        def __init__(self, trainer: Any) -> None:
            self.trainer = trainer

        def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> Any:
            if control.should_evaluate:
                before = deepcopy(control)
                self.trainer.evaluate(eval_dataset=self.trainer.train_dataset, metric_key_prefix="train")
                return before
            return None

    given = {"max_steps": -1, "num_train_epochs": 2, "eval_strategy": "epoch"}
    parts = {"train_dataset": padded_rows(), "eval_dataset": padded_rows(8)}
    trainer = in_order(lib)(model=calm_model(), args=settings(lib, folder, **given), **parts)
    trainer.add_callback(OnTrainingRows(trainer))
    trainer.train()
    *in_training, _ = losses(trainer, "train_loss")  # the last entry is that of the whole training
    assert len(in_training) == 2
    return [*in_training, *losses(trainer, "eval_loss")]


@script
def passes_that_callbacks_make(lib: ModuleType, folder: Path) -> Found:
    """Evaluations, predictions and log entries of a callback: every event and every entry, in the same order."""
    seen: list[str] = []

    def names(found: Any) -> str:
        return " ".join(sorted(name for name in found if not any(part in name for part in ("steps_per", "accuracy", "f1"))))

    class Passes(TrainerCallback):
        def __init__(self, trainer: Any) -> None:
            self.trainer = trainer

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if state.global_step in (2, 3):
                self.trainer.log({"mine": 1.5})
                self.trainer.evaluate(padded_rows(12), metric_key_prefix="other")
                self.trainer.predict(padded_rows(6))

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
            seen.append(f"log {state.global_step} {'eval_loss' in logs} {'other_loss' in logs} {'epoch' in logs}")
            if state.global_step == 4 and "loss" in logs:
                self.trainer.evaluate(metric_key_prefix="early")  # so that the evaluation of this step is not made

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **others: Any) -> None:
            seen.append(f"evaluate {state.global_step} {names(metrics)} {len(state.log_history)}")

        def on_predict(self, args: Any, state: Any, control: Any, metrics: Any = None, **others: Any) -> None:
            seen.append(f"predict {state.global_step} {names(metrics)} {len(state.log_history)}")

    given = {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "loss", "load_best_model_at_end": False}
    parts = {"train_dataset": padded_rows(), "eval_dataset": {"one": padded_rows(8), "two": padded_rows(10)}}
    trainer = in_order(lib)(calm_model(), settings(lib, folder, **given | {"metric_for_best_model": "one_loss"}), **parts)
    trainer.add_callback(Passes(trainer))
    trainer.train()
    entries = [f"{entry['step']} {names(entry)}" for entry in trainer.state.log_history[:-1]]
    scores = [f"{entry['other_loss']:.4f}" for entry in trainer.state.log_history if "other_loss" in entry]
    return [*seen, *entries, *scores, f"{trainer.state.best_metric:.4f}", names(trainer.evaluate(padded_rows(4)))]


@script
def flags_that_callbacks_see(lib: ModuleType, folder: Path) -> Found:
    seen: list[str] = []

    class Reading(TrainerCallback):
        def note(self, event: str, state: Any, control: Any) -> None:
            flags = [name for name in ("should_log", "should_evaluate", "should_save") if getattr(control, name)]
            seen.append(f"{event} {state.global_step} {state.epoch:.2f}: {' '.join(flags)}")

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            self.note("step", state, control)

        def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            self.note("epoch", state, control)

    given = {"max_steps": -1, "num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "steps", "save_steps": 5}
    trained(lib, folder, parts={"callbacks": [Reading], "eval_dataset": padded_rows(8)}, logging_steps=4, **given)
    return seen


@script
def the_whole_log(lib: ModuleType, folder: Path) -> Found:
    """Notebooks turn `state.log_history` into a table: the same entries, in the same order."""
    given = {"max_steps": -1, "num_train_epochs": 2, "eval_strategy": "epoch", "logging_steps": 5}
    trainer = trained(lib, folder, parts={"eval_dataset": padded_rows(8)}, **given)
    measured = ("runtime", "per_second", "flos", "accuracy", "f1")
    return [
        f"{entry['step']} {' '.join(sorted(name for name in entry if not any(part in name for part in measured)))}"
        for entry in trainer.state.log_history
    ]


@script
def logs_printed_by_a_callback(lib: ModuleType, folder: Path) -> Found:
    printed: list[str] = []

    class Printing(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
            if state.is_local_process_zero:
                printed.append(f"{state.global_step}: {'loss' in logs} {'eval_loss' in logs} {'train_loss' in logs}")

    parts = {"callbacks": [Printing()], "eval_dataset": padded_rows(8)}
    trained(lib, folder, parts=parts, logging_steps=4, eval_strategy="steps", eval_steps=4)
    return printed


@script
def entries_that_a_log_method_adds(lib: ModuleType, folder: Path) -> Found:
    class WithRate(in_order(lib)):
        def log(self, logs: Any, *given: Any) -> None:
            logs["mine"] = len(logs) > 0
            super().log(logs, *given)

    return [str(entry.get("mine")) for entry in trained(lib, folder, WithRate).state.log_history]


@script
def options_of_run_glue(lib: ModuleType, folder: Path) -> Found:
    """The official example: settings from the command line, then files of results."""
    words = ["--output_dir", str(folder / lib.__name__), "--do_train", "--do_eval", "--max_steps", "4", "--seed", "1"]
    words += "--per_device_train_batch_size 8 --save_strategy no --report_to none --use_cpu --logging_steps 1".split()
    (args,) = transformers.HfArgumentParser(lib.TrainingArguments).parse_args_into_dataclasses(args=words)
    trainer = in_order(lib)(model=calm_model(), args=args, train_dataset=padded_rows(), eval_dataset=padded_rows(8))
    if args.do_train:
        result = trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
        trainer.save_model()
        trainer.log_metrics("train", result.metrics)
        trainer.save_metrics("train", {"train_loss": result.training_loss})
        trainer.save_state()
    if args.do_eval:
        trainer.save_metrics("eval", {"eval_loss": trainer.evaluate()["eval_loss"]})
    found = json.loads(Path(args.output_dir, "all_results.json").read_text())
    stored = json.loads(Path(args.output_dir, "trainer_state.json").read_text())
    return [found["train_loss"], found["eval_loss"], float(stored["global_step"]), float(stored["max_steps"])]


@script
def resumed_by_true(lib: ModuleType, folder: Path) -> Found:
    class Stopping(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            control.should_training_stop = state.global_step == 3

    given = {"save_strategy": "steps", "save_steps": 3}
    trained(lib, folder, parts={"callbacks": [Stopping]}, **given)
    trainer = in_order(lib)(model=calm_model(), args=settings(lib, folder, **given), train_dataset=padded_rows())
    trainer.train(resume_from_checkpoint=True)
    return [*losses(trainer), float(trainer.state.global_step)]


@script
def best_model_of_epochs(lib: ModuleType, folder: Path) -> Found:
    strategies = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    given = {"max_steps": -1, "num_train_epochs": 4, "learning_rate": 0.05, **strategies}
    parts = {"eval_dataset": padded_rows(), "callbacks": [EarlyStoppingCallback(1)]}
    trainer = trained(lib, folder, parts=parts, metric_for_best_model="eval_loss", **given)
    return [trainer.state.best_metric, trainer.evaluate()["eval_loss"], float(trainer.state.best_global_step)]


@script
def several_labels_with_weights(lib: ModuleType, folder: Path) -> Found:
    class Weighted(in_order(lib)):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **others: Any) -> Any:
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 3.0]))(outputs.logits, labels)
            return (loss, outputs) if return_outputs else loss

    rows = [{**row, "labels": [1.0, float(row["labels"])]} for row in padded_rows()]
    model = calm_model(problem_type="multi_label_classification")
    return losses(trained(lib, folder, Weighted, model=model, parts={"train_dataset": rows}))


@script
def metrics_batch_by_batch(lib: ModuleType, folder: Path) -> Found:
    sizes: list[float] = []

    def scores(found: Any, compute_result: bool) -> dict[str, float]:
        sizes.append(float(len(found.predictions)))
        return {"rows": sum(sizes)} if compute_result else {}

    args = settings(lib, folder, batch_eval_metrics=True, per_device_eval_batch_size=5)
    found = lib.Trainer(calm_model(), args, eval_dataset=padded_rows(12), compute_metrics=scores).evaluate()
    return [*sizes, found["eval_rows"]]


@script
def groups_and_rates(lib: ModuleType, folder: Path) -> Found:
    trainer = lib.Trainer(calm_model(), settings(lib, folder), train_dataset=padded_rows())
    trainer.create_optimizer_and_scheduler(num_training_steps=10)
    sizes = len(trainer.get_optimizer_group()), len(trainer.get_decay_parameter_names(trainer.model))
    return [*trainer.get_learning_rates(), *sizes, trainer.get_num_trainable_parameters()]


@script
def settings_that_scripts_read(lib: ModuleType, folder: Path) -> Found:
    args = settings(
        lib, folder, eval_strategy="steps", logging_steps=7, load_best_model_at_end=True, save_strategy="steps", save_steps=7
    )
    names = "eval_steps metric_for_best_model greater_is_better do_eval report_to world_size n_gpu fp16 bf16".split()
    sizes = [args.train_batch_size, args.get_warmup_steps(100), args.parallel_mode.value]
    return [*(f"{name}={getattr(args, name)}" for name in names), *map(str, sizes)]


@script
def adversarial_step(lib: ModuleType, folder: Path) -> Found:
    """FGM: gradients of a second forward pass, with word embeddings moved along the gradients of the first one."""

    class Adversarial(in_order(lib)):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            loss = super().training_step(model, inputs, num_items_in_batch)
            weight = model.bert.embeddings.word_embeddings.weight
            saved = weight.data.clone()
            weight.data.add_(0.3 * weight.grad / weight.grad.norm())
            self.compute_loss(model, inputs).backward()
            weight.data = saved
            return loss

    trainer = Adversarial(model=calm_model(), args=settings(lib, folder, max_steps=4), train_dataset=padded_rows())
    trainer.train()
    return losses(trainer)


@script
def own_backward_pass(lib: ModuleType, folder: Path) -> Found:
    class Mine(in_order(lib)):
        def training_step(self, model: Any, inputs: Any, *given: Any) -> Any:
            model.train()
            inputs = self._prepare_inputs(inputs)
            with self.compute_loss_context_manager():
                loss = self.compute_loss(model, inputs)
            self.accelerator.backward(loss)
            return loss.detach()

    trainer = Mine(model=calm_model(), args=settings(lib, folder), train_dataset=padded_rows())
    trainer.train()
    return losses(trainer)


@script
def gradual_unfreezing(lib: ModuleType, folder: Path) -> Found:
    class Unfreeze(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **facts: Any) -> None:
            for weight in model.bert.parameters():
                weight.requires_grad = False

        def on_epoch_begin(self, args: Any, state: Any, control: Any, model: Any = None, **facts: Any) -> None:
            for weight in model.bert.encoder.layer[-1].parameters():
                weight.requires_grad = state.epoch >= 1

    parts = {"train_dataset": padded_rows(16), "callbacks": [Unfreeze]}
    whole = trained(lib, folder, kind=lib.Trainer, parts=parts, per_device_train_batch_size=16, learning_rate=0.02)
    return losses(whole)


@script
def scores_of_deberta(lib: ModuleType, folder: Path) -> Found:
    """DeBERTa drops the last dimension of its scores if it gets labels, so that scripts subtract these."""
    shapes: list[str] = []

    def error(found: Any) -> dict[str, float]:
        shapes.append(str(found.predictions.shape))
        return {"error": float(np.mean((found.predictions - found.label_ids) ** 2))}

    rows = [{**row, "labels": float(row["labels"])} for row in padded_rows(8)]
    torch.manual_seed(0)
    model = tiny_model("deberta-v2", dropout=0.0, num_labels=1, initializer_range=0.3)
    trainer = lib.Trainer(model=model, args=settings(lib, folder), eval_dataset=rows, compute_metrics=error)
    shapes.append(f"{trainer.evaluate()['eval_error']:.4f}")
    return [*shapes, str(trainer.predict(rows).predictions.shape)]


@script
def numbers_of_a_step(lib: ModuleType, folder: Path) -> Found:
    """A last epoch that is cut short counts; a step has the rows of all its batches; a smoothed loss is a mean over rows."""
    given = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "label_smoothing_factor": 0.1}
    trainer = in_order(lib)(calm_model(), settings(lib, folder, **given, max_steps=7), train_dataset=padded_rows())
    trainer.train()
    model = trainer.model.eval()
    loss = trainer.compute_loss(model, transformers.default_data_collator(padded_rows(6)))
    return [trainer.state.num_train_epochs, trainer.get_total_train_batch_size(trainer.args), loss.item()]


@script
def epoch_of_an_evaluation(lib: ModuleType, folder: Path) -> Found:
    trainer = trained(lib, folder, parts={"eval_dataset": padded_rows(8)}, max_steps=9)
    return [trainer.evaluate()["epoch"]]


@script
def a_prediction_step_copied_from_transformers(lib: ModuleType, folder: Path) -> Found:
    """Research code copies the method and changes a line: it reads many attributes of the Trainer."""

    class Copied(lib.Trainer):
        def prediction_step(self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None) -> Any:
            has_labels = all(inputs.get(name) is not None for name in self.label_names) or self.can_return_loss
            inputs = self._prepare_inputs(inputs)
            with torch.no_grad(), self.compute_loss_context_manager():
                loss, outputs = self.compute_loss(model, inputs, return_outputs=True)
            assert has_labels
            assert not self.is_model_parallel
            assert not self.is_deepspeed_enabled
            return loss.mean().detach(), outputs.logits * 3, inputs["labels"]

    trainer = Copied(calm_model(), settings(lib, folder), train_dataset=padded_rows(), eval_dataset=padded_rows(12))
    found = trainer.predict(padded_rows(10))
    sizes = [trainer._train_batch_size, trainer.get_total_train_batch_size(trainer.args), trainer.args.n_gpu]
    names = [*trainer.label_names, trainer.args.device.type, str(trainer.place_model_on_device)]
    names.append(str(Path(trainer._get_output_dir(None)).name == Path(trainer.args.output_dir).name))
    return [*names, *map(str, sizes), *(f"{value:.4f}" for value in (*found.predictions[2], found.metrics["test_loss"]))]


def test_there_are_enough_scripts() -> None:
    assert len(SCRIPTS) >= 65


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.exhaustive) for name in SCRIPTS]
)
def test_only_the_import_changes(name: str, tmp_path: Path) -> None:
    theirs, ours = (SCRIPTS[name](lib, tmp_path) for lib in (transformers, glassloop))
    if isinstance(theirs, list) and theirs and isinstance(theirs[0], int | float):
        assert ours == pytest.approx(theirs, abs=1e-5)
    else:
        assert ours == theirs
