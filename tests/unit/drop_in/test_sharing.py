"""The model card, and the upload, which says clearly why it is not possible."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassloop import TrainingArguments
from glassloop.drop_in.sharing import upload, write_card
from glassloop.errors import ResourceError


def test_a_card_has_facts_settings_and_the_latest_metrics(tmp_path: Path) -> None:
    history = [{"step": 1, "eval_loss": 2.0}, {"step": 2, "eval_loss": 1.0}, {"step": 3, "loss": 1.0}]
    facts = {"language": "en", "tags": ["mine"], "model_name": "My model", "finetuned_from": "bert", "license": None}
    write_card(tmp_path / "new", TrainingArguments("out", seed=7), history, facts)
    text = (tmp_path / "new" / "README.md").read_text(encoding="utf-8")
    for line in ("language: en", "base_model: bert", "- mine", "# My model", "- seed: 7", "- eval_loss: 1.0"):
        assert f"\n{line}\n" in text
    assert "license" not in text


def test_an_upload_without_a_hub_names_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ResourceError) as caught:
        upload(tmp_path, "me/model", "End of training", token=None, revision=None)
    assert caught.value.problem == "the model hub cannot be reached: HF_HUB_OFFLINE is set"
    assert str(tmp_path) in caught.value.remedy
