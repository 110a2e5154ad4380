"""What runs of one process share: loaded once, equal to what a run alone loads, and never changed by a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from families import weights_hash
from trials import write_data

from glassloop import TrainingArguments, load_model
from glassloop.backends.packed import PackedBackend
from glassloop.models.loading import load_tokenizer
from glassloop.settings.file import GivenSettings
from glassloop.study import assembly as module
from glassloop.study.assembly import AssembledRun, SharedParts, assemble, comparison_key, reset, with_call_settings
from glassloop.training.identity import weights_fingerprint


@pytest.fixture
def given(tmp_path: Path, lively_dir: Path) -> GivenSettings:
    return GivenSettings(str(write_data(tmp_path / "data", 40, 12)), str(lively_dir), {"max_steps": 2, "device": "cpu"})


def assembled(given: GivenSettings, shared: SharedParts | None, **settings: object) -> AssembledRun:
    args = TrainingArguments(**{"max_steps": 2, "device": "cpu", "seed": 3, **settings})
    return assemble(given, args, PackedBackend("cpu", "fp32"), shared)


def test_each_run_gets_the_weights_of_a_run_alone(given: GivenSettings) -> None:
    shared = SharedParts(keeps=True)
    for seed in (3, 4, 3, 4):
        run, alone = (assembled(given, parts, seed=seed) for parts in (shared, None))
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
        assembled(given, shared, seed=seed)
    assert sorted(calls) == ["encode", "load_config", "load_examples", "load_model", "load_model", "load_tokenizer"]
    assembled(replace(given, data={"selection_fold": "1/5"}), shared)
    assert calls[6:] == ["load_examples", "encode"]
    calls.clear()
    for _ in range(2):
        assembled(given, SharedParts())
    assert len(calls) == 10, "a run alone keeps nothing"


def test_a_comparison_is_repeated_only_for_other_rows_weights_or_settings(
    given: GivenSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from glassloop.backends import admission

    compared: list[object] = []
    original = admission.measure_difference
    monkeypatch.setattr(admission, "measure_difference", lambda *words: (compared.append(1), original(*words))[1])
    shared = SharedParts(keeps=True)
    first = assembled(given, shared, learning_rate=1e-3)
    second = assembled(given, shared, learning_rate=1e-4, warmup_steps=1, max_steps=3)
    assert (len(compared), second.record.difference) == (1, first.record.difference)
    assert second.record.difference is not None
    for number, other in enumerate(({"seed": 4}, {"weight_decay": 0.1}, {"gradient_accumulation_steps": 2}), 2):
        assembled(given, shared, **other)
        assert len(compared) == number, other
    key = comparison_key(TrainingArguments(), PackedBackend("cpu", "fp32"), first.examples, "a")
    assert key != comparison_key(TrainingArguments(), PackedBackend("cpu", "fp32"), first.examples, "b")


def test_only_the_last_model_is_kept(given: GivenSettings, tmp_path: Path, lively_dir: Path) -> None:
    model = load_model(str(lively_dir))
    model.save_pretrained(tmp_path / "other")
    load_tokenizer(str(lively_dir)).save_pretrained(tmp_path / "other")
    shared = SharedParts(keeps=True)
    for name in (str(lively_dir), str(tmp_path / "other"), str(lively_dir)):
        run = assembled(replace(given, model=name, new_head=True), shared)
        assert shared.initial is not None
        assert shared.initial.key[0] == name  # type: ignore[index]
        assert [*shared.initial.drawn] == [3]
        assert run.record.model.name == name


def test_a_tokenizer_is_as_it_was_loaded(given: GivenSettings, tiny_tokenizer) -> None:
    _, before = with_call_settings(tiny_tokenizer)
    tiny_tokenizer(["a film", "a"], truncation=True, max_length=8, padding="max_length")
    assert with_call_settings(tiny_tokenizer)[1] != before
    reset(tiny_tokenizer, before)
    assert with_call_settings(tiny_tokenizer)[1] == before
    shared = SharedParts(keeps=True)
    run = assembled(given, shared)
    saved = run.trainer.processing_class.backend_tokenizer.to_str()
    run.trainer.processing_class(["a film"], truncation=True, max_length=8)
    assert assembled(given, shared).trainer.processing_class.backend_tokenizer.to_str() == saved
    assert load_tokenizer(given.model).backend_tokenizer.to_str() == saved
