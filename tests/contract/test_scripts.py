"""Small scripts in the habits of transformers' users: run with transformers and with Glassloop, they give the same numbers.

Each public method of the classes below is a script. It uses one of the packages, and returns what it found: losses, scores,
steps or names. Rows come in a fixed order, and there is no dropout, so that losses can be compared. Habits of larger scripts
are in benchmarks/scripts/, see test_script_collection.py.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
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
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset
from transformers import EarlyStoppingCallback, TrainerCallback
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.trainer_utils import get_last_checkpoint

import glassloop

Found = list[Any]
PARTS = {*inspect.signature(transformers.Trainer.__init__).parameters}
EACH_STEP = {"eval_strategy": "steps", "eval_steps": 1}
EVERY_THIRD = {"eval_strategy": "steps", "eval_steps": 3}
SAVED_EVERY_THIRD = {"save_strategy": "steps", "save_steps": 3}
QUICK = ("weighted_loss", "early_stopping", "passes_that_callbacks_make", "gradients_that_callbacks_read", "own_optimizer",
         "callback_events", "plain_module_with_a_config", "accumulation", "saved_files", "last_checkpoint",
         "adversarial_step", "numbers_of_a_step")  # fmt: skip


def padded_rows(number: int = 48) -> list[dict[str, Any]]:
    """Rows of one length, with labels that alternate."""
    draw = np.random.default_rng(0)
    rows = []
    for place in range(number):
        ids = [2, *map(int, draw.integers(5, 45, 3 + place % 5)), 3]
        mask = [1] * len(ids) + [0] * (10 - len(ids))
        rows.append({"input_ids": ids + [0] * (10 - len(ids)), "attention_mask": mask, "labels": place % 2})
    return rows


def labelled(change: Callable[[int], Any], number: int = 48) -> list[dict[str, Any]]:
    return [{**row, "labels": change(row["labels"])} for row in padded_rows(number)]


def calm_model(**options: Any) -> Any:
    torch.manual_seed(0)
    return tiny_model(dropout=0.0, **options)


def losses(trainer: Any, name: str = "loss") -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def callback(**events: Callable[..., Any]) -> TrainerCallback:
    """A callback with these methods, which get (args, state, control) and facts by name."""
    return type("Mine", (TrainerCallback,), {name: staticmethod(event) for name, event in events.items()})()


def with_loss(kind: Any, loss: Callable[..., Any], *columns: str) -> Any:
    """A Trainer whose loss is that of (logits, labels, further columns)."""

    class Own(kind):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **others: Any) -> Any:
            given = [inputs.pop(name) for name in ("labels", *columns)]
            outputs = model(**inputs)
            found = loss(outputs.logits, *given)
            return (found, outputs) if return_outputs else found

    return Own


def mean_by_count(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    return functional.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch


class Script:
    """What scripts need: a package, a folder, and Trainers of small models."""

    def __init__(self, lib: ModuleType, folder: Path) -> None:
        self.lib, self.folder = lib, folder
        self.seen: list[Any] = []

        class InOrder(lib.Trainer):
            def get_train_dataloader(self) -> Any:
                sampler, size = SequentialSampler(self.train_dataset), self.args.per_device_train_batch_size
                collate = transformers.default_data_collator
                return DataLoader(self.train_dataset, batch_size=size, sampler=sampler, collate_fn=collate)

        self.in_order = InOrder

    def settings(self, **given: Any) -> Any:
        usual = {"max_steps": 6, "per_device_train_batch_size": 8, "learning_rate": 1e-3, "logging_steps": 1}
        quiet = {"save_strategy": "no", "disable_tqdm": True, "report_to": "none", "seed": 1, "use_cpu": True}
        return self.lib.TrainingArguments(output_dir=str(self.folder / self.lib.__name__), **usual | quiet | given)

    def trainer(self, kind: Any = None, **given: Any) -> Any:
        """A Trainer, usually one that reads its rows in their order; its parts and settings by name."""
        parts = {name: value for name, value in given.items() if name in PARTS}
        parts.setdefault("train_dataset", padded_rows())
        parts.setdefault("args", self.settings(**{name: value for name, value in given.items() if name not in PARTS}))
        if "model" not in parts and "model_init" not in parts:
            parts["model"] = calm_model()
        return (kind or self.in_order)(**parts)

    def trained(self, kind: Any = None, **given: Any) -> Any:
        trainer = self.trainer(kind, **given)
        trainer.train()
        return trainer

    def losses(self, kind: Any = None, **given: Any) -> list[float]:
        return losses(self.trained(kind, **given))

    def plain(self, **given: Any) -> Any:
        """A Trainer without any method of its own."""
        return self.trainer(self.lib.Trainer, **given)


def scripts_of(*kinds: type[Script]) -> dict[str, Callable[[ModuleType, Path], Found]]:
    def script_of(kind: type[Script], name: str) -> Callable[[ModuleType, Path], Found]:
        return lambda lib, folder: getattr(kind(lib, folder), name)()

    return {name: script_of(kind, name) for kind in kinds for name in vars(kind) if not name.startswith("_")}


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
    return lambda lib, folder: losses(Script(lib, folder).trained(eval_dataset=padded_rows(8), **given), figure)


class Settings(Script):
    def evaluation_delayed(self) -> Found:
        trainer = self.trained(eval_dataset=padded_rows(8), eval_delay=4, **EACH_STEP)
        return [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry]

    def settings_by_setters(self) -> Found:
        args = self.settings().set_training(learning_rate=5e-3, batch_size=4, max_steps=3, seed=1)
        return self.losses(args=args.set_logging(steps=1, report_to="none"))

    def settings_that_scripts_read(self) -> Found:
        saved = {"save_strategy": "steps", "save_steps": 7, "load_best_model_at_end": True}
        args = self.settings(eval_strategy="steps", logging_steps=7, **saved)
        names = "eval_steps metric_for_best_model greater_is_better do_eval report_to world_size n_gpu fp16 bf16".split()
        sizes = [args.train_batch_size, args.get_warmup_steps(100), args.parallel_mode.value]
        return [*(f"{name}={getattr(args, name)}" for name in names), *map(str, sizes)]


class Bag(nn.Module):
    """A classifier without a config, as tutorials write it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words, self.head = nn.Embedding(60, 8), nn.Linear(8, 2)

    def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None) -> dict[str, Any]:
        logits = self.head(self.words(input_ids).mean(1))
        return {"logits": logits} if labels is None else {"loss": functional.cross_entropy(logits, labels), "logits": logits}


class LossesAndModels(Script):
    def weighted_loss(self) -> Found:
        kind = with_loss(
            self.in_order, lambda logits, labels: functional.cross_entropy(logits, labels, weight=torch.tensor([1.0, 3.0]))
        )
        trainer = self.trained(kind, eval_dataset=padded_rows(20), per_device_eval_batch_size=20, **EVERY_THIRD)
        return losses(trainer) + losses(trainer, "eval_loss")

    def loss_function_argument(self) -> Found:
        return self.losses(compute_loss_func=mean_by_count)

    def loss_in_forward(self) -> Found:
        class Doubled(transformers.BertForSequenceClassification):
            def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None, **others: Any) -> Any:
                found = super().forward(input_ids=input_ids, attention_mask=attention_mask)
                loss = None if labels is None else 2 * functional.cross_entropy(found.logits, labels)
                return SequenceClassifierOutput(loss=loss, logits=found.logits)

        usual = calm_model()
        model = Doubled(usual.config)
        model.load_state_dict(usual.state_dict())
        return self.losses(model=model)

    def plain_module(self) -> Found:
        trainer = self.trained(model=Bag(), eval_dataset=padded_rows(16))
        return [*losses(trainer), trainer.evaluate()["eval_loss"]]

    def plain_module_with_a_config(self) -> Found:
        """Competition code: a torch module around an encoder, with a config of any kind. It is saved and resumed."""
        found: list[float] = []
        for number, config in enumerate((calm_model().config, type("CFG", (), {"lr": 1e-5}))):

            class Configured(Bag):
                def __init__(self, config: Any = config) -> None:
                    super().__init__()
                    self.config = config

            place = Script(self.lib, self.folder / str(number))
            given = {"eval_dataset": padded_rows(16), **EVERY_THIRD, **SAVED_EVERY_THIRD}
            trainer = place.trained(model=Configured(), **given)
            again = place.trainer(model=Configured(), **given)
            again.train(resume_from_checkpoint=f"{again.args.output_dir}/checkpoint-3")
            trainer.save_model()
            assert trainer.model.config is config
            assert Path(trainer.args.output_dir, "model.safetensors").is_file()
            found += [*losses(again), *losses(trainer, "eval_loss"), trainer.evaluate()["eval_loss"]]
        return found

    def several_labels_with_weights(self) -> Found:
        kind = with_loss(self.in_order, nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 3.0])))
        rows = labelled(lambda label: [1.0, float(label)])
        return self.losses(kind, model=calm_model(problem_type="multi_label_classification"), train_dataset=rows)

    def regression(self) -> Found:
        return self.losses(model=calm_model(num_labels=1), train_dataset=labelled(lambda label: label / 2))

    def accumulation(self) -> Found:
        """transformers forgets to divide by the number of batches, so it takes one batch of the same rows."""
        sizes = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2} if self.lib is glassloop else {}

        class Mean(self.in_order):
            def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **others: Any) -> Any:
                outputs = model(**inputs)
                return (outputs.loss, outputs) if return_outputs else outputs.loss

        return self.losses(Mean, **sizes)

    def frozen_encoder(self) -> Found:
        model = calm_model()
        model.bert.requires_grad_(False)
        return self.losses(model=model)

    def model_from_function(self) -> Found:
        trainer = self.trained(model_init=lambda trial: calm_model())
        first = losses(trainer)
        trainer.train()
        return first + losses(trainer)

    def adversarial_step(self) -> Found:
        """FGM: gradients of a second forward pass, with word embeddings moved along the gradients of the first one."""

        class Adversarial(self.in_order):
            def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
                loss = super().training_step(model, inputs, num_items_in_batch)
                weight = model.bert.embeddings.word_embeddings.weight
                saved = weight.data.clone()
                weight.data.add_(0.3 * weight.grad / weight.grad.norm())
                self.compute_loss(model, inputs).backward()
                weight.data = saved
                return loss

        return self.losses(Adversarial, max_steps=4)

    def numbers_of_a_step(self) -> Found:
        """A last epoch cut short counts; a step has the rows of all its batches; a smoothed loss is a mean over rows."""
        given = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "label_smoothing_factor": 0.1}
        trainer = self.trained(max_steps=7, **given)
        loss = trainer.compute_loss(trainer.model.eval(), transformers.default_data_collator(padded_rows(6)))
        return [trainer.state.num_train_epochs, trainer.get_total_train_batch_size(trainer.args), loss.item()]


class Optimizers(Script):
    def own_optimizer(self) -> Found:
        class Momentum(self.in_order):
            def create_optimizer(self, model: Any = None) -> Any:
                self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
                return self.optimizer

        return self.losses(Momentum)

    def own_scheduler(self) -> Found:
        class Steps(self.in_order):
            def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
                self.lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer or self.optimizer, 2, 0.1)
                return self.lr_scheduler

        return self.losses(Steps)

    def optimizer_class_argument(self) -> Found:
        return self.losses(optimizer_cls_and_kwargs=(torch.optim.NAdam, {"lr": 1e-3}), weight_decay=0.1)

    def optimizer_and_device_afterwards(self) -> Found:
        trainer = self.trained()
        rate = trainer.lr_scheduler.get_last_lr()[0] + trainer.optimizer.param_groups[0]["lr"]
        return [rate, float(torch.zeros(1, device=trainer.args.device).sum()), float(trainer.is_world_process_zero())]

    def groups_and_rates(self) -> Found:
        trainer = self.plain()
        trainer.create_optimizer_and_scheduler(num_training_steps=10)
        sizes = len(trainer.get_optimizer_group()), len(trainer.get_decay_parameter_names(trainer.model))
        return [*trainer.get_learning_rates(), *sizes, trainer.get_num_trainable_parameters()]


class Data(Script):
    def rows_in_torch_format(self) -> Found:
        rows = Dataset.from_list(padded_rows())
        chosen = rows.map(lambda row: {"text": "never read", **row})
        rows.set_format("torch")
        chosen.set_format("torch", columns=["input_ids", "attention_mask", "labels"])
        return self.losses(train_dataset=rows) + self.losses(train_dataset=chosen)

    def extra_columns_and_label(self) -> Found:
        rows = Dataset.from_list([{**row, "idx": place, "label": row["labels"]} for place, row in enumerate(padded_rows())])
        return [self.plain(eval_dataset=rows.remove_columns("labels")).evaluate()["eval_loss"]]

    def tuples_with_own_collator(self) -> Found:
        names = ("input_ids", "attention_mask", "labels")
        columns = [torch.tensor([row[name] for row in padded_rows()]) for name in names]

        def collate(found: Any) -> dict[str, Any]:
            return dict(zip(names, map(torch.stack, zip(*found, strict=True)), strict=True))

        return [self.plain(data_collator=collate, eval_dataset=TensorDataset(*columns)).evaluate()["eval_loss"]]

    def own_evaluation_loader(self) -> Found:
        class Half(self.lib.Trainer):
            def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
                return DataLoader(padded_rows(24), batch_size=8, collate_fn=transformers.default_data_collator)

        return [self.trainer(Half, eval_dataset=padded_rows()).evaluate()["eval_loss"]]

    def folds_in_one_folder(self) -> Found:
        """Kernels train a new Trainer per fold, all into one folder."""
        folds = [padded_rows()[fold::2] for fold in range(2)]
        given = {"eval_dataset": padded_rows(8), "max_steps": 3, **SAVED_EVERY_THIRD}
        return [loss for fold in folds for loss in self.losses(train_dataset=fold, **given)]


class Evaluation(Script):
    def own_prediction_step(self) -> Found:
        class Doubled(self.lib.Trainer):
            def prediction_step(self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None) -> Any:
                with torch.no_grad():
                    found = model(**{name: value for name, value in inputs.items() if name != "labels"})
                return functional.cross_entropy(found.logits, inputs["labels"]), found.logits * 2, inputs["labels"]

        found = self.trainer(Doubled).predict(padded_rows())
        return [*found.predictions[3].tolist(), found.metrics["test_loss"]]

    def a_prediction_step_copied_from_transformers(self) -> Found:
        """Research code copies the method and changes a line: it reads many attributes of the Trainer."""

        class Copied(self.lib.Trainer):
            def prediction_step(self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None) -> Any:
                has_labels = all(inputs.get(name) is not None for name in self.label_names) or self.can_return_loss
                inputs = self._prepare_inputs(inputs)
                with torch.no_grad(), self.compute_loss_context_manager():
                    loss, outputs = self.compute_loss(model, inputs, return_outputs=True)
                assert has_labels
                assert not self.is_model_parallel
                assert not self.is_deepspeed_enabled
                return loss.mean().detach(), outputs.logits * 3, inputs["labels"]

        trainer = self.trainer(Copied, eval_dataset=padded_rows(12))
        found, args = trainer.predict(padded_rows(10)), trainer.args
        is_usual = Path(trainer._get_output_dir(None)).name == Path(args.output_dir).name
        sizes = [trainer._train_batch_size, trainer.get_total_train_batch_size(args), args.n_gpu]
        names = [*trainer.label_names, args.device.type, trainer.place_model_on_device, is_usual]
        return [*names, *sizes, *map(float, (*found.predictions[2], found.metrics["test_loss"]))]

    def loss_only(self) -> Found:
        given = {"prediction_loss_only": True, "compute_metrics": lambda found: {"never": 1.0}}
        found = self.plain(eval_dataset=padded_rows(), **given).evaluate()
        return sorted(name for name in found if name in ("eval_loss", "eval_never"))

    def metrics_that_are_no_finite_numbers(self) -> Found:
        """NaN, texts, lists and nested scores among the metrics; NaN is never the best, and early stopping counts it."""
        scores = iter([0.5, float("nan"), float("nan"), float("nan"), 0.9, 1.0])

        def compute(found: Any) -> dict[str, Any]:
            report = {"0": {"precision": 0.5}}
            return {"f1": next(scores), "note": "text", "all": [0.5, 0.25], "report": report, "auc": np.float64("nan")}

        parts = {"eval_dataset": padded_rows(8), "compute_metrics": compute, "callbacks": [EarlyStoppingCallback(3)]}
        best = {"metric_for_best_model": "f1", "load_best_model_at_end": True, "save_strategy": "steps", "save_steps": 1}
        state = self.trained(**parts, **best, **EACH_STEP).state
        entry = next(entry for entry in state.log_history if "eval_note" in entry)
        kinds = [f"{name} {type(value).__name__}" for name, value in sorted(entry.items()) if "second" not in name]
        return [state.global_step, state.best_global_step, state.best_metric, *kinds]

    def own_evaluate(self) -> Found:
        class Counted(self.in_order):
            def evaluate(self, *given: Any, **named: Any) -> Any:
                return super().evaluate(*given, **named) | {"eval_mine": 7.0}

        return self.losses(Counted, eval_dataset=padded_rows(8), metric_for_best_model="loss", **EVERY_THIRD)

    def metrics_batch_by_batch(self) -> Found:
        def scores(found: Any, compute_result: bool) -> dict[str, float]:
            self.seen.append(float(len(found.predictions)))
            return {"rows": sum(self.seen)} if compute_result else {}

        given = {"batch_eval_metrics": True, "per_device_eval_batch_size": 5}
        found = self.plain(eval_dataset=padded_rows(12), compute_metrics=scores, **given).evaluate()
        return [*self.seen, found["eval_rows"]]

    def scores_of_deberta(self) -> Found:
        """DeBERTa drops the last dimension of its scores if it gets labels, so that scripts subtract these."""

        def error(found: Any) -> dict[str, float]:
            self.seen.append(found.predictions.shape)
            return {"error": float(np.mean((found.predictions - found.label_ids) ** 2))}

        rows = labelled(float, 8)
        torch.manual_seed(0)
        model = tiny_model("deberta-v2", dropout=0.0, num_labels=1, initializer_range=0.3)
        trainer = self.plain(model=model, eval_dataset=rows, compute_metrics=error)
        return [trainer.evaluate()["eval_error"], *self.seen, trainer.predict(rows).predictions.shape]

    def epoch_of_an_evaluation(self) -> Found:
        return [self.trained(eval_dataset=padded_rows(8), max_steps=9).evaluate()["epoch"]]


class Callbacks(Script):
    def early_stopping(self) -> Found:
        parts = {"eval_dataset": padded_rows(), "callbacks": [EarlyStoppingCallback(early_stopping_patience=2)]}
        best = {"metric_for_best_model": "loss", "greater_is_better": False}
        return [self.trained(max_steps=40, learning_rate=0.05, **parts, **best, **EACH_STEP).state.global_step]

    def gradients_that_callbacks_read(self) -> Found:
        """Norms of the gradients, after clipping and while the weights change, and a callback that changes gradients."""

        def note(args: Any, state: Any, control: Any, model: Any, optimizer: Any, **others: Any) -> None:
            grads = [weight.grad for weight in model.parameters() if weight.grad is not None]
            norm = torch.stack([grad.norm() for grad in grads]).norm().item() if grads else -1.0
            rate, weight = optimizer.param_groups[0]["lr"], model.classifier.weight.abs().sum().item()
            self.seen.extend([state.global_step, len(grads), norm, rate, weight])

        def note_and_change(*given: Any, model: Any, **facts: Any) -> None:
            note(*given, model=model, **facts)
            model.classifier.weight.grad.mul_(0.5)

        reading = callback(
            on_substep_end=lambda *given, **facts: self.seen.append(-2),
            on_pre_optimizer_step=note_and_change,
            on_optimizer_step=note,
            on_step_end=note,
        )
        given = {"max_steps": 3, "max_grad_norm": 1e-3, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
        self.trained(callbacks=[reading], optim="sgd", learning_rate=50.0, **given)
        return self.seen

    def loaders_that_callbacks_get(self) -> Found:
        def note(*given: Any, **facts: Any) -> None:
            loaders = facts["train_dataloader"], facts["eval_dataloader"]
            self.seen.append([[len(one), len(one.dataset)] if one is not None else "none" for one in loaders])

        def read(*given: Any, **facts: Any) -> None:
            batch = next(iter(facts["train_dataloader"]))
            self.seen.append([sorted(batch), batch["input_ids"].shape])

        reading = callback(on_init_end=note, on_train_begin=read, on_evaluate=note, on_train_end=note)
        for kind in (self.lib.Trainer, self.in_order):
            given = {"eval_dataset": padded_rows(12), "per_device_eval_batch_size": 5, **EVERY_THIRD}
            self.trained(kind, callbacks=[reading], **given).predict(padded_rows(7))
        return self.seen

    def callback_events(self) -> Found:
        seen = self.seen

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

        self.trained(callbacks=[Watching], eval_dataset=padded_rows(8), logging_steps=2)
        return seen

    def callbacks_added_and_removed(self) -> Found:
        class Stop(TrainerCallback):
            def __init__(self, step: int = 1) -> None:
                self.step = step

            def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> Any:
                control.should_training_stop = state.global_step >= self.step
                return control

        trainer = self.trainer(callbacks=[Stop])
        removed = trainer.pop_callback(Stop)
        trainer.add_callback(Stop(3))
        trainer.remove_callback(TrainerCallback)
        trainer.train()
        return [removed.step, trainer.state.global_step]

    def passes_that_callbacks_make(self) -> Found:
        """Evaluations, predictions and log entries of a callback: every event and every entry, in the same order."""

        def names(found: Any) -> str:
            unlike = ("steps_per", "accuracy", "f1")
            return " ".join(sorted(name for name in found if not any(part in name for part in unlike)))

        def on_step_end(args: Any, state: Any, control: Any, **others: Any) -> None:
            if state.global_step in (2, 3):
                trainer.log({"mine": 1.5})
                trainer.evaluate(padded_rows(12), metric_key_prefix="other")
                trainer.predict(padded_rows(6))

        def on_log(args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
            self.seen.append(["log", state.global_step, *(name in logs for name in ("eval_loss", "other_loss", "epoch"))])
            if state.global_step == 4 and "loss" in logs:
                trainer.evaluate(metric_key_prefix="early")  # so that the evaluation of this step is not made

        def noted(event: str) -> Callable[..., None]:
            return lambda args, state, control, metrics=None, **others: self.seen.append(
                [event, state.global_step, names(metrics), len(state.log_history)]
            )

        sets = {"one": padded_rows(8), "two": padded_rows(10)}
        given = {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "one_loss"}
        trainer = self.trainer(eval_dataset=sets, load_best_model_at_end=False, **given)
        passes = {"on_evaluate": noted("evaluate"), "on_predict": noted("predict")}
        trainer.add_callback(callback(on_step_end=on_step_end, on_log=on_log, **passes))
        trainer.train()
        entries = [[entry["step"], names(entry)] for entry in trainer.state.log_history[:-1]]
        scores = [*losses(trainer, "other_loss"), trainer.state.best_metric]
        return [*self.seen, *entries, *scores, names(trainer.evaluate(padded_rows(4)))]

    def flags_that_callbacks_see(self) -> Found:
        def noted(event: str) -> Callable[..., None]:
            def note(args: Any, state: Any, control: Any, **others: Any) -> None:
                flags = [name for name in ("should_log", "should_evaluate", "should_save") if getattr(control, name)]
                self.seen.append([event, state.global_step, state.epoch, *flags])

            return note

        reading = callback(on_step_end=noted("step"), on_epoch_end=noted("epoch"))
        given = {"max_steps": -1, "num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "steps", "save_steps": 5}
        self.trained(callbacks=[reading], eval_dataset=padded_rows(8), logging_steps=4, **given)
        return self.seen

    def epoch_ended_by_a_callback(self) -> Found:
        def end(args: Any, state: Any, control: Any, **others: Any) -> None:
            control.should_epoch_stop = state.global_step == 2

        given = {"max_steps": -1, "num_train_epochs": 3, "eval_strategy": "epoch"}
        trainer = self.trained(callbacks=[callback(on_step_end=end)], eval_dataset=padded_rows(8), **given)
        names = ("loss", "eval_loss", "epoch")
        return [*(value for name in names for value in losses(trainer, name)), trainer.state.global_step]


class Logs(Script):
    def own_log(self) -> Found:
        seen = self.seen

        class Logging(self.in_order):
            def log(self, logs: Any, *given: Any, **named: Any) -> None:
                seen.append([name for name in ("loss", "learning_rate", "train_loss") if name in logs])
                super().log(logs, *given, **named)

        self.trained(Logging, logging_steps=3)
        return seen

    def entries_that_a_log_method_adds(self) -> Found:
        class WithRate(self.in_order):
            def log(self, logs: Any, *given: Any) -> None:
                logs["mine"] = len(logs) > 0
                super().log(logs, *given)

        return [entry.get("mine") for entry in self.trained(WithRate).state.log_history]

    def logs_printed_by_a_callback(self) -> Found:
        def show(args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
            if state.is_local_process_zero:
                self.seen.append([state.global_step, *(name in logs for name in ("loss", "eval_loss", "train_loss"))])

        given = {"logging_steps": 4, "eval_strategy": "steps", "eval_steps": 4}
        self.trained(callbacks=[callback(on_log=show)], eval_dataset=padded_rows(8), **given)
        return self.seen

    def what_train_returns(self) -> Found:
        found = self.trainer().train()
        return [found.global_step, found.training_loss, found.metrics["train_loss"], found.metrics["epoch"]]


class Files(Script):
    def saved_files(self) -> Found:
        trainer = self.trained(eval_dataset=padded_rows(8))
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
        return [*names, stored["global_step"], *("eval_loss" in entry for entry in stored["log_history"])]

    def last_checkpoint(self) -> Found:
        given = {"max_steps": 9, "save_total_limit": 2, **SAVED_EVERY_THIRD}
        place = self.trained(**given).args.output_dir
        found = str(get_last_checkpoint(place))
        stored = transformers.TrainerState.load_from_json(f"{found}/trainer_state.json")
        model = transformers.AutoModelForSequenceClassification.from_pretrained(f"{place}/checkpoint-6")
        names = sorted(path.name for path in Path(place).glob("checkpoint-*"))
        again = self.trainer(**given)
        again.train(resume_from_checkpoint=f"{place}/checkpoint-6")
        return [*names, Path(found).name, stored.global_step, *losses(again), model.classifier.weight.abs().sum().item()]

    def resumed_by_true(self) -> Found:
        def stop(args: Any, state: Any, control: Any, **others: Any) -> None:
            control.should_training_stop = state.global_step == 3

        self.trained(callbacks=[callback(on_step_end=stop)], **SAVED_EVERY_THIRD)
        trainer = self.trainer(**SAVED_EVERY_THIRD)
        trainer.train(resume_from_checkpoint=True)
        return [*losses(trainer), trainer.state.global_step]

    def best_checkpoint(self) -> Found:
        given = {"save_strategy": "best", "save_total_limit": 1, "metric_for_best_model": "eval_loss", **EACH_STEP}
        trainer = self.trained(eval_dataset=padded_rows(8), load_best_model_at_end=True, **given)
        state, best = trainer.state, Path(str(trainer.state.best_model_checkpoint))
        assert best.is_dir()
        return [best.name, state.best_global_step, state.best_metric, trainer.evaluate()["eval_loss"]]

    def own_saving(self) -> Found:
        class Noting(self.in_order):
            def save_model(self, output_dir: Any = None, _internal_call: bool = False) -> None:
                super().save_model(output_dir, _internal_call)
                Path(output_dir or self.args.output_dir, "note.txt").write_text("mine")

        trainer = self.trained(Noting, save_strategy="steps", save_steps=4)
        trainer.save_model()
        place = Path(trainer.args.output_dir)
        return sorted(str(path.relative_to(place)) for path in place.rglob("note.txt"))

    def files_beside_a_checkpoint(self) -> Found:
        def keep(args: Any, state: Any, control: Any, model: Any, **others: Any) -> None:
            model.save_pretrained(Path(args.output_dir, f"checkpoint-{state.global_step}", "kept"))

        given = {"save_strategy": "epoch", "num_train_epochs": 2, "max_steps": -1}
        trainer = self.trained(callbacks=[callback(on_save=keep)], **given)
        return sorted(path.parent.name for path in Path(trainer.args.output_dir).glob("*/kept"))


SCRIPTS = {name: settings_script(name) for name in ONLY_SETTINGS}
SCRIPTS |= scripts_of(Settings, LossesAndModels, Optimizers, Data, Evaluation, Callbacks, Logs, Files)


def assert_same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    elif isinstance(theirs, np.ndarray):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    else:
        assert ours == (pytest.approx(theirs, abs=1e-5) if isinstance(theirs, float) else theirs)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.exhaustive) for name in SCRIPTS]
)
def test_only_the_import_changes(name: str, tmp_path: Path) -> None:
    theirs, ours = (SCRIPTS[name](lib, tmp_path) for lib in (transformers, glassloop))
    assert theirs
    assert_same(ours, theirs)
