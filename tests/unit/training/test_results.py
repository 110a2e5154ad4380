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
from glassloop.base.result import CommandResult
from glassloop.data.encoding import LengthLimit
from glassloop.data.examples import Examples
from glassloop.predict.evaluation import Wanted, evaluate_run
from glassloop.runs.record import FAILED, FINISHED, ClassRecord, SplitFacts, read_run
from glassloop.runs.study import SeedRecord, SeedsRecord
from glassloop.scores.measures import Measures
from glassloop.settings.file import RunSettings
from glassloop.training.evaluate import Evaluation
from glassloop.training.results import (
    Comparison,
    Outcome,
    TrainingFacts,
    class_scores,
    class_table,
    data_content,
    facts_of,
    label_of,
    labels_of,
    length_entries,
    majority_baseline,
    outcome_of,
    outcomes_content,
    prefixes,
    run_content,
    scored,
    seeds_content,
    show_outcome,
    validation_names,
    verdict_of,
    write_predictions,
)

SPLIT_KEYS = ["rows", "metrics", "baseline", "positive_label", "classes", "balanced_accuracy", "verdict", "advice"]


def test_a_run_and_its_evaluation_have_the_same_splits(text_run: Path) -> None:
    record = read_run(text_run)
    content = json.loads(str(CommandResult(run_content(text_run, record))))
    assert [*content] == [
        *("run", "status", "data", "model", "seed", "steps", "seconds", "stop_reason", "best_step", "training", "splits"),
    ]
    assert (content["run"], content["status"], content["steps"]) == (str(text_run), "finished", 20)
    again = json.loads(str(CommandResult(outcomes_content(evaluate_run(str(text_run), Wanted(device="cpu")).outcomes))))
    assert content["splits"].keys() == again.keys() == {"validation"}
    assert [*content["splits"]["validation"]] == [*again["validation"]] == SPLIT_KEYS
    for key in ("rows", "baseline", "positive_label", "classes"):
        assert content["splits"]["validation"][key] == again["validation"][key]
    assert content["splits"]["validation"]["metrics"].keys() == again["validation"]["metrics"].keys()


def test_each_validation_split_has_its_own_metrics() -> None:
    splits = {"train": SplitFacts(9), "validation_matched": SplitFacts(5), "validation_mismatched": SplitFacts(4)}
    evaluation = {"eval_loss": 0.5, "eval_accuracy": 0.75, "eval_runtime": 1.0, "eval_mismatched_loss": 0.25}
    record = replace(
        RECORD,
        status=FINISHED,
        data=replace(RECORD.data, splits=splits),
        metrics=("accuracy",),
        evaluation={**evaluation, "eval_mismatched_accuracy": 0.5},
        baseline={"accuracy": 0.4, "mismatched_accuracy": 0.3},
    )
    found = run_content(Path("out"), record)["splits"]
    assert isinstance(found, dict)
    assert found["validation_matched"] | {"classes": None} == {
        "rows": 5,
        "metrics": {"loss": 0.5, "accuracy": 0.75},
        "baseline": {"accuracy": 0.4},
        "positive_label": None,
        "classes": None,
        "balanced_accuracy": None,
        "verdict": None,
        "advice": (),
    }
    assert found["validation_mismatched"]["metrics"] == {"loss": 0.25, "accuracy": 0.5}
    assert found["validation_mismatched"]["baseline"] == {"accuracy": 0.3}
    assert run_content(Path("out"), RECORD)["splits"] == {}


def test_the_data(write, tiny_tokenizer) -> None:
    rows = "text,label\n" + "".join(f"good film {number},{'ab'[number % 2]}\n" for number in range(20))
    examples = load_examples(str(write("rows.csv", rows)), validation_share=0)
    encoded = encode(examples, tiny_tokenizer, 64)
    content = json.loads(str(CommandResult(data_content(examples, encoded, "rows.csv", "tiny", LengthLimit(64, 64)))))
    assert [*content] == ["data", "model", "max_length", "task", "columns", "labels", "splits", "notes"]
    assert content["columns"] == {"text": "text", "text_pair": None, "label": ["label"]}
    assert content["labels"] == ["a", "b"]
    train = content["splits"]["train"]
    assert [*train] == [
        *("rows", "labels", "duplicates", "also_in_train", "conflicts", "truncated", "mean_tokens", "longest_tokens"),
    ]
    assert (train["rows"], train["labels"]) == (20, {"a": 10, "b": 10})
    assert train["mean_tokens"] <= train["longest_tokens"] == int(encoded["train"].lengths.max())


def test_several_seeds() -> None:
    done = SeedRecord(status=FINISHED, seconds=2.0, validation={"accuracy": 0.5}, baseline={"accuracy": 0.4})
    failed = SeedRecord(status=FAILED, exit_code=3, error=("data: row 3 is empty", "try:  fill it"))
    content = json.loads(
        str(CommandResult(seeds_content(SeedsRecord(RunSettings("a.csv"), {1: done, 2: failed}, Path("out"), FAILED))))
    )
    assert [*content] == ["run", "status", "data", "model", "seeds", "mean", "standard_deviation", "baseline"]
    assert content["seeds"]["1"] == {
        **{"run": "out/seed-1", "status": "finished", "seconds": 2.0},
        **{"metrics": {"accuracy": 0.5}, "exit_status": None, "error": None},
    }
    assert content["seeds"]["2"]["exit_status"] == 3
    assert content["seeds"]["2"]["error"] == "data: row 3 is empty try:  fill it"
    assert (content["mean"], content["standard_deviation"]) == ({"accuracy": 0.5}, None)


# --- The tables of scores: metrics beside the baseline, the scores of each class, and nothing that controls the terminal.


def examples_of(train: list[Any], validation: list[Any], **settings: Any) -> Examples:
    splits = {"train": train, "validation": validation}
    return load_examples(
        {
            name: [{"text": f"{name} {number}", "label": label} for number, label in enumerate(labels)]
            for name, labels in splits.items()
        },
        **settings,
    )


def shown(
    examples: Examples, answers: list[int], measures: Measures | None = None, facts: TrainingFacts | None = None
) -> list[str]:
    """The lines printed about a model that gives these answers."""
    logits = np.eye(examples.num_labels)[answers]
    references = labels_of(examples, "validation")
    measures = measures or examples.measures
    names = examples.labels.names if examples.labels else ()
    values = measures.metric(examples.task, names).compute(predictions=np.array(answers), references=references)
    metrics = {"eval_loss": 0.5, **{f"eval_{key}": value for key, value in values.items()}, "eval_runtime": 1.0}
    found = Evaluation(logits, references, 0.5, 1.0, metrics)
    screen = io.StringIO()
    outcome = outcome_of(examples, "validation", found, measures, facts=facts)
    show_outcome(Console(file=screen, width=110), outcome, "validation")
    return [line.rstrip() for line in screen.getvalue().splitlines()]


# --- the tables --------------------------------------------------------------------------------------------------

TRAIN, VALIDATION = ["ok"] * 50 + ["complaint"], ["ok"] * 8 + ["complaint"] * 2


def test_metrics_balanced_accuracy_and_the_scores_of_each_class_are_shown_with_what_they_mean() -> None:
    examples = examples_of(TRAIN, VALIDATION)
    assert shown(examples, [1] * 8 + [1, 0]) == [
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
        '• accuracy 0.9000: 0.1000 above always answering "ok" (0.8000)',
    ]


def test_a_result_no_better_than_the_baseline_is_called_so() -> None:
    examples = examples_of(TRAIN, VALIDATION)
    facts = TrainingFacts(68, 7, 5e-5, 1.4e-4, (0.7, 0.69), {"ok": 50, "complaint": 1}, 51)
    lines = shown(examples, [1] * 10, facts=facts)
    assert lines[-4:] == [
        '• accuracy 0.8000: no better than always answering "ok" (0.8000); the model answers "ok" for every row',
        '  try --class_weights balanced: "complaint" has only 1 of 51 training rows',
        "  try --num_train_epochs 20: 68 steps are few",
        "  try --learning_rate 0.00014: 5e-05 is low for this model",
    ]


def test_a_score_that_does_not_beat_the_baseline_is_named_beside_one_that_does() -> None:
    examples = examples_of(TRAIN, ["ok"] * 8 + ["complaint"] * 2)
    lines = shown(examples, [1] * 8 + [1, 0], Measures(("accuracy", "f1"), "ok"))
    assert lines[-1] == '• accuracy 0.9000: 0.1000 above always answering "ok" (0.8000)'
    better = shown(examples, [0] * 8 + [0, 0], Measures(("f1",), "complaint"))
    assert better[-1].startswith('• accuracy 0.2000: no better than always answering "ok" (0.8000)')


def test_the_chosen_class_is_named() -> None:
    examples = examples_of(TRAIN, VALIDATION)
    lines = shown(examples, [1] * 10, Measures(("accuracy", "f1"), "complaint"))
    assert lines[3] == "f1 (complaint)       0.0000                  -"
    assert shown(examples, [1] * 10, Measures(("accuracy", "f1"), "ok"))[3] == "f1 (ok)              0.8889             0.8889"


def test_of_many_classes_the_largest_and_the_worst_are_shown() -> None:
    names = [f"c{number:02}" for number in range(40)]
    examples = examples_of(names * 2, [*names, "c33"])
    answers = [*range(40), 33]
    answers[20], answers[21] = 19, 19
    lines = shown(examples, answers)
    table = lines[lines.index("class                    precision  recall      f1  rows") + 1 :]
    assert table[0].split() == ["c33", "1.0000", "1.0000", "1.0000", "2"]
    assert [line.split()[0] for line in table[8:12]] == ["lowest", "c20", "c21", "c19"]
    assert table[16].rstrip() == "and 25 more"


@pytest.mark.parametrize("number", [2, 5000])
def test_long_names_and_thousands_of_classes_stay_readable_at_80_columns(number: int) -> None:
    classes = {f"{place} {'long ' * 30}": ClassRecord(0.5, 0.0, 0.0, place % 3) for place in range(number)}
    screen = io.StringIO()
    Console(file=screen, width=80).print(class_table(classes))
    lines = screen.getvalue().splitlines()
    assert len(lines) == (3 if number == 2 else 18)
    assert all(len(line) <= 80 for line in lines)
    assert lines[1].rstrip().endswith("…     0.5000  0.0000  0.0000     " + ("0" if number == 2 else "2"))
    assert number == 2 or lines[-1].rstrip() == "and 4,985 more (3,318 with f1 0, 1,667 without rows)"


def test_names_of_splits_and_labels_cannot_control_the_terminal() -> None:
    """A figure is named after a label, and a label may be anything."""
    name = "[red]\x1b[31m"
    found = Evaluation(np.eye(2), np.array([0, 1]), 0.5, 1.0, {"eval_f1": 0.5})
    outcome = Outcome("part", "eval", found, {}, {name: ClassRecord(None, None, None, 0)}, Measures(("f1",), name))
    screen = io.StringIO()
    show_outcome(Console(file=screen, width=100), outcome, "part \x1b[2J")
    assert "\x1b" not in screen.getvalue()
    lines = screen.getvalue().splitlines()
    assert lines[0].startswith(r"part \x1b[2J")
    assert lines[1].startswith(r"f1 ([red]\x1b[31m)")


# ---


# --- the majority ------------------------------------------------------------------------------------------------


def test_the_baseline_is_the_answer_most_frequent_in_training() -> None:
    examples = examples_of(["a"] * 2 + ["b"] * 3, ["a", "a", "a", "b"])
    assert majority_baseline(examples, "validation", examples.measures) == {"accuracy": 0.25, "f1_macro": pytest.approx(0.2)}
    chosen = Measures(("accuracy", "f1"), "b")
    assert majority_baseline(examples, "validation", chosen) == {"accuracy": 0.25, "f1": pytest.approx(0.4)}
    assert labels_of(examples, "validation").tolist() == [0, 0, 0, 1]


def test_a_baseline_that_does_not_exist_is_left_out() -> None:
    """Always answering b gives no F1 of a, and a constant has no correlation."""
    examples = examples_of(["a"] * 2 + ["b"] * 3, ["a", "a", "a", "b"])
    measures = Measures(("accuracy", "f1", "matthews_correlation"), "a")
    assert majority_baseline(examples, "validation", measures) == {"accuracy": 0.25}


def test_the_baseline_of_scores_is_their_mean() -> None:
    examples = examples_of([1.0, 2.0, 6.0], [3.0, 5.0], task="regression")
    assert majority_baseline(examples, "validation", examples.measures) == {"mse": 2.0}


def test_the_baseline_of_several_labels_are_those_that_half_the_rows_have() -> None:
    examples = examples_of(["a|b", "a", "b|c", "a"], ["a|b", "a|b", "c"], label_separator="|")
    assert labels_of(examples, "train").tolist() == [[1, 1, 0], [1, 0, 0], [0, 1, 1], [1, 0, 0]]
    found = majority_baseline(examples, "validation", examples.measures)
    assert found["exact_match"] == pytest.approx(2 / 3)


def test_labels_numbered_by_the_user_have_a_positive_class() -> None:
    numbered = examples_of([0, 1, 0, 1], [0, 1])
    assert numbered.measures == Measures(("accuracy", "f1"), "1")
    assert examples_of([0, 1, 0, 1], [0, 1], labels="ham,spam").measures == Measures(("accuracy", "f1"), "spam")
    assert examples_of([True, False], [True]).measures == Measures(("accuracy", "f1"), "true")
    words = examples_of(["spam", "ham"], ["ham"], labels="ham,spam")
    assert words.measures == Measures(("accuracy", "f1_macro"))


def test_scores_by_class() -> None:
    found = class_scores(np.array([0, 1, 1, 1]), np.array([0, 1, 0, 0]), ("a", "b", "c"))
    assert found == {
        "a": ClassRecord(1.0, pytest.approx(1 / 3), 0.5, 3),
        "b": ClassRecord(pytest.approx(1 / 3), 1.0, 0.5, 1),
        "c": ClassRecord(None, None, None, 0),
    }
    several = class_scores(np.array([[1, 0], [1, 1]]), np.array([[1, 1], [0, 1]]), ("a", "b"))
    assert several == {"a": ClassRecord(0.5, 1.0, pytest.approx(2 / 3), 1), "b": ClassRecord(1.0, 0.5, pytest.approx(2 / 3), 2)}


# --- splits ------------------------------------------------------------------------------------------------------


def test_every_validation_split_with_labels_is_evaluated() -> None:
    rows = [{"text": f"{'good' if number % 2 else 'bad'} {number}", "label": number % 2} for number in range(12)]
    secret = [{**row, "label": -1} for row in rows]
    assert validation_names(load_examples(rows)) == ["validation"]
    assert validation_names(load_examples({"train": rows, "dev": rows})) == ["validation"]
    every = {"train": rows, "validation_c": secret, "validation_b": rows, "validation_a": rows}
    assert validation_names(load_examples(every)) == ["validation_b", "validation_a"]
    assert validation_names(load_examples({"train": rows, "validation": secret})) == []
    assert validation_names(load_examples({"test": rows})) == []


def test_the_metrics_of_further_splits_have_the_split_in_their_names() -> None:
    assert prefixes(["validation_matched", "validation_mismatched"]) == ["eval", "eval_mismatched"]
    assert (prefixes(["validation"]), prefixes([])) == (["eval"], [])


# --- results -----------------------------------------------------------------------------------------------------


def evaluation_of(examples: Examples, answers: list[int]) -> Evaluation:
    metrics = {"eval_loss": 0.5, "eval_accuracy": 0.75, "eval_runtime": 1.0}
    return Evaluation(np.eye(2)[answers], labels_of(examples, "validation"), 0.5, 1.0, metrics)


def test_an_outcome_has_the_baseline_unless_the_training_rows_are_unknown() -> None:
    examples = examples_of(["a"] * 2 + ["b"] * 3, ["a", "a", "a", "b"])
    found = evaluation_of(examples, [0, 0, 0, 0])
    outcome = outcome_of(examples, "validation", found, examples.measures)
    assert outcome.metrics == {"loss": 0.5, "accuracy": 0.75}
    assert outcome.baseline == {"accuracy": 0.25, "f1_macro": pytest.approx(0.2)}
    assert outcome.classes["b"] == ClassRecord(None, 0.0, 0.0, 1)
    assert outcome_of(examples, "train", found, examples.measures).baseline is None
    other = outcome_of(examples, "train", found, examples.measures, trained_on={"a": 9, "b": 1}).baseline
    assert other is not None
    assert other["accuracy"] == pytest.approx(0.4)


def test_a_record_holds_the_results_of_all_evaluations() -> None:
    examples = examples_of(["a"] * 2 + ["b"] * 3, ["a", "a", "a", "b"])
    outcome = outcome_of(examples, "validation", evaluation_of(examples, [0, 0, 0, 0]), examples.measures)
    record = scored(RECORD, [outcome])
    assert record.evaluation == {"eval_loss": 0.5, "eval_accuracy": 0.75, "eval_runtime": 1.0}
    assert record.baseline == {"accuracy": 0.25, "f1_macro": pytest.approx(0.2)}
    assert record.classes == outcome.classes
    assert record.balanced_accuracy == 0.5
    assert (
        record.verdict == 'accuracy 0.7500: 0.5000 above always answering "b" (0.2500); 1 of 2 classes are never predicted: b'
    )
    assert record.advice == ()


def compared_with(examples: Examples, logits: Any, references: Any, facts: TrainingFacts | None = None) -> str:
    """The sentence about a model that gives these answers."""
    metrics = {"eval_f1_micro": 0.4, "eval_mse": 9.0}
    found = Evaluation(np.asarray(logits, dtype=float), np.asarray(references), 0.5, 1.0, metrics)
    verdict = outcome_of(examples, "validation", found, examples.measures, facts=facts).verdict
    assert verdict is not None
    return verdict.sentence


def test_scores_are_compared_with_the_mean_of_the_training_rows() -> None:
    examples = examples_of([1.0, 2.0, 6.0], [3.0, 5.0], task="regression")
    assert (
        compared_with(examples, [[3.0], [4.0]], [3.0, 5.0]) == "mse 0.5000: 1.5000 below always answering the mean 3 (2.0000)"
    )
    assert compared_with(examples, [[9.0], [4.0]], [3.0, 5.0]).startswith("mse 18.5000: no better than always answering")


def test_several_labels_are_compared_with_those_that_half_the_rows_have() -> None:
    examples = examples_of(["a|b", "a", "b|c", "a"], ["a|b", "a|b", "c"], label_separator="|")
    several = [[1, 1, -1], [-1, -1, 1], [1, -1, -1]]
    text = compared_with(examples, several, labels_of(examples, "validation"))
    assert text == 'f1 (micro) 0.4000: no better than always answering "a", "b" (0.7273)'
    rare = examples_of(["a", "b", "c"], ["a|b", "a|b", "c"], label_separator="|")
    assert "always answering no label" in compared_with(rare, several, labels_of(rare, "validation"))


def test_predictions_are_written_one_line_per_row(tmp_path: Path) -> None:
    examples = examples_of(["a"] * 2 + ["b"] * 3, ["a", "b"])
    write_predictions(tmp_path / "rows.jsonl", examples, "validation", evaluation_of(examples, [1, 1]))
    assert [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == [
        {"row": 0, "prediction": "b", "label": "a", "logits": [0.0, 1.0], "text": "validation 0"},
        {"row": 1, "prediction": "b", "label": "b", "logits": [0.0, 1.0], "text": "validation 1"},
    ]


@pytest.mark.parametrize(
    ("choice", "names", "read"),
    [(1, ("a", "b"), "b"), ([1, 0, 1], ("a", "b", "c"), ["a", "c"]), ([0.0, 0.0], ("a", "b"), []), (0.25, None, 0.25)],
)
def test_choices_as_a_person_reads_them(choice: Any, names: Any, read: Any) -> None:
    assert label_of(choice, names) == read


def test_predictions_say_how_long_a_row_is_and_what_was_cut(tmp_path: Path, tiny_tokenizer: Any) -> None:
    examples = examples_of(["a"] * 2 + ["b"] * 3, ["a", "b"])
    more = length_entries(examples, "validation", np.array([3, 4]), tiny_tokenizer, 4)
    assert [entry["tokens"] for entry in more.values()] == [3, 4]
    (start, end) = more[1]["kept"]["text"]
    assert (start, "validation 1"[:end] != "validation 1") == (0, True)
    write_predictions(tmp_path / "rows.jsonl", examples, "validation", evaluation_of(examples, [1, 1]), more)
    assert json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[1])["kept"] == {"text": [start, end]}
    assert "kept" not in length_entries(examples, "validation", np.array([3, 4]), None, 4)[1], "without a tokenizer"


# --- What a result means, and the advice that follows from the facts of its training.


EVEN = {"a": 500, "b": 500}


# A training with the settings of the rule, whose loss fell a little.
USUAL = TrainingFacts(1000, 100, 1.4e-4, 1.4e-4, (0.7, 0.65, 0.6, 0.55, 0.5), EVEN, 1000)


LOST = Comparison("accuracy", 0.5, 0.5, '"a"', balanced=(0.5, 0.5))


def advice(facts: TrainingFacts) -> tuple[str, ...]:
    return verdict_of(LOST, {}, facts).advice


def test_above_the_baseline_by_how_much() -> None:
    found = verdict_of(Comparison("accuracy", 0.8431, 0.6838, '"yes"'), {}, USUAL)
    assert (found.sentence, found.better) == ('accuracy 0.8431: 0.1593 above always answering "yes" (0.6838)', True)
    assert found.advice == ()


def test_an_error_is_better_if_it_is_below() -> None:
    found = Comparison("mse", 0.42, 0.93, "the mean 3", lower_is_better=True)
    assert found.sentence == "mse 0.4200: 0.5100 below always answering the mean 3 (0.9300)"


def test_no_better_but_more_than_one_answer() -> None:
    """With 95 % of one class, a model that finds the others has the lower accuracy."""
    found = Comparison("accuracy", 0.94, 0.95, '"ok"', balanced=(0.72, 0.5))
    text = 'accuracy 0.9400: no better than always answering "ok" (0.9500), but balanced accuracy is 0.7200 (against 0.5000)'
    assert found.sentence == text
    assert replace(found, balanced=(0.5, 0.5)).sentence == 'accuracy 0.9400: no better than always answering "ok" (0.9500)'
    assert replace(found, only='"no"').sentence.endswith('; the model answers "no" for every row')


def test_without_facts_there_is_no_advice() -> None:
    assert verdict_of(LOST, {}, None).advice == ()


def test_few_steps_suggest_more_epochs() -> None:
    few = replace(USUAL, steps=68, steps_per_epoch=23)
    assert advice(few)[0] == "--num_train_epochs 20: 68 steps are few"
    assert advice(replace(few, counts_steps=True))[0] == "--max_steps 460: 68 steps are few"


def test_a_low_learning_rate_suggests_that_of_the_rule() -> None:
    assert advice(replace(USUAL, rate=5e-5)) == ("--learning_rate 0.00014: 5e-05 is low for this model",)


def test_a_high_learning_rate_is_named_only_if_the_loss_did_not_fall() -> None:
    flat = replace(USUAL, rate=1e-3, losses=(0.7, 0.7, 0.69, 0.7, 0.7))
    text = "--learning_rate 0.00014: 0.001 is high for this model, and the training loss went from 0.7000 to 0.7000"
    assert advice(flat) == (text,)
    assert advice(replace(USUAL, rate=1e-3)) == ("more training rows, or another model",)


def test_imbalance_suggests_class_weights_unless_they_were_set() -> None:
    rare = replace(USUAL, counts={"a": 950, "b": 50})
    assert advice(rare) == ('--class_weights balanced: "b" has only 50 of 1,000 training rows',)
    assert advice(replace(rare, counts={"a": 950, "b": 50, "c": 0})) == ("more training rows, or another model",)
    assert advice(replace(rare, weighted=True)) == ("more training rows, or another model",)


def test_training_rows_that_were_only_memorized_suggest_more_rows() -> None:
    (text,) = advice(replace(USUAL, losses=(0.7, 0.5, 0.2, 0.1, 0.01)))
    assert text.startswith("more training rows, or fewer epochs: the training loss went from 0.7000 to 0.0100")


def test_a_loss_that_did_not_fall_with_usual_settings_suggests_the_data() -> None:
    (text,) = advice(replace(USUAL, losses=(0.7, 0.7, 0.69, 0.7, 0.7)))
    assert text == "check texts and labels with glassloop data: the training loss went from 0.7000 to 0.7000"


def test_classes_that_are_never_predicted_are_named_with_a_good_result() -> None:
    classes = {"a": ClassRecord(0.9, 0.9, 0.9, 90), "b": ClassRecord(None, 0.0, 0.0, 5), "c": ClassRecord(None, None, None, 0)}
    facts = replace(USUAL, counts={"a": 900, "b": 50, "c": 50})
    found = verdict_of(Comparison("accuracy", 0.9, 0.8, '"a"'), classes, facts)
    assert found.sentence.endswith("; 1 of 3 classes are never predicted: b")
    assert found.advice == ('--class_weights balanced: "b" has only 50 of 1,000 training rows',)


@pytest.mark.parametrize(
    "history", [[], [{"loss": 0.7, "step": 10}, {"eval_loss": 0.4, "step": 10}, {"loss": 0.5, "step": 20}]]
)
def test_facts_come_from_the_record_and_the_history(history: list[dict[str, float]]) -> None:
    record = replace(RECORD, data=replace(RECORD.data, splits={"train": SplitFacts(30, {"a": 20, "b": 10})}))
    found = facts_of(record, history, 10_616_832)
    assert (found.steps, found.rate, found.rows, found.counts) == (
        record.plan.max_steps,
        record.settings.learning_rate,
        30,
        {"a": 20, "b": 10},
    )
    assert found.losses == [entry["loss"] for entry in history if "loss" in entry]
    assert found.fall == ((0.7, 0.5) if history else None)
    assert found.usual_rate > 1e-4
