"""The documents of `--json`: the keys that docs/reference/json.md promises, with the numbers of the run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from sample_record import RECORD

from glassloop import encode, load_examples
from glassloop.base.result import CommandResult
from glassloop.data.encoding import LengthLimit
from glassloop.predict.evaluation import Wanted, evaluate_run
from glassloop.runs.record import FINISHED, SplitFacts, read_run
from glassloop.runs.seeds import FAILED, SeedRecord, SeedsRecord
from glassloop.settings.file import RunSettings
from glassloop.training.results import data_content, outcomes_content, run_content, seeds_content

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
    done = SeedRecord(FINISHED, folder="seed-1", seconds=2.0, metrics={"accuracy": 0.5}, baseline={"accuracy": 0.4})
    failed = SeedRecord(FAILED, exit_code=3, error=("data: row 3 is empty", "try:  fill it"))
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
