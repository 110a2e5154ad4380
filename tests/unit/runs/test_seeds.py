"""seeds.json: what is read is what was written, and any damage is one error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassloop.base.errors import ModelError
from glassloop.models.loading import find_model
from glassloop.predictor import Predictor
from glassloop.runs.record import FAILED, is_seeds_folder, read_run
from glassloop.runs.study import MeasuresRecord, SeedRecord, SeedsRecord, read_seeds, write_seeds
from glassloop.settings.file import RunSettings
from glassloop.settings.training import DataSettings, TrainingArguments


def finished(seed: int, accuracy: float) -> SeedRecord:
    scores, measures = {"accuracy": accuracy}, MeasuresRecord(("accuracy",))
    return SeedRecord(
        0, seed, None, "finished", validation=scores, baseline={"accuracy": 0.5}, measures=measures, rows={"a": "b"}
    )


@pytest.fixture
def record(tmp_path: Path) -> SeedsRecord:
    settings = RunSettings("rows.csv", training=TrainingArguments(max_steps=3), data=DataSettings(labels=("a, b", "c")))
    seeds = {1: finished(1, 0.6), 2: finished(2, 0.8), 3: SeedRecord(0, 3, None, FAILED, exit_code=3, error=("x", "y"))}
    found = SeedsRecord(settings, seeds, tmp_path, "failed", {"torch": "2"})
    write_seeds(found)
    return found


def test_what_is_written_is_read(record: SeedsRecord) -> None:
    assert is_seeds_folder(record.folder)
    assert read_seeds(record.folder) == record


def test_mean_and_standard_deviation_are_of_finished_seeds(record: SeedsRecord) -> None:
    stored = json.loads((record.folder / "seeds.json").read_text())
    assert stored["results"]["mean"] == record.mean == {"accuracy": pytest.approx(0.7)}
    assert stored["results"]["standard_deviation"] == record.standard_deviation == {"accuracy": pytest.approx(0.02**0.5)}
    assert stored["results"]["baseline"] == record.baseline == {"accuracy": 0.5}
    assert (record.unfinished, [*record.finished]) == ([3], [1, 2])


def test_one_seed_has_no_standard_deviation(tmp_path: Path) -> None:
    record = SeedsRecord(RunSettings(), {1: finished(1, 0.6)}, tmp_path)
    assert (record.mean, record.standard_deviation) == ({"accuracy": 0.6}, None)


def test_a_record_of_an_earlier_version_is_read(record: SeedsRecord) -> None:
    path = record.folder / "seeds.json"
    stored = json.loads(path.read_text()) | {"words": ["train", "rows.csv"], "directory": "somewhere"}
    stored["base"] |= {"data": {"labels": ["a, b", "c"]}, "model": None}
    stored["runs"]["seed-3"] = {"seed": 3, "status": "failed"}
    path.write_text(json.dumps(stored))
    assert read_seeds(record.folder).settings == record.settings
    assert read_seeds(record.folder).seeds[3] == SeedRecord(seed=3, status=FAILED)


@pytest.mark.parametrize(
    "change",
    [
        lambda found: [],
        lambda found: None,
        lambda found: {},
        lambda found: {**found, "runs": []},
        lambda found: {**found, "runs": {}},
        lambda found: {**found, "runs": {"x": []}},
        lambda found: {**found, "runs": {"seed-1": {"status": 1}}},
        lambda found: {**found, "runs": {"seed-1": {"validation": {"f1": "high"}}}},
        lambda found: {**found, "base": None},
        lambda found: {**found, "base": {**found["base"], "training": []}},
        lambda found: {**found, "base": {**found["base"], "training": {"seed": "x"}}},
        lambda found: {**found, "base": {**found["base"], "data": {"rows": "many"}}},
        lambda found: {**found, "base": {**found["base"], "source": 1}},
        lambda found: {**found, "base": {**found["base"], "new_head": "yes"}},
        lambda found: {**found, "versions": 5},
    ],
)
def test_a_damaged_record_is_one_error(record: SeedsRecord, change: Callable[[Any], Any]) -> None:
    path = record.folder / "seeds.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ModelError, match=r"no seeds to resume: seeds\.json: ") as caught:
        read_seeds(record.folder)
    assert caught.value.remedy == "train new seeds"


def test_a_folder_without_seeds(tmp_path: Path, says) -> None:
    assert not is_seeds_folder(tmp_path)
    with says(f"{tmp_path}: no seeds to resume: seeds.json: missing", kind=ModelError):
        read_seeds(tmp_path)


def test_a_folder_of_seeds_is_not_taken_for_a_run(record: SeedsRecord, says) -> None:
    """Its runs are named, for whoever reads a run: --resume, evaluate, predict, eject, --model."""
    folder = record.folder
    for seed in (1, 2):
        (folder / f"seed-{seed}").mkdir()
        (folder / f"seed-{seed}" / "run.json").touch()
    remedy = f"name one of these runs, or resume all: glassloop train --seeds 2 --resume {folder}"
    for reader in (read_run, Predictor, find_model):
        with says(f"{folder} contains one run per seed: seed-1, seed-2", remedy, ModelError):
            reader(folder)
