"""A run from a name of data to a folder: what it is told to leave alone, what it says, and what it writes down."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save, save_file
from transformers import AutoConfig, AutoModelForSequenceClassification

from glassloop import decide, metrics_for
from glassloop.base.errors import DataError, DivergedError, ModelError, SettingsError
from glassloop.cli.train import train
from glassloop.runs.record import Columns, checkpoints_in, read_run, write_run
from glassloop.settings.file import GivenSettings, read_settings
from glassloop.study import run as assembling
from glassloop.study.run import train_run
from glassloop.training import session

pytestmark = pytest.mark.slow  # trains, or starts processes: make test runs it, make test-fast does not

ROWS = "text,label\n" + "".join(
    f"{'good' if number % 3 else 'bad'} film {number},{'pos' if number % 3 else 'neg'}\n" for number in range(30)
)
COMMON = {"max_steps": 2, "device": "cpu", "precision": "fp32", "disable_tqdm": True, "save_strategy": "no"}
LEFT = ["head.safetensors", "history.jsonl", "model", "run.json", "sessions.jsonl"]  # what every run leaves in its folder
NO_DEBUG = SimpleNamespace(obj=False, call_on_close=lambda end: end())  # the context of the command


def times_of(folder: Path) -> dict[Path, int]:
    """When each file of a folder was written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


# --- a whole run
@pytest.fixture(scope="module")
def run(lively_dir: Path, session_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on a file. tests/e2e/test_train_command.py reads what such a run says."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "rows.csv").write_text(ROWS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLASSLOOP_CACHE", str(session_cache))
        settings = {**COMMON, "output_dir": str(folder / "out"), "per_device_train_batch_size": 4, "eval_strategy": "epoch"}
        train_run(GivenSettings(str(folder / "rows.csv"), str(lively_dir), {**settings, "max_steps": 8, "seed": 7}, {}))
    return folder / "out"


def test_what_a_run_leaves_behind_and_writes_down_and_that_it_is_not_overwritten(run: Path, lively_dir: Path) -> None:
    assert sorted(path.name for path in run.iterdir()) == ["baselines.safetensors", *LEFT, "validation-predictions.jsonl"]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in (run / "model").iterdir()}
    before = times_of(run)
    with pytest.raises(SettingsError, match="already contains a run"):
        train_run(GivenSettings(str(run.parent / "rows.csv"), str(lively_dir), {**COMMON, "output_dir": str(run)}, {}))
    assert times_of(run) == before
    found = read_run(run)
    assert found.finished
    assert found.data.source == str(run.parent / "rows.csv")
    assert found.data.labels == ("neg", "pos")
    assert (found.settings.seed, found.data.settings.split_seed) == (7, 42)
    assert found.data.columns == Columns("text", None, ("label",))
    assert {name: split.num_rows for name, split in found.data.splits.items()} == {"train": 27, "validation": 3}
    assert found.model.name == str(lively_dir)
    assert (found.settings.max_steps, found.plan.max_steps, found.plan.steps_per_epoch) == (8, 8, 7)
    assert (found.device, found.precision, found.backend, found.processes) == ("cpu", "fp32", "packed", 1)
    assert found.versions["torch"]
    assert (found.seconds or 0) > 0
    assert (found.metrics, found.positive_label) == (("accuracy", "f1_macro"), None)
    assert {*(found.baseline or {})} == {"accuracy", "f1_macro"}
    assert {name: scores.support for name, scores in (found.classes or {}).items()} == {"neg": 1, "pos": 2}
    history = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    assert [(entry["step"], "loss" in entry) for entry in history] == [(7, True), (7, False), (8, True)]
    assert found.best_step == 7
    # Every figure can be computed again.
    rows = [json.loads(line) for line in (run / "validation-predictions.jsonl").read_text().splitlines()]
    labels, evaluation = found.data.labels, found.evaluation
    logits = np.array([row["logits"] for row in rows])
    decided = decide(logits, "single_label_classification")
    assert [labels[number] for number in decided] == [row["prediction"] for row in rows]
    references = [labels.index(row["label"]) for row in rows]
    again = metrics_for("single_label_classification", 2).compute(predictions=decided, references=references)
    assert again == {name: evaluation[f"eval_{name}"] for name in ("accuracy", "f1_macro")}
    costs = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(rows)), references]
    assert evaluation["eval_loss"] == pytest.approx(costs.mean(), abs=1e-6)
    assert [row["row"] for row in rows] == [0, 1, 2]
    assert all(row["label"] == ("neg" if row["text"].startswith("bad") else "pos") for row in rows)


# --- runs that do not come to their end
Start = Callable[..., Path]


@pytest.fixture
def start(tmp_path: Path, lively_dir: Path, session_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """`start(resume=…, learning_rate=…)`: train on rows.csv in the working directory, with relative names."""
    monkeypatch.setenv("GLASSLOOP_CACHE", str(session_cache))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text(ROWS)
    shutil.copytree(lively_dir, tmp_path / "tiny")

    def begin(
        data: str | None = "rows.csv",
        model: str | None = "tiny",
        resume: str | None = None,
        *,
        timing: bool = False,
        **settings: Any,
    ) -> Path:
        columns = {name: settings.pop(name) for name in ("validation_share", "split_seed") if name in settings}
        chosen = {**({} if resume else {**COMMON, "output_dir": "out", "save_strategy": "steps", "save_steps": 1}), **settings}
        return train_run(GivenSettings(data, model, chosen, columns), resume=resume, timing=timing)

    return begin


@pytest.fixture
def resume(start: Start, tmp_path: Path) -> Start:
    """`resume(learning_rate=…)`: resume the run in `out` without naming its data and model."""
    return lambda data=None, **settings: start(data, None, resume=str(tmp_path / "out"), **settings)


def test_an_empty_run_to_resume_starts_no_other(says, lively_dir: Path) -> None:
    """As it is with a shell variable that is not set."""
    for restart in (False, True):
        with says('"": the path is empty', "use another path"):
            train_run(GivenSettings(None, str(lively_dir)), resume="", restart=restart)


@pytest.mark.parametrize("output_dir", ["new/er/out", None])
def test_problems_are_reported_before_anything_is_written(tmp_path, lively_dir, output_dir: str | None, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("glassloop.training.callbacks.package_version", lambda name: None)
    (tmp_path / "rows.csv").write_text(ROWS)
    for error, data, model, given in (
        (SettingsError, "rows.csv", lively_dir, {"learning_rate": -1}),
        (SettingsError, "rows.csv", lively_dir, {"class_weights": "1,2,3"}),
        (SettingsError, "rows.csv", lively_dir, {"report_to": "wandb"}),
        (SettingsError, "rows.csv", lively_dir, {"positive_label": "no such label"}),
        (SettingsError, "rows.csv", lively_dir, {"metric_for_best_model": "nope", "eval_strategy": "epoch"}),
        (DataError, "gone.csv", lively_dir, {}),
        (ModelError, "rows.csv", tmp_path, {}),
    ):
        with pytest.raises(error):
            train_run(GivenSettings(str(tmp_path / data), str(model), {**COMMON, "output_dir": output_dir, **given}, {}))
        assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"], given


def test_a_run_that_diverged_is_not_finished(start: Start, tmp_path: Path) -> None:
    with pytest.raises(DivergedError):
        start(learning_rate=1e25, max_steps=20)
    assert read_run(tmp_path / "out").status == "running"
    assert not (tmp_path / "out" / "model").exists()


@pytest.mark.parametrize("made_before", [True, False])
def test_a_failed_start_leaves_nothing_behind(start: Start, tmp_path: Path, made_before: bool, monkeypatch) -> None:
    """The same command must work once what was missing is installed."""
    if made_before:
        (tmp_path / "out").mkdir()
    monkeypatch.setattr("glassloop.training.callbacks.package_version", lambda name: None)
    with pytest.raises(SettingsError, match="report_to lists trackio, which is not installed"):
        start(report_to="trackio")
    assert [*tmp_path.glob("out/*")] == []
    assert (tmp_path / "out").exists() is made_before
    assert read_run(start()).finished


# --- resuming
def unfinished(folder: Path, *, checkpoints: bool = True) -> None:
    """Make a finished run one that was killed, with or without a checkpoint of its first step."""
    write_run(folder, replace(read_run(folder), status="running", evaluation=None, result=None))
    shutil.rmtree(folder / "model")
    shutil.rmtree(folder / "checkpoint-2")
    if not checkpoints:
        for path in checkpoints_in(folder):
            shutil.rmtree(path)


def test_a_resumed_run_keeps_its_chosen_settings_and_names_data_that_were_moved(start, resume, tmp_path, monkeypatch) -> None:
    folder = start()
    before = read_run(folder)
    assert before.chosen == ("method", "pooling", "per_device_train_batch_size", "learning_rate", "warmup_steps")
    unfinished(folder)
    (tmp_path / "rows.csv").rename(tmp_path / "moved.csv")
    with pytest.raises(DataError, match="there is no such file or folder") as caught:
        resume()
    assert str(tmp_path / "rows.csv") in caught.value.problem
    monkeypatch.setattr("glassloop.settings.defaults.STARTED_RATE", 1e-9)  # a later version has another rule
    after = read_run(resume("moved.csv"))
    assert replace(after.settings, output_dir="out") == before.settings
    assert (after.chosen, after.finished) == (before.chosen, True)


def test_a_run_that_left_its_encoder_frozen_is_resumed_as_such(tmp_path: Path, lively_dir: Path, session_cache: Path) -> None:
    random = np.random.default_rng(1)
    rows = [f"{' '.join(random.choice(['film', 'the', 'was', 'it'], 4))},{'yn'[row % 2]}" for row in range(60)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *rows, ""]))
    settings = {"output_dir": str(tmp_path / "out"), "device": "cpu", "precision": "fp32"}
    folder = train_run(GivenSettings(str(tmp_path / "rows.csv"), str(lively_dir), settings))
    before, weights = read_run(folder), (folder / "model" / "model.safetensors").read_bytes()
    assert (before.settings.method, before.chosen) == ("frozen", ("method", "pooling"))
    write_run(folder, replace(before, status="running", evaluation=None, result=None))
    shutil.rmtree(folder / "model")
    after = read_run(train_run(GivenSettings(None, None, {"output_dir": str(folder)}), resume=str(folder)))
    assert (after.finished, after.chosen, after.data.notes) == (True, before.chosen, before.data.notes)
    assert (folder / "model" / "model.safetensors").read_bytes() == weights


@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_run_is_resumed_from_another_working_directory(start, resume, tmp_path, monkeypatch, checkpoints: bool) -> None:
    record = read_run(start())
    assert (record.data.source, record.model.name) == (str(tmp_path / "rows.csv"), str(tmp_path / "tiny"))
    unfinished(tmp_path / "out", checkpoints=checkpoints)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert read_run(resume()).finished


def edit_rows(folder: Path) -> None:
    (folder / "rows.csv").write_text(ROWS.replace("film 4,", "story 4,"))


def edit_weights(folder: Path) -> None:
    weights = load_file(folder / "tiny" / "model.safetensors")
    save_file({name: value * 1.5 for name, value in weights.items()}, folder / "tiny" / "model.safetensors", {"format": "pt"})


def edit_config(folder: Path) -> None:
    config = json.loads((folder / "tiny" / "config.json").read_text())
    (folder / "tiny" / "config.json").write_text(json.dumps(config | {"hidden_dropout_prob": 0.25}))


def edit_tokenizer(folder: Path) -> None:
    tokenizer = json.loads((folder / "tiny" / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["film"], vocabulary["story"] = vocabulary["story"], vocabulary["film"]
    (folder / "tiny" / "tokenizer.json").write_text(json.dumps(tokenizer))


def test_before_the_first_checkpoint_resume_knows_its_model_and_data(start, resume, tmp_path: Path, lively_dir: Path) -> None:
    unfinished(start(), checkpoints=False)
    for edit, settings, problem in (
        (edit_rows, {}, r"(train|validation): \d+ rows \(\w+\) then, \d+ rows \(\w+\) now"),
        (edit_weights, {}, r"weights: \w+ then, \w+ now"),
        (edit_config, {}, r"config.hidden_dropout_prob: 0\.\d+ then, 0.25 now"),
        (edit_tokenizer, {}, r"tokenizer: \w+ then, \w+ now"),
        (None, {"learning_rate": 2e-4}, r"learning_rate: 0.0001 then, 0.0002 now"),
        (None, {"split_seed": 5}, r"train: \d+ rows \(\w+\) then, \d+ rows \(\w+\) now"),
    ):
        if edit:
            edit(tmp_path)
        with pytest.raises(ModelError, match="the run was started with different settings or data: ") as caught:
            resume(**settings)
        assert re.search(problem, caught.value.problem), caught.value.problem
        (tmp_path / "rows.csv").write_text(ROWS)
        shutil.copytree(lively_dir, tmp_path / "tiny", dirs_exist_ok=True)
    assert read_run(resume()).finished, "with what it was started with"


def test_a_damaged_head_to_start_from_is_named(start, resume) -> None:
    folder = start()
    unfinished(folder, checkpoints=False)
    path = folder / "head.safetensors"
    whole = path.read_bytes()
    for content, problem in (
        (whole[:40], "cannot be read"),
        (save({"weight": torch.zeros(2, 2)}), "is not the head of this run"),
    ):
        path.write_bytes(content)
        with pytest.raises(ModelError, match=problem) as caught:
            resume()
        assert (str(path) in caught.value.problem, caught.value.remedy) == (True, "restore the file, or train again")
    path.write_bytes(whole)
    assert read_run(resume()).finished


def test_other_validation_rows_are_refused(start: Start, resume: Start, tmp_path: Path) -> None:
    """The training rows are the same, but the history would mix figures of two validation sets."""
    (tmp_path / "data").mkdir()
    for name in ("train", "validation"):
        (tmp_path / "data" / f"{name}.csv").write_text(ROWS)
    unfinished(start("data"))
    (tmp_path / "data" / "validation.csv").write_text(ROWS.replace("film 4,", "story 4,"))
    with pytest.raises(ModelError, match=r"validation: 30 rows \(\w+\) then, 30 rows \(\w+\) now"):
        resume()


def test_a_finished_run_asked_for_more_says_so_and_writes_a_missing_report(start, tmp_path, says, capsys, monkeypatch) -> None:
    folder = start()
    before = times_of(folder)
    for settings, problem in (
        ({"max_steps": 5}, "max_steps: 2 then, 5 now"),
        ({"num_train_epochs": 9.0, "seed": 1}, "num_train_epochs: 3.0 then, 9.0 now; seed: 42 then, 1 now"),
        ({"split_seed": 1}, "split_seed: 42 then, 1 now"),
        ({"data": "other.csv"}, f"data: {tmp_path / 'rows.csv'} then, other.csv now"),
        ({"model": "quickstart"}, f"model: {tmp_path / 'tiny'} then, quickstart now"),
    ):
        with says(
            f"out is finished and was trained with different settings: {problem}",
            "omit these settings, or train a new run; --model out starts from the model of this one",
        ):
            start(**{"data": None, "model": None, "resume": "out", **settings})
    capsys.readouterr()
    start(resume="out", max_steps=2, disable_tqdm=False)
    assert capsys.readouterr().err == "glassloop: out is already complete\n"
    assert times_of(folder) == before
    (folder / ".report.html.9ffbefc5").write_text("<html>")  # as one that was killed while it wrote it
    monkeypatch.delenv("GLASSLOOP_NO_REPORT")
    start(resume="out", max_steps=2)
    assert not [*folder.glob(".report*")]
    assert (folder / "report.html").is_file()


# --- other starts and ends
def test_a_run_is_a_model_to_start_from_and_is_moved_aside_where_that_is_asked_for(start, tmp_path, capsys) -> None:
    start(max_steps=1)
    assert read_run(start(model="out", output_dir="second")).model.name == str(tmp_path / "out")
    assert read_run(start(overwrite_output_dir=True)).plan.max_steps == 2
    assert read_run(tmp_path / "out.kept-1").plan.max_steps == 1
    assert "moved aside: out is now out.kept-1" in capsys.readouterr().err


def test_without_one_nothing_is_evaluated_and_nothing_reported(start: Start, write) -> None:
    write("data/train.csv", ROWS)
    write("data/validation.csv", "text,label\ngood,-1\nbad,-1\n")
    folder = start("data", save_strategy="no")
    found = read_run(folder)
    assert (found.finished, found.evaluation, found.baseline) == (True, None, None)
    assert sorted(path.name for path in folder.iterdir()) == LEFT
    with pytest.raises(SettingsError, match="eval_strategy is epoch, but there is no eval_dataset"):
        start("data", output_dir="b", eval_strategy="epoch")


def test_a_run_ends_with_its_report_unless_it_is_unwanted(start: Start, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.delenv("GLASSLOOP_NO_REPORT")
    path = start() / "report.html"
    assert f"  report: {path}" in capsys.readouterr().err
    accuracy = read_run(path.parent).evaluation["eval_accuracy"]
    assert f"{accuracy:.4f}" in path.read_text(encoding="utf-8")
    train(NO_DEBUG, "rows.csv", "tiny", no_report=True, **{**COMMON, "output_dir": "silent"})
    assert not (tmp_path / "silent" / "report.html").exists()
    assert "GLASSLOOP_NO_REPORT" not in os.environ, "a later training of this process writes its report"
    monkeypatch.setattr("glassloop.report.build.report_of", lambda folder: {}["missing"])
    assert read_run(start(output_dir="failed")).finished, "a report that fails does not fail the run"
    assert "the report could not be written: KeyError: 'missing'" in capsys.readouterr().err


def test_labels_that_a_model_carries_keep_their_numbers(start: Start, text_run: Path, write) -> None:
    """A trained model goes on learning other rows of the same labels: by name, not in the order of the alphabet."""
    write("rows.csv", ROWS.replace(",pos", ',"pos, really"'))
    data = read_run(start(model=str(text_run / "model"))).data
    assert (data.labels, data.label_order) == (("pos, really", "neg"), None)


def test_the_class_whose_f1_counts_is_chosen_written_down_and_named(start: Start, write, says, capsys) -> None:
    """The scarce class of a lopsided file, which is not the last of the alphabet."""
    rows = [f"film {number},{'complaint' if number % 9 == 0 else 'ok'}" for number in range(45)]
    write("rows.csv", "\n".join(["text,label", *rows, ""]))
    settings = {"max_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "f1"}
    with pytest.raises(SettingsError) as caught:
        start(**settings, output_dir="refused")
    assert caught.value.remedy == "set positive_label to the class whose F1 counts, or use f1_macro"
    capsys.readouterr()
    found = read_run(start(**settings, positive_label="complaint", learning_rate=0.0))
    assert (found.metrics, found.positive_label, found.settings.positive_label) == (("accuracy", "f1"), *["complaint"] * 2)
    assert {*(found.baseline or {})} == {"accuracy"}, "always answering ok has no F1 of complaint"
    assert {*(found.classes or {})} == {"complaint", "ok"}
    told = capsys.readouterr().err
    assert f"f1 (complaint) {(found.evaluation or {})['eval_f1']:.4f}" in told, "while training"
    assert [line.split()[-3] for line in told.splitlines() if line.startswith("f1 (complaint)  ")] == ["-"], "in the table"
    assert f"• {found.verdict}" in " ".join(told.split())
    assert not str(found.verdict).startswith("Better")


# --- encoders that cannot be pooled, or that need their pooler
SIZES = {"vocab_size": 120, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
GROUPS = ("q", "k", "v", "post_attention", "intermediate", "output")
KINDS = {
    "t5": {"vocab_size": 120, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2, "eos_token_id": 3,
           "decoder_start_token_id": 0},
    "funnel": {"vocab_size": 120, "block_sizes": [1, 1], "d_model": 32, "n_head": 2, "d_head": 16, "d_inner": 64},
    "squeezebert": {**SIZES, "embedding_size": 32, **{f"{group}_groups": 1 for group in GROUPS}},
    "layoutlm": {**SIZES, "max_position_embeddings": 80},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_family_trains_with_a_head_that_fits_its_encoder(kind: str, start: Start, tmp_path: Path, capsys) -> None:
    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, **KINDS[kind], pad_token_id=0)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "tiny")
    inputs = {"model_input_names": ["input_ids", "attention_mask"]}
    settings = json.loads((tmp_path / "tiny" / "tokenizer_config.json").read_text())
    (tmp_path / "tiny" / "tokenizer_config.json").write_text(json.dumps(settings | inputs))
    pools = kind in ("squeezebert", "layoutlm")
    names = ["class frequencies", "words", *(["frozen encoder"] if pools else [])]
    for run, more in (("auto", {"new_head": True}), ("family", {"pooling": "head"})):
        given = GivenSettings("rows.csv", "tiny", {**COMMON, "output_dir": run, **more}, {}, bool(more.pop("new_head", False)))
        found = read_run(train_run(replace(given, training={**COMMON, "output_dir": run, **more}), with_report=False))
        assert (found.finished, [one.name for one in found.baselines]) == (True, names)
        assert (found.model.pooling is not None) == (pools and run == "auto")
        assert ("the frozen encoder is not compared: " in capsys.readouterr().err) == (not pools)
    if pools:
        return
    for more in ({"method": "frozen"}, {"pooling": "mean"}):
        with pytest.raises(SettingsError, match=f"a {kind} encoder does not give one vector for each token"):
            start(output_dir="no", **more)
    assert not (tmp_path / "no").exists()


def test_settings_of_steps_are_refused_for_a_frozen_encoder_all_at_once(write, tiny_model_dir: Path) -> None:
    data = str(write("rows.csv", ROWS))
    steps = {"num_train_epochs": 3.0, "learning_rate": 5e-5, "load_best_model_at_end": True, "eval_strategy": "epoch"}
    with pytest.raises(SettingsError, match=f"these settings have no effect: {', '.join(steps)}"):
        train(NO_DEBUG, data, str(tiny_model_dir), method="frozen", **steps)
    with pytest.raises(SettingsError, match="the frozen encoder does not depend on the seed"):
        train(NO_DEBUG, data, str(tiny_model_dir), method="frozen", seeds=3)


# --- several processes
@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], int, GivenSettings]]:
    """The arguments, the number of processes and the settings file of each launch; nothing is started."""
    seen: list[tuple[list[str], int, GivenSettings]] = []

    def launch(arguments: list[str], number: int) -> None:
        seen.append((arguments, number, read_settings(arguments[2])))
        raise SystemExit

    monkeypatch.setattr("glassloop.cli.train.launch", launch)
    monkeypatch.setattr("glassloop.cli.train.leave_on_signal", lambda: None)
    return seen


def test_each_process_gets_the_settings_in_a_file(launched, tiny_model_dir: Path) -> None:
    given = GivenSettings("quickstart", str(tiny_model_dir), {"seed": 3}, {"rows": 20}, new_head=True)
    with pytest.raises(SystemExit):
        train(NO_DEBUG, "quickstart", str(tiny_model_dir), new_head=True, processes=2, seed=3, rows=20)
    ((arguments, number, written),) = launched
    assert (arguments[:2], arguments[3:], number, written) == (["train", "--config"], [], 2, given)
    with pytest.raises(SystemExit):
        train(SimpleNamespace(obj=True), resume="out", restart=True, processes=3, as_json=True, timing=True, max_steps=5)
    assert launched[1][0][3:] == ["--resume=out", "--restart", "--json", "--debug", "--timing"]
    assert launched[1][1:] == (3, GivenSettings(training={"max_steps": 5}))


def test_settings_data_and_model_are_checked_before_processes_start(launched, write, tiny_model_dir: Path) -> None:
    """An error in them is reported once, by the command itself, with its own exit status."""
    path = write("rows.csv", "text,lable\na,x\n")
    for names, given, error, code in (
        ((), {"learning_rate": -1.0}, SettingsError, 2),
        ((str(path), str(tiny_model_dir)), {}, DataError, 3),
        (("quickstart", str(path.parent)), {"rows": 20}, ModelError, 4),
    ):
        with pytest.raises(error) as caught:
            train(NO_DEBUG, *names, processes=2, **given)
        assert caught.value.exit_code == code
    assert launched == []


# --- what a training costs
def test_a_run_records_its_stages_up_to_its_end(run: Path) -> None:
    record = read_run(run)
    assert sum(record.stages.values()) == record.seconds
    assert not record.resumed
    # Embeddings may come from the cache. Other tests of this process may have begun stages in another order.
    assert {*record.stages} - {"computing embeddings"} == {
        *("loading the model", "reading the data", "tokenizing", "fitting a linear head"),
        *("fitting a regression on words", "checking the model", "preparing the training", "first step", "other steps"),
        *("evaluating during training", "saving checkpoints", "saving the model", "final evaluation", "everything else"),
    }


def test_the_first_step_is_timed_on_its_own(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    step, timed = session.train_step, session.timed

    def noted_step(*given: Any, **more: Any) -> Any:
        told.append("a step")
        return step(*given, **more)

    @contextmanager
    def noted_timer(title: str, **more: bool) -> Iterator[None]:
        with timed(title, **more):
            told.append(title)
            yield
            told.append(f"end of {title}")

    monkeypatch.setattr(session, "train_step", noted_step)
    monkeypatch.setattr(session, "timed", noted_timer)
    start(max_steps=3, save_strategy="no")
    steps = told[told.index("other steps") : told.index("end of other steps")]
    assert steps == ["other steps", "first step", "a step", "end of first step", "a step", "a step"]


def test_timing_is_printed_last_also_by_a_resumed_run_and_a_finished_one(start: Start, resume, capsys) -> None:
    folder = start(timing=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("in all ")
    assert [line for line in lines if line.startswith("where the time went ")]
    assert [line for line in lines if line.startswith("writing report and model card ")], "the record does not have it"
    train_run(GivenSettings(), str(folder), timing=True)
    printed = capsys.readouterr().err
    assert "already complete" in printed
    assert printed.split()[-1] == f"{read_run(folder).seconds:.2f}"
    unfinished(folder)
    assert read_run(resume(timing=True)).resumed
    assert "time since the run was resumed " in capsys.readouterr().err
    resume()
    assert "in all" not in capsys.readouterr().err, "nobody asked for it"


def test_the_seconds_of_a_run_include_the_fit_of_its_head(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    fit = assembling.fitted_head
    monkeypatch.setattr(assembling, "fitted_head", lambda *given, **more: replace(fit(*given, **more), seconds=1000.0))
    record = read_run(start())
    assert record.result is not None
    assert record.training_seconds == pytest.approx(1000 + record.result["train_runtime"])
