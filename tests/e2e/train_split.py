"""Trainings that are run split over processes by torchrun and as one process by a test: the same code, the same rows."""

from __future__ import annotations

import json
import os
import sys
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from families import tiny_model, tiny_tokenizer, weights_hash

from glassloop import Callback, Trainer, TrainingArguments
from glassloop.base.errors import SettingsError

PROCESSES, DEVICE = int(os.environ.get("WORLD_SIZE", "1")), os.environ.get("TRAIN_DEVICE", "cpu")
BATCH = 4  # over all processes; 21 rows: the last batch of an epoch holds one row, fewer than there are processes


def make_rows(number: int) -> list[dict[str, Any]]:
    tokenizer = tiny_tokenizer()
    texts = [f"the film is {'good' if row % 2 else 'bad'} and {'very ' * (row % 5)}story {row}" for row in range(number)]
    return [{**tokenizer(text), "labels": row % 2} for row, text in enumerate(texts)]


def make_trainer(folder: Path, *, dropout: float = 0.0, model: Any = None, **more: Any) -> Trainer:
    """Twelve steps of two batches each; an evaluation every three steps, of which the first counts as the best."""
    calls = count()
    settings = {name: more.pop(name) for name in [*more] if name in TrainingArguments.__dataclass_fields__}
    chosen = {"num_train_epochs": 4, "gradient_accumulation_steps": 2, "learning_rate": 1e-5, "logging_steps": 1,
              "per_device_train_batch_size": BATCH // PROCESSES, "per_device_eval_batch_size": 5, "max_grad_norm": 0.3,
              "eval_strategy": "epoch", "load_best_model_at_end": True, "metric_for_best_model": "score",
              "save_strategy": "steps", "save_steps": 4, "save_total_limit": None, "device": DEVICE,
              "disable_tqdm": True, **settings}  # fmt: skip
    return Trainer(
        model or tiny_model(dropout=dropout), TrainingArguments(folder, **chosen), train_dataset=make_rows(21),
        eval_dataset=make_rows(13), processing_class=tiny_tokenizer(),
        compute_metrics=lambda found: {"score": -next(calls), "rows": len(found.predictions)}, **more,
    )  # fmt: skip


class Watch(Callback):
    """Looks at the model after each step, and asks to stop after one."""

    def __init__(self, stop_after: int = 0) -> None:
        self.stop_after, self.seen = stop_after, []
        self.trainer: Any = None

    def on_step(self, state: Any, batches: list[Any]) -> None:
        self.seen.append(weights_hash(self.trainer.model))
        state.asked_to_stop = 15 if state.step == self.stop_after else 0


def with_own_optimizer(folder: Path, **settings: Any) -> Trainer:
    """Frozen word vectors, and an optimizer of the user's."""
    model = tiny_model(dropout=0.0)
    model.get_input_embeddings().weight.requires_grad_(False)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=1e-2, momentum=0.9)
    return make_trainer(folder, model=model, optimizers=(optimizer, None), load_best_model_at_end=False, **settings)


def figures_of(trainer: Trainer) -> dict[str, Any]:
    """What a trained trainer knows and answers."""
    history = trainer.state.history
    return {
        "steps": [[entry["loss"], entry["grad_norm"]] for entry in history if "loss" in entry],
        "evaluations": [[entry["eval_loss"], entry["eval_rows"]] for entry in history if "eval_loss" in entry],
        "many": trainer.predict(make_rows(13)).predictions.tolist(),
        "few": trainer.predict(make_rows(3)).predictions.tolist(),  # one batch: with two processes one has none
        "weights": weights_hash(trainer.model),
    }


def stopped_and_resumed(folder: Path) -> list[str]:
    """Weights of a training that was asked to stop, in its main process alone, and then went on; with dropout."""
    main = os.environ["RANK"] == "0"
    watch = Watch(stop_after=5)
    last = {"dropout": 0.1, "load_best_model_at_end": False}
    trainer = make_trainer(folder, callbacks=[watch] if main else None, **last)
    watch.trainer = trainer
    try:
        trainer.train()
    except SystemExit:
        trainer = make_trainer(folder, **last)
        trainer.train(resume_from_checkpoint=True)
        return [weights_hash(trainer.model), *watch.seen]
    return ["it did not stop"]


def local_share(watch: Watch) -> Any:
    """A callback's method that writes down which share of the numbers this process holds."""

    def on_step(state: Any, batches: list[Any]) -> None:
        split = watch.trainer.backend.split
        local = sum(part.to_local().numel() for part in split.parameters())
        watch.seen.append(local / sum(part.numel() for part in split.parameters()))

    return on_step


def run(folder: Path, plain_checkpoint: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    watch = Watch()
    watch.on_step = local_share(watch)
    trainer = watch.trainer = make_trainer(folder / "still", callbacks=[watch])
    trainer.train()
    trainer.save_model(folder / "final")
    found["still"], found["share"] = figures_of(trainer), watch.seen[0]
    found["kind"] = [type(trainer.backend).__name__, type(trainer.model).__name__, trainer.backend.precision]
    found["plain"] = sorted({type(weight).__name__ for weight in trainer.model.parameters()})
    trainer.args.output_dir = str(folder / "again")
    trainer.train()
    found["again"] = [watch.seen[-1], weights_hash(trainer.model)]

    trainer = make_trainer(folder / "dropout", dropout=0.1, load_best_model_at_end=False)
    trainer.train()
    found["never stopped"] = weights_hash(trainer.model)
    found["stopped"] = stopped_and_resumed(folder / "stopped")

    trainer = make_trainer(folder / "from-plain")
    trainer.train(resume_from_checkpoint=plain_checkpoint)
    found["from plain"] = figures_of(trainer)
    trainer.save_model(folder / "from-plain" / "final")

    trainer = make_trainer(folder / "early", early_stopping_patience=1)
    trainer.train()
    found["early"] = [trainer.state.step, trainer.state.stop_reason]

    trainer = with_own_optimizer(folder / "own")
    trainer.train()
    found["own"] = figures_of(trainer)
    found["refused"] = []
    for refused in (trainer, make_trainer(folder / "gradients", on_gradients=print)):
        try:
            refused.train()
        except SettingsError as error:
            found["refused"].append(error.problem)

    model = tiny_model(dropout=0.0)
    if os.environ["RANK"] != "0":  # a head that each process has made for itself
        torch.nn.init.normal_(model.classifier.weight, std=1.0)
    trainer = make_trainer(folder / "heads", model=model)
    trainer.train()
    found["heads"] = figures_of(trainer)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = run(Path(sys.argv[1]), Path(sys.argv[2]))
    (Path(sys.argv[1]) / f"found-{os.environ['RANK']}.json").write_text(json.dumps(found), encoding="utf-8")
