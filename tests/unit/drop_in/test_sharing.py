"""The model card of a Trainer: facts of a script, settings and metrics, in the one format of all cards."""

from __future__ import annotations

from huggingface_hub import ModelCard

from glassloop import TrainingArguments
from glassloop.compat.trainer import repository_of, trainer_card
from glassloop.report.card import card_text


def test_a_card_has_facts_settings_and_the_latest_metrics() -> None:
    history = [{"step": 1, "eval_loss": 2.0}, {"step": 2, "eval_loss": 1.0, "eval_runtime": 3.0}, {"step": 3, "loss": 1.0}]
    facts = {"language": "en", "tags": ["mine"], "model_name": "My model", "finetuned_from": "bert", "license": None}
    text = card_text(trainer_card("folder", TrainingArguments("out", seed=7), history, {**facts, "dataset": "Mine"}))
    for line in ("language: en", "base_model: bert", "- mine", "# My model", "| seed | 7 |"):
        assert f"\n{line}\n" in text
    assert "| loss | validation | 1.0000 |" in text
    assert "runtime" not in text
    assert "license" not in text
    data = ModelCard(text).data
    assert (data.model_name, data.eval_results[0].dataset_name, data.eval_results[0].metric_value) == ("My model", "Mine", 1.0)


def test_a_card_without_evaluation_and_data() -> None:
    data = ModelCard(card_text(trainer_card("folder", TrainingArguments("out"), [], {"tags": "one"}))).data
    assert data.tags == ["glassloop", "generated_from_trainer", "one"]
    assert data.eval_results is None


def test_the_repository_is_that_of_the_settings(tmp_path) -> None:
    assert repository_of(tmp_path / "mine", TrainingArguments("out")) == "mine"
