"""A run before its first step: labels, splits, notes, parts and record fit together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from families import weights_hash
from trials import write_data

from glassloop import PlainBackend, TrainingArguments, load_examples, load_model
from glassloop.backends.packed import PackedBackend
from glassloop.base.errors import DataError, SettingsError
from glassloop.models.loading import load_config, load_tokenizer
from glassloop.runs.record import RUNNING
from glassloop.settings.defaults import Chosen
from glassloop.settings.file import GivenSettings
from glassloop.study import run as module
from glassloop.study.run import (
    AssembledRun,
    SharedParts,
    assemble,
    call_settings,
    chosen_settings,
    comparison_key,
    reset,
)
from glassloop.training.checkpoints import weights_fingerprint

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
    monkeypatch.setattr("glassloop.study.run.load_examples", lambda *_, **__: examples)
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


# --- What runs of one process share: loaded once, equal to what a run alone loads, and never changed by a run.


@pytest.fixture
def given(tmp_path: Path, lively_dir: Path) -> GivenSettings:
    return GivenSettings(str(write_data(tmp_path / "data", 40, 12)), str(lively_dir), {"max_steps": 2, "device": "cpu"})


def assembled_shared_parts(given: GivenSettings, shared: SharedParts | None, **settings: object) -> AssembledRun:
    args = TrainingArguments(**{"max_steps": 2, "device": "cpu", "seed": 3, **settings})
    return assemble(given, args, PackedBackend("cpu", "fp32"), shared)


def test_each_run_gets_the_weights_of_a_run_alone(given: GivenSettings) -> None:
    shared = SharedParts(keeps=True)
    for seed in (3, 4, 3, 4):
        run, alone = (assembled_shared_parts(given, parts, seed=seed) for parts in (shared, None))
        assert weights_hash(run.trainer.model) == weights_hash(alone.trainer.model)
        assert run.record.identity == alone.record.identity
        assert run.record.identity["weights"] == weights_fingerprint(run.trainer.model)
        assert replace(run.record, started="") == replace(alone.record, started="")
        with torch.no_grad():
            for weight in run.trainer.model.parameters():
                weight.fill_(float("nan"))  # as a run that diverged leaves it


def test_nothing_is_loaded_twice(given: GivenSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(name: str) -> None:
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *words, **named: (calls.append(name), original(*words, **named))[1])

    for name in ("load_config", "load_tokenizer", "load_examples", "encode", "load_model"):
        counted(name)
    shared = SharedParts(keeps=True)
    for seed in (3, 4, 3):
        assembled_shared_parts(given, shared, seed=seed)
    assert sorted(calls) == ["encode", "load_config", "load_examples", "load_model", "load_model", "load_tokenizer"]
    assembled_shared_parts(replace(given, data={"selection_fold": "1/5"}), shared)
    assert calls[6:] == ["load_examples", "encode"]
    calls.clear()
    for _ in range(2):
        assembled_shared_parts(given, SharedParts())
    assert len(calls) == 10, "a run alone keeps nothing"


def test_a_comparison_is_repeated_only_for_other_rows_weights_or_settings(
    given: GivenSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from glassloop.backends import packed as admission

    compared: list[object] = []
    original = admission.compare
    monkeypatch.setattr(admission, "compare", lambda *words, **more: (compared.append(1), original(*words, **more))[1])
    shared = SharedParts(keeps=True)
    first = assembled_shared_parts(given, shared, learning_rate=1e-3)
    second = assembled_shared_parts(given, shared, learning_rate=1e-4, warmup_steps=1, max_steps=3)
    assert (len(compared), second.record.difference) == (1, first.record.difference)
    assert second.record.difference is not None
    for number, other in enumerate(({"seed": 4}, {"weight_decay": 0.1}, {"gradient_accumulation_steps": 2}), 2):
        assembled_shared_parts(given, shared, **other)
        assert len(compared) == number, other
    key = comparison_key(TrainingArguments(), PackedBackend("cpu", "fp32"), first.examples, "a")
    assert key != comparison_key(TrainingArguments(), PackedBackend("cpu", "fp32"), first.examples, "b")


def test_only_the_last_model_is_kept(given: GivenSettings, tmp_path: Path, lively_dir: Path) -> None:
    model = load_model(str(lively_dir))
    model.save_pretrained(tmp_path / "other")
    load_tokenizer(str(lively_dir)).save_pretrained(tmp_path / "other")
    shared = SharedParts(keeps=True)
    for name in (str(lively_dir), str(tmp_path / "other"), str(lively_dir)):
        run = assembled_shared_parts(replace(given, model=name, new_head=True), shared)
        assert shared.initial is not None
        assert shared.initial[0][0] == name  # type: ignore[index]
        assert [*shared.drawn] == [3]
        assert run.record.model.name == name


def test_a_tokenizer_is_as_it_was_loaded(given: GivenSettings, tiny_tokenizer) -> None:
    before = call_settings(tiny_tokenizer)
    tiny_tokenizer(["a film", "a"], truncation=True, max_length=8, padding="max_length")
    assert call_settings(tiny_tokenizer) != before
    reset(tiny_tokenizer, before)
    assert call_settings(tiny_tokenizer) == before
    shared = SharedParts(keeps=True)
    run = assembled_shared_parts(given, shared)
    saved = run.trainer.processing_class.backend_tokenizer.to_str()
    run.trainer.processing_class(["a film"], truncation=True, max_length=8)
    assert assembled_shared_parts(given, shared).trainer.processing_class.backend_tokenizer.to_str() == saved
    assert load_tokenizer(given.model).backend_tokenizer.to_str() == saved
