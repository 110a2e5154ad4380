"""The predictions of a run as arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_runs import drawn_rows, write_drawn_run

from glassloop.base.errors import ModelError, SettingsError
from glassloop.runs.record import read_run
from glassloop.scores.intervals import has_rows_right, scored_rows, scored_split
from glassloop.settings.fields import CLASSES, SCORE, SEVERAL

FILE = Path("made-predictions.jsonl")


@pytest.mark.parametrize("task", [CLASSES, SEVERAL, SCORE])
def test_predictions_of_a_run_come_back_as_arrays(tmp_path: Path, task: str) -> None:
    rows = drawn_rows(30, task=task)
    folder = write_drawn_run(tmp_path / "run", rows)
    found = scored_split(folder, read_run(folder), "validation")
    assert found.task == task
    assert found.labels == rows.labels
    assert len(found) == 30
    np.testing.assert_array_equal(found.predictions, rows.predictions)
    np.testing.assert_array_equal(found.references, rows.references)
    np.testing.assert_array_equal(found.logits, rows.logits)


def test_a_row_of_several_labels_is_right_if_all_are() -> None:
    rows = scored_rows([{"logits": [1, -1], "label": ["a"]}, {"logits": [1, 1], "label": ["a"]}], SEVERAL, ["a", "b"], FILE)
    assert rows.right.tolist() == [True, False]
    assert has_rows_right(SEVERAL)
    assert not has_rows_right(SCORE)


@pytest.mark.parametrize(
    "entry",
    [
        {"logits": [1.0, 2.0]},
        {"logits": [1.0, 2.0], "label": "c"},
        {"logits": [1.0, 2.0], "label": ["a"]},
    ],
)
def test_labels_that_are_not_those_of_the_run_are_one_error(entry: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"made-predictions\.jsonl: the predictions do not fit the run's labels") as caught:
        scored_rows([entry], CLASSES, ["a", "b"], FILE)
    assert caught.value.remedy == "restore the file, or train again"


@pytest.mark.parametrize(
    "logits",
    [
        *(None, "text", [1.0], [1.0, float("nan")], ["1.0", "2.0"], [1.0, "text"], [1e308, -1e308], [1.0, 2**80]),
        *([[1.0, 2.0]], [1.0, [2.0]], {"a": 1}, [None, None], [1.0, 2.0, 3.0]),
    ],
)
def test_logits_that_are_not_those_of_a_model_are_one_error(logits: Any) -> None:
    sound = {"logits": [1.0, 2.0], "label": "a"}
    with pytest.raises(ModelError) as caught:
        scored_rows([sound, {"logits": logits, "label": "a"}], CLASSES, ["a", "b"], FILE)
    assert caught.value.problem == "made-predictions.jsonl, line 2: logits are not 2 finite numbers of a model"


@pytest.mark.parametrize("label", ["text", None, 1e308, [1.0]])
def test_a_score_that_is_no_number(label: Any) -> None:
    with pytest.raises(ModelError, match="a label is not a number"):
        scored_rows([{"logits": [1.0], "label": label}], SCORE, None, FILE)


def test_a_missing_split_is_named(tmp_path: Path) -> None:
    folder = write_drawn_run(tmp_path / "run", drawn_rows(5))
    with pytest.raises(SettingsError, match='no predictions for the split "test"'):
        scored_split(folder, read_run(folder), "test")
