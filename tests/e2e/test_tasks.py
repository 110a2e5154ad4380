"""Every task through the real command: train, evaluate, predict a text and a file; and all that is left in the run folder."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import run_forked
from trials import Ended, Servers, json_lines

from glassloop import decide, load_model, metrics_for

WORDS = "the a is was good bad film story very not and of to in on it this that first second".split()


def sentence(number: int) -> str:
    return " ".join(WORDS[(number * step) % len(WORDS)] for step in (3, 7, 11, 13, 17)[: 2 + number % 4])


@dataclass(frozen=True)
class Task:
    """A task, its generated rows, and what is said on the command line."""

    kind: str
    header: list[str]
    rows: list[list[Any]]
    flags: list[str]
    labels: list[str] | None
    metrics: list[str]
    texts: list[str] = field(default_factory=lambda: ["text"])


GENRES = ["fun", "long", "old"]
SETS = [[name for place, name in enumerate(GENRES) if (number * 5 + 3) % 7 >> place & 1] for number in range(90)]
F1 = ["f1_micro", "f1_macro", "exact_match"]
SCORES = [[sentence(n), sentence(n * n + 1), round((n * 37 % 50) / 10 + n / 1000, 3)] for n in range(90)]
SEPARATED = [[f"{sentence(n)} {n}", " ; ".join(names)] for n, names in enumerate(SETS)]
COLUMNS = [[f"{sentence(n)} {n}", *(int(name in names) for name in GENRES)] for n, names in enumerate(SETS)]
TEN = [[f"{sentence(n)} {n}", f"topic {n % 10}"] for n in range(90)]
TASKS = {
    "scores": Task("regression", ["sentence1", "sentence2", "score"], SCORES, [], None, ["pearson", "spearmanr", "mse"],
                   ["sentence1", "sentence2"]),
    "separated": Task("multi_label_classification", ["text", "genres"], SEPARATED,
                      ["--label", "genres", "--label_separator", ";"], GENRES, F1),
    "columns": Task("multi_label_classification", ["text", *GENRES], COLUMNS, ["--label", "fun,long,old"], GENRES, F1),
    "ten": Task("single_label_classification", ["text", "label"], TEN, [], [f"topic {number}" for number in range(10)],
                ["accuracy", "f1_macro"]),
}  # fmt: skip
EVERY = pytest.mark.parametrize("name", TASKS)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of every task."""
    folder = tmp_path_factory.mktemp("tasks")
    for name, task in TASKS.items():
        (folder / name).mkdir()
        for split, rows in {"train": task.rows[:60], "validation": task.rows[60:79], "test": task.rows[79:]}.items():
            with (folder / name / f"{split}.csv").open("w", newline="", encoding="utf-8") as opened:
                csv.writer(opened).writerows([task.header, *rows])
    return folder


@pytest.fixture(scope="module")
def ended(place: Path, lively_dir: Path, servers: Servers, session_cache: Path) -> dict[str, list[Ended]]:
    """Each task trained, evaluated, asked for a text and for a file."""
    commands = []
    for name, task in TASKS.items():
        run = f"run-{name}"
        settings = ["--num_train_epochs", "2", "--learning_rate", "3e-3", "--eval_strategy", "epoch", "--save_strategy", "no"]
        settings += ["--per_device_train_batch_size", "8"]
        common = ["--model", str(lively_dir), "--output_dir", run, "--device", "cpu", "--precision", "fp32"]
        commands += [
            ["train", name, *common, *settings, *task.flags],
            ["evaluate", run, "--device", "cpu"],
            ["predict", run, *task.rows[79][: len(task.texts)], "--device", "cpu"],
            ["predict", run, "--file", f"{name}/test.csv", "--out", f"{name}.jsonl", "--device", "cpu"],
        ]
    every = run_forked(servers, *commands, folder=place, GLASSLOOP_CACHE=str(session_cache))
    return {name: every[4 * number : 4 * number + 4] for number, name in enumerate(TASKS)}


def description(place: Path, name: str) -> dict[str, Any]:
    return json.loads((place / f"run-{name}" / "run.json").read_text(encoding="utf-8"))


def title(metric: str) -> str:
    """What a table calls a metric."""
    return {"f1_macro": "f1 (macro)", "f1_micro": "f1 (micro)"}.get(metric, metric)


def test_a_frozen_encoder_goes_through_every_command(
    lively_dir: Path, servers: Servers, session_cache: Path, tmp_path: Path
) -> None:
    place = tmp_path
    with (place / "ten.csv").open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows([["text", "label"], *TEN])
    common = ["ten.csv", "--model", str(lively_dir), "--device", "cpu", "--precision", "fp32", "--validation_share", "0.3"]
    varied = ["--vary", "method=frozen,fine_tune", "--seeds", "1", "--max_steps", "2", "--output_dir", "methods"]
    commands = [
        ["train", *common, "--method", "frozen", "--output_dir", "frozen"],
        ["train", *common, "--max_steps", "2", "--output_dir", "tuned"],
        ["evaluate", "frozen", "--device", "cpu"],
        ["predict", "frozen", "a good film", "--device", "cpu"],
        ["calibrate", "frozen", "--force"],
        ["report", "frozen"],
        ["compare", "frozen", "tuned"],
        ["list", "."],
        ["push", "frozen", "somebody/frozen", "--dry_run"],
        ["study", *common, *varied],
    ]
    told = run_forked(servers, *commands, folder=place, GLASSLOOP_CACHE=str(session_cache))
    for words, one in zip(commands, told, strict=True):
        assert one.code == 0, f"{words}: {one.err}"
    found = json.loads((place / "frozen" / "run.json").read_text(encoding="utf-8"))
    assert (found["status"], found["plan"]["max_steps"]) == ("finished", 0)
    assert found["evaluation"]["eval_accuracy"] == pytest.approx(found["baselines"][2]["scores"]["accuracy"]["value"])
    assert "learning rate" not in told[0].err
    assert "the frozen encoder" in (place / "frozen" / "report.html").read_text(encoding="utf-8")
    assert all(name in told[7].out for name in ("frozen", "tuned"))
    study = json.loads((place / "methods" / "study.json").read_text(encoding="utf-8"))
    assert study["status"] == "finished"


@EVERY
def test_it_trains_to_its_end(name: str, place: Path, ended: dict[str, list[Ended]]) -> None:
    trained = ended[name][0]
    assert (trained.code, trained.out) == (0, ""), trained.err
    found, task = description(place, name), TASKS[name]
    assert found["status"] == "finished"
    assert found["data"]["task"] == task.kind
    assert found["data"]["labels"] == task.labels
    assert [*found["evaluation"]][:-2] == [f"eval_{metric}" for metric in ("loss", *task.metrics)]
    assert [*found["baseline"]] == [metric for metric in task.metrics if metric not in ("pearson", "spearmanr")]
    assert f"task           {task.kind.replace('_', ' ')}" in trained.err
    constant = "training mean" if task.kind == "regression" else "class frequencies"
    assert [one["name"] for one in found["baselines"]] == [constant, "words", "frozen encoder"]
    for metric in task.metrics:
        simple = [one["scores"][metric]["value"] if metric in one["scores"] else None for one in found["baselines"]]
        assert simple[0] == found["baseline"].get(metric)
        assert None not in simple[1:]
        figures = ["-" if value is None else f"{value:.4f}" for value in (found["evaluation"][f"eval_{metric}"], *simple)]
        assert any(line.split()[-4:] == figures and line.startswith(title(metric)) for line in trained.lines), figures


@EVERY
def test_the_run_folder_is_complete(name: str, place: Path, ended: dict[str, list[Ended]]) -> None:
    folder, task = place / f"run-{name}", TASKS[name]
    names = "baselines.safetensors head.safetensors history.jsonl model run.json sessions.jsonl validation-predictions.jsonl"
    assert sorted(path.name for path in folder.iterdir()) == names.split()
    history = json_lines(folder / "history.jsonl")
    assert [entry["step"] for entry in history] == [8, 8, 10, 16, 16]
    assert ["loss" in entry for entry in history] == [True, False, True, True, False]
    assert history[-1]["eval_loss"] == pytest.approx(description(place, name)["evaluation"]["eval_loss"], abs=1e-6)
    model = load_model(str(folder / "model"))
    assert model.config.problem_type == task.kind
    assert [model.config.id2label[number] for number in range(model.config.num_labels)] == (task.labels or ["LABEL_0"])


@EVERY
def test_the_reported_metrics_come_out_again_of_the_predictions(name: str, place: Path, ended: dict[str, list[Ended]]) -> None:
    task = TASKS[name]
    rows = json_lines(place / f"run-{name}" / "validation-predictions.jsonl")
    assert [[row[column] for column in task.texts] for row in rows] == [row[: len(task.texts)] for row in task.rows[60:79]]
    decided = decide(np.array([row["logits"] for row in rows], dtype=np.float32), task.kind)
    labels: Any = [row["label"] for row in rows]
    predictions: Any = [row["prediction"] for row in rows]
    if task.kind == "multi_label_classification":
        labels, predictions = ([[int(label in row) for label in GENRES] for row in rows] for rows in (labels, predictions))
    elif task.labels:
        labels, predictions = ([task.labels.index(label) for label in rows] for rows in (labels, predictions))
    assert np.array_equal(decided, np.array(predictions, dtype=decided.dtype))
    kind = np.float32 if task.kind == "regression" else np.int64
    again = metrics_for(task.kind, len(task.labels or [0])).compute(
        predictions=decided, references=np.array(labels, dtype=kind)
    )
    evaluation = description(place, name)["evaluation"]
    assert again == {metric: evaluation[f"eval_{metric}"] for metric in task.metrics}
    if task.kind == "regression":
        assert labels == pytest.approx([row[2] for row in task.rows[60:79]], abs=1e-6)


@EVERY
def test_it_is_evaluated_with_the_same_figures(name: str, place: Path, ended: dict[str, list[Ended]]) -> None:
    evaluated, evaluation = ended[name][1], description(place, name)["evaluation"]
    assert evaluated.code == 0, evaluated.err
    assert evaluated.out.startswith("validation (19 rows)")
    metrics = ["loss", *TASKS[name].metrics]
    lines = evaluated.out.splitlines()[1 : 1 + len(metrics)]
    for metric, line in zip(metrics, lines, strict=True):
        assert line.startswith(title(metric))
        assert float(line.split()[-4]) == pytest.approx(evaluation[f"eval_{metric}"], abs=2e-4)
    assert description(place, name)["verdict"] in " ".join(evaluated.out.split()), "the run is judged once"


@EVERY
def test_it_predicts_a_text_and_a_file_alike(name: str, place: Path, ended: dict[str, list[Ended]]) -> None:
    (_, _, text, file), task = ended[name], TASKS[name]
    assert (text.code, file.code) == (0, 0), text.err + file.err
    assert file.out == f"11 rows → {name}.jsonl\n"
    rows = json_lines(place / f"{name}.jsonl")
    assert [[row[column] for column in task.texts] for row in rows] == [row[: len(task.texts)] for row in task.rows[79:]]
    shown = [line.rsplit(None, 1) for line in text.out.splitlines()]
    if task.kind == "regression":
        ((name, score),) = shown
        assert (name, float(score)) == ("score", pytest.approx(rows[0]["prediction"], abs=1e-4))
        assert len({row["prediction"] for row in rows}) > 5
        return
    scores = {label: rows[0][f"score_{label}"] for label in task.labels or []}
    assert [label for label, _ in shown] == sorted(scores, key=lambda label: -scores[label])
    for label, score in shown:
        assert float(score) == pytest.approx(scores[label], abs=1e-4)
    if task.kind == "multi_label_classification":
        assert all(row["prediction"] == [label for label in GENRES if row[f"score_{label}"] >= 0.5] for row in rows)
    else:
        assert all(row["prediction"] == max(scores, key=lambda label: row[f"score_{label}"]) for row in rows)


def test_one_cell_or_several_columns_make_no_difference(place: Path, ended: dict[str, list[Ended]]) -> None:
    """The same labels written in two ways: the same numbers to the last bit."""
    first, second = (
        [row["logits"] for row in json_lines(place / f"run-{name}" / "validation-predictions.jsonl")]
        for name in ("separated", "columns")
    )
    assert first == second
