"""Each GLUE task is scored by its own metrics, through the command and from Python, in training and in evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassloop import Trainer, TrainingArguments, encode, load_examples, load_model, load_tokenizer
from glassloop.cli.evaluate import evaluate
from glassloop.predictor import Wanted, evaluate_run
from glassloop.runs.record import read_run
from glassloop.settings.file import GivenSettings
from glassloop.study.run import train_run

PAIR = "index\tsentence1\tsentence2\tlabel"
MNLI = "index\tpromptID\tpairID\tgenre\tp1\tp2\tp3\tp4\tsentence1\tsentence2\tlabel1\tgold_label"
QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
QNLI = "index\tquestion\tsentence\tlabel"
STS = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
# task -> folder, header, a row with {0} for its number and {1} for its label, labels as written, metrics
TASKS: dict[str, tuple[str, str, str, tuple[str, ...], tuple[str, ...]]] = {
    "cola": ("CoLA", "", "gj04\t{1}\t\tFilm {0} good .", ("0", "1"), ("matthews_correlation",)),
    "sst2": ("SST-2", "sentence\tlabel", "good film {0}\t{1}", ("0", "1"), ("accuracy",)),
    "mrpc": ("MRPC", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "{1}\t1\t2\tgood {0}\tbad", ("0", "1"), ("accuracy", "f1")),
    "qqp": ("QQP", QQP, "1\t2\t3\tgood {0} ?\tbad ?\t{1}", ("0", "1"), ("accuracy", "f1")),
    "stsb": ("STS-B", STS, "0\tg\tf\ty\to\ts\ts\tgood {0}\tbad\t{1}", ("1.5", "4.25"), ("pearson", "spearmanr")),
    "mnli": (
        "MNLI", MNLI, "0\t1\t2\tg\t3\t4\t5\t6\tgood {0}\tbad\t-\t{1}", ("entailment", "neutral", "contradiction"), ("accuracy",)
    ),
    "qnli": ("QNLI", QNLI, "0\tgood {0} ?\tbad\t{1}", ("entailment", "not_entailment"), ("accuracy",)),
    "rte": ("RTE", PAIR, "0\tgood {0}\tbad\t{1}", ("entailment", "not_entailment"), ("accuracy",)),
    "wnli": ("WNLI", PAIR, "0\tgood {0}\tbad\t{1}", ("0", "1"), ("accuracy",)),
}  # fmt: skip
SETTINGS = {"max_steps": 1, "device": "cpu", "precision": "fp32", "disable_tqdm": True, "save_strategy": "no"}


def written(task: str, folder: Path) -> str:
    """The files of a task in the layout of GLUE's own download."""
    name, header, row, labels, _ = TASKS[task]
    (folder / name).mkdir(parents=True)
    splits = {"train": 12, "dev": 6} if task != "mnli" else {"train": 12, "dev_matched": 6, "dev_mismatched": 9}
    for split, size in splits.items():
        rows = [row.format(f"{split} {number}", labels[number % len(labels)]) for number in range(size)]
        (folder / name / f"{split}.tsv").write_text("\n".join([*([header] if header else []), *rows, ""]))
    tests = ["test"] if task != "mnli" else ["test_matched", "test_mismatched"]
    columns = {"cola": "index\tsentence", "mrpc": f"index{header[7:]}"}.get(task, header.rpartition("\t")[0])
    cells = ["text"] * len(columns.split("\t"))
    for split in tests:
        (folder / name / f"{split}.tsv").write_text("\n".join([columns, "\t".join(cells), ""]))
    return str(folder)


@pytest.mark.parametrize("task", TASKS)
def test_a_task_knows_its_metrics(task: str, tmp_path: Path) -> None:
    measures = load_examples(f"glue/{task}", data_dir=written(task, tmp_path)).measures
    assert measures.keys == TASKS[task][4]
    assert measures.positive == {"mrpc": "equivalent", "qqp": "duplicate"}.get(task)


def run_of(task: str, model: Path, folder: Path) -> Path:
    settings = {**SETTINGS, "output_dir": str(folder / "run")}
    return train_run(GivenSettings(f"glue/{task}", str(model), settings, {"data_dir": written(task, folder)}))


@pytest.mark.parametrize("task", ["cola", "stsb", "rte", "mrpc"])
def test_a_run_is_scored_by_the_metrics_of_its_task(task: str, tmp_path: Path, tiny_model_dir: Path, capsys) -> None:
    """In training, in the table, in run.json, and when the run is evaluated again."""
    keys = {f"eval_{key}" for key in (*TASKS[task][4], "loss", "runtime", "samples_per_second")}
    run = run_of(task, tiny_model_dir, tmp_path)
    found = read_run(run)
    assert (found.metrics, {*(found.evaluation or {})}) == (TASKS[task][4], keys)
    evaluate(str(run), device="cpu", batch_size=8)
    assert {*evaluate_run(str(run), Wanted(device="cpu", batch_size=8)).metrics} == keys
    told = capsys.readouterr()
    if task == "mrpc":
        assert "f1 (equivalent)" in told.err
        assert "f1 (equivalent)" in told.out
    if task == "cola":
        lines = [line.split() for line in told.out.splitlines() if line.startswith("matthews")]
        assert [line[-3] for line in lines] == ["-"], "a constant answer has none"
        assert {"-"}.isdisjoint(lines[0][-2:]), "words and the frozen encoder have one"


def test_mnli_is_evaluated_on_both_validation_sets(tmp_path: Path, tiny_model_dir: Path, capsys) -> None:
    run = run_of("mnli", tiny_model_dir, tmp_path)
    found = read_run(run)
    wanted = ["eval_loss", "eval_accuracy", "eval_mismatched_loss", "eval_mismatched_accuracy"]
    assert [name for name in found.evaluation or {} if not name.endswith(("runtime", "second"))] == wanted
    assert {*(found.baseline or {})} == {"accuracy", "mismatched_accuracy"}
    for split, size in (("matched", 6), ("mismatched", 9)):
        assert len((run / f"validation_{split}-predictions.jsonl").read_text().splitlines()) == size
    evaluate(str(run), device="cpu", batch_size=8)
    again = evaluate_run(str(run), Wanted(device="cpu", batch_size=8)).metrics
    assert {name: again[name] for name in wanted} == pytest.approx({name: (found.evaluation or {})[name] for name in wanted})
    one = evaluate_run(str(run), Wanted(split="validation_mismatched", device="cpu", batch_size=8)).metrics
    assert one["eval_accuracy"] == again["eval_mismatched_accuracy"]
    told = capsys.readouterr()
    for split in ("validation_matched", "validation_mismatched"):
        assert any(line.startswith(split) for line in told.err.splitlines()), "at the end of the training"
        assert any(line.startswith(f"{split} (") for line in told.out.splitlines()), "in evaluate"


def test_the_python_door_takes_the_metrics_of_the_data(tmp_path: Path, tiny_model_dir: Path) -> None:
    examples = load_examples("glue/cola", data_dir=written("cola", tmp_path))
    tokenizer = load_tokenizer(tiny_model_dir)
    rows = encode(examples, tokenizer, 32)["validation"].rows
    model = load_model(tiny_model_dir, labels=examples.labels)

    def keys(**given: object) -> set[str]:
        args = TrainingArguments(str(tmp_path / "out"), device="cpu", positive_label=given.pop("positive", None))
        metrics = Trainer(model, args, processing_class=tokenizer, **given).evaluate(rows)
        return {*metrics} - {"eval_loss", "eval_runtime", "eval_samples_per_second", "epoch"}

    assert keys(measures=examples.measures) == {"eval_matthews_correlation"}
    assert keys() == {"eval_accuracy", "eval_f1_macro"}
    assert keys(positive="acceptable") == {"eval_accuracy", "eval_f1"}
