"""The runs of a study: their settings, and names that depend on everything that their numbers depend on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_study import record_for

from glassloop.runs.study import StudyRecord, TrialRecord
from glassloop.settings.study import StudySettings
from glassloop.study.trials import Done, RunSettler, needs_selection, planned_runs, task_of


@pytest.fixture
def record(tmp_path: Path, tiny_model_dir: Path) -> StudyRecord:
    rows = "".join(f"{'good' if number % 2 else 'bad'} film {number},{number % 2}\n" for number in range(60))
    (tmp_path / "rows.csv").write_text("text,label\n" + rows)
    found = record_for(
        StudySettings({"learning_rate": "1e-3,2e-3"}, seeds=2), tried=({"learning_rate": 1e-3},), data={"train": "x"}
    )
    return replace(found, base=replace(found.base, source=str(tmp_path / "rows.csv"), model=str(tiny_model_dir)))


def test_a_run_has_its_values_its_seed_and_what_the_rule_chooses(record: StudyRecord) -> None:
    settler = RunSettler(record)
    given = settler.given({"learning_rate": 1e-3}, 7, "1/10")
    assert given.training["learning_rate"] == 1e-3
    assert given.training["seed"] == 7
    assert given.training["per_device_train_batch_size"] == 8
    assert given.data == {"selection_fold": "1/10"}
    final = settler.given({"learning_rate": 1e-3}, 7, None)
    assert final.data == {}
    assert final.training == given.training, "chosen from the rows of the search, for final runs too"


def test_names_depend_on_settings_seed_fold_data_and_model(record: StudyRecord, tmp_path: Path) -> None:
    settler = RunSettler(record)
    given = settler.given({"learning_rate": 1e-3}, 7, "1/10")
    others = [
        settler.given({"learning_rate": 2e-3}, 7, "1/10"),
        settler.given({"learning_rate": 1e-3}, 8, "1/10"),
        settler.given({"learning_rate": 1e-3}, 7, "2/10"),
    ]
    names = [settler.name_of(one) for one in (given, *others)]
    changed = RunSettler(replace(record, data={"train": "y"}))
    model = RunSettler(record)
    model.models[str(given.model)] = "other weights"
    names += [changed.name_of(given), model.name_of(given)]
    assert len({*names}) == len(names)
    elsewhere = replace(given, training={**given.training, "output_dir": str(tmp_path), "disable_tqdm": True})
    assert settler.name_of(elsewhere) == names[0]
    assert names[0].startswith("seed-7-")


def test_early_stopping_never_sees_validation_rows(record: StudyRecord) -> None:
    assert needs_selection({"load_best_model_at_end": True})
    assert needs_selection({"early_stopping_patience": 2})
    base = replace(record.base, training={"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"})
    given = RunSettler(replace(record, base=base)).given({"learning_rate": 1e-3}, 7, None)
    assert given.data == {"selection_fold": "1/10"}


def test_known_runs_keep_what_they_have_reached(record: StudyRecord) -> None:
    settler = RunSettler(record)
    (first, second) = planned_runs(settler, {}, [0])
    stored = {first: TrialRecord(5, 1, "1/10", "finished", selection={"accuracy": 0.5})}
    found = planned_runs(settler, stored, [0])
    assert (found[first][0].setting, found[first][0].status) == (0, "finished")
    assert found[second][0].status == "waiting"
    assert all(name.startswith("final-seed-") for name in planned_runs(settler, {}, [0], final=True))


def test_a_task_names_its_folder(record: StudyRecord, tmp_path: Path) -> None:
    given = RunSettler(record).given({"learning_rate": 1e-3}, 7, "1/10")
    task = task_of(tmp_path, "a", given, 0.25)
    assert task.folder == task.training["output_dir"] == str(tmp_path / "runs" / "a")
    assert task.given() == replace(given, training=task.training)


def test_what_an_answer_says_about_the_process() -> None:
    found = {code: Done("a", "failed", exit_code=code) for code in (1, 2, 3, 4, 5, 6, 7, 134, 137)}
    assert [code for code, done in found.items() if done.is_lost] == [134, 137]
    assert [code for code, done in found.items() if done.leaves_doubt] == [1, 6]
    assert not Done("a", "finished").is_lost
    assert Done("a", "stopped", exit_code=143).is_lost, "a signal to the worker alone"
    assert not Done("a", "stopped").is_lost
