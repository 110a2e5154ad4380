"""Which folder a run gets: a new or an empty one, never one that another run or somebody else writes to."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from glassloop.base.errors import DataError, LockedError, ResourceError, SettingsError, TooLargeError
from glassloop.base.files import locked
from glassloop.runs.record import read_run
from glassloop.runs.status import cleared_unless_started, free_folder, new_folders, refuse_changed, remove_if_empty


def test_the_next_free_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert free_folder(None) == Path("runs/run-001")
    for name in ("run-007", "run-x", "notes"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    assert free_folder(None) == Path("runs/run-008")
    (tmp_path / "runs" / "run-1000").mkdir()
    assert free_folder("") == Path("runs/run-1001")


def test_a_new_or_empty_folder_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert free_folder(str(tmp_path / "new" / "deep")) == tmp_path / "new" / "deep"
    assert free_folder(str(tmp_path)) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert free_folder("~/mine") == tmp_path / "mine"


def test_other_files_are_not_removed(says, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with says(f"output_dir {tmp_path} contains files that do not belong to a run", "choose an empty or new folder"):
        free_folder(str(tmp_path))
    with says(f"output_dir {tmp_path / 'thesis.tex'} is a file", "choose an empty or new folder"):
        free_folder(str(tmp_path / "thesis.tex"))
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(SettingsError) as caught:
        free_folder(str(tmp_path))
    assert caught.value.problem == f"output_dir {tmp_path} already contains a run"
    assert f"--resume {tmp_path}" in caught.value.remedy


def test_runs_that_start_at_once_get_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(lambda _: free_folder(None), range(40))]
    assert len({*found}) == 40
    assert all(folder.is_dir() for folder in found)


def test_a_folder_in_which_nothing_was_written_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = free_folder(None)
    remove_if_empty(*new_folders(folder))
    assert not (tmp_path / "runs").exists()
    folder = free_folder(None)
    (folder / "run.json").write_text("{}")
    remove_if_empty(*new_folders(folder))
    assert folder.exists()


def test_only_the_parents_that_did_not_exist_are_removed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    folders = new_folders(tmp_path / "there" / "new" / "run")
    assert [path.name for path in folders] == ["run", "new"]
    folders[0].mkdir(parents=True)
    remove_if_empty(*folders)
    assert [*tmp_path.iterdir()] == [tmp_path / "there"]


def test_runs_that_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("mine")
    with pytest.raises(ResourceError, match="runs is a file"):
        free_folder(None)


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
    with pytest.raises(type(error)), cleared_unless_started(tmp_path, lambda: started):
        raise error
    assert sorted(path.name for path in tmp_path.iterdir()) == left


def test_a_run_is_moved_aside_only_if_it_is_not_locked(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text("{}")
    with locked(run, print), pytest.raises(LockedError):
        free_folder(str(run), overwrite=True)
    assert free_folder(str(run), overwrite=True) == run
    assert not run.exists()
    assert (tmp_path / "run.kept-1" / "run.json").exists()


def test_a_folder_in_use_is_named_as_such_whatever_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()  # a study begins with it
    with locked(tmp_path, print), pytest.raises(LockedError, match=f"{tmp_path} is in use by process"):
        free_folder(str(tmp_path))


@pytest.mark.parametrize(("name", "content"), [("study.json", "a study"), ("seeds.json", "runs of several seeds")])
def test_a_study_and_several_seeds_are_named(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(SettingsError, match=f"already contains {content}") as caught:
        free_folder(str(tmp_path))
    assert f"--resume {tmp_path}" in caught.value.remedy
