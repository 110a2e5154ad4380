"""A run from a name of data to a folder: what it is told to leave alone, what it says, and what it writes down."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassloop import decide, metrics_for
from glassloop.arguments import TrainingArguments
from glassloop.engine.backends import PlainBackend
from glassloop.errors import DataError, DivergedError, ModelError, SettingsError
from glassloop.run_folder import ColumnsRecord, read_run
from glassloop.runs import (
    assemble,
    train_run,
)

ROWS = "text,label\n" + "".join(
    f"{'good' if number % 3 else 'bad'} film {number},{'pos' if number % 3 else 'neg'}\n" for number in range(30)
)
COMMON = {"max_steps": 2, "device": "cpu", "precision": "fp32", "disable_tqdm": True, "save_strategy": "no"}


# --- a whole run -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(lively_dir: Path, session_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run on a file, and all that it said."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "rows.csv").write_text(ROWS)
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLASSLOOP_CACHE", str(session_cache))
        patch.setenv("COLUMNS", "200")
        patch.setattr("sys.stderr", said)
        settings = {**COMMON, "output_dir": str(folder / "out"), "per_device_train_batch_size": 4, "eval_strategy": "epoch"}
        train_run(str(folder / "rows.csv"), str(lively_dir), {**settings, "max_steps": 8, "seed": 7}, {})
    return folder / "out", said.getvalue()


def test_what_is_left_behind(run: tuple[Path, str]) -> None:
    folder, _ = run
    assert sorted(path.name for path in folder.iterdir()) == [
        "history.jsonl",
        "model",
        "run.json",
        "validation-predictions.jsonl",
    ]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in (folder / "model").iterdir()}


def test_the_description(run: tuple[Path, str], lively_dir: Path) -> None:
    folder, _ = run
    found = read_run(folder)
    assert found.finished
    assert found.data.source == str(folder.parent / "rows.csv")
    assert found.data.labels == ("neg", "pos")
    assert (found.settings.seed, found.data.settings.split_seed) == (7, 42)
    assert found.data.columns == ColumnsRecord("text", None, ("label",))
    assert {name: split.num_rows for name, split in found.data.splits.items()} == {"train": 27, "validation": 3}
    assert found.model.name == str(lively_dir)
    assert (found.settings.max_steps, found.plan.max_steps, found.plan.steps_per_epoch) == (8, 8, 7)
    assert (found.device, found.precision, found.backend, found.processes) == ("cpu", "fp32", "packed", 1)
    assert found.versions["torch"]
    assert (found.seconds or 0) > 0
    assert (found.metrics, found.positive_label) == (("accuracy", "f1_macro"), None)
    assert {*(found.baseline or {})} == {"accuracy", "f1_macro"}
    assert {name: scores.support for name, scores in (found.classes or {}).items()} == {"neg": 1, "pos": 2}


def test_history_and_description_agree(run: tuple[Path, str]) -> None:
    folder, _ = run
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert [(entry["step"], "loss" in entry) for entry in history] == [(7, True), (7, False), (8, True)]
    assert read_run(folder).best_step == 7


def test_every_reported_figure_can_be_computed_again(run: tuple[Path, str]) -> None:
    folder, _ = run
    rows = [json.loads(line) for line in (folder / "validation-predictions.jsonl").read_text().splitlines()]
    labels = read_run(folder).data.labels
    logits = np.array([row["logits"] for row in rows])
    decided = decide(logits, "single_label_classification")
    assert [labels[number] for number in decided] == [row["prediction"] for row in rows]
    references = [labels.index(row["label"]) for row in rows]
    again = metrics_for("single_label_classification", 2).compute(predictions=decided, references=references)
    evaluation = read_run(folder).evaluation
    assert {f"eval_{name}": value for name, value in again.items()} == {
        name: evaluation[name] for name in ("eval_accuracy", "eval_f1_macro")
    }
    costs = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(rows)), references]
    assert evaluation["eval_loss"] == pytest.approx(costs.mean(), abs=1e-6)
    assert [row["row"] for row in rows] == [0, 1, 2]
    assert all(row["label"] == ("neg" if row["text"].startswith("bad") else "pos") for row in rows)


def test_it_says_what_will_happen_then_how_it_went(run: tuple[Path, str], lively_dir: Path) -> None:
    folder, said = run
    lines = [line.rstrip() for line in said.splitlines()]
    rows = {line[:8].strip(): line[8:] for line in lines[:9]}
    measured = read_run(folder).difference
    assert rows == {
        "data": f"{folder.parent / 'rows.csv'}: 27 train, 3 validation",
        "task": "single label classification: neg, pos",
        "model": f"{lively_dir} (bert, 0.0 M parameters)",
        "steps": "8 (7 an epoch), 4 rows a step, no padding",
        "rate": "5e-05, linear, 0 steps of warm-up",
        "run on": "cpu, fp32, backend packed",
        "saves": ", ".join(read_run(folder).savings),
        "check": f"logits differ from the plain model by {measured.logits:.1e}, gradients by {measured.gradients:.1e} (4 rows)",
        "folder": str(folder),
    }
    assert 0 < measured.logits < measured.allowed_logits
    assert lines[9].startswith("• no validation split: held out 3 of 30 training rows")
    assert any(line.startswith("step 8/8  epoch 1.14  loss ") for line in lines)
    assert any(line.startswith("validation  this run  majority baseline") for line in lines)
    assert lines[-1].startswith("✓ ")
    assert lines[-1].endswith(f" s, 8 steps → {folder}")


def test_the_second_run_into_a_folder_is_refused(run: tuple[Path, str], lively_dir: Path) -> None:
    folder, _ = run
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with pytest.raises(SettingsError, match="holds a run already"):
        train_run(str(folder.parent / "rows.csv"), str(lively_dir), {**COMMON, "output_dir": str(folder)}, {})
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


# --- runs that do not come to their end --------------------------------------------------------------------------


def test_wrong_things_are_told_before_anything_is_written(tmp_path: Path, lively_dir: Path) -> None:
    (tmp_path / "rows.csv").write_text(ROWS)
    (tmp_path / "test.csv").write_text(ROWS)
    out = tmp_path / "out"
    settings = {**COMMON, "output_dir": str(out)}
    for error, data, model, given in (
        (SettingsError, "rows.csv", lively_dir, {"learning_rate": -1}),
        (SettingsError, "rows.csv", lively_dir, {"class_weights": "1,2,3"}),
        (DataError, "gone.csv", lively_dir, {}),
        (ModelError, "rows.csv", tmp_path, {}),
    ):
        with pytest.raises(error):
            train_run(str(tmp_path / data), str(model), {**settings, **given}, {})
    assert not out.exists()


def test_a_run_that_diverged_is_not_finished(tmp_path: Path, lively_dir: Path) -> None:
    (tmp_path / "rows.csv").write_text(ROWS)
    settings = {**COMMON, "output_dir": str(tmp_path / "out"), "learning_rate": 1e25, "max_steps": 20}
    with pytest.raises(DivergedError):
        train_run(str(tmp_path / "rows.csv"), str(lively_dir), settings, {})
    assert read_run(tmp_path / "out").status == "running"
    assert not (tmp_path / "out" / "model").exists()


def test_without_one_nothing_is_evaluated_and_nothing_reported(tmp_path: Path, lively_dir: Path, write) -> None:
    write("data/train.csv", ROWS)
    write("data/validation.csv", "text,label\ngood,-1\nbad,-1\n")
    settings = {**COMMON, "output_dir": str(tmp_path / "out")}
    found = read_run(train_run(str(tmp_path / "data"), str(lively_dir), settings, {}))
    assert found.finished
    assert (found.evaluation, found.baseline) == (None, None)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["history.jsonl", "model", "run.json"]
    with pytest.raises(SettingsError, match="eval_strategy is epoch, but there is no eval_dataset"):
        train_run(
            str(tmp_path / "data"),
            str(lively_dir),
            {**settings, "output_dir": str(tmp_path / "b"), "eval_strategy": "epoch"},
            {},
        )


def test_labels_that_a_model_carries_keep_their_numbers(text_run: Path, tmp_path: Path) -> None:
    """A trained model goes on learning other rows of the same labels: by name, not in the order of the alphabet."""
    (tmp_path / "rows.csv").write_text(ROWS.replace(",pos", ',"pos, really"'))
    folder = train_run(str(tmp_path / "rows.csv"), str(text_run / "model"), {**COMMON, "output_dir": str(tmp_path / "out")}, {})
    assert (read_run(folder).data.labels, read_run(folder).data.label_order) == (("pos, really", "neg"), None)


def test_numbers_need_an_order_where_a_model_carries_words(text_run: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(ROWS.replace(",pos", ",1").replace(",neg", ",0"))
    given = (str(tmp_path / "rows.csv"), str(text_run / "model"), TrainingArguments(device="cpu"))
    with pytest.raises(DataError, match="its labels are numbers"):
        assemble(*given, {}, False, PlainBackend("cpu", "fp32"))
    _, examples, record = assemble(*given, {"labels": ("neg", "pos, really")}, False, PlainBackend("cpu", "fp32"))
    assert record.data.labels == ("pos, really", "neg"), "the model's outputs keep their numbers"
    assert record.data.label_order == ("neg", "pos, really")
    counts = examples.facts["train"].label_counts
    assert counts["pos, really"] > counts["neg"], "two of three rows are 1"


# --- metrics -----------------------------------------------------------------------------------------------------


def test_the_class_whose_f1_counts_is_chosen_written_down_and_named(
    lively_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The scarce class of a lopsided file, which is not the last of the alphabet."""
    rows = [f"film {number},{'complaint' if number % 9 == 0 else 'ok'}" for number in range(45)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *rows, ""]))
    settings = {**COMMON, "max_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "f1"}
    data, model = str(tmp_path / "rows.csv"), str(lively_dir)
    with pytest.raises(SettingsError) as caught:
        train_run(data, model, {**settings, "output_dir": str(tmp_path / "refused")}, {})
    assert caught.value.remedy == "name the class whose F1 counts with positive_label, or use f1_macro"
    capsys.readouterr()
    chosen = {**settings, "output_dir": str(tmp_path / "out"), "positive_label": "complaint", "learning_rate": 0.0}
    found = read_run(train_run(data, model, chosen, {}))
    assert (found.metrics, found.positive_label, found.settings.positive_label) == (("accuracy", "f1"), *["complaint"] * 2)
    assert {*(found.baseline or {})} == {"accuracy"}, "always answering ok has no F1 of complaint"
    assert found.classes is None
    told = capsys.readouterr().err
    assert f"f1 (complaint) {(found.evaluation or {})['eval_f1']:.4f}" in told, "while training"
    assert [line.split()[-1] for line in told.splitlines() if line.startswith("f1 (complaint)  ")] == ["-"], "in the table"
    assert "• no better than the majority baseline: " in told


# --- seeds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["rows.csv", "quickstart"])
def test_the_validation_rows_do_not_depend_on_the_training_seed(source: str, lively_dir: Path, tmp_path: Path) -> None:
    """Seeds are compared on the same rows: only split_seed draws the split and generates data."""
    (tmp_path / "rows.csv").write_text(ROWS)
    data = str(tmp_path / source) if source.endswith(".csv") else source
    rows = {} if source.endswith(".csv") else {"rows": 20}

    def fingerprints(seed: int, **given: Any) -> dict[str, str]:
        args = TrainingArguments(seed=seed, device="cpu")
        _, examples, record = assemble(data, str(lively_dir), args, {**rows, **given}, False, PlainBackend("cpu", "fp32"))
        assert record.data.settings.split_seed == given.get("split_seed", 42)
        return {name: fact.fingerprint for name, fact in examples.facts.items()}

    assert fingerprints(1) == fingerprints(2) == fingerprints(2, split_seed=42) != fingerprints(2, split_seed=1)


def test_special_tokens_in_texts_are_noted_and_recorded(write, lively_dir: Path) -> None:
    data = str(write("data.csv", ROWS.replace("good film 1,", "good [SEP] film 1,")))
    args = TrainingArguments(**COMMON)
    _, examples, record = assemble(data, str(lively_dir), args, {"validation_share": 0}, False, PlainBackend("cpu", "fp32"))
    note = "train: 1 row contains the text of a special token ([SEP]), which the tokenizer reads as that token"
    assert note in examples.notes
    assert note in record.data.notes
