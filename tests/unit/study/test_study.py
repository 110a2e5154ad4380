"""`glassloop study` before its first run: what is refused, and what the record of a study says."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from trials import write_data

from glassloop import Study
from glassloop.base.errors import LockedError, ResumeError, SettingsError
from glassloop.base.files import locked
from glassloop.runs.study import SeedRecord, read_study, write_study
from glassloop.settings.file import GivenSettings
from glassloop.settings.study import StudySettings
from glassloop.study.study import checked, new_record, refuse_changed_inputs, search_examples, study

VARY = StudySettings({"learning_rate": "1e-3,2e-3"}, seeds=2)


def test_a_setting_is_either_set_or_varied() -> None:
    given = GivenSettings("rows.csv", training={"learning_rate": 1e-3}, data={"selection_fold": "1/2"})
    with pytest.raises(SettingsError) as raised:
        checked(given, VARY)
    assert raised.value.problem == "learning_rate is both set and varied; selection_fold is set by the study"
    with pytest.raises(SettingsError, match="model is both set and varied"):
        checked(GivenSettings("rows.csv", "a"), StudySettings({"model": "a,b"}))


def test_python_refuses_unknown_settings_before_any_work() -> None:
    with pytest.raises(SettingsError, match='unknown setting "learning_rat"; did you mean "learning_rate"') as raised:
        Study("rows.csv", vary={"max_steps": [1, 2]}, learning_rat=1)
    assert raised.value.exit_code == 2
    found = Study("rows.csv", vary={"max_steps": [1, 2], "weight_decay": "linear:0..0.1"}, text="a", num_train_epochs=2)
    assert (found.given.data, found.given.training) == ({"text": "a"}, {"num_train_epochs": 2})
    assert found.study.vary == {"max_steps": "1,2", "weight_decay": "linear:0..0.1"}


def test_the_metric_and_the_shared_settings_are_recorded(tmp_path: Path, tiny_model_dir: Path) -> None:
    given = GivenSettings(str(write_data(tmp_path, 60, 20)), str(tiny_model_dir), {"seed": 5, "output_dir": "x"})
    record = new_record(given, VARY, search_examples(given, VARY))
    assert (record.metric, record.greater_is_better, record.seeds) == ("accuracy", True, (5, 6))
    assert record.base.training == {"save_strategy": "no", "save_total_limit": 1, "seed": 5, "disable_tqdm": True}
    assert {*record.data} == {"train", "selection", "validation"}
    by_loss = GivenSettings(given.source, given.model, {"metric_for_best_model": "loss"})
    assert new_record(by_loss, VARY, search_examples(by_loss, VARY)).greater_is_better is False
    wrong = GivenSettings(given.source, given.model, {"metric_for_best_model": "bleu"})
    with pytest.raises(SettingsError, match='metric_for_best_model is "bleu"'):
        new_record(wrong, VARY, search_examples(wrong, VARY))


def test_a_study_needs_validation_rows(tmp_path: Path, tiny_model_dir: Path) -> None:
    source = write_data(tmp_path, 60, 20) / "train.csv"
    given = GivenSettings(str(source), str(tiny_model_dir), {}, {"validation_share": 0})
    with pytest.raises(SettingsError, match="a study reports on a validation split, but the data has none"):
        search_examples(given, VARY)


def test_a_resumed_study_keeps_its_settings(tmp_path: Path) -> None:
    from fake_study import record_for

    write_study(tmp_path, record_for(VARY))
    with pytest.raises(SettingsError) as raised:
        study(GivenSettings("rows.csv", training={"learning_rate": 1e-3}), str(tmp_path))
    problem = f"--resume continues {tmp_path} with its own settings, but there are others: learning_rate, data"
    assert raised.value.problem == problem


def test_a_folder_in_use_is_refused_before_any_work(tmp_path: Path) -> None:
    """Neither the data nor the model exists: nothing is loaded."""
    given = GivenSettings("gone.csv", "gone", {"output_dir": str(tmp_path)}, study={"vary": {"max_steps": "1,2"}})
    with locked(tmp_path, print):
        for resume in (None, str(tmp_path)):
            with pytest.raises(LockedError, match="is in use by process") as raised:
                study(given if resume is None else GivenSettings(), resume)
            assert raised.value.exit_code == 7


def test_a_study_whose_data_or_model_changed_is_not_continued(tmp_path: Path, tiny_model_dir: Path) -> None:
    source = write_data(tmp_path / "data", 60, 20)
    model = shutil.copytree(tiny_model_dir, tmp_path / "model")
    folder = tmp_path / "study"
    folder.mkdir()
    given = GivenSettings(str(source), str(model), {"output_dir": str(folder)})
    started = new_record(given, VARY, search_examples(given, VARY))
    write_study(folder, replace(started, runs={"seed-42-a": SeedRecord(0, 42, "1/10", "finished")}))
    refuse_changed_inputs(folder, read_study(folder), started)

    (source / "train.csv").write_text((source / "train.csv").read_text() + "one more film,good\n")
    with pytest.raises(ResumeError) as raised:
        study(GivenSettings(), str(folder))
    assert raised.value.exit_code == 4
    assert f"the rows of train, selection in {source} changed since the study was started" in raised.value.problem
    assert "another --output_dir" in raised.value.remedy
    limited = replace(given, data={"limit": 30})
    refuse_changed_inputs(folder, read_study(folder), new_record(limited, VARY, search_examples(limited, VARY)))

    write_data(source, 60, 20)
    (model / "config.json").write_text((model / "config.json").read_text() + "\n")
    with pytest.raises(ResumeError, match=f"the files of the model {model} changed"):
        study(GivenSettings(), str(folder))
    assert [*(folder).iterdir()] == [folder / "study.json"]
