"""What the outputs of a model mean: its task, and labels with names of their own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from glassloop.base.errors import ModelError
from glassloop.models.interface import carried_labels, label_names, refuse_other_labels, task_of
from glassloop.settings.fields import CLASSES, SCORE, SEVERAL


@pytest.mark.parametrize(
    ("given", "carried"),
    [
        ({0: "LABEL_0", 1: "LABEL_1"}, None),
        ({0: "LABEL_0", 1: "yes"}, ("LABEL_0", "yes")),
        ({1: "b", 0: "a"}, ("a", "b")),
        ({10: "k", 9: "j", **{n: str(n) for n in range(9)}}, (*map(str, range(9)), "j", "k")),
        ({0: "LABEL_0\n"}, ("LABEL_0\n",)),
    ],
)
def test_the_labels_a_model_carries(given: dict[int, str], carried: tuple[str, ...] | None) -> None:
    assert carried_labels(SimpleNamespace(id2label=given)) == carried


def test_two_outputs_of_one_name_are_refused(says) -> None:
    with says(
        'the model has two outputs with the label "a"',
        "give each its own name in id2label and label2id of its config.json",
        ModelError,
    ):
        label_names(SimpleNamespace(id2label={0: "a", 1: "b", 2: "a"}))


@pytest.mark.parametrize(
    ("given", "num_labels", "task"), [(None, 1, SCORE), (None, 2, CLASSES), (SEVERAL, 3, SEVERAL), (CLASSES, 1, CLASSES)]
)
def test_the_task_of_a_model(given: str | None, num_labels: int, task: str) -> None:
    assert task_of(SimpleNamespace(problem_type=given, num_labels=num_labels)) == task


def test_labels_of_a_model_and_of_the_data_must_be_the_same_in_the_same_order(says) -> None:
    refuse_other_labels("model", ("no", "yes"), ("no", "yes"))
    with says("model: the order of the model's labels is no, yes; that of the data is yes, no", None, ModelError):
        refuse_other_labels("model", ("no", "yes"), ("yes", "no"))
    with says("model: the model was trained for the labels no, yes; the data has a, b", None, ModelError):
        refuse_other_labels("model", ("no", "yes"), ("a", "b"))
