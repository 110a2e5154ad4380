"""The comparison of an export with its run: differences, changed answers, metrics with intervals, and speed in turns."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from made_runs import make_run

from glassloop.base.errors import ModelError
from glassloop.predict.answers import Answering
from glassloop.runs.record import read_run
from glassloop.settings.fields import CLASSES, SCORE, SEVERAL
from glassloop.share.export import StoredRows, changes, speeds, validation_rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("made") / "run", labels=3)


def compared(folder: Path, task: str, change: Any, **thresholds: float) -> Any:
    run = read_run(folder)
    rows = validation_rows(folder, run)
    before = np.array([entry["logits"] for entry in rows.entries])
    after = before.copy()
    change(after)
    names = run.data.labels or ("LABEL_0",)
    return changes(rows, run, Answering(task, tuple(names), 1.0, thresholds), before, after)


def test_the_same_logits_change_nothing(folder: Path) -> None:
    found = compared(folder, CLASSES, lambda after: None)
    assert (found.largest, found.flipped) == (0.0, ())
    for one in found.metrics.values():
        assert one.run == one.exported
        assert one.low < one.difference == 0 < one.high, "other rows could still differ"


def test_a_changed_answer_is_found_with_its_row(folder: Path) -> None:
    def change(after: np.ndarray) -> None:
        after[4] = -after[4]

    found = compared(folder, CLASSES, change)
    assert (found.flipped, found.largest_row) == ((4,), 4)
    assert [*found.metrics] == ["accuracy", "f1_macro"]
    accuracy = found.metrics["accuracy"]
    assert accuracy.difference == pytest.approx(accuracy.exported - accuracy.run) == pytest.approx(-1 / 24)
    assert accuracy.test == "exact McNemar test"


def test_answers_follow_the_thresholds(folder: Path) -> None:
    """A small change of logits changes an answer only across a threshold."""
    plain = compared(folder, CLASSES, lambda after: after.__iadd__(np.array([1e-9, 0, 0])))
    strict = compared(folder, CLASSES, lambda after: None, **{"label 0": 0.0})
    assert plain.flipped == ()
    assert strict.metrics["accuracy"].run < plain.metrics["accuracy"].run, "label 0 is always chosen"


@pytest.mark.parametrize("task", [SEVERAL, SCORE])
def test_other_tasks(task: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", task=task, labels=3)
    found = compared(run, task, lambda after: after.__imul__(-1))
    assert len(found.flipped) == (0 if task == SCORE else 24)
    assert found.largest > 0
    assert all(one.low <= one.high for one in found.metrics.values())


@pytest.mark.parametrize("task", [CLASSES, SEVERAL, SCORE])
@pytest.mark.parametrize("rows", [1, 2])
def test_few_rows_have_finite_figures(task: str, rows: int, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", task=task, labels=3, rows=rows)
    for sign in (1, -1):
        found = compared(run, task, lambda after, sign=sign: after.__imul__(sign))
        figures = [value for one in found.metrics.values() for value in vars(one).values() if isinstance(value, float)]
        assert np.isfinite(figures).all()


def test_a_run_without_validation_predictions(says, folder: Path, tmp_path: Path) -> None:
    problem = f"{tmp_path}: the run has no stored predictions for validation rows, which an export is compared with"
    with says(problem, "train it again with validation rows, for example with --validation_share 0.1"):
        validation_rows(tmp_path, read_run(folder))


def test_rows_without_texts(says, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "validation-predictions.jsonl"
    lines = [json.loads(line) for line in (folder / path.name).read_text().splitlines()]
    del lines[2]["text"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with says(f"{path}, line 3: there is no text or no label", "restore the file, or train the run again", ModelError):
        validation_rows(tmp_path, read_run(folder))


def test_rows_are_spread_evenly() -> None:
    rows = StoredRows("validation", [{"text": "a"}] * 101, ("text",), Path("file"))
    assert rows.spread(5) == [0, 25, 50, 75, 100]
    assert StoredRows("validation", [{"text": "a"}] * 3, ("text",), Path("file")).spread(5) == [0, 1, 2]


def measured(seconds: float, rounds: int) -> tuple[dict[str, float], list[str]]:
    now, calls = [0.0], []

    def forward(rows: object, name: str) -> None:
        calls.append(name)
        now[0] += seconds

    predictors = {name: SimpleNamespace(forward=partial(forward, name=name)) for name in ("one", "other")}
    return speeds(predictors, [None] * 6, rounds=rounds, clock=lambda: now[0]), calls


def test_predictors_are_measured_in_turns_after_a_warm_up() -> None:
    assert measured(2.0, 2) == ({"one": 3.0, "other": 3.0}, ["one", "other"] * 3)


def test_a_slow_model_is_measured_once() -> None:
    assert measured(100.0, 9) == ({"one": 0.06, "other": 0.06}, ["one", "other"] * 2)
