"""What scripts for transformers get from their rows: columns, order, streams, predictions. Both libraries give the same.

The scripts are written as those of test_scripts.py: rows come in a fixed order, and there is no dropout.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from contract import test_scripts as scripts
from contract.test_scripts import Found, Script, calm_model, losses, padded_rows
from datasets import Dataset
from families import tiny_tokenizer
from torch import nn
from torch.nn import functional
from torch.utils.data import RandomSampler, SequentialSampler
from transformers.modeling_outputs import ModelOutput, SequenceClassifierOutput

import glassloop

SEQUENTIAL = {"train_sampling_strategy": "sequential"}
EVERY_COLUMN = {"remove_unused_columns": False}


def weighted_rows(number: int = 48) -> list[dict[str, Any]]:
    return [{**row, "weight": 0.5 + place % 3} for place, row in enumerate(padded_rows(number))]


def ragged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same rows without padding."""
    return [
        {**row, **{name: row[name][: sum(row["attention_mask"])] for name in ("input_ids", "attention_mask")}} for row in rows
    ]


def by_weight(kind: Any) -> Any:
    """A Trainer that weights rows by a column."""
    return scripts.with_loss(
        kind,
        lambda logits, labels, weight: (functional.cross_entropy(logits, labels, reduction="none") * weight).mean(),
        "weight",
    )


def shapes_of(values: Any) -> Any:
    return [shapes_of(value) for value in values] if isinstance(values, tuple | list) else list(values.shape)


def leaves(values: Any) -> list[Any]:
    return [leaf for value in values for leaf in leaves(value)] if isinstance(values, tuple | list) else [values]


def hidden_scores(found: Any) -> dict[str, float]:
    return {"share": float((found.predictions[0].argmax(-1) == found.label_ids).mean()), "parts": len(found.predictions)}


class InOrder(Script):
    def trainer(self, kind: Any = None, **given: Any) -> Any:
        return super().trainer(kind or self.lib.Trainer, **{"train_dataset": weighted_rows(), **SEQUENTIAL, **given})

    def losses_on(self, rows: Any, kind: Any = None, **given: Any) -> list[float]:
        """Losses of a training and of an evaluation on the same rows."""
        trainer = self.trained(kind, train_dataset=rows, eval_dataset=rows, **given)
        return [*losses(trainer), trainer.evaluate()["eval_loss"]]


class Bag(nn.Module):
    """A classifier whose labels have other names, or one that returns more than logits, as an output or as a tuple."""

    def __init__(self, as_tuple: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head, self.as_tuple = nn.Embedding(60, 8), nn.Linear(8, 2), as_tuple


class OtherNames(Bag):
    def forward(self, input_ids: Any, target: Any = None, other: Any = None) -> Any:
        logits = self.head(self.words(input_ids).mean(1))
        loss = None if target is None else functional.cross_entropy(logits, target) + other.float().mean()
        return SequenceClassifierOutput(loss=loss, logits=logits)


class Extra(Bag):
    def forward(self, input_ids: Any, labels: Any = None) -> Any:
        pooled = self.words(input_ids).mean(1)
        found = {"logits": self.head(pooled), "pooled": pooled}
        if labels is not None:
            found = {"loss": functional.cross_entropy(found["logits"], labels), **found}
        return tuple(found.values()) if self.as_tuple else ModelOutput(found)


class Columns(InOrder):
    def weights_of_rows(self) -> Found:
        seen = self.seen

        class Noted(by_weight(self.lib.Trainer)):
            def compute_loss(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
                seen.append(sorted(inputs))
                return super().compute_loss(model, inputs, *given, **named)

        rows, tokenizer = weighted_rows(), tiny_tokenizer()
        table = Dataset.from_list(rows)
        found = self.losses_on(rows, Noted, **EVERY_COLUMN)
        found += self.losses_on(table, Noted, processing_class=tokenizer, **EVERY_COLUMN)
        found += self.losses_on(ragged(rows), Noted, processing_class=tokenizer, **EVERY_COLUMN)
        assert ["attention_mask", "input_ids", "labels", "weight"] in seen
        return [*found, *seen[-1], self.trainer(Noted, **EVERY_COLUMN).predict(weighted_rows(8)).predictions]

    def collator_that_tokenizes(self) -> Found:
        tokenizer = tiny_tokenizer()

        def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
            batch = tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")
            return {**batch, "labels": torch.tensor([row["target"] for row in rows])}

        texts = ["the cat sat", "a dog", "the mat is on the cat", "dog sat on a mat"] * 12
        rows = Dataset.from_dict({"text": texts, "target": [place % 2 for place in range(48)]})
        return self.losses_on(rows, data_collator=collate, **EVERY_COLUMN)

    def unused_columns_are_removed(self) -> Found:
        seen: set[str] = set()

        def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
            seen.update(*rows)
            return transformers.default_data_collator(rows)

        found = self.losses(data_collator=collate)
        found += self.losses(data_collator=collate, train_dataset=Dataset.from_list(weighted_rows()))
        return [*found, *self.losses(processing_class=tiny_tokenizer()), *sorted(seen)]

    def columns_of_the_signature(self) -> Found:
        names: set[str] = set()

        class Narrow(transformers.BertForSequenceClassification):
            def forward(self, input_ids: Any, weight: Any = None, labels: Any = None, **others: Any) -> Any:
                names.update(others)
                return super().forward(input_ids, labels=labels)

        torch.manual_seed(0)
        found = self.losses(model=Narrow(calm_model().config), train_dataset=Dataset.from_list(weighted_rows()))
        return [*found, *sorted(names - {"num_items_in_batch"})]

    def labels_by_other_names(self) -> Found:
        rows = [{"input_ids": row["input_ids"], "target": row["labels"], "other": row["labels"] + 1} for row in padded_rows()]

        def scores(found: Any) -> dict[str, float]:
            self.seen[:] = found.label_ids if isinstance(found.label_ids, tuple) else [found.label_ids]
            return {"rows": float(len(self.seen[0]))}

        found: list[Any] = []
        for names in (["target"], ["target", "other"]):
            found += self.losses_on(rows, model=OtherNames(), compute_metrics=scores, label_names=names)
            found += self.seen
        return found

    def ignored_labels(self) -> Found:
        own = scripts.with_loss(self.lib.Trainer, partial(functional.cross_entropy, ignore_index=-100))
        labels = [-100 if place % 4 == 3 else place % 2 for place in range(48)]
        rows = Dataset.from_list([{**row, "labels": label} for row, label in zip(padded_rows(), labels, strict=True)])
        by_count = self.losses_on(rows, compute_loss_func=scripts.mean_by_count)
        return [*self.losses_on(rows, own), *by_count, *self.losses_on(rows)]


class Order(InOrder):
    def _order_of(self, kind: Any = None, **given: Any) -> Found:
        """Which rows were in which batch."""
        batches: list[list[int]] = []

        class Noted(kind or self.lib.Trainer):
            def compute_loss(self, model: Any, inputs: Any, *others: Any, **named: Any) -> Any:
                batches.append(inputs.pop("row").tolist())
                return super().compute_loss(model, inputs, *others, **named)

        rows = [{**row, "row": place} for place, row in enumerate(padded_rows(20))]
        self.trained(Noted, train_dataset=rows, max_steps=-1, num_train_epochs=2, **EVERY_COLUMN, **given)
        return batches

    def own_sampler(self) -> Found:
        class Backwards(SequentialSampler):
            def __iter__(self) -> Any:
                return iter(reversed(range(len(self))))

        class Sampled(self.lib.Trainer):
            def _get_train_sampler(self, train_dataset: Any = None) -> Any:
                return Backwards(self.train_dataset)

            def _get_eval_sampler(self, eval_dataset: Any) -> Any:
                return Backwards(eval_dataset)

        predicted = self.trainer(Sampled).predict(padded_rows(5)).predictions
        return [*self._order_of(Sampled, train_sampling_strategy="random"), predicted]

    def usual_samplers(self) -> Found:
        trainer = self.trainer(eval_dataset=padded_rows())
        found = [trainer._get_train_sampler(), trainer._get_eval_sampler(trainer.eval_dataset)]
        assert all(isinstance(one, SequentialSampler) for one in found)
        assert isinstance(self.trainer(train_sampling_strategy="random")._get_train_sampler(), RandomSampler)
        return [*map(len, found), *self._order_of()]

    def streamed_rows(self) -> Found:
        rows = Dataset.from_list(weighted_rows()).to_iterable_dataset()
        given = {"max_steps": 9, "train_sampling_strategy": "random"}
        trainer = self.trained(train_dataset=rows, eval_dataset=rows, eval_strategy="steps", eval_steps=4, **given)
        predicted = trainer.predict(rows)
        shuffled = self.losses(train_dataset=rows.shuffle(seed=3, buffer_size=20), **given)
        return [*losses(trainer), *losses(trainer, "eval_loss"), predicted.predictions, predicted.label_ids, *shuffled]


class Predictions(InOrder):
    def hidden_states_in_metrics(self) -> Found:
        rows = padded_rows()
        parts = {"model": calm_model(output_hidden_states=True), "eval_dataset": rows, "compute_metrics": hidden_scores}
        best = {"metric_for_best_model": "share", "load_best_model_at_end": True}
        thirds = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 3}
        trainer = self.trained(train_dataset=rows, **parts, **best, **thirds)
        predicted = trainer.predict(rows[:10]).predictions
        figures = [*losses(trainer, "eval_share"), *losses(trainer, "eval_parts"), trainer.state.best_metric]
        return [*figures, shapes_of(predicted), *leaves(predicted)]

    def hidden_states_of_many_lengths(self) -> Found:
        parts = {"model": calm_model(output_hidden_states=True), "processing_class": tiny_tokenizer()}
        rows = [{"input_ids": row["input_ids"], "labels": row["labels"]} for row in ragged(padded_rows(20))]
        found = self.trainer(per_device_eval_batch_size=4, **parts).predict(rows).predictions
        return [shapes_of(found), *leaves(found)]

    def ignored_outputs(self) -> Found:
        model = calm_model(output_hidden_states=True, output_attentions=True)
        trainer = self.trainer(model=model, compute_metrics=lambda found: {"parts": len(shapes_of(found[0]))})
        found = [
            trainer.predict(padded_rows(6), ignore_keys=names).predictions
            for names in (["attentions"], ["attentions", "hidden_states"])
        ]
        metrics = trainer.evaluate(padded_rows(6), ignore_keys=["hidden_states"])
        model.config.keys_to_ignore_at_inference = ["hidden_states", "attentions"]
        found.append(trainer.predict(padded_rows(6)).predictions)
        return [metrics["eval_parts"], *map(shapes_of, found), *leaves(found)]

    def logits_changed_with_hidden_states(self) -> Found:
        trainer = self.trainer(
            model=calm_model(output_hidden_states=True),
            compute_metrics=lambda found: {"sum": float(found.predictions[1].sum()), "rows": len(found.predictions[0])},
            preprocess_logits_for_metrics=lambda logits, labels: (logits[0].argmax(-1), logits[1][-1][:, 0]),
            per_device_eval_batch_size=4,
        )
        metrics = trainer.evaluate(padded_rows(10))
        return [metrics["eval_sum"], metrics["eval_rows"], *trainer.predict(padded_rows(10)).predictions]

    def own_model_with_more_outputs(self) -> Found:
        found: list[Any] = []
        rows = [{"input_ids": row["input_ids"], "labels": row["labels"]} for row in padded_rows()]
        for as_tuple in (False, True):
            parts = {"model": Extra(as_tuple), "train_dataset": rows, "eval_dataset": rows, "compute_metrics": hidden_scores}
            trainer = self.trained(**parts, eval_strategy="epoch")
            found += [*losses(trainer), *losses(trainer, "eval_share"), *losses(trainer, "eval_parts")]
            unlabelled = [{"input_ids": row["input_ids"]} for row in rows[:6]]
            found += leaves([trainer.predict(data).predictions for data in (rows[:6], unlabelled)])
        return found

    def own_prediction_step(self) -> Found:
        class Stepped(self.lib.Trainer):
            def prediction_step(self, model: Any, inputs: Any, prediction_loss_only: Any, ignore_keys: Any = None) -> Any:
                loss, logits, labels = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
                return loss, (logits[0], logits[1][0][:, 0]), labels

        trainer = self.trainer(Stepped, model=calm_model(output_hidden_states=True), compute_metrics=hidden_scores)
        metrics = trainer.evaluate(padded_rows())
        return [*(metrics[f"eval_{name}"] for name in ("share", "parts", "loss")), *trainer.predict(padded_rows()).predictions]


SCRIPTS = scripts.scripts_of(Columns, Order, Predictions)


@pytest.mark.sample(9)
@pytest.mark.parametrize("name", SCRIPTS)
def test_rows_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    theirs, ours = (SCRIPTS[name](lib, tmp_path) for lib in (transformers, glassloop))
    assert theirs
    scripts.assert_same(ours, theirs)


def test_a_resumed_run_notices_other_columns_and_another_order(tmp_path: Path) -> None:
    """A weight of a row that only `compute_loss` reads is part of the data."""
    place, kind = InOrder(glassloop, tmp_path), by_weight(glassloop.Trainer)
    given = {"save_strategy": "steps", "save_steps": 3, **EVERY_COLUMN}
    place.trained(kind, **given)
    place.trainer(kind, **given).train(resume_from_checkpoint=True)
    with pytest.raises(glassloop.base.errors.ResumeError, match="order: sequential then"):
        place.trainer(kind, train_sampling_strategy="random", **given).train(resume_from_checkpoint=True)
    rows = weighted_rows()
    rows[5]["weight"] = 7.0
    with pytest.raises(glassloop.base.errors.ResumeError, match=r"1 rows edited \(first row 6\)"):
        place.trainer(kind, train_dataset=rows, **given).train(resume_from_checkpoint=True)


def test_evaluations_keep_only_logits_unless_something_reads_more(tmp_path: Path) -> None:
    trainer = InOrder(glassloop, tmp_path).trainer(model=calm_model(output_hidden_states=True))
    found = trainer.evaluation(padded_rows(6))
    assert found.outputs is None
    assert found.logits.shape == (6, 2)
