"""Writing whole or not at all, whoever else writes; where the cache lives; and paths that cannot be looked at."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from pathlib import Path

import pytest

from glassloop.base import files
from glassloop.base.errors import ResourceError, SettingsError
from glassloop.base.files import absolute_name, find_path, home_name, kind_of_special, replacing_dir, user_path, write_text


class StoppedError(Exception):
    """What interrupts a writer in these tests."""


def content(folder: Path) -> dict[str, str]:
    """Every file below `folder`, hidden ones too, with its text."""
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def below_a_file(write) -> Path:
    """A path nobody can write to, not even root: its parent is a regular file."""
    return write("regular", "a file") / "folder" / "out"


# --- one file ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("stop", [StoppedError, KeyboardInterrupt, SystemExit])
def test_an_exception_in_the_middle_leaves_what_was_there(stop: type[BaseException], write, tmp_path: Path) -> None:
    def stopped(path: Path) -> None:
        path.write_text("half")
        raise stop

    path = write("out.txt", "old")
    with pytest.raises(stop), files.replacing(path) as temporary:
        stopped(temporary)
    with pytest.raises(stop), files.replacing(tmp_path / "other") as temporary:
        stopped(temporary)
    with pytest.raises(stop), replacing_dir(tmp_path / "folder") as temporary:
        stopped(temporary / "part")
    assert content(tmp_path) == {"out.txt": "old"}
    assert [*tmp_path.iterdir()] == [path]


def test_an_error_leaves_the_old_file_which_is_synced_before_it_takes_the_name(write, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    path = write("out.txt", "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "half a character: \udcff")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_text(path, "new")
    assert content(path.parent) == {"out.txt": "old"}
    path = write("out.txt", "old")
    seen: list[tuple[bool, str]] = []
    monkeypatch.setattr(os, "fsync", lambda number: seen.append((Path(f"/proc/self/fd/{number}").is_dir(), path.read_text())))
    write_text(path, "new")
    assert seen == [(False, "old"), (True, "new")], "first the file under its temporary name, then the folder"
    seen.clear()
    with files.unsynced():
        write_text(path, "again")
        with replacing_dir(path.with_name("folder")) as writing:
            (writing / "part").write_text("b")
    assert content(path.parent) == {"out.txt": "again", "folder/part": "b"}
    assert seen == []


def test_every_sign_and_long_names_are_written_beside_and_take_the_name_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "new" / ("x" * 250)
    with files.replacing(path) as temporary:
        assert temporary.parent == path.parent
        temporary.write_text("new")
        assert not path.exists()
    assert content(path.parent) == {"x" * 250: "new"}
    for text in ("first", "", "Grüße 北京 👍\n\r\n"):
        write_text(path, text)
        assert path.read_bytes() == text.encode()
    with replacing_dir(tmp_path / ("y" * 250)) as temporary:
        (temporary / "part").write_text("new")
    assert {*content(tmp_path)} == {f"new/{'x' * 250}", "y" * 250 + "/part"}


def test_a_folder_in_the_place_of_a_file_and_a_file_in_that_of_a_folder_are_left_alone(says, tmp_path: Path) -> None:
    (tmp_path / "history.jsonl" / "kept").mkdir(parents=True)
    problem = f"{tmp_path / 'history.jsonl'} is a folder, but a file must be written there"
    with says(problem, "rename or remove it", ResourceError):
        write_text(tmp_path / "history.jsonl", "line")
    assert [*tmp_path.rglob("*")] == [tmp_path / "history.jsonl", tmp_path / "history.jsonl" / "kept"]
    (tmp_path / "out").write_text("a file")
    with pytest.raises(OSError, match="Not a directory"):
        fill(tmp_path / "out", "new")
    assert content(tmp_path) == {"out": "a file"}


# --- a folder ----------------------------------------------------------------------------------------------------
def fill(path: Path, text: str) -> None:
    with replacing_dir(path) as temporary:
        for part in range(2):
            (temporary / f"part{part}").write_text(text)


FIRST = {"out/part0": "first", "out/part1": "first"}


def test_replacing_dir_fills_beside_and_leaves_the_folder_of_a_faster_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    with replacing_dir(path) as late:
        assert late.parent == path.parent
        (late / "part0").write_text("late")
        assert not path.exists()
        fill(path, "first")
    assert content(tmp_path) == FIRST
    # Between looking whether the folder is there and taking its name, another run may be the first.
    monkeypatch.setattr(Path, "exists", lambda _: False)
    fill(path, "late by a hair")
    assert content(tmp_path) == FIRST


def test_many_writers_at_once_leave_one_whole_folder(tmp_path: Path) -> None:
    path, start, faults = tmp_path / "out", threading.Barrier(8), []

    def run(number: int) -> None:
        try:
            with replacing_dir(path) as temporary:
                for part in range(3):
                    (temporary / f"part{part}").write_text(str(number))
                start.wait(10)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert faults == []
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
    assert sorted(content(path)) == ["part0", "part1", "part2"]
    assert len({*content(path).values()}) == 1, "parts of two writers are mixed"


def test_a_scratch_folder_is_gone_at_the_end_and_a_place_that_cannot_be_written_to_an_error(
    tmp_path: Path, says, below_a_file: Path
) -> None:
    with files.scratch_dir(tmp_path / "deep" / "out") as scratch:
        assert scratch.parent == tmp_path / "deep"
        assert not [*scratch.iterdir()]
        (scratch / "inner").mkdir()
        (scratch / "inner" / "part").write_text("x")
    with pytest.raises(StoppedError), files.scratch_dir(tmp_path / "deep" / "out"):
        raise StoppedError
    assert [*(tmp_path / "deep").iterdir()] == []
    problem = f"{below_a_file.parent}: Not a directory"
    for writer in [files.replacing, replacing_dir, files.scratch_dir]:
        with says(problem, "choose a folder that can be written to", ResourceError), writer(below_a_file):
            pytest.fail("there was nothing to write to")


@pytest.mark.parametrize(("umask", "file", "folder"), [(0o022, 0o644, 0o755), (0o002, 0o664, 0o775), (0o077, 0o600, 0o700)])
def test_what_is_written_has_the_umask_of_the_user(umask: int, file: int, folder: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        write_text(tmp_path / "deep" / "out.txt", "new")
        with replacing_dir(tmp_path / "model") as temporary:
            (temporary / "inner").mkdir()
            for place in (temporary, temporary / "inner"):
                (place / "weights").touch(0o600)  # as safetensors writes its files
        with files.scratch_dir(tmp_path / "out") as scratch:
            modes = {scratch.stat().st_mode & 0o777}
    finally:
        os.umask(before)
    modes |= {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_dir()}
    assert modes == {folder}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()} == {file}


def test_only_the_files_asked_for_are_shared_and_a_sha256_is_that_of_the_bytes(write, tmp_path: Path) -> None:
    paths = [write(name, "") for name in ("model.safetensors", "private.txt")]
    for path in paths:
        path.chmod(0o600)
    tmp_path.chmod(0o750)
    files.share_files(tmp_path, "*.safetensors")
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o640, 0o600]
    for data in (b"", b"abc", b"\r\n\0\xff" * 300_000):
        assert files.sha256_of(write("data", data)) == hashlib.sha256(data).hexdigest()


def test_room_is_reserved_and_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(number: int) -> None:
        def fail(*_: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "posix_fallocate", fail)

    with files.reserved(tmp_path / "room", 1 << 20):
        state = (tmp_path / "room").stat()
        assert state.st_size == 1 << 20
        assert state.st_blocks * 512 >= 1 << 20, "the blocks are taken, not only the name"
    failing(errno.ENOSPC)
    missing = r"No space left on device \(1,024 bytes needed, .* free\)"
    with pytest.raises(ResourceError, match=missing), files.reserved(tmp_path / "a", 1024):
        pass
    failing(errno.EOPNOTSUPP)
    with files.reserved(tmp_path / "a", 1024):
        pass
    assert not list(tmp_path.iterdir())


# --- the cache ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("cache", "xdg", "folder"),
    [
        ("{}/mine", "/elsewhere", "mine"),
        ("~/mine", "/elsewhere", "mine"),
        *((unset, "{}/xdg", "xdg/glassloop") for unset in (None, "")),
        ("", "~/xdg", "xdg/glassloop"),
        *((None, unset, ".cache/glassloop") for unset in (None, "")),
    ],
)
def test_the_cache_is_where_the_variables_say(
    cache: str | None, xdg: str | None, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in (("GLASSLOOP_CACHE", cache), ("XDG_CACHE_HOME", xdg)):
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value.format(tmp_path))
    assert files.cache_dir() == tmp_path / folder
    assert [*tmp_path.iterdir()] == [], "asking makes no folder"


# --- paths -------------------------------------------------------------------------------------------------------
TOO_LONG = "the path is too long: at most 255 bytes per name and 4,095 in all"
NO_PATHS = {
    "~nobody-is-called-this/x": "no such user, or the user has no home folder",
    "caf\udce9.csv": "the path contains bytes that are not UTF-8",
    "a\0b": "the path contains a NUL character",
    "": "the path is empty",
    "x" * 256: TOO_LONG,
    "é" * 128: TOO_LONG,
    "x/" * 2050: TOO_LONG,
}


@pytest.mark.parametrize("name", NO_PATHS, ids=lambda value: ascii(value)[:20])
def test_what_no_file_can_be_called_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError) as raised:
        user_path(name)
    assert raised.value.problem.endswith(f'": {NO_PATHS[name]}')
    assert raised.value.remedy == "use another path"
    if name and "\0" not in name:  # no variable can hold a NUL
        monkeypatch.setenv("GLASSLOOP_CACHE", name)
        with pytest.raises(ResourceError) as refused:
            files.cache_dir()
        assert refused.value.problem.endswith(f'": {NO_PATHS[name]}')
        assert refused.value.remedy == "set GLASSLOOP_CACHE to another folder"
        assert len(refused.value.problem) < 250


def test_names_mean_the_same_from_any_working_directory_and_are_found_beside(
    write, monkeypatch: pytest.MonkeyPatch, below_a_file: Path
) -> None:
    file = write("deep/a.csv", "")
    monkeypatch.chdir(file.parent)
    assert absolute_name("a.csv") == absolute_name("../deep/a.csv") == absolute_name(str(file)) == str(file)
    for name in ("quickstart", "glue", "glue/mrpc", "owner/model", "gone.csv"):
        assert absolute_name(name) == name
    assert files.near_name(str(file)) == "a.csv"
    for name in (str(file.parent), str(file.parent.parent / "b.csv"), "quickstart"):
        assert files.near_name(name) == name
    write("deep/b.csv", "")
    assert sorted(files.names_beside(file.parent / "c.csv")) == ["a.csv", "b.csv"]
    for name in (below_a_file, "/no/such/folder/x", Path("x" * 300, "y"), "~nobody-is-called-this/x", "a\0b/c"):
        assert files.names_beside(name) == []


def test_a_path_below_the_home_folder_begins_with_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home_name(str(tmp_path / "data" / "rows.csv")) == "~/data/rows.csv"
    assert user_path(home_name(str(tmp_path / "a b"))) == tmp_path / "a b", "commands expand it"
    for name in ("glue/mrpc", "/elsewhere/rows.csv", str(tmp_path)):
        assert home_name(name) == name
    assert user_path(Path("~/a/b.csv")) == tmp_path / "a" / "b.csv"
    assert user_path("a/~/b") == Path("a/~/b")
    assert user_path("x" * 255) == Path("x" * 255)
    monkeypatch.setenv("HOME", "/")
    assert home_name("/data/rows.csv") == "/data/rows.csv"


def test_what_is_set_aside_gets_a_name_and_a_pipe_or_a_device_is_no_file(write, tmp_path: Path) -> None:
    file = write("a", "1")
    assert files.set_aside(file).name == "a.kept-1"
    assert files.set_aside(write("a", "2")).name == "a.kept-2"
    assert content(file.parent) == {"a.kept-1": "1", "a.kept-2": "2"}
    os.mkfifo(tmp_path / "pipe.csv")
    assert kind_of_special(tmp_path / "pipe.csv") == "a pipe"
    assert kind_of_special(Path("/dev/null")) == "a device"
    assert kind_of_special(write("a.csv", "")) is kind_of_special(tmp_path) is None


def test_find_path_finds_files_and_folders_or_nothing(write, below_a_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("a.csv", "")
    monkeypatch.setenv("HOME", str(file.parent))
    monkeypatch.chdir(file.parent)
    assert find_path("~/a.csv") == find_path(Path("~/a.csv")) == find_path(file) == file
    assert find_path("a.csv") == Path("a.csv")
    assert find_path("~") == find_path(file.parent) == file.parent
    for name in ("nothing", "/no/such/file", "../nothing/x", "x" * 300, "~nobody-is-called-this/x", "a\0b", "a\nb", "\udcff"):
        assert find_path(name) is find_path(Path(name)) is None
    assert find_path("") is None
    assert find_path(below_a_file) is None

    def forbidden(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", forbidden)  # root may look anywhere
    with pytest.raises(ResourceError, match=r'^resources: "secret/model": Permission denied'):
        find_path("secret/model")
