"""How far a run has come, from its folder: finished, paused with scores, or not far enough."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_study import record_for
from run_folders import RECORD

from glassloop.base.errors import ModelError
from glassloop.runs.record import write_run
from glassloop.runs.study import SeedRecord, StudyRecord
from glassloop.settings.study import StudySettings
from glassloop.study import trials as reached
from glassloop.study.trials import (
    Done,
    RunSettler,
    add_rung,
    drop_checkpoints,
    drop_damaged_checkpoints,
    drop_later_checkpoints,
    found_done,
    needs_selection,
    planned_runs,
    record_of,
    task_of,
)


def test_nothing_is_reached_without_scores(tmp_path: Path) -> None:
    assert found_done(tmp_path / "none", "a", 0.25) is None
    write_run(tmp_path, replace(RECORD, status="running"))
    assert found_done(tmp_path, "a", 0.25) is None


def test_a_paused_run_has_the_scores_of_its_rungs(tmp_path: Path) -> None:
    write_run(tmp_path, replace(RECORD, status="running"))
    add_rung(tmp_path, 0.25, {"accuracy": 0.5})
    add_rung(tmp_path, 0.5, {"accuracy": 0.6})
    found = found_done(tmp_path, "a", 0.25)
    assert found is not None
    assert (found.status, found.rungs) == ("paused", {"0.25": {"accuracy": 0.5}, "0.5": {"accuracy": 0.6}})
    assert found_done(tmp_path, "a", 1.0) is None


def test_a_finished_run_has_its_evaluation_without_timings(tmp_path: Path) -> None:
    evaluation = {"eval_loss": 0.4, "eval_runtime": 3.0}
    write_run(tmp_path, replace(RECORD, status="finished", evaluation=evaluation, seconds=9.0))
    found = found_done(tmp_path, "a", 0.25)
    assert found is not None
    assert (found.status, found.evaluation, found.seconds) == ("finished", {"loss": 0.4}, 9.0)


def test_a_damaged_record_is_none(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{")
    assert record_of(tmp_path) is None


def test_checkpoints_whose_scores_were_lost_are_removed(tmp_path: Path) -> None:
    for step in (3, 5, 9):
        (tmp_path / f"checkpoint-{step}").mkdir()
    drop_later_checkpoints(tmp_path, 5)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-3"]
    drop_checkpoints(tmp_path)
    assert not [*tmp_path.glob("checkpoint-*")]


def test_damaged_checkpoints_are_dropped_only_if_none_is_intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not drop_damaged_checkpoints(tmp_path)
    for step in (2, 4):
        (tmp_path / f"checkpoint-{step}").mkdir()

    def opened(path: Path) -> None:
        if path.name == "checkpoint-4":
            raise ModelError("damaged", "drop it")

    monkeypatch.setattr(reached, "open_checkpoint", opened)
    assert not drop_damaged_checkpoints(tmp_path)
    (tmp_path / "checkpoint-2").rmdir()
    assert drop_damaged_checkpoints(tmp_path)
    assert not [*tmp_path.iterdir()]


# --- The runs of a study: their settings, and names that depend on everything that their numbers depend on.


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
    stored = {first: SeedRecord(5, 1, "1/10", "finished", selection={"accuracy": 0.5})}
    found = planned_runs(settler, stored, [0])
    assert (found[first][0].setting, found[first][0].status) == (0, "finished")
    assert found[second][0].status == "waiting"
    assert all(name.startswith("final-seed-") for name in planned_runs(settler, {}, [0], final=True))


def test_a_task_names_its_folder(record: StudyRecord, tmp_path: Path) -> None:
    given = RunSettler(record).given({"learning_rate": 1e-3}, 7, "1/10")
    task = task_of(tmp_path, "a", given, 0.25)
    assert task.folder == tmp_path / "runs" / "a"
    assert task.given == replace(given, training={**given.training, "output_dir": str(task.folder)})
    assert task.log == tmp_path / "runs" / "a.log"


def test_what_an_answer_says_about_the_process() -> None:
    found = {code: Done("a", "failed", exit_code=code) for code in (1, 2, 3, 4, 5, 6, 7, 134, 137)}
    assert [code for code, done in found.items() if done.is_lost] == [134, 137]
    assert [code for code, done in found.items() if done.leaves_doubt] == [1, 6]
    assert not Done("a", "finished").is_lost
    assert Done("a", "stopped", exit_code=143).is_lost, "a signal to the worker alone"
    assert not Done("a", "stopped").is_lost
