"""Writing whole or not at all, whoever else writes; where the cache lives; and paths that cannot be looked at."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from pathlib import Path
from typing import NoReturn

import pytest

from glassloop.base import files
from glassloop.base.errors import ResourceError, SettingsError
from glassloop.base.files import (
    absolute_name,
    cache_dir,
    find_path,
    home_name,
    kind_of_special,
    names_beside,
    near_name,
    replacing,
    replacing_dir,
    reserved,
    scratch_dir,
    set_aside,
    sha256_of,
    share_files,
    user_path,
    write_text,
)


class StoppedError(Exception):
    """What interrupts a writer in these tests."""


def content(folder: Path) -> dict[str, str]:
    """Every file below `folder`, hidden ones too, with its text."""
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def write_half(path: Path, stop: type[BaseException]) -> NoReturn:
    path.write_text("half")
    raise stop


@pytest.fixture
def below_a_file(write) -> Path:
    """A path nobody can write to, not even root: its parent is a regular file."""
    return write("regular", "a file") / "folder" / "out"


# --- one file ----------------------------------------------------------------------------------------------------


def test_replacing_writes_beside_and_takes_the_name_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out.txt"
    with replacing(path) as temporary:
        assert temporary.parent == path.parent
        temporary.write_text("new")
        assert not path.exists()
    assert content(tmp_path) == {"new/out.txt": "new"}


@pytest.mark.parametrize("stop", [StoppedError, KeyboardInterrupt, SystemExit])
def test_an_exception_in_the_middle_leaves_the_old_file_and_nothing_else(stop: type[BaseException], write) -> None:
    path = write("out.txt", "old")
    with pytest.raises(stop), replacing(path) as temporary:
        write_half(temporary, stop)
    assert content(path.parent) == {"out.txt": "old"}


def test_an_exception_in_the_middle_leaves_nothing_where_nothing_was(tmp_path: Path) -> None:
    with pytest.raises(StoppedError), replacing(tmp_path / "out.txt"):
        raise StoppedError
    assert content(tmp_path) == {}


def test_an_exception_while_syncing_leaves_the_old_file(write, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    path = write("out.txt", "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_text(path, "new")
    assert content(path.parent) == {"out.txt": "old"}


def test_the_file_is_synced_before_it_takes_the_name(write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("out.txt", "old")
    seen: list[tuple[bool, str]] = []
    monkeypatch.setattr(os, "fsync", lambda number: seen.append((Path(f"/proc/self/fd/{number}").is_dir(), path.read_text())))
    write_text(path, "new")
    assert seen == [(False, "old"), (True, "new")], "first the file under its temporary name, then the folder"


def test_write_text_replaces_and_keeps_every_sign(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    for text in ("first", "", "Grüße 北京 👍\n\r\n"):
        write_text(path, text)
        assert path.read_bytes() == text.encode()
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.txt"]


def test_text_that_cannot_be_written_leaves_the_old_file(write) -> None:
    path = write("out.txt", "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "half a character: \udcff")
    assert content(path.parent) == {"out.txt": "old"}


def test_long_names_are_written_too(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250)
    write_text(path, "new")
    with replacing_dir(tmp_path / ("y" * 250)) as temporary:
        (temporary / "part").write_text("new")
    assert content(tmp_path) == {"x" * 250: "new", "y" * 250 + "/part": "new"}


# --- a folder ----------------------------------------------------------------------------------------------------


def fill(path: Path, text: str, parts: int = 2) -> None:
    with replacing_dir(path) as temporary:
        for part in range(parts):
            (temporary / f"part{part}").write_text(text)


def test_replacing_dir_fills_beside_and_takes_the_name_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out"
    with replacing_dir(path) as temporary:
        assert temporary.parent == path.parent
        (temporary / "part").write_text("new")
        assert not path.exists()
    assert content(tmp_path) == {"new/out/part": "new"}


@pytest.mark.parametrize("stop", [StoppedError, KeyboardInterrupt, SystemExit])
def test_an_exception_in_the_middle_leaves_no_folder(stop: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(stop), replacing_dir(tmp_path / "out") as temporary:
        write_half(temporary / "part", stop)
    assert not [*tmp_path.iterdir()]


def test_a_second_writer_that_comes_late_leaves_the_first_ones_folder(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with replacing_dir(path) as late:
        (late / "part0").write_text("late")
        fill(path, "first")
    assert content(tmp_path) == {"out/part0": "first", "out/part1": "first"}


def test_a_writer_that_comes_late_by_a_hair_leaves_the_first_ones_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between looking whether the folder is there and taking its name, another run may be the first."""
    path = tmp_path / "out"
    fill(path, "first")
    monkeypatch.setattr(Path, "exists", lambda _: False)
    fill(path, "late")
    assert content(tmp_path) == {"out/part0": "first", "out/part1": "first"}


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


def test_a_file_in_the_way_of_a_folder_is_left_alone(write) -> None:
    path = write("out", "a file")
    with pytest.raises(OSError, match="Not a directory"):
        fill(path, "new")
    assert content(path.parent) == {"out": "a file"}


def test_a_scratch_folder_is_empty_and_gone_at_the_end(tmp_path: Path) -> None:
    with scratch_dir(tmp_path / "deep" / "out") as scratch:
        assert scratch.parent == tmp_path / "deep"
        assert not [*scratch.iterdir()]
        (scratch / "inner").mkdir()
        (scratch / "inner" / "part").write_text("x")
    with pytest.raises(StoppedError), scratch_dir(tmp_path / "deep" / "out"):
        raise StoppedError
    assert content(tmp_path) == {}
    assert not [*(tmp_path / "deep").iterdir()]


@pytest.mark.parametrize("writer", [replacing, replacing_dir, scratch_dir], ids=lambda writer: writer.__name__)
def test_a_place_that_cannot_be_written_to_is_a_glassloop_error(writer, below_a_file: Path) -> None:
    with pytest.raises(ResourceError) as raised, writer(below_a_file):
        pytest.fail("there was nothing to write to")
    assert (
        str(raised.value) == f"resources: {below_a_file.parent}: Not a directory\ntry:  choose a folder that can be written to"
    )
    assert raised.value.exit_code == 6


def test_write_text_raises_the_same_error(below_a_file: Path) -> None:
    with pytest.raises(ResourceError, match="Not a directory"):
        write_text(below_a_file, "new")


# --- the cache ---------------------------------------------------------------------------------------------------


def test_the_cache_is_where_glassloop_cache_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GLASSLOOP_CACHE", str(tmp_path / "mine"))
    assert cache_dir() == tmp_path / "mine"
    monkeypatch.setenv("GLASSLOOP_CACHE", "~/mine")
    assert cache_dir() == tmp_path / "mine"
    assert not cache_dir().exists(), "asking makes no folder"


@pytest.mark.parametrize("unset", [None, ""])
def test_else_in_the_users_cache_folder(unset: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in (("GLASSLOOP_CACHE", unset), ("XDG_CACHE_HOME", str(tmp_path / "xdg"))):
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    assert cache_dir() == tmp_path / "xdg" / "glassloop"
    monkeypatch.setenv("XDG_CACHE_HOME", "~/xdg")
    assert cache_dir() == tmp_path / "xdg" / "glassloop"
    monkeypatch.setenv("XDG_CACHE_HOME", "") if unset == "" else monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == tmp_path / ".cache" / "glassloop"


# --- paths -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("~nobody-is-called-this/x", "no such user, or the user has no home folder"),
        ("x" * 300, "the path is too long: at most 255 bytes per name and 4,095 in all"),
        ("a\udcffb", "the path contains bytes that are not UTF-8"),
    ],
    ids=["nobody's home", "300 characters", "not UTF-8"],
)
def test_an_unreadable_cache_is_a_glassloop_error(place: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLASSLOOP_CACHE", place)
    with pytest.raises(ResourceError) as raised:
        cache_dir()
    assert raised.value.problem.endswith(f'": {problem}')
    assert raised.value.remedy == "set GLASSLOOP_CACHE to another folder"
    assert len(raised.value.problem) < 250


def test_names_mean_the_same_from_any_working_directory(write, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("deep/a.csv", "")
    monkeypatch.chdir(file.parent)
    assert absolute_name("a.csv") == absolute_name("../deep/a.csv") == absolute_name(str(file)) == str(file)
    for name in ("quickstart", "glue", "glue/mrpc", "owner/model", "gone.csv"):
        assert absolute_name(name) == name
    assert near_name(str(file)) == "a.csv"
    assert near_name(str(file.parent)) == str(file.parent)
    assert near_name(str(file.parent.parent / "b.csv")) == str(file.parent.parent / "b.csv")
    assert near_name("quickstart") == "quickstart"


def test_what_is_set_aside_gets_a_name_of_its_own(write) -> None:
    file = write("a", "1")
    assert set_aside(file).name == "a.kept-1"
    assert set_aside(write("a", "2")).name == "a.kept-2"
    assert file.with_name("a.kept-1").read_text() == "1"


def test_find_path_finds_files_and_folders(write, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("a.csv", "")
    monkeypatch.setenv("HOME", str(file.parent))
    monkeypatch.chdir(file.parent)
    assert find_path("~/a.csv") == find_path(Path("~/a.csv")) == find_path(file) == file
    assert find_path("a.csv") == Path("a.csv")
    assert find_path("~") == find_path(file.parent) == file.parent


@pytest.mark.parametrize(
    "name",
    ["nothing", "/no/such/file", "../nothing/x", "x" * 300, "~nobody-is-called-this/x", "a\0b", "a\nb", "\udcff"],
    ids=lambda name: ascii(name)[:30],
)
def test_find_path_finds_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_path(name) is None
    assert find_path(Path(name)) is None


def test_a_place_below_a_file_is_nothing(below_a_file: Path) -> None:
    assert find_path(below_a_file) is None


def test_a_folder_without_permission_is_a_glassloop_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", forbidden)  # root may look anywhere
    with pytest.raises(ResourceError, match=r'^resources: "secret/model": Permission denied'):
        find_path("secret/model")


def test_names_beside(write, below_a_file: Path) -> None:
    path = write("a.csv", "")
    write("b.csv", "")
    assert sorted(names_beside(path.parent / "c.csv")) == ["a.csv", "b.csv", "regular"]
    for name in (below_a_file, "/no/such/folder/x", Path("x" * 300, "y"), "~nobody-is-called-this/x", "a\0b/c"):
        assert names_beside(name) == []


def test_user_path_expands_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/a/b.csv") == user_path(Path("~/a/b.csv")) == tmp_path / "a" / "b.csv"
    assert user_path("a/~/b") == Path("a/~/b")
    assert user_path("x" * 255) == Path("x" * 255)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("~nobody-is-called-this/x", "no such user, or the user has no home folder"),
        ("caf\udce9.csv", "the path contains bytes that are not UTF-8"),
        ("a\0b", "the path contains a NUL character"),
        ("", "the path is empty"),
        ("x" * 256, "the path is too long: at most 255 bytes per name and 4,095 in all"),
        ("é" * 128, "the path is too long: at most 255 bytes per name and 4,095 in all"),
        ("x/" * 2050, "the path is too long: at most 255 bytes per name and 4,095 in all"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_user_path_refuses_what_no_file_can_be_called(name: str, problem: str) -> None:
    with pytest.raises(SettingsError) as raised:
        user_path(name)
    assert raised.value.problem.endswith(f'": {problem}')
    assert raised.value.remedy == "use another path"


def test_a_pipe_or_a_device_is_distinguished_from_a_file(write, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    assert kind_of_special(tmp_path / "pipe.csv") == "a pipe"
    assert kind_of_special(Path("/dev/null")) == "a device"
    assert kind_of_special(write("a.csv", "")) is kind_of_special(tmp_path) is None


# --- permissions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("umask", "file", "folder"), [(0o022, 0o644, 0o755), (0o002, 0o664, 0o775), (0o077, 0o600, 0o700)])
def test_what_is_written_has_the_umask_of_the_user(umask: int, file: int, folder: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        write_text(tmp_path / "deep" / "out.txt", "new")
        with replacing_dir(tmp_path / "model") as temporary:
            (temporary / "inner").mkdir()
            for place in (temporary, temporary / "inner"):
                (place / "weights").touch(0o600)  # as safetensors writes its files
        with scratch_dir(tmp_path / "out") as scratch:
            modes = {scratch.stat().st_mode & 0o777}
    finally:
        os.umask(before)
    modes |= {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_dir()}
    assert modes == {folder}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()} == {file}


def test_only_the_files_asked_for_are_shared(write, tmp_path: Path) -> None:
    for name in ("model.safetensors", "private.txt"):
        write(name, "").chmod(0o600)
    tmp_path.chmod(0o750)
    share_files(tmp_path, "*.safetensors")
    assert [(path.name, path.stat().st_mode & 0o777) for path in sorted(tmp_path.iterdir())] == [
        ("model.safetensors", 0o640),
        ("private.txt", 0o600),
    ]


# --- hashes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"abc", b"\r\n\0\xff" * 300_000], ids=["empty", "abc", "1.2 MB"])
def test_sha256_is_that_of_the_bytes(data: bytes, write) -> None:
    assert sha256_of(write("data", data)) == hashlib.sha256(data).hexdigest()


def test_sha256_of_abc_is_the_published_one(write) -> None:
    assert sha256_of(write("abc", "abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_room_is_reserved_and_given_back(tmp_path: Path) -> None:
    with reserved(tmp_path / "room", 1 << 20):
        found = (tmp_path / "room").stat()
        assert found.st_size == 1 << 20
        assert found.st_blocks * 512 >= 1 << 20, "the blocks are taken, not only the name"
    assert not (tmp_path / "room").exists()


def test_room_that_is_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, start: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def unable(handle: int, start: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with (
        pytest.raises(ResourceError, match=r"No space left on device \(1,024 bytes needed, .* free\)"),
        reserved(tmp_path / "a", 1024),
    ):
        pass
    monkeypatch.setattr(os, "posix_fallocate", unable)
    with reserved(tmp_path / "a", 1024):
        pass
    assert not list(tmp_path.iterdir())


def test_a_folder_in_the_place_of_a_file_is_refused_before_anything_is_written(says, tmp_path: Path) -> None:
    (tmp_path / "history.jsonl" / "kept").mkdir(parents=True)
    with says(
        f"{tmp_path / 'history.jsonl'} is a folder, but a file must be written there", "rename or remove it", ResourceError
    ):
        write_text(tmp_path / "history.jsonl", "line")
    assert [*tmp_path.rglob("*")] == [tmp_path / "history.jsonl", tmp_path / "history.jsonl" / "kept"]


def test_a_path_below_the_home_folder_begins_with_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home_name(str(tmp_path / "data" / "rows.csv")) == "~/data/rows.csv"
    assert user_path(home_name(str(tmp_path / "a b"))) == tmp_path / "a b", "commands expand it"
    assert [home_name(name) for name in ("glue/mrpc", "/elsewhere/rows.csv", str(tmp_path))] == [
        *("glue/mrpc", "/elsewhere/rows.csv", str(tmp_path))
    ]
    monkeypatch.setenv("HOME", "/")
    assert home_name("/data/rows.csv") == "/data/rows.csv"


def test_unsynced_files_are_written_like_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with files.unsynced():
        files.write_text(tmp_path / "a", "a")
        with files.replacing_dir(tmp_path / "folder") as writing:
            (writing / "b").write_text("b")
    assert ((tmp_path / "a").read_text(), (tmp_path / "folder" / "b").read_text(), synced) == ("a", "b", [])
    files.write_text(tmp_path / "c", "c")
    assert len(synced) == 2, "the file and its folder"
