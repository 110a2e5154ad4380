"""Saving changes nothing, and a checkpoint restores only the training it was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from families import weights_hash
from small_training import StopAt, trained

from glassloop.base.errors import ModelError
from glassloop.runs.layout import checkpoints_in


def test_saving_disturbs_nothing(rows: Dataset, tiny_tokenizer: Any, tmp_path: Path) -> None:
    often = trained(tmp_path / "often", rows, tiny_tokenizer, save_steps=1)
    never = trained(tmp_path / "never", rows, tiny_tokenizer, save_strategy="no")
    assert weights_hash(often.model) == weights_hash(never.model)
    assert often.state.history == never.state.history
    assert len(checkpoints_in(tmp_path / "often")) == 2
    assert not checkpoints_in(tmp_path / "never")


def test_other_intervals_are_accepted_other_numbers_refused(rows: Dataset, tiny_tokenizer: Any, tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", rows, tiny_tokenizer)
    with pytest.raises(SystemExit):
        trained(tmp_path / "run", rows, tiny_tokenizer, callbacks=[StopAt(5)])
    for name, value in (("learning_rate", 2e-3), ("seed", 7), ("per_device_train_batch_size", 3), ("max_steps", 13)):
        with pytest.raises(ModelError, match=r"then.*now") as caught:
            trained(tmp_path / "run", rows, tiny_tokenizer, resume=True, **{name: value})
        assert caught.value.exit_code == 4
        assert ("batch_size" if "batch" in name else name) in caught.value.problem
    edited = rows.map(lambda row, number: {"labels": 1 - row["labels"] if number == 4 else row["labels"]}, with_indices=True)
    for changed, text in (
        (edited, "1 rows edited"),
        (rows.select(range(20)), "1 removed"),
        (rows.select([1, 0, *range(2, 21)]), "another order"),
    ):
        with pytest.raises(ModelError, match=text):
            trained(tmp_path / "run", changed, tiny_tokenizer, resume=True)
    other = trained(tmp_path / "run", rows, tiny_tokenizer, resume=True, logging_steps=5, save_steps=4, eval_strategy="epoch")
    assert weights_hash(other.model) == weights_hash(whole.model)
