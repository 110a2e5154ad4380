"""Texts, labels, lengths and duplicates of rows of every kind that a Trainer accepts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from run_folders import RECORD
from small_training import small_rows, trained

from glassloop import Trainer
from glassloop.data import rows as row_module
from glassloop.data.rows import RowReader
from glassloop.runs.record import TRAINER_NAME, read_predictions, read_record
from glassloop.scores.metrics import Measures
from glassloop.settings.training import CLASSES, SEVERAL
from glassloop.training import recorder
from glassloop.training.callbacks import State
from glassloop.training.evaluate import Evaluation
from glassloop.training.recorder import (
    GivenRows,
    Recorder,
    can_be_stored,
    decoded_texts,
    facts_of,
    read_given,
    text_columns,
    with_scores,
)

COLUMNS = {
    "guid": ["a-1", "a-2", "a-3"],
    "first": ["a good film", "a bad film", "a good film"],
    "second": ["it was good", "it was bad", "it was good"],
    "input_ids": [[2, 5, 3], [2, 6, 7, 3], [2, 5, 3]],
    "labels": [1, 0, 1],
}


class Rows:
    """Rows that code of the user returns, as tensors."""

    def __init__(self, number: int = 3) -> None:
        self.number = number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, row: int) -> dict[str, Any]:
        torch.rand(1)
        return {
            "input_ids": torch.tensor([2, 5, 3, 0]),
            "attention_mask": torch.tensor([1, 1, 1, 0]),
            "labels": torch.tensor(1),
        }


def listed() -> list[dict[str, Any]]:
    return [{name: cells[row] for name, cells in COLUMNS.items()} for row in range(3)]


@pytest.mark.parametrize(
    "rows",
    [
        Dataset.from_dict(COLUMNS),
        Dataset.from_dict(COLUMNS).with_format("torch", columns=["input_ids", "labels"]),
        Dataset.from_dict(COLUMNS).with_transform(lambda batch: 1 / 0),
        listed(),
        tuple(listed()),
    ],
    ids=["dataset", "format", "transform", "list", "tuple"],
)
def test_text_columns_labels_and_lengths_are_found(rows: Any) -> None:
    found = read_given(rows)
    assert found is not None
    assert {*found.texts} == {"first", "second"}, "not the column of names"
    assert found.texts["first"][1] == "a bad film"
    assert found.labels is not None
    assert found.labels.tolist() == [1, 0, 1]
    assert found.lengths is not None
    assert found.lengths.tolist() == [3, 4, 3]


def test_rows_of_the_user_are_known_from_an_earlier_reading() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    assert read_given(Rows()) == GivenRows(3), "rows that may be slow are not read for a report"
    assert torch.equal(torch.rand(1), expected)
    reader = RowReader(Rows())
    assert [reader[row]["labels"].item() for row in (2, 0)] == [1, 1]
    assert read_given(reader) == GivenRows(3), "a row was not read"
    reader.survey()
    found = read_given(reader)
    assert found is not None
    assert found.lengths is not None
    assert found.lengths.tolist() == [3, 3, 3], "padding does not count"
    assert found.ids[0] == [2, 5, 3, 0]


def test_only_the_number_of_very_many_rows_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    many = RowReader(Rows(row_module.MOST_NOTED + 1))
    many.survey()
    assert read_given(many) == GivenRows(row_module.MOST_NOTED + 1)
    monkeypatch.setattr(recorder, "MOST_READ", 2)
    assert read_given(Dataset.from_dict(COLUMNS)) == read_given(listed()) == GivenRows(3)
    assert read_given(iter([1])) is read_given(None) is None  # type: ignore[arg-type]
    assert read_given([[1], [2]]) == GivenRows(2)  # type: ignore[arg-type,list-item]


def test_padded_rows_have_their_true_lengths() -> None:
    columns = {"input_ids": [[2, 5, 3], [2, 3, 0]], "attention_mask": [[1, 1, 1], [1, 1, 0]]}
    found = read_given(Dataset.from_dict(columns))
    assert found is not None
    assert found.lengths is not None
    assert found.lengths.tolist() == [3, 2]


def test_the_columns_with_several_words_are_texts() -> None:
    assert text_columns({"id": ["x"], "text": ["two words"]}) == ["text"]
    assert text_columns({"id": ["x"], "word": ["longer"]}) == ["word"]
    assert text_columns({}) == []


def test_tokens_become_texts_and_pairs(tiny_tokenizer) -> None:
    single = tiny_tokenizer(["the good film", "the"])["input_ids"]
    assert decoded_texts(single, tiny_tokenizer) == [{"text": "the good film"}, {"text": "the"}]
    pairs = tiny_tokenizer(["the good film", "the"], ["the film", "good"], padding=True)["input_ids"]
    assert decoded_texts(pairs, tiny_tokenizer)[1] == {"text": "the", "text_pair": "good"}


def test_labels_duplicates_conflicts_and_overlap_are_counted() -> None:
    train = GivenRows(3, {"text": ["a b", "c d", "a b"]}, labels=np.array([0, 1, 1]))
    facts = facts_of(train, ("no", "yes"), CLASSES, None)
    assert (facts.num_rows, facts.label_counts, facts.num_duplicates, facts.num_conflicts) == (3, {"no": 1, "yes": 2}, 1, 1)
    other = GivenRows(2, {"text": ["a b", "e f"]})
    facts = facts_of(other, ("no", "yes"), CLASSES, train.keys())
    assert (facts.num_in_train, facts.unlabelled, len(facts.fingerprint)) == (1, True, 32)
    several = GivenRows(2, labels=np.array([[1, 0], [1, 1]]))
    facts = facts_of(several, ("a", "b"), SEVERAL, None)
    assert (facts.label_counts, facts.fingerprint) == ({"a": 2, "b": 1}, ""), "without texts nothing is known of duplicates"
    assert GivenRows(2, ids=[[1, 2], [1, 2]]).keys()[0] == GivenRows(1, ids=[[1, 2]]).keys()[0]  # type: ignore[index]


# --- The record of a Trainer's training: what it is before the first step, at the end, and what of an evaluation is stored.


def evaluation(logits: Any, labels: Any, **metrics: float) -> Evaluation:
    return Evaluation(np.array(logits, dtype=np.float32), np.array(labels), 0.5, 1.0, metrics)


@pytest.mark.parametrize(("best", "best_step", "expected"), [(False, 4, 6), (True, 4, 4), (True, 1, None), (True, None, 6)])
def test_the_evaluation_of_the_returned_weights_is_shown(best: bool, best_step: int | None, expected: int | None) -> None:
    """That of the best step, unless it took place before the training was resumed."""
    processes = SimpleNamespace(is_main=False)
    args, backend = SimpleNamespace(load_best_model_at_end=best), SimpleNamespace(processes=processes)
    found = Recorder(SimpleNamespace(state=State(), args=args, backend=backend), None, np.asarray, None)  # type: ignore[arg-type]
    for step in (2, 4, 6):
        found.parts.state.step = step
        found.evaluated(replace(evaluation([[0.0, 1.0]], [1]), loss=float(step)))
        found.parts.state.best_step = best_step if best_step is None else min(step, best_step)
    found.end({})
    assert (found.shown and found.shown.loss) == expected


def test_what_is_too_large_or_of_another_shape_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = evaluation([[0, 1], [1, 0]], [1, 0])
    assert can_be_stored(fits, ("a", "b"))
    assert not can_be_stored(fits, ("a", "b", "c"))
    assert not can_be_stored(evaluation([[[0, 1]]], [[1]]), ("a", "b")), "one label per token"
    assert not can_be_stored(evaluation([[0, 1]], [-100]), ("a", "b"))
    monkeypatch.setattr(recorder, "MOST_LOGITS", 3)
    assert not can_be_stored(fits, ("a", "b"))


def test_a_metric_of_the_user_has_the_baseline_only_if_it_is_the_same() -> None:
    kept = evaluation([[0, 1], [1, 0], [1, 0]], [1, 0, 1], eval_accuracy=2 / 3, eval_f1=0.1, eval_own=7.0)
    train = GivenRows(3, labels=np.array([1, 1, 0]))
    found = with_scores(RECORD, kept, None, train)
    assert found.metrics == ("accuracy", "f1", "own")
    assert found.baseline == {"accuracy": 2 / 3}, "this f1 is another one"
    found = with_scores(RECORD, kept, Measures(("accuracy",)), train)
    assert (found.metrics, found.evaluation and found.evaluation["eval_accuracy"]) == (("accuracy",), 2 / 3)


def test_of_many_rows_only_those_that_a_report_lists_have_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = evaluation([[0, 1], [5, 0]], [1, 0])
    rows = GivenRows(2, {"text": ["one", "two"]})
    found = Recorder(None, None, lambda scored: np.array([1]), None)  # type: ignore[arg-type]
    assert found.texts(rows, kept, RECORD) == [{"text": "one"}, {"text": "two"}]
    monkeypatch.setattr(recorder, "MOST_STORED_TEXTS", 1)
    assert found.texts(rows, kept, RECORD) == [{}, {"text": "two"}]
    assert found.texts(GivenRows(5), kept, RECORD) == [{}, {}], "other rows than those that were evaluated"
    assert found.texts(None, kept, RECORD) == [{}, {}]


def test_the_folder_of_a_trainer_has_everything_a_report_needs(tmp_path: Path, tiny_tokenizer) -> None:
    trainer = trained(tmp_path, small_rows(20), tiny_tokenizer, eval_strategy="steps", eval_steps=6)
    assert isinstance(trainer, Trainer)
    found = read_record(tmp_path / TRAINER_NAME)
    assert (found.status, found.plan.max_steps, found.model.type, found.backend) == ("finished", 12, "bert", "packed")
    assert found.data.splits["train"].label_counts == {"LABEL_0": 10, "LABEL_1": 10}
    assert found.lengths["validation"].longest == 9
    assert found.baseline == {"accuracy": 0.5}
    assert found.padding > 0
    assert not hasattr(found.settings, "tf32"), "a setting that only transformers has"
    stored = read_predictions(tmp_path, "validation")
    assert len(stored) == 20
    assert {*stored[0]} == {"row", "prediction", "label", "logits", "tokens", "text"}
    assert stored[2]["text"] == tiny_tokenizer.decode(small_rows(3)[2]["input_ids"], skip_special_tokens=True)
