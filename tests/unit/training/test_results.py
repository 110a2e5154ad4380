"""The documents of `--json`: the keys that docs/reference/json.md promises, with the numbers of the run."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from run_folders import RECORD

from glassloop import encode, load_examples
from glassloop.base.output import CommandResult
from glassloop.data.encoding import LengthLimit
from glassloop.data.examples import Examples
from glassloop.predictor import Wanted, evaluate_run
from glassloop.runs.record import FAILED, FINISHED, ClassRecord, SplitFacts, held_out_splits, read_run
from glassloop.runs.study import SeedRecord, SeedsRecord
from glassloop.scores.metrics import Measures
from glassloop.scores.result import Result, TrainingFacts, Verdict, rows_of
from glassloop.settings.file import RunSettings
from glassloop.settings.training import CLASSES
from glassloop.training import evaluate
from glassloop.training.evaluate import Evaluation, labels_of, length_entries, prefixes, result_of, run_content, show_result

SPLIT_KEYS = ["rows", "metrics", "baseline", "positive_label", "classes", "balanced_accuracy", "verdict", "advice"]
SPLIT_KEYS += ["baselines", "probabilities"]


def document(content: dict[str, object]) -> dict[str, Any]:
    """What a program reads."""
    return json.loads(str(CommandResult(content)))


def test_a_run_and_its_evaluation_have_the_same_splits(text_run: Path) -> None:
    record = read_run(text_run)
    content = document(run_content(text_run, record))
    keys = ["run", "status", "data", "model", "seed", "steps", "seconds", "resumed", "stages"]
    assert [*content] == [*keys, "stop_reason", "best_step", "training", "splits"]
    assert sum(content["stages"].values()) == content["seconds"]
    assert content["resumed"] is False
    assert (content["run"], content["status"], content["steps"]) == (str(text_run), "finished", 12)
    again = document(evaluate.results_content(evaluate_run(str(text_run), Wanted(device="cpu")).results))
    assert content["splits"].keys() == again.keys() == {"validation"}
    assert [*content["splits"]["validation"]] == [*again["validation"]] == SPLIT_KEYS
    for key in ("rows", "baseline", "positive_label", "classes"):
        assert content["splits"]["validation"][key] == again["validation"][key]
    assert content["splits"]["validation"]["metrics"].keys() == again["validation"]["metrics"].keys()


def test_each_validation_split_and_each_of_several_seeds_has_its_own_metrics() -> None:
    splits = {"train": SplitFacts(9), "validation_matched": SplitFacts(5), "validation_mismatched": SplitFacts(4)}
    evaluation = {"eval_loss": 0.5, "eval_accuracy": 0.75, "eval_runtime": 1.0, "eval_mismatched_loss": 0.25}
    evaluation["eval_mismatched_accuracy"] = 0.5
    record = replace(RECORD, status=FINISHED, data=replace(RECORD.data, splits=splits), metrics=("accuracy",))
    record = replace(record, evaluation=evaluation, baseline={"accuracy": 0.4, "mismatched_accuracy": 0.3})
    found = run_content(Path("out"), record)["splits"]
    scores = {
        "rows": 5,
        "metrics": {"loss": 0.5, "accuracy": 0.75},
        "baseline": {"accuracy": 0.4},
        "advice": (),
        "baselines": (),
    }
    unknown = dict.fromkeys(("positive_label", "classes", "balanced_accuracy", "verdict", "probabilities"))
    assert found["validation_matched"] | {"classes": None} == scores | unknown
    assert found["validation_mismatched"]["metrics"] == {"loss": 0.25, "accuracy": 0.5}
    assert found["validation_mismatched"]["baseline"] == {"accuracy": 0.3}
    assert run_content(Path("out"), RECORD)["splits"] == {}
    done = SeedRecord(status=FINISHED, seconds=2.0, validation={"accuracy": 0.5}, baseline={"accuracy": 0.4})
    failed = SeedRecord(status=FAILED, exit_code=3, error=("data: row 3 is empty", "try:  fill it"))
    content = document(evaluate.seeds_content(SeedsRecord(RunSettings("a.csv"), {1: done, 2: failed}, Path("out"), FAILED)))
    assert [*content] == ["run", "status", "data", "model", "seeds", "mean", "standard_deviation", "baseline", "baselines"]
    finished = {"run": "out/seed-1", "status": "finished", "seconds": 2.0, "metrics": {"accuracy": 0.5}}
    assert content["seeds"]["1"] == finished | {"exit_status": None, "error": None}
    assert content["seeds"]["2"]["exit_status"] == 3
    assert content["seeds"]["2"]["error"] == "data: row 3 is empty try:  fill it"
    assert (content["mean"], content["standard_deviation"]) == ({"accuracy": 0.5}, None)


def test_the_data(write, tiny_tokenizer) -> None:
    rows = "text,label\n" + "".join(f"good film {number},{'ab'[number % 2]}\n" for number in range(20))
    examples = load_examples(str(write("rows.csv", rows)), validation_share=0)
    encoded = encode(examples, tiny_tokenizer, 64)
    content = document(evaluate.data_content(examples, encoded, "rows.csv", "tiny", LengthLimit(64, 64)))
    assert [*content] == ["data", "model", "max_length", "task", "columns", "labels", "splits", "notes"]
    assert content["columns"] == {"text": "text", "text_pair": None, "label": ["label"]}
    assert content["labels"] == ["a", "b"]
    train = content["splits"]["train"]
    keys = ["rows", "labels", "duplicates", "also_in_train", "conflicts", "truncated", "mean_tokens", "longest_tokens"]
    assert [*train] == keys
    assert (train["rows"], train["labels"]) == (20, {"a": 10, "b": 10})
    assert train["mean_tokens"] <= train["longest_tokens"] == int(encoded["train"].lengths.max())


def examples_of(train: list[Any], validation: list[Any], **settings: Any) -> Examples:
    def rows(name: str, labels: list[Any]) -> list[dict[str, Any]]:
        return [{"text": f"{name} {number}", "label": label} for number, label in enumerate(labels)]

    return load_examples({"train": rows("train", train), "validation": rows("validation", validation)}, **settings)


def shown(examples: Examples, answers: list[int], measures: Any = None, facts: TrainingFacts | None = None) -> list[str]:
    """The lines printed about a model that gives these answers."""
    references, measures, screen = labels_of(examples, "validation"), measures or examples.measures, io.StringIO()
    metric = measures.metric(examples.task, examples.labels.names)
    values = metric.compute(predictions=np.array(answers), references=references)
    metrics = {"eval_loss": 0.5, **{f"eval_{key}": value for key, value in values.items()}, "eval_runtime": 1.0}
    found = Evaluation(np.eye(examples.num_labels)[answers], references, 0.5, 1.0, metrics)
    result = result_of(examples, "validation", found, measures, facts=facts)
    show_result(Console(file=screen, width=300), result, "validation")
    return [line.rstrip() for line in screen.getvalue().splitlines()]


def test_the_scores_of_a_run_and_of_each_class_are_shown_with_what_they_mean() -> None:
    examples = examples_of(["ok"] * 50 + ["complaint"], ["ok"] * 8 + ["complaint"] * 2)
    lines = shown(examples, [1] * 8 + [1, 0])
    assert [line.split("  ")[0] for line in lines[5:8]] == ["log loss", "Brier score", "calibration error"]
    assert [*lines[:5], *lines[8:]] == [
        "validation         this run  majority baseline",
        "loss                 0.5000                  -",
        "accuracy             0.9000             0.8000",
        "f1 (macro)           0.8039             0.4444",
        "balanced accuracy    0.7500             0.5000",
        "",
        "class      precision  recall      f1  rows",
        "complaint     1.0000  0.5000  0.6667     2",
        "ok            0.8889  1.0000  0.9412     8",
        "",
        '• Undecided against always answering "ok": accuracy 0.9000 against 0.8000 (difference +0.1000, '
        "95% confidence interval -0.1956 to +0.3623, p = 1.000, exact McNemar test, 10 rows); about 210 more rows would decide",
    ]
    facts = TrainingFacts(68, 7, 5e-5, 10_616_832, (0.7, 0.69), {"ok": 50, "complaint": 1}, 51)
    lines = shown(examples, [1] * 10, facts=facts)
    assert lines[-4].startswith('• Undecided against always answering "ok": accuracy 0.8000 against 0.8000')
    assert lines[-4].endswith('; the model answers "ok" for every row')
    assert lines[-3:] == [
        '  try --class_weights balanced: "complaint" has only 1 of 51 training rows',
        "  try --num_train_epochs 20: 68 steps are few",
        "  try --learning_rate 0.00014: 5e-05 is low for this model",
    ]
    examples = examples_of(["ok"] * 3 + ["no"] * 2, ["ok"] * 20 + ["no"] * 60)
    lines = shown(examples, [0] * 80, Measures(("accuracy", "f1"), "ok"))
    assert lines[3].startswith("f1 (ok) "), "the chosen class is named"
    assert lines[-2].startswith('• Better than always answering "ok": accuracy 0.7500 against 0.2500')
    assert lines[-1] == "• no better than the majority baseline: f1 (ok)"
    undecided = shown(examples, [1] * 80, Measures(("accuracy", "f1"), "no"))
    assert undecided[-2].startswith('• Undecided against always answering "ok"'), "nothing is said twice"
    assert undecided[-1].startswith("• the predicted probabilities are worse than the class frequencies (log loss")


def test_of_many_classes_some_are_shown_in_80_columns_and_no_name_controls_the_terminal() -> None:
    names = [f"c{number:02}" for number in range(40)]
    examples = examples_of(names * 2, [*names, "c33"])
    answers = [*range(40), 33]
    answers[20], answers[21] = 19, 19
    lines = shown(examples, answers)
    table = lines[lines.index("class                    precision  recall      f1  rows") + 1 :]
    assert table[0].split() == ["c33", "1.0000", "1.0000", "1.0000", "2"]
    assert [line.split()[0] for line in table[8:12]] == ["lowest", "c20", "c21", "c19"]
    assert table[16].rstrip() == "and 25 more"
    for number in [2, 5000]:
        classes = {f"{place} {'long ' * 30}": ClassRecord(0.5, 0.0, 0.0, place % 3) for place in range(number)}
        screen = io.StringIO()
        Console(file=screen, width=80).print(evaluate.class_table(classes))
        lines = screen.getvalue().splitlines()
        assert len(lines) == (3 if number == 2 else 18)
        assert all(len(line) <= 80 for line in lines)
        assert lines[1].rstrip().endswith("…     0.5000  0.0000  0.0000     " + ("0" if number == 2 else "2"))
        assert number == 2 or lines[-1].rstrip() == "and 4,985 more (3,318 with f1 0, 1,667 without rows)"
    name = "[red]\x1b[31m"
    rows = rows_of(np.eye(2), np.array([0, 1]), CLASSES, (name, "b"))
    result = Result("part", rows, Measures(("f1",), name), {"f1": 0.5}, {}, Verdict("better", f"Better than {name}"))
    screen = io.StringIO()
    show_result(Console(file=screen, width=100), result, "part \x1b[2J")
    assert "\x1b" not in screen.getvalue()
    lines = screen.getvalue().splitlines()
    assert lines[0].startswith(r"part \x1b[2J")
    assert lines[1].startswith(r"f1 ([red]\x1b[31m)")


def test_splits_with_labels_are_evaluated_and_named_and_numbered_labels_have_a_positive_class() -> None:
    rows = [{"text": f"{'good' if number % 2 else 'bad'} {number}", "label": number % 2} for number in range(12)]
    secret = [{**row, "label": -1} for row in rows]
    every = {"train": rows, "validation_c": secret, "validation_b": rows, "validation_a": rows}
    for data, names in [
        (rows, ["validation"]),
        ({"train": rows, "dev": rows}, ["validation"]),
        (every, ["validation_b", "validation_a"]),
        ({"train": rows, "validation": secret}, []),
        ({"test": rows}, []),
    ]:
        assert held_out_splits(load_examples(data).facts) == names
    assert prefixes(["validation_matched", "validation_mismatched"]) == ["eval", "eval_mismatched"]
    assert (prefixes(["validation"]), prefixes([])) == (["eval"], [])
    assert examples_of([0, 1, 0, 1], [0, 1]).measures == Measures(("accuracy", "f1"), "1")
    assert examples_of([0, 1, 0, 1], [0, 1], labels="ham,spam").measures == Measures(("accuracy", "f1"), "spam")
    assert examples_of([True, False], [True]).measures == Measures(("accuracy", "f1"), "true")
    assert examples_of(["spam", "ham"], ["ham"], labels="ham,spam").measures == Measures(("accuracy", "f1_macro"))


def evaluation_of(examples: Examples, answers: list[int]) -> Evaluation:
    metrics = {"eval_loss": 0.5, "eval_accuracy": 0.75, "eval_runtime": 1.0}
    return Evaluation(np.eye(2)[answers], labels_of(examples, "validation"), 0.5, 1.0, metrics)


def test_a_result_has_the_baseline_if_the_training_rows_are_known_and_a_record_holds_it() -> None:
    examples = examples_of(["a"] * 2 + ["b"] * 3, ["a", "a", "a", "b"])
    found = evaluation_of(examples, [0, 0, 0, 0])
    result = result_of(examples, "validation", found, examples.measures)
    assert result.metrics == {"loss": 0.5, "accuracy": 0.75}
    assert result.baseline == {"accuracy": 0.25, "f1_macro": pytest.approx(0.2)}
    assert result.classes["b"] == ClassRecord(None, 0.0, 0.0, 1)
    assert result_of(examples, "train", found, examples.measures).baseline is None
    other = result_of(examples, "train", found, examples.measures, trained_on={"a": 9, "b": 1})
    assert other.baseline["accuracy"] == 0.75
    record = evaluate.scored(RECORD, [result])
    assert record.evaluation == {"eval_loss": 0.5, "eval_accuracy": 0.75, "eval_runtime": 1.0}
    assert record.baseline == {"accuracy": 0.25, "f1_macro": pytest.approx(0.2)}
    assert (record.classes, record.balanced_accuracy, record.advice) == (result.classes, 0.5, ())
    assert record.verdict == (result.verdict and result.verdict.sentence)


def test_predictions_are_one_line_per_row_with_its_length_and_what_was_cut(tmp_path: Path, tiny_tokenizer: Any) -> None:
    examples = examples_of(["a"] * 2 + ["b"] * 3, ["a", "b"])
    result = result_of(examples, "validation", evaluation_of(examples, [1, 1]), examples.measures)
    evaluate.write_predictions(tmp_path / "rows.jsonl", examples, result)
    assert [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == [
        {"row": 0, "prediction": "b", "label": "a", "logits": [0.0, 1.0], "text": "validation 0"},
        {"row": 1, "prediction": "b", "label": "b", "logits": [0.0, 1.0], "text": "validation 1"},
    ]
    more = length_entries(examples, "validation", np.array([3, 4]), tiny_tokenizer, 4)
    assert [entry["tokens"] for entry in more.values()] == [3, 4]
    (start, end) = more[1]["kept"]["text"]
    assert (start, "validation 1"[:end] != "validation 1") == (0, True)
    evaluate.write_predictions(tmp_path / "rows.jsonl", examples, result, more)
    assert json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[1])["kept"] == {"text": [start, end]}
    assert "kept" not in length_entries(examples, "validation", np.array([3, 4]), None, 4)[1], "without a tokenizer"


def test_texts_of_two_towers_are_cut_one_by_one(tiny_tokenizer: Any) -> None:
    rows = [{"a": "good film", "b": "bad film", "label": "ny"[number % 2]} for number in range(8)]
    rows[1] |= {"a": "good film " * 9}
    examples = load_examples({"train": rows, "validation": rows[:2]}, text="a", text_pair="b", label="label")
    lengths = np.array([8, 10])  # of both texts: more than the six tokens that each of them may have
    found = length_entries(examples, "validation", lengths, tiny_tokenizer, 6, towers=True)
    assert "kept" not in found[0], "nothing was cut"
    assert [*found[1]["kept"]] == ["a"]
    assert length_entries(examples, "validation", lengths, tiny_tokenizer, 6)[0]["kept"], "in one sequence, it would be"
