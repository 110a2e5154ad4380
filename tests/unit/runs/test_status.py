"""Which folder a run gets, and what its files say about it: of the command, of a Trainer, of another machine, damaged."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from run_folders import RECORD, log_steps, write_watched

from glassloop.base.errors import DataError, LockedError, ResourceError, SettingsError, TooLargeError
from glassloop.base.files import Holder, locked
from glassloop.base.records import write_sealed
from glassloop.runs import status
from glassloop.runs.history import END, RESUME, START, STOP, Moment, note_moment
from glassloop.runs.record import FINISHED, HISTORY_NAME, SESSIONS_NAME, TRAINER_NAME, read_run
from glassloop.runs.status import free_folder, new_folders, refuse_changed, remove_if_empty, summary_of


# --- the folder of a run -----------------------------------------------------------------------------------------
def test_the_next_free_number_or_a_new_or_empty_folder_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert free_folder(str(tmp_path / "new" / "deep")) == tmp_path / "new" / "deep"
    assert free_folder(str(tmp_path)) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert free_folder("~/mine") == tmp_path / "mine"
    monkeypatch.chdir(tmp_path)
    assert free_folder(None) == Path("runs/run-001")
    for name in ("run-007", "run-x", "notes"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    assert free_folder(None) == Path("runs/run-008")
    (tmp_path / "runs" / "run-1000").mkdir()
    assert free_folder("") == Path("runs/run-1001")
    with ThreadPoolExecutor(8) as pool:
        folders = [*pool.map(lambda _: free_folder(None), range(40))]
    assert len({*folders}) == 40, "runs that start at once get folders of their own"
    assert all(folder.is_dir() for folder in folders)


def test_other_files_are_not_removed(says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").write_text("years of work")
    with says(f"output_dir {tmp_path} contains files that do not belong to a run", "choose an empty or new folder"):
        free_folder(str(tmp_path))
    with says(f"output_dir {tmp_path / 'runs'} is a file", "choose an empty or new folder"):
        free_folder(str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ResourceError, match="runs is a file"):
        free_folder(None)
    assert (tmp_path / "runs").read_text() == "years of work"


def test_a_run_a_study_and_several_seeds_are_never_overwritten(tmp_path: Path) -> None:
    for name, content in [("run.json", "a run"), ("study.json", "a study"), ("seeds.json", "runs of several seeds")]:
        folder = tmp_path / Path(name).stem
        folder.mkdir()
        (folder / name).write_text("{}")
        with pytest.raises(SettingsError) as caught:
            free_folder(str(folder))
        assert caught.value.problem == f"output_dir {folder} already contains {content}"
        assert f"--resume {folder}" in caught.value.remedy


def test_only_new_folders_in_which_nothing_was_written_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    remove_if_empty(*new_folders(free_folder(None)))
    assert not (tmp_path / "runs").exists()
    folder = free_folder(None)
    (folder / "run.json").write_text("{}")
    remove_if_empty(*new_folders(folder))
    assert folder.exists()
    (tmp_path / "there").mkdir()
    folders = new_folders(tmp_path / "there" / "new" / "run")
    assert [path.name for path in folders] == ["run", "new"]
    folders[0].mkdir(parents=True)
    remove_if_empty(*folders)
    assert [*(tmp_path / "there").iterdir()] == []


def test_a_folder_is_looked_at_again_under_the_lock(tmp_path: Path, text_run: Path) -> None:
    (tmp_path / ".lock").write_text("")
    refuse_changed(tmp_path, None)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(SettingsError, match="already contains a run"):
        refuse_changed(tmp_path, None)
    stored = read_run(text_run)
    refuse_changed(text_run, stored)
    with pytest.raises(LockedError, match="in the meantime"):
        refuse_changed(text_run, replace(stored, status="running"))


@pytest.mark.parametrize(
    ("error", "started", "left"),
    [
        (SettingsError("a", "b"), False, []),
        (DataError("a", "b"), False, []),
        (TooLargeError("a", "b"), False, []),
        (SettingsError("a", "b"), True, ["deep", "run.json"]),
        (ResourceError("a full disk", "make room and resume"), False, ["deep", "run.json"]),
        (KeyboardInterrupt(), False, ["deep", "run.json"]),
    ],
)
def test_a_run_that_never_started_leaves_nothing(tmp_path: Path, error: BaseException, started: bool, left: list[str]) -> None:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    with pytest.raises(type(error)), status.cleared_unless_started(tmp_path, lambda: started):
        raise error
    assert sorted(path.name for path in tmp_path.iterdir()) == left


def test_a_folder_in_use_is_named_as_such_and_not_moved_aside(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "runs").mkdir(parents=True)  # a study begins with it
    with locked(run, print), pytest.raises(LockedError, match=f"{run} is in use by process"):
        free_folder(str(run))
    (run / "run.json").write_text("{}")
    with locked(run, print), pytest.raises(LockedError):
        free_folder(str(run), overwrite=True)
    assert free_folder(str(run), overwrite=True) == run
    assert not run.exists()
    assert (tmp_path / "run.kept-1" / "run.json").exists()


# --- its status --------------------------------------------------------------------------------------------------
def test_the_status_and_the_state_of_files(tmp_path: Path) -> None:
    for held, finished, has_record, events, expected in [
        (Holder.ALIVE, False, True, [START], "running"),
        (Holder.ELSEWHERE, False, True, [START], "running"),
        (Holder.ALIVE, False, True, [START, END], "running"),  # it evaluates and saves the model
        (Holder.DEAD, False, True, [START], "killed"),
        (Holder.DEAD, False, False, [START], "killed"),
        (Holder.NOBODY, False, True, [START, STOP], "stopped"),
        (Holder.NOBODY, False, True, [START, END], "stopped"),  # during the final evaluation
        (Holder.NOBODY, False, True, [], "stopped"),  # of an older version
        (Holder.NOBODY, False, True, [START, STOP, RESUME], "failed"),
        (Holder.NOBODY, False, False, [START, END], "finished"),  # by a Trainer
        (Holder.NOBODY, True, True, [START, END], "finished"),
        (Holder.DEAD, True, True, [], "finished"),
    ]:
        assert status.status_of(held, finished, has_record, [Moment(event, 0, 8) for event in events]) == expected
    run = write_watched(tmp_path / "a")
    before = status.file_states(run)
    log_steps(run, 6)
    after = status.file_states(run)
    assert [name for name in before if before[name] != after[name]] == [HISTORY_NAME]
    assert status.state_of(tmp_path) is None
    assert (status.changed(None, (1, 2, 3_000_000_000)), status.changed(None)) == (3.0, 0.0)
    summary = summary_of("a", write_watched(tmp_path / "b"))
    assert (summary.name, summary.status, summary.step, summary.max_steps, summary.by_trainer) == ("a", "failed", 4, 8, False)
    assert summary.record is not None
    assert (summary.seconds_left, summary.running) == (None, False)
    summary = summary_of("a", tmp_path / "b", Holder.ELSEWHERE)
    assert (summary.elsewhere, summary.running, summary.seconds_left) == (True, True, 8.0)


@pytest.mark.parametrize(
    ("moments", "step", "began", "expected"),
    [
        ([(START, 0)], 20, 1000, 0.5),
        ([(START, 0), (RESUME, 40)], 50, 1000, 1.0),  # counted from the last resume
        ([(START, 0), (RESUME, 40)], 40, 1000, None),  # no new step yet
        ([(START, 0)], 20, 1020, None),  # the disk was copied
        ([(START, 0), (STOP, 20)], 20, 1000, None),
        ([], 20, 1000, None),
    ],
)
def test_the_time_of_a_step(tmp_path: Path, moments: list, step: int, began: int, expected: float | None) -> None:
    (tmp_path / SESSIONS_NAME).touch()
    for event, at in moments:
        note_moment(tmp_path, event, at, 100)
    log_steps(tmp_path, step)
    os.utime(tmp_path / SESSIONS_NAME, (began, began))
    os.utime(tmp_path / HISTORY_NAME, (1010, 1010))
    assert summary_of("a", tmp_path).step_seconds == expected


def test_a_run_of_a_trainer_has_a_record_of_its_own(tmp_path: Path) -> None:
    note_moment(tmp_path, START, 0, 8)
    log_steps(tmp_path, 4)
    write_sealed(tmp_path / TRAINER_NAME, replace(RECORD, seconds=3.0))
    summary = summary_of("t", tmp_path)
    assert (summary.status, summary.by_trainer, summary.record and summary.record.seconds) == ("failed", True, 3.0)
    note_moment(tmp_path, END, 8, 8)
    assert summary_of("t", tmp_path).status == "finished", "even if the record could not be written at the end"
    write_sealed(tmp_path / TRAINER_NAME, replace(RECORD, status=FINISHED))
    assert summary_of("t", tmp_path).status == "finished"
    (tmp_path / TRAINER_NAME).write_text("{")
    summary = summary_of("t", tmp_path)
    assert (summary.status, summary.record) == ("damaged", None)
    assert TRAINER_NAME in summary.problem
