"""study.json and seeds.json: what is read is what was written, and any damage is one error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_study import record_for

from glassloop.base.errors import ModelError
from glassloop.models.loading import find_model
from glassloop.predictor import Predictor
from glassloop.runs import study
from glassloop.runs.record import FAILED, is_seeds_folder, read_run
from glassloop.runs.study import SeedRecord, SeedsRecord, read_seeds
from glassloop.settings.file import RunSettings
from glassloop.settings.study import StudySettings
from glassloop.settings.training import DataSettings, TrainingArguments


def test_runs_of_a_setting_and_scores_at_a_fraction() -> None:
    runs = {"a": SeedRecord(0, 1, "1/10"), "b": SeedRecord(0, 1), "c": SeedRecord(1, 1, "1/10", "failed")}
    record = record_for(StudySettings({"max_steps": "1,2"}), runs=runs)
    assert ([*record.runs_of(0)], [*record.runs_of(0, final=True)], [*record.failed]) == (["a"], ["b"], ["c"])
    run = SeedRecord(0, 1, "1/10", "finished", rungs={"0.25": {"f1": 0.1}}, selection={"f1": 0.9})
    assert [run.scores_at(fraction) for fraction in (0.25, 0.5, 1.0)] == [{"f1": 0.1}, {"f1": 0.9}, {"f1": 0.9}]
    assert SeedRecord(0, 1, "1/10", "paused", rungs={"0.25": {"f1": 0.1}}).scores_at(0.5) is None


def test_a_study_is_read_as_it_was_written_and_any_damage_refused(tmp_path: Path) -> None:
    for text, problem in [(None, "missing"), ("{", "not JSON"), ("{}", "base is missing")]:
        if text is not None:
            (tmp_path / "study.json").write_text(text)
        with pytest.raises(ModelError, match=r"not a study: study\.json") as raised:
            study.read_study(tmp_path)
        assert problem in raised.value.problem
    record = record_for(
        StudySettings({"learning_rate": "1e-3,2e-3", "group_by_length": "true,false"}, seeds=2, budget="3h", fold=2),
        tried=({"learning_rate": 1e-3, "group_by_length": True}, {"learning_rate": 2e-3, "group_by_length": None}),
        rounds=(study.RoundRecord((0, 1), 0.25),),
        runs={"a": SeedRecord(0, 1, "1/2", "paused", 0.25, {"0.25": {"accuracy": 0.5}}), "b": SeedRecord(1, 2, error=("x",))},
        chosen=1,
        results={"sentence": "It is.", "settings": [{"number": 0}]},
        test_evaluations=("learning_rate 0.001",),
        threads=2,
    )
    study.write_study(tmp_path, record)
    assert study.read_study(tmp_path) == record
    assert study.read_rungs(tmp_path) == {}


# --- seeds.json --------------------------------------------------------------------------------------------------
def finished(seed: int, accuracy: float) -> SeedRecord:
    scores, measures = {"accuracy": accuracy}, study.MeasuresRecord(("accuracy",))
    return SeedRecord(
        0, seed, None, "finished", validation=scores, baseline={"accuracy": 0.5}, measures=measures, rows={"a": "b"}
    )


@pytest.fixture
def record(tmp_path: Path) -> SeedsRecord:
    settings = RunSettings("rows.csv", training=TrainingArguments(max_steps=3), data=DataSettings(labels=("a, b", "c")))
    seeds = {1: finished(1, 0.6), 2: finished(2, 0.8), 3: SeedRecord(0, 3, None, FAILED, exit_code=3, error=("x", "y"))}
    seeds_record = SeedsRecord(settings, seeds, tmp_path, "failed", {"torch": "2"})
    study.write_seeds(seeds_record)
    return seeds_record


def test_seeds_are_read_as_they_were_written_with_mean_and_deviation_of_the_finished(record: SeedsRecord) -> None:
    assert is_seeds_folder(record.folder)
    assert read_seeds(record.folder) == record
    results = json.loads((record.folder / "seeds.json").read_text())["results"]
    assert results["mean"] == record.mean == {"accuracy": pytest.approx(0.7)}
    assert results["standard_deviation"] == record.standard_deviation == {"accuracy": pytest.approx(0.02**0.5)}
    assert results["baseline"] == record.baseline == {"accuracy": 0.5}
    assert (record.unfinished, [*record.finished]) == ([3], [1, 2])
    alone = SeedsRecord(RunSettings(), {1: finished(1, 0.6)}, record.folder)
    assert (alone.mean, alone.standard_deviation) == ({"accuracy": 0.6}, None)


def test_a_record_of_an_earlier_version_is_read(record: SeedsRecord) -> None:
    path = record.folder / "seeds.json"
    stored = json.loads(path.read_text()) | {"words": ["train", "rows.csv"], "directory": "somewhere"}
    stored["base"] |= {"data": {"labels": ["a, b", "c"]}, "model": None}
    stored["runs"]["seed-3"] = {"seed": 3, "status": "failed"}
    path.write_text(json.dumps(stored))
    assert read_seeds(record.folder).settings == record.settings
    assert read_seeds(record.folder).seeds[3] == SeedRecord(seed=3, status=FAILED)


def test_a_damaged_record_is_one_error(record: SeedsRecord) -> None:
    path = record.folder / "seeds.json"
    stored = json.loads(path.read_text())
    for change in [
        *([], None, {}, stored | {"base": None}, stored | {"versions": 5}),
        *(stored | {"runs": runs} for runs in ([], {}, {"x": []}, {"seed-1": {"status": 1}})),
        stored | {"runs": {"seed-1": {"validation": {"f1": "high"}}}},
        *(stored | {"base": stored["base"] | {"training": training}} for training in ([], {"seed": "x"})),
        *(
            stored | {"base": stored["base"] | wrong}
            for wrong in ({"data": {"rows": "many"}}, {"source": 1}, {"new_head": "yes"})
        ),
    ]:
        path.write_text(json.dumps(change))
        with pytest.raises(ModelError, match=r"no seeds to resume: seeds\.json: ") as caught:
            read_seeds(record.folder)
        assert caught.value.remedy == "train new seeds"


def test_a_folder_of_seeds_is_not_taken_for_a_run_and_others_have_none(record: SeedsRecord, says) -> None:
    """Its runs are named, for whoever reads a run: --resume, evaluate, predict, eject, --model."""
    folder = record.folder
    for seed in (1, 2):
        (folder / f"seed-{seed}").mkdir()
        (folder / f"seed-{seed}" / "run.json").touch()
    remedy = f"name one of these runs, or resume all: glassloop train --seeds 2 --resume {folder}"
    for reader in (read_run, Predictor, find_model):
        with says(f"{folder} contains one run per seed: seed-1, seed-2", remedy, ModelError):
            reader(folder)
    assert not is_seeds_folder(folder / "seed-1")
    with says(f"{folder / 'seed-1'}: no seeds to resume: seeds.json: missing", kind=ModelError):
        read_seeds(folder / "seed-1")
