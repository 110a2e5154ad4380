"""A run before its first step: its parts and its record fit together, runs share what they load, and the banner."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from families import weights_hash
from rich.console import Console
from run_folders import RECORD, make_run
from trials import write_data

from glassloop import PlainBackend, TrainingArguments, load_examples, load_model
from glassloop.backends import packed
from glassloop.backends.packed import PackedBackend
from glassloop.base.errors import DataError, ModelError, SettingsError
from glassloop.models.described import KnownModel
from glassloop.models.loading import load_config, load_tokenizer
from glassloop.models.pooled import Pooling
from glassloop.runs.record import RUNNING, Difference, RunRecord
from glassloop.settings.defaults import Chosen
from glassloop.settings.file import GivenSettings
from glassloop.study import run as module
from glassloop.study.run import PreparedRun, SharedParts, assemble, banner, call_settings, chosen_settings, reset
from glassloop.training.checkpoints import weights_fingerprint

ROWS = "text,label\n" + "".join(
    f"{'good' if number % 3 else 'bad'} film {number},{'pos' if number % 3 else 'neg'}\n" for number in range(30)
)


def assembled(data: object, model: object, args: TrainingArguments | None = None, **settings: Any) -> PreparedRun:
    args = args or TrainingArguments(device="cpu")
    return assemble(GivenSettings(str(data), str(model), {}, settings), args, PlainBackend("cpu", "fp32"))


def test_trainer_parts_and_record_describe_the_same_run(write, lively_dir: Path) -> None:
    run = assembled(write("data.csv", ROWS), lively_dir, TrainingArguments(device="cpu", max_steps=3))
    assert run.parts.in_run
    assert run.parts.model is run.trainer.model
    assert (run.record.status, run.record.plan) == (RUNNING, run.parts.plan)
    assert {*run.encoded} == {*run.examples.splits} == {*run.record.data.splits}
    assert run.record.plan.max_steps == run.record.identity["max_steps"] == 3


def test_settings_that_are_not_given_are_chosen_from_data_and_model_but_glue_keeps_its_own(write, lively_dir: Path) -> None:
    data, args = str(write("data.csv", ROWS)), TrainingArguments(device="cpu", num_train_epochs=2)
    given = GivenSettings(data, str(lively_dir), {"device": "cpu", "num_train_epochs": 2})
    run = assemble(given, args, PlainBackend("cpu", "fp32"))
    names = ("method", "pooling", "per_device_train_batch_size", "learning_rate", "warmup_steps")
    assert run.record.chosen == names
    assert run.trainer.args == run.record.settings == run.parts.args
    assert (run.record.settings.num_train_epochs, run.record.settings.warmup_steps) == (2, 0.0)
    assert run.reason.startswith("method, pooling, batch size, learning rate, warm-up: from 27 training rows, 2 outputs")
    given, args = GivenSettings("glue/mrpc", str(lively_dir)), TrainingArguments()
    examples = load_examples([{"text": f"film {row}", "label": row % 2} for row in range(9)], validation_share=0)
    fixed = replace(args, method="fine_tune", pooling="head", pair_form="one_sequence")
    assert chosen_settings(given, args, examples, load_config(lively_dir)) == Chosen(fixed)
    assert chosen_settings(replace(given, source="rows.csv"), args, examples, load_config(lively_dir)).names


def test_notes_name_truncated_rows_and_special_tokens_and_data_need_training_rows(write, lively_dir: Path, monkeypatch) -> None:
    rows = ROWS.replace("good film 1,", "good [SEP] film 1,") + "good film " * 40 + "good,pos\n"
    run = assembled(write("data.csv", rows), lively_dir, validation_share=0)
    cut = "train: 1 of 31 rows (3%) lost the end of the text: cut to 64 tokens"
    assert any(note.startswith(cut) for note in run.examples.notes)
    special = "train: 1 row contains the text of a special token ([SEP]), which the tokenizer reads as that token"
    assert special in run.examples.notes
    assert run.record.data.notes == tuple(run.examples.notes)
    examples = load_examples({"test": [{"text": f"film {number}", "label": number % 2} for number in range(4)]})
    monkeypatch.setattr(module, "load_examples", lambda *_, **__: examples)
    with pytest.raises(SettingsError, match="the data set has no train split"):
        assembled("rows", lively_dir)


def test_numbers_need_an_order_where_a_model_carries_words(text_run: Path, write) -> None:
    data, model = write("rows.csv", ROWS.replace(",pos", ",1").replace(",neg", ",0")), text_run / "model"
    with pytest.raises(DataError, match="the labels here are numbers"):
        assembled(data, model)
    run = assembled(data, model, labels=("neg", "pos, really"))
    assert run.record.data.labels == ("pos, really", "neg"), "the model's outputs keep their numbers"
    assert run.record.data.label_order == ("neg", "pos, really")
    counts = run.examples.facts["train"].label_counts
    assert counts["pos, really"] > counts["neg"], "two of three rows are 1"


@pytest.mark.parametrize("source", ["rows.csv", "quickstart"])
def test_the_validation_rows_do_not_depend_on_the_training_seed(source: str, lively_dir: Path, write) -> None:
    """Seeds are compared on the same rows: only split_seed draws the split and generates data."""
    data = write("rows.csv", ROWS) if source.endswith(".csv") else source
    rows = {} if source.endswith(".csv") else {"rows": 20}

    def fingerprints(seed: int, **given: Any) -> dict[str, str]:
        run = assembled(data, lively_dir, TrainingArguments(seed=seed, device="cpu"), **rows, **given)
        assert run.record.data.settings.split_seed == given.get("split_seed", 42)
        return {name: fact.fingerprint for name, fact in run.examples.facts.items()}

    assert fingerprints(1) == fingerprints(2) == fingerprints(2, split_seed=42) != fingerprints(2, split_seed=1)


# --- models that were trained with a pooled head
PAIRS = "text,text_pair,label\n" + "".join(f"film {row},a film,label {row % 2}\n" for row in range(30))


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_run_reads_pairs_as_the_head_of_its_model_was_trained_to(family: str, write, tmp_path: Path, capsys) -> None:
    towers = Pooling("max", normalize=True, towers=True)
    model = make_run(tmp_path / "run", family, pairs=True, pooling=towers) / "model"
    data = write("pairs.csv", PAIRS)
    run = assembled(data, model)
    assert (run.trainer.model.pooling, run.head) == (towers, None)
    assert (run.record.settings.pooling, run.record.settings.pair_form) == ("max", "two_towers")
    start = run.trainer.processing_class.cls_token_id
    assert [*run.encoded["train"].rows[0]["input_ids"]].count(start) == 2, "each text of a pair apart"
    torch.testing.assert_close(run.trainer.model.head.weight, load_model(model).head.weight, rtol=0, atol=0)
    assert "is not used" not in capsys.readouterr().err
    again = assembled(data, model, run.record.settings)
    assert (again.trainer.model.pooling, again.head) == (towers, None), "resumed with the settings that it recorded"
    other = assembled(data, model, TrainingArguments(device="cpu", pair_form="one_sequence"))
    assert other.trainer.model.pooling == Pooling("max", normalize=True)
    assert other.head is not None, "its head is new"
    with pytest.raises(SettingsError, match="pooling is head, but the model was trained with a pooled head"):
        assembled(data, model, TrainingArguments(device="cpu", pooling="head"))
    single = write("rows.csv", PAIRS.replace(",a film", "").replace(",text_pair", ""))
    with pytest.raises(ModelError, match="the model reads pairs of texts, but the rows have one text"):
        assembled(single, model)
    new = GivenSettings(str(single), str(model), new_head=True)
    found = assemble(new, TrainingArguments(device="cpu"), PlainBackend("cpu", "fp32"))
    assert not found.trainer.model.pooling.towers


def test_the_note_on_an_unused_module_is_not_about_our_own_head(write, tmp_path: Path, capsys) -> None:
    model = make_run(tmp_path / "run", pooling=Pooling("mean")) / "model"
    data = write("rows.csv", ROWS.replace(",pos", ",label 0").replace(",neg", ",label 1"))
    assembled(data, model)
    assert "is not used" not in capsys.readouterr().err
    config = json.loads((model / "config.json").read_text())
    del config["glassloop_head"]
    (model / "config.json").write_text(json.dumps(config))
    assembled(data, model)
    assert "its module Dense is not used" in capsys.readouterr().err, "of another model it is"


def test_a_frozen_encoder_gets_a_new_head_and_is_compared_with_another_pooling(write, tmp_path: Path) -> None:
    model = make_run(tmp_path / "run", pooling=Pooling("mean")) / "model"
    data = write("rows.csv", ROWS.replace(",pos", ",label 0").replace(",neg", ",label 1"))
    run = assembled(data, model, TrainingArguments(device="cpu", method="frozen"))
    assert run.head is not None
    assert not torch.equal(run.trainer.model.head.weight, load_model(model).head.weight)
    assert [one.name for one in run.record.baselines][2:] == ["frozen encoder"], "this run itself"
    other = assembled(data, model, TrainingArguments(device="cpu", method="frozen", pooling="max"))
    assert [one.name for one in other.record.baselines][2:] == ["frozen encoder, default pooling"]


# --- what runs of one process share: loaded once, equal to what a run alone loads, and never changed by a run
@pytest.fixture
def given(tmp_path: Path, lively_dir: Path) -> GivenSettings:
    return GivenSettings(str(write_data(tmp_path / "data", 40, 12)), str(lively_dir), {"max_steps": 2, "device": "cpu"})


def sharing(given: GivenSettings, shared: SharedParts | None, **settings: object) -> PreparedRun:
    args = TrainingArguments(**{"max_steps": 2, "device": "cpu", "seed": 3, **settings})
    return assemble(given, args, PackedBackend("cpu", "fp32"), shared)


def test_each_run_gets_the_weights_of_a_run_alone(given: GivenSettings) -> None:
    shared = SharedParts(keeps=True)
    for seed in (3, 4, 3, 4):
        run, alone = (sharing(given, parts, seed=seed) for parts in (shared, None))
        assert weights_hash(run.trainer.model) == weights_hash(alone.trainer.model)
        loaded, _ = SharedParts().model(
            str(given.model), run.examples, new_head=False, seed=seed, pooling=run.trainer.model.pooling
        )
        assert run.record.identity["weights"] == weights_fingerprint(loaded), "before its head is fitted"
        found = run.record.difference
        assert found is not None
        first, second = (
            replace(one.record, started="", baselines=(), difference=replace(found, earlier=False)) for one in (run, alone)
        )
        assert first == second
        assert [one.scores for one in run.record.baselines] == [one.scores for one in alone.record.baselines]
        with torch.no_grad():
            for weight in run.trainer.model.parameters():
                weight.fill_(float("nan"))  # as a run that diverged leaves it


def test_another_seed_of_a_described_model_draws_a_head_and_reads_no_weights(
    given: GivenSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = {seed: sharing(given, None, seed=seed) for seed in (3, 4, 5)}  # the first one describes the model
    loads: list[int] = []
    load = KnownModel.load

    def counted(*words: Any, seed: int, **named: Any) -> Any:
        loads.append(seed)
        return load(*words, seed=seed, **named)

    monkeypatch.setattr(KnownModel, "load", counted)
    shared = SharedParts(keeps=True)
    for seed, run in alone.items():
        found = sharing(given, shared, seed=seed)
        assert found.record.identity["weights"] == run.record.identity["weights"]
        assert weights_hash(found.trainer.model) == weights_hash(run.trainer.model)
    assert loads == [3]


def test_nothing_is_loaded_twice(given: GivenSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(module, "known_model", lambda name: None)

    def counted(name: str) -> None:
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *words, **named: (calls.append(name), original(*words, **named))[1])

    for name in ("load_config", "load_tokenizer", "load_examples", "encode", "load_model"):
        counted(name)
    shared = SharedParts(keeps=True)
    for seed in (3, 4, 3):
        sharing(given, shared, seed=seed)
    assert sorted(calls) == ["encode", "load_config", "load_examples", "load_model", "load_model", "load_tokenizer"]
    sharing(replace(given, data={"selection_fold": "1/5"}), shared)
    assert calls[6:] == ["load_examples", "encode"]
    calls.clear()
    for _ in range(2):
        sharing(given, SharedParts())
    assert len(calls) == 10, "a run alone keeps nothing"


def test_a_comparison_is_repeated_only_for_other_weights_settings_or_code(
    given: GivenSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GLASSLOOP_CACHE", str(tmp_path / "cache"))
    compared: list[object] = []
    original = packed.compare

    def counted(*words: Any, trains: bool) -> Any:
        compared.extend([1] * trains)  # not those of embeddings
        return original(*words, trains=trains)

    monkeypatch.setattr(packed, "compare", counted)
    for shared in (SharedParts(keeps=True), SharedParts()):
        compared.clear()
        first = sharing(given, shared, learning_rate=1e-3).record.difference
        assert first is not None
        assert first.earlier == (not shared.keeps)
        for same in ({"learning_rate": 1e-4, "warmup_steps": 1, "max_steps": 3}, {"seed": 4}, {"logging_steps": 5}):
            assert sharing(given, shared, **same).record.difference == replace(first, earlier=True), same
        sharing(replace(given, data={"selection_fold": "1/5"}), shared)  # other rows
        assert len(compared) == int(shared.keeps), "the second time it is read from the cache"
    for number, other in enumerate(({"weight_decay": 0.1}, {"gradient_accumulation_steps": 2}, {"max_length": 9}), 1):
        sharing(given, None, **other)
        assert len(compared) == number, other
    monkeypatch.setattr(module, "package_sources", lambda: "of another version")
    sharing(given, None)
    assert len(compared) == 4


def test_a_comparison_that_fails_is_not_kept(given: GivenSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GLASSLOOP_CACHE", str(tmp_path / "cache"))
    with monkeypatch.context() as patched:
        patched.setattr(packed, "ALLOWED", {"fp32": (0.0, 0.0), "bf16": (0.0, 0.0)})
        patched.setattr(packed, "distance", lambda found, wanted: (0.5, 0.5))
        assert sharing(given, None).record.backend == "plain"
    found = sharing(given, None).record
    assert (found.backend, found.difference and found.difference.earlier) == ("packed", False)


def test_only_the_last_model_is_kept(given: GivenSettings, tmp_path: Path, lively_dir: Path) -> None:
    load_model(str(lively_dir)).save_pretrained(tmp_path / "other")
    load_tokenizer(str(lively_dir)).save_pretrained(tmp_path / "other")
    shared = SharedParts(keeps=True)
    for name in (str(lively_dir), str(tmp_path / "other"), str(lively_dir)):
        run = sharing(replace(given, model=name, new_head=True), shared)
        assert shared.initial[0][0] == run.record.model.name == name  # type: ignore[index]
        assert [*shared.drawn] == [3]


def test_a_tokenizer_is_as_it_was_loaded(given: GivenSettings, tiny_tokenizer) -> None:
    before = call_settings(tiny_tokenizer)
    tiny_tokenizer(["a film", "a"], truncation=True, max_length=8, padding="max_length")
    assert call_settings(tiny_tokenizer) != before
    reset(tiny_tokenizer, before)
    assert call_settings(tiny_tokenizer) == before
    shared = SharedParts(keeps=True)
    tokenizer = sharing(given, shared).trainer.processing_class
    saved = tokenizer.backend_tokenizer.to_str()
    tokenizer(["a film"], truncation=True, max_length=8)
    assert sharing(given, shared).trainer.processing_class.backend_tokenizer.to_str() == saved
    assert load_tokenizer(given.model).backend_tokenizer.to_str() == saved


# --- the banner: one row per fact of a run, and no name that controls the terminal
def rows_of(record: RunRecord) -> dict[str, str]:
    labels = SimpleNamespace(names=record.data.labels)
    examples: Any = SimpleNamespace(task=record.data.task, labels=labels, facts=record.data.splits)
    console = Console(width=120)
    with console.capture() as captured:
        console.print(banner(record, examples, Path("out")))
    pairs = (re.split(r"\s{2,}", line.rstrip(), maxsplit=1) for line in captured.get().splitlines())
    return dict(pairs)


def test_one_row_per_fact() -> None:
    rows = rows_of(RECORD)
    assert [*rows] == ["data", "task", "model", "method", "steps", "learning rate", "device", "optimizations", "folder"]
    assert rows["method"] == "auto, head of the model family"
    assert (rows["steps"], rows["optimizations"]) == ("8 (4 per epoch), 8 rows per step, no padding", "packed batches")
    assert rows_of(replace(RECORD, data=replace(RECORD.data, source="\x1b[31m")))["data"] == r"\x1b[31m: 27 train"
    check = Difference(4, 1e-6, 2e-6, 1e-3, 1e-3)
    plan = replace(RECORD.plan, accumulate=2, warmup_steps=3)
    rows = rows_of(replace(RECORD, processes=2, plan=plan, savings=(), padding=0.25, difference=check))
    assert rows["steps"] == "8 (4 per epoch), 8 rows × 2 processes × 2 batches per step, 25% padding"
    assert rows["learning rate"].endswith(", 3 warm-up steps")
    assert rows["check"] == "logits differ from the plain model by 1.0e-06 of the largest logit (allowed: 1.0e-03)"
    assert rows[""] == "gradients by 2.0e-06 of a weight's gradient norm (allowed: 1.0e-03), 4 rows"
    assert "optimizations" not in rows
    columns = replace(RECORD.data.columns, text_pair="second")
    pairs = replace(RECORD, data=replace(RECORD.data, columns=columns), difference=check)
    towers = replace(pairs, model=replace(RECORD.model, pooling={"mode": "mean", "normalize": True, "towers": True}))
    assert rows_of(towers)["method"] == "auto, mean pooling, two towers"
    frozen = rows_of(replace(towers, settings=replace(RECORD.settings, method="frozen")))
    assert [*frozen] == ["data", "task", "model", "method", "device", "folder"], "what it does without steps"
    assert frozen["method"] == "frozen, mean pooling, two towers"
    assert rows_of(pairs)["method"] == "auto, head of the model family, one sequence"
