"""Any model gets the numbers of the plain backend: fast paths run what they understand, checked at run time, else plain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from families import ALIKE, BY_MODULES, FAST, tiny_model
from strange_models import STRANGE, MeanHead, bert, custom, ernie_with_tasks, replaced_activation

from glassloop import Predictor, Trainer
from glassloop.backends import packed as backends
from glassloop.backends.fast import inference_model as inference_layers
from glassloop.backends.fast import training_model as replaced_layers
from glassloop.base.errors import ModelError


def losses_of(trainer: Trainer) -> list[float]:
    trainer.train()
    return [entry["loss"] for entry in trainer.state.history if "loss" in entry]


def predictions_of(trainer: Trainer) -> np.ndarray:
    return trainer.predict(trainer.eval_dataset).predictions


@pytest.mark.parametrize("name", STRANGE)
def test_an_unknown_model_gets_the_numbers_of_plain(name: str, trainer_of) -> None:
    found = {}
    for backend in ("auto", "plain"):
        model = STRANGE[name]()
        family = "roberta" if model.config.model_type in ("roberta", "gpt2", "mpnet") else "bert"  # without token types
        trainer = trainer_of(model, backend, family=family)
        found[backend] = [
            torch.tensor(values) for values in (predictions_of(trainer), losses_of(trainer), predictions_of(trainer))
        ]
    for auto, plain in zip(found["auto"], found["plain"], strict=True):
        torch.testing.assert_close(auto, plain, atol=1e-5, rtol=1e-5)
    assert found["plain"][0].std() > 1e-3, "answers that are all alike would prove nothing"


@pytest.mark.parametrize("family", ["roberta", "bert"])
def test_a_padding_token_inside_a_text_counts_as_in_the_model(family: str, trainer_of) -> None:
    """RoBERTa gives it no position. A user may type it, and the rows that are compared at first need not hold one."""
    found = {}
    for backend in ("auto", "plain"):
        trainer = trainer_of(tiny_model(family, dropout=0.0, initializer_range=0.2), backend, family=family)
        for name in ("train_dataset", "eval_dataset"):
            rows = getattr(trainer, name).to_list()
            rows[1]["input_ids"][2] = 0
            setattr(trainer, name, Dataset.from_list(rows))
        trainer.args = replace(trainer.args, num_train_epochs=1, max_steps=-1)
        found[backend] = [
            torch.tensor(values) for values in (predictions_of(trainer), losses_of(trainer), predictions_of(trainer))
        ]
        assert trainer.backend.name == ("packed" if backend == "auto" else "plain")
    for auto, plain in zip(found["auto"], found["plain"], strict=True):
        torch.testing.assert_close(auto, plain, atol=1e-5, rtol=1e-5)


def test_a_fast_path_that_fails_is_not_used(trainer_of, monkeypatch, capsys) -> None:
    monkeypatch.setattr(replaced_layers.ReplacedLayers, "embed", lambda self, *args, **given: 1 / 0)
    monkeypatch.setattr(inference_layers, "groups_of", lambda packing: 1 / 0)
    trainer, twin = trainer_of(bert()), trainer_of(bert(), "plain")
    assert (predictions_of(trainer) == predictions_of(twin)).all()
    assert "backend plain instead of packed: it fails (ZeroDivisionError: division by zero)" in capsys.readouterr().err
    assert losses_of(trainer) == losses_of(twin)
    with pytest.raises(ModelError, match=r"backend packed: it fails \(ZeroDivisionError: division by zero\)"):
        trainer_of(bert(), "packed").train()


def understand_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nobody looked at a model before it is packed."""
    monkeypatch.setattr(backends, "why_not_packed", lambda model: None)
    monkeypatch.setattr(backends, "packing_form", lambda model: "layers")


MISTAKEN = {"mean head": lambda: custom(MeanHead), "ernie with tasks": ernie_with_tasks, "activation": replaced_activation}


@pytest.mark.parametrize("name", MISTAKEN)
def test_a_model_that_was_taken_for_a_known_one_is_found_out(name: str, trainer_of, monkeypatch, capsys) -> None:
    understand_everything(monkeypatch)
    for numbers in (losses_of, predictions_of):
        trainer, twin = trainer_of(MISTAKEN[name]()), trainer_of(MISTAKEN[name](), "plain")
        assert trainer.backend.name == "packed"
        assert np.array_equal(numbers(trainer), numbers(twin))
        assert trainer.backend.name == "plain"
        assert "backend plain instead of packed: logits differ from the plain model by" in capsys.readouterr().err


def test_a_backend_asked_for_by_name_stops(trainer_of, monkeypatch) -> None:
    understand_everything(monkeypatch)
    trainer = trainer_of(custom(MeanHead), "packed")
    said = r"backend packed: logits differ from the plain model by \S+ of the largest logit \(allowed: \S+\), gradients by"
    with pytest.raises(ModelError, match=said):
        trainer.train()
    with pytest.raises(ModelError, match="backend packed"):
        trainer.evaluate()


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 1.01


def test_gradients_that_differ_by_a_hundredth_are_found_out(trainer_of, monkeypatch) -> None:
    """The logits are right; only training would go another way."""
    layers = replaced_layers.ReplacedLayers
    usual = layers.embed
    monkeypatch.setattr(layers, "embed", lambda *args, **given: WrongGradient.apply(usual(*args, **given)))
    trainer = trainer_of(bert())
    trainer.evaluate()
    assert trainer.backend.name == "packed"
    trainer.train()
    assert trainer.backend.name == "plain"


@pytest.mark.parametrize("family", [*FAST, *ALIKE, *BY_MODULES])
def test_every_known_family_passes_and_the_difference_is_stated(family: str, trainer_of) -> None:
    model = tiny_model(family, initializer_range=0.2)
    trainer = trainer_of(model, family=family)
    trainer.train()
    assert trainer.backend.name == "packed"
    proof = trainer.backend.differences[model]
    assert 0 < proof.logits < 1e-5
    assert 0 < proof.gradients < 2e-4
    assert proof.rows == 4


def test_the_check_changes_nothing(trainer_of) -> None:
    """Same losses with and without it: weights, gradients, dropout masks and the order of rows are untouched."""

    def losses(checked: bool) -> list[float]:
        trainer = trainer_of(tiny_model("bert", dropout=0.1))
        if checked:
            trainer._prove()
            trainer._prove(trainer.eval_dataset)
        return losses_of(trainer)

    assert losses(True) == losses(False)


def test_one_check_a_model(trainer_of, monkeypatch) -> None:
    calls = []
    usual = backends.compare
    monkeypatch.setattr(backends, "compare", lambda *args, **given: calls.append(given) or usual(*args, **given))
    trainer = trainer_of(bert())
    trainer.evaluate()
    trainer.evaluate()
    trainer.train()
    trainer.evaluate()
    assert calls == [{"trains": False}, {"trains": True}]
    trainer.model = bert()
    trainer.evaluate()
    assert len(calls) == 3, "another model is another question"


def test_a_single_row(trainer_of) -> None:
    trainer = trainer_of(bert())
    one = Dataset.from_list([trainer.train_dataset[0]])
    assert trainer.predict(one).predictions.shape == (1, 2)
    assert (trainer.backend.name, trainer.backend.differences[trainer.model].rows) == ("packed", 1)


def test_a_predictor_checks_before_its_first_answer(lively_dir, tiny_tokenizer, tmp_path: Path, monkeypatch) -> None:
    model = bert()
    model.save_pretrained(tmp_path / "model")
    tiny_tokenizer.save_pretrained(tmp_path / "model")
    predictor = Predictor(tmp_path / "model", device="cpu")
    usual = predictor.predict("the film was good")[0].logits
    assert predictor.backend.name == "packed"
    assert predictor.backend.differences[predictor.model].logits < 1e-5
    right = inference_layers.InferenceLayer.attend
    monkeypatch.setattr(inference_layers.InferenceLayer, "attend", lambda self, *args: right(self, *args) * 1.1)
    other = Predictor(tmp_path / "model", device="cpu")
    assert other.predict("the film was good")[0].logits == pytest.approx(usual, abs=1e-5)
    assert other.backend.name == "plain"
