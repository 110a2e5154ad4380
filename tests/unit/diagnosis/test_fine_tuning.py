"""Held-out probabilities of fine-tuned models: every row is predicted by a model that did not see it."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from glassloop.base.errors import SettingsError
from glassloop.data.sources import load_examples
from glassloop.diagnosis.embeddings import sampled
from glassloop.diagnosis.fine_tuning import held_out_by_training
from glassloop.diagnosis.rows import surveyed
from glassloop.trainer import Trainer


@pytest.mark.parametrize("task", ["classes", "several", "scores", "pairs"])
def test_every_row_is_predicted_by_a_model_that_did_not_see_it(
    task: str, tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = {"several": ["good|bad", "good", "bad"], "scores": ["0.5", "1.25", "2.0"]}.get(task, ["good", "bad"])
    rows = [[f"{'the film was'.split()[n % 3]} {n % 17} story {n}", labels[n % len(labels)]] for n in range(24)]
    rows[20] = rows[5]
    header = ["text", "label"]
    if task == "pairs":
        header, rows = (
            ["text", "text_pair", "label"],
            [[text, f"it is {place}", label] for place, (text, label) in enumerate(rows)],
        )
    with (tmp_path / "rows.csv").open("w", newline="") as opened:
        csv.writer(opened).writerows([header, *rows])
    settings = {"several": {"label_separator": "|"}, "scores": {"task": "regression"}}.get(task, {})
    examples = load_examples(tmp_path / "rows.csv", validation_share=0, text="text", label="label", **settings)
    sample = sampled(surveyed(examples), str(tiny_model_dir), None, "cpu", None)
    trained: list[int] = []
    usual = Trainer.train

    def watched(self: Trainer) -> object:
        trained.append(len(self.train_dataset))
        return usual(self)

    monkeypatch.setattr(Trainer, "train", watched)
    held = held_out_by_training(2, "cpu", epochs=1)(sample, np.arange(24))
    assert len(trained) == 2
    assert sum(trained) == 24
    assert held.expected.shape == (24, 1 if task == "scores" else 2)
    assert np.isfinite(held.expected).all()
    assert held.method == "fine_tune"
    if task == "classes":
        assert np.allclose(held.expected.sum(axis=1), 1)
        assert np.allclose(held.expected[20], held.expected[5], atol=1e-5), "equal texts are in the same fold"


def test_one_fold_is_refused() -> None:
    with pytest.raises(SettingsError, match="--folds is 1"):
        held_out_by_training(1)
