"""Entries of the cache: built once, verified each time, rebuilt when anything about them is wrong, shared between users."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from glassloop.base import cache
from glassloop.base.cache import MANIFEST_NAME, open_or_build
from glassloop.base.errors import ResourceError

KEY = "0123456789abcdef" * 2
PARTS = ("rows.arrow", "inner/facts.json")
CONTENT = ["content of rows.arrow", "content of inner/facts.json"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLASSLOOP_CACHE", str(tmp_path))
    return tmp_path / "data" / KEY


class Entry:
    """An entry of two files that counts how often it is built."""

    def __init__(self) -> None:
        self.built = 0

    def build(self, folder: Path) -> None:
        self.built += 1
        (folder / "inner").mkdir()
        for name, content in zip(PARTS, CONTENT, strict=True):
            (folder / name).write_text(content)

    def load(self, folder: Path) -> list[str]:
        return [(folder / name).read_text() for name in PARTS]

    def open(self, key: str = KEY) -> list[str]:
        return open_or_build("data", key, self.build, self.load)


@pytest.fixture
def entry(place: Path) -> Entry:
    made = Entry()
    assert made.open() == CONTENT
    return made


def test_an_entry_is_built_once_and_stray_files_are_ignored(entry: Entry, place: Path, capsys) -> None:
    assert sorted(path.name for path in place.iterdir()) == ["inner", MANIFEST_NAME, "rows.arrow"]
    assert [*place.parent.iterdir()] == [place], "nothing else is left"
    (place / ".DS_Store").write_text("x")
    assert entry.open() == CONTENT
    assert (entry.built, capsys.readouterr().err) == (1, "")


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "one bit flipped": flipped,
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 1),
    "emptied": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "missing": Path.unlink,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [*PARTS, MANIFEST_NAME])
def test_a_damaged_entry_is_rebuilt_and_reported(name: str, damage: str, entry: Entry, place: Path, capsys) -> None:
    DAMAGES[damage](place / name)
    assert entry.open() == CONTENT
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"glassloop: the cached data/{KEY} is damaged (")
    assert line.endswith("); building it again")
    assert entry.open() == CONTENT
    assert (entry.built, capsys.readouterr().err) == (2, "")
    assert [*place.parent.iterdir()] == [place]


def test_a_manifest_of_another_shape_or_of_another_entry_is_damage(entry: Entry, place: Path, capsys) -> None:
    shapes = ["", "{", "null", "[]", "{}", '{"files": {}}', '{"files": []}', '{"files": {"rows.arrow": 3}}', "[" * 100_000]
    for built, shape in enumerate([*shapes, "\udcff"], 2):
        (place / MANIFEST_NAME).write_bytes(shape.encode(errors="surrogateescape"))
        assert (entry.open(), entry.built) == (CONTENT, built)
        assert "is damaged (manifest.json: " in capsys.readouterr().err
    manifest = json.loads((place / MANIFEST_NAME).read_text())
    del manifest["files"]["rows.arrow"]
    (place / MANIFEST_NAME).write_text(json.dumps(manifest))
    assert (entry.open(), entry.built) == (CONTENT, built + 1)
    assert "is damaged (manifest.json: its checksum differs)" in capsys.readouterr().err
    other = place.rename(place.with_name("0" * 32))
    assert (entry.open(other.name), entry.built) == (CONTENT, built + 2)
    assert "is damaged (manifest.json: it belongs to data/" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["a file", "an empty folder", "a broken link", "a link to a folder"])
def test_whatever_is_in_the_place_of_an_entry_gives_way(what: str, place: Path, tmp_path: Path, capsys) -> None:
    place.parent.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    {
        "a file": place.touch,
        "an empty folder": place.mkdir,
        "a broken link": lambda: place.symlink_to(tmp_path / "nowhere"),
        "a link to a folder": lambda: place.symlink_to(tmp_path / "elsewhere"),
    }[what]()
    assert Entry().open() == CONTENT
    assert "is damaged" in capsys.readouterr().err
    assert (tmp_path / "elsewhere" / "kept").exists()


def test_an_entry_that_cannot_be_loaded_is_rebuilt_but_not_for_ever(entry: Entry, place: Path, capsys) -> None:
    faults = [ValueError("not an Arrow file")]

    def load(folder: Path) -> list[str]:
        if faults:
            raise faults.pop()
        return entry.load(folder)

    assert (open_or_build("data", KEY, entry.build, load), entry.built) == (CONTENT, 2)
    assert "is damaged (ValueError: not an Arrow file)" in capsys.readouterr().err
    shutil.rmtree(place)
    stale = Entry()
    open_or_build("data", KEY, lambda folder: (folder / "rows.arrow").write_text("of another version"), lambda _: None)
    assert (stale.open(), stale.built) == (CONTENT, 1), "its checksums are right, and still it cannot be read"
    shutil.rmtree(place)
    failing = Entry()
    with pytest.raises(ZeroDivisionError):
        open_or_build("data", KEY, failing.build, lambda _: 1 / 0)
    assert failing.built == 2


def test_a_disk_that_changes_what_is_written_and_an_error_while_building(place: Path, monkeypatch) -> None:
    with pytest.raises(ZeroDivisionError):
        open_or_build("data", KEY, lambda _: 1 / 0, lambda _: None)  # type: ignore[arg-type, return-value]
    assert [*place.parent.iterdir()] == [], "an error leaves nothing"
    monkeypatch.setattr(cache, "damage", lambda _: "rows.arrow: its checksum differs")
    with pytest.raises(ResourceError, match="damaged again right after it was written: rows"):
        Entry().open()


def test_of_two_that_found_the_same_damage_the_second_keeps_what_the_first_built(entry: Entry, place: Path) -> None:
    flipped(place / "rows.arrow")
    found = cache.identity(place)
    first, second = Entry(), Entry()
    cache.build_entry(place, first.build, instead_of=found)
    built = cache.identity(place)
    cache.build_entry(place, second.build, instead_of=found)
    assert cache.identity(place) == built, "a reader that verified it must not lose it"


# --- several processes -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("damaged", [False, True])
def test_many_that_build_the_same_entry_at_once_all_get_it(damaged: bool, place: Path) -> None:
    if damaged:
        Entry().open()
        flipped(place / "rows.arrow")
    start, loaded = threading.Barrier(6), []

    def run() -> None:
        entry = Entry()
        start.wait(10)
        for _ in range(5):
            loaded.append(entry.open())

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert loaded == [CONTENT] * 30
    assert [*place.parent.iterdir()] == [place]


def leftover(place: Path, suffix: str, hours: float) -> Path:
    path = place.with_name(f".{KEY}.{suffix}")
    (path / "scratch").mkdir(parents=True)
    os.utime(path, (time.time() - 3600 * hours,) * 2)
    return path


def test_leftovers_of_the_dead_are_removed_and_those_of_the_living_stay(place: Path) -> None:
    young, dead, stray = leftover(place, "new00000", 0), leftover(place, "dead0000", 1), place.with_name(f".{KEY}.file0000")
    other = leftover(place, "git", 1).rename(place.with_name(".git"))
    stray.touch()
    os.utime(stray, (0, 0))

    def build(folder: Path) -> None:
        os.utime(folder, (0, 0))  # a large entry that has been built for hours
        Entry().open("f" * 32)
        assert folder.exists()
        assert not dead.exists()
        Entry().build(folder)

    open_or_build("data", KEY, build, Entry().load)
    assert {path.name for path in place.parent.iterdir()} == {young.name, other.name, KEY, "f" * 32}


def test_without_locks_age_decides(place: Path, monkeypatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(cache.fcntl, "flock", unsupported)
    young, old = leftover(place, "00000001", 1), leftover(place, "00000030", 30)
    Entry().open()
    assert (young.exists(), old.exists()) == (True, False)


# --- several users -----------------------------------------------------------------------------------------------
def put(folder: Path, text: str) -> None:
    (folder / "rows").write_text(text)


def as_nobody(key: str) -> tuple[str, str]:
    """Open an entry as another user, who may not write to this user's folders; return what was loaded and said."""
    read_end, write_end = os.pipe()
    if (child := os.fork()) == 0:
        said: list[str] = []
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            cache.say = said.append  # type: ignore[assignment]
            loaded = open_or_build("data", key, lambda folder: put(folder, "new"), lambda folder: (folder / "rows").read_text())
        except BaseException as error:
            loaded = repr(error)
        os.write(write_end, json.dumps([loaded, "\n".join(said)]).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as answers:
        loaded, told = json.load(answers)
    os.waitpid(child, 0)
    return loaded, told


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache that everybody may look into; pytest's own folders are for their owner alone."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        monkeypatch.setenv("GLASSLOOP_CACHE", name)
        monkeypatch.setenv("TMPDIR", f"{name}/tmp")
        monkeypatch.setattr(tempfile, "tempdir", None)
        for path, mode in ((folder, 0o755), (folder / "data", 0o755), (folder / "tmp", 0o777)):
            path.mkdir(exist_ok=True)
            path.chmod(mode)
        yield folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("umask", "readable"), [(0o022, True), (0o077, False)])
def test_another_user_reads_the_shared_cache_or_gets_a_temporary_one(umask: int, readable: bool, shared: Path) -> None:
    before = os.umask(umask)
    try:
        open_or_build("data", KEY, lambda folder: put(folder, "old"), lambda _: None)
    finally:
        os.umask(before)
    present, absent = as_nobody(KEY), as_nobody("f" * 32)
    assert (present[0], absent[0]) == ("old" if readable else "new", "new")
    assert not readable or not present[1]
    for _, told in (absent,) if readable else (present, absent):
        assert f"cannot write to the cache {shared}; using a temporary cache for this run" in told
    assert [path.name for path in (shared / "data").iterdir()] == [KEY]
