"""A run before its first step: labels, splits, notes, parts and record fit together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glassloop import PlainBackend, TrainingArguments, load_examples
from glassloop.base.errors import DataError, SettingsError
from glassloop.models.loading import load_config
from glassloop.runs.record import RUNNING
from glassloop.settings.defaults import Chosen
from glassloop.settings.file import GivenSettings
from glassloop.study.assembly import AssembledRun, assemble, chosen_settings

ROWS = "text,label\n" + "".join(
    f"{'good' if number % 3 else 'bad'} film {number},{'pos' if number % 3 else 'neg'}\n" for number in range(30)
)


def assembled(data: str, model: str, args: TrainingArguments | None = None, **settings: Any) -> AssembledRun:
    args = args or TrainingArguments(device="cpu")
    return assemble(GivenSettings(data, model, {}, settings), args, PlainBackend("cpu", "fp32"))


def test_trainer_parts_and_record_describe_the_same_run(write, lively_dir: Path) -> None:
    run = assembled(str(write("data.csv", ROWS)), str(lively_dir), TrainingArguments(device="cpu", max_steps=3))
    assert run.parts.in_run
    assert run.parts.model is run.trainer.model
    assert run.record.status == RUNNING
    assert run.record.plan == run.parts.plan
    assert run.record.plan.max_steps == 3
    assert {*run.encoded} == {*run.examples.splits} == {*run.record.data.splits}
    assert run.record.identity["max_steps"] == 3


def test_settings_that_are_not_given_are_chosen_from_data_and_model(write, lively_dir: Path) -> None:
    data, args = str(write("data.csv", ROWS)), TrainingArguments(device="cpu", num_train_epochs=2)
    given = GivenSettings(data, str(lively_dir), {"device": "cpu", "num_train_epochs": 2})
    run = assemble(given, args, PlainBackend("cpu", "fp32"))
    assert run.record.chosen == ("per_device_train_batch_size", "learning_rate", "warmup_steps")
    assert run.trainer.args == run.record.settings == run.parts.args
    assert (run.record.settings.num_train_epochs, run.record.settings.warmup_steps) == (2, 0.0)
    assert run.reason.startswith("batch size, learning rate, warm-up: from 27 training rows, 2 outputs")


def test_glue_keeps_the_settings_of_the_notes(lively_dir: Path) -> None:
    given = GivenSettings("glue/mrpc", str(lively_dir))
    args = TrainingArguments()
    examples = load_examples([{"text": f"film {row}", "label": row % 2} for row in range(9)], validation_share=0)
    assert chosen_settings(given, args, examples, load_config(lively_dir)) == Chosen(args)
    assert chosen_settings(replace(given, source="rows.csv"), args, examples, load_config(lively_dir)).names


def test_truncated_rows_are_among_the_notes_of_the_run(write, lively_dir: Path) -> None:
    long = ROWS + "good film " * 40 + "good,pos\n"
    notes = assembled(str(write("data.csv", long)), str(lively_dir), validation_share=0).record.data.notes
    assert any(note.startswith("train: 1 of 31 rows (3%) lost the end of the text: cut to 64 tokens") for note in notes)


def test_data_without_training_rows_cannot_be_trained_on(lively_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": f"film {number}", "label": number % 2} for number in range(4)]
    examples = load_examples({"test": rows})
    monkeypatch.setattr("glassloop.study.assembly.load_examples", lambda *_, **__: examples)
    with pytest.raises(SettingsError, match="the data set has no train split"):
        assembled("rows", str(lively_dir))


def test_numbers_need_an_order_where_a_model_carries_words(text_run: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(ROWS.replace(",pos", ",1").replace(",neg", ",0"))
    data, model = str(tmp_path / "rows.csv"), str(text_run / "model")
    with pytest.raises(DataError, match="the labels here are numbers"):
        assembled(data, model)
    run = assembled(data, model, labels=("neg", "pos, really"))
    assert run.record.data.labels == ("pos, really", "neg"), "the model's outputs keep their numbers"
    assert run.record.data.label_order == ("neg", "pos, really")
    counts = run.examples.facts["train"].label_counts
    assert counts["pos, really"] > counts["neg"], "two of three rows are 1"


@pytest.mark.parametrize("source", ["rows.csv", "quickstart"])
def test_the_validation_rows_do_not_depend_on_the_training_seed(source: str, lively_dir: Path, tmp_path: Path) -> None:
    """Seeds are compared on the same rows: only split_seed draws the split and generates data."""
    (tmp_path / "rows.csv").write_text(ROWS)
    data = str(tmp_path / source) if source.endswith(".csv") else source
    rows = {} if source.endswith(".csv") else {"rows": 20}

    def fingerprints(seed: int, **given: Any) -> dict[str, str]:
        run = assembled(data, str(lively_dir), TrainingArguments(seed=seed, device="cpu"), **rows, **given)
        assert run.record.data.settings.split_seed == given.get("split_seed", 42)
        return {name: fact.fingerprint for name, fact in run.examples.facts.items()}

    assert fingerprints(1) == fingerprints(2) == fingerprints(2, split_seed=42) != fingerprints(2, split_seed=1)


def test_special_tokens_in_texts_are_noted_and_recorded(write, lively_dir: Path) -> None:
    data = str(write("data.csv", ROWS.replace("good film 1,", "good [SEP] film 1,")))
    run = assembled(data, str(lively_dir), validation_share=0)
    note = "train: 1 row contains the text of a special token ([SEP]), which the tokenizer reads as that token"
    assert note in run.examples.notes
    assert note in run.record.data.notes
