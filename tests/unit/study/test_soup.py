"""The model soup: the mean of the weights, and kept only if it is better on validation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from drawn_runs import drawn_rows
from fake_study import drawn_study
from safetensors.torch import load_file, save_file

from glassloop.study import conclusions as soup
from glassloop.study.conclusions import average_weights, cooked_soup

FINAL = {1: "final-seed-1", 2: "final-seed-2"}


def write_models(folder: Path) -> list[Path]:
    models = []
    for number, name in enumerate(FINAL.values(), 1):
        model = folder / "runs" / name / "model"
        model.mkdir(parents=True)
        weights = {"w": torch.full((2,), float(number)), "half": torch.ones(2, dtype=torch.bfloat16), "ids": torch.tensor([3])}
        save_file(weights, model / "model.safetensors")
        (model / "config.json").write_text("{}")
        models.append(model)
    return models


def test_weights_are_averaged_and_other_files_copied(tmp_path: Path) -> None:
    average_weights(write_models(tmp_path), tmp_path / "soup")
    found = load_file(tmp_path / "soup" / "model.safetensors")
    assert found["w"].tolist() == [1.5, 1.5]
    assert found["ids"].tolist() == [3]
    assert (tmp_path / "soup" / "config.json").exists()


@pytest.mark.parametrize(("skill", "offered"), [(6.0, True), (0.1, False)])
def test_the_soup_is_kept_only_if_it_is_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skill: float, offered: bool
) -> None:
    record = drawn_study(tmp_path)
    write_models(tmp_path)
    seeds = {seed: drawn_rows(120, 1.0, seed) for seed in range(8)}
    monkeypatch.setattr(soup, "soup_rows", lambda *given: drawn_rows(120, skill, 9))
    found = cooked_soup(tmp_path, record, FINAL, seeds, "accuracy", "equivalent")
    assert found is not None
    assert found["offered"] is offered
    assert (tmp_path / "soup").exists() is offered
    assert (found["difference"] > 0) is offered


def test_there_is_no_soup_without_models(tmp_path: Path) -> None:
    record = drawn_study(tmp_path)
    seeds = {seed: drawn_rows(120, 1.0, seed) for seed in FINAL}
    assert cooked_soup(tmp_path, record, FINAL, seeds, "accuracy", None) is None
