"""Entries of the cache: built once, verified each time, rebuilt when anything about them is wrong, shared between users."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from glassloop.base import cache
from glassloop.base.cache import MANIFEST_NAME, open_or_build, remove_leftovers
from glassloop.base.errors import ResourceError

KEY = "0123456789abcdef" * 2
PARTS = ("rows.arrow", "inner/facts.json")


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
        for name in PARTS:
            (folder / name).write_text(f"content of {name}")

    def load(self, folder: Path) -> list[str]:
        return [(folder / name).read_text() for name in PARTS]

    def open(self) -> list[str]:
        return open_or_build("data", KEY, self.build, self.load)


CONTENT = ["content of rows.arrow", "content of inner/facts.json"]


def test_an_entry_is_built_once(place: Path, capsys) -> None:
    entry = Entry()
    assert entry.open() == entry.open() == CONTENT
    assert entry.built == 1
    assert capsys.readouterr().err == ""
    assert sorted(path.name for path in place.iterdir()) == ["inner", MANIFEST_NAME, "rows.arrow"]
    assert [*place.parent.iterdir()] == [place], "nothing else is left"


def test_a_stray_file_is_ignored(place: Path, capsys) -> None:
    entry = Entry()
    entry.open()
    (place / ".DS_Store").write_text("x")
    assert entry.open() == CONTENT
    assert (entry.built, capsys.readouterr().err) == (1, "")


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def made_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def made_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "one bit flipped": flipped,
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 1),
    "emptied": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "missing": Path.unlink,
    "a folder": made_folder,
    "a pipe": made_pipe,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [*PARTS, MANIFEST_NAME])
def test_a_damaged_entry_is_rebuilt_and_reported(name: str, damage: str, place: Path, capsys) -> None:
    entry = Entry()
    entry.open()
    DAMAGES[damage](place / name)
    assert entry.open() == CONTENT
    assert entry.built == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"glassloop: the cached data/{KEY} is damaged (")
    assert line.endswith("); building it again")
    assert entry.open() == CONTENT
    assert (entry.built, capsys.readouterr().err) == (2, "")
    assert [*place.parent.iterdir()] == [place]


@pytest.mark.parametrize(
    "manifest",
    ["", "{", "null", "[]", "{}", '{"files": {}}', '{"files": []}', '{"files": {"rows.arrow": 3}}', "[" * 100_000, "\udcff"],
    ids=lambda text: ascii(text)[:20],
)
def test_a_manifest_of_another_shape_is_damage(manifest: str, place: Path, capsys) -> None:
    entry = Entry()
    entry.open()
    (place / MANIFEST_NAME).write_bytes(manifest.encode(errors="surrogateescape"))
    assert entry.open() == CONTENT
    assert entry.built == 2
    assert "is damaged (manifest.json: " in capsys.readouterr().err


def test_a_manifest_that_lists_too_little_is_damage(place: Path, capsys) -> None:
    entry = Entry()
    entry.open()
    manifest = json.loads((place / MANIFEST_NAME).read_text())
    del manifest["files"]["rows.arrow"]
    (place / MANIFEST_NAME).write_text(json.dumps(manifest))
    assert entry.open() == CONTENT
    assert entry.built == 2
    assert "is damaged (manifest.json: its checksum differs)" in capsys.readouterr().err


def test_an_entry_under_the_name_of_another_is_damage(place: Path, capsys) -> None:
    entry = Entry()
    entry.open()
    other = place.rename(place.with_name("0" * 32))
    assert cache.open_or_build("data", other.name, entry.build, entry.load) == CONTENT
    assert entry.built == 2
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


def test_an_entry_that_cannot_be_loaded_is_rebuilt(place: Path, capsys) -> None:
    entry = Entry()
    entry.open()
    faults = [ValueError("not an Arrow file")]

    def load(folder: Path) -> list[str]:
        if faults:
            raise faults.pop()
        return entry.load(folder)

    assert open_or_build("data", KEY, entry.build, load) == CONTENT
    assert entry.built == 2
    assert "is damaged (ValueError: not an Arrow file)" in capsys.readouterr().err


def test_a_loader_that_always_fails_is_not_tried_for_ever(place: Path) -> None:
    entry = Entry()
    with pytest.raises(ZeroDivisionError):
        open_or_build("data", KEY, entry.build, lambda _: 1 / 0)
    assert entry.built == 2


def test_a_disk_that_changes_what_is_written_is_a_glassloop_error(place: Path, monkeypatch) -> None:
    monkeypatch.setattr(cache, "damage", lambda _: "rows.arrow: its checksum differs")
    with pytest.raises(ResourceError, match="damaged again right after it was written: rows"):
        Entry().open()


def test_an_error_while_building_leaves_nothing(place: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        open_or_build("data", KEY, lambda _: 1 / 0, lambda _: None)  # type: ignore[arg-type, return-value]
    assert [*place.parent.iterdir()] == []


# --- several processes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damaged", [False, True])
def test_many_that_build_the_same_entry_at_once_all_get_it(damaged: bool, place: Path) -> None:
    if damaged:
        Entry().open()
        flipped(place / "rows.arrow")
    start, found = threading.Barrier(6), []

    def run() -> None:
        entry = Entry()
        start.wait(10)
        for _ in range(5):
            found.append(entry.open())

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [CONTENT] * 30
    assert [*place.parent.iterdir()] == [place]


def test_leftovers_of_the_dead_are_removed_and_those_of_the_living_stay(place: Path, monkeypatch) -> None:
    folder = place.parent
    dead, busy, young, other = (folder / name for name in (f".{KEY}.dead0000", f".{KEY}.busy0000", f".{KEY}.new00000", ".git"))
    for path in (dead, busy, young, other):
        (path / "scratch").mkdir(parents=True)
    (folder / f".{KEY}.file0000").touch()
    hour_ago = time.time() - 3600
    for path in (dead, busy, other, folder / f".{KEY}.file0000"):
        os.utime(path, (hour_ago, hour_ago))
    with cache.held(busy):
        remove_leftovers(folder)
        assert {path.name for path in folder.iterdir()} == {busy.name, young.name, other.name}
    Entry().open()
    assert {path.name for path in folder.iterdir()} == {young.name, other.name, KEY}


def test_without_locks_age_decides(place: Path, monkeypatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(cache.fcntl, "flock", unsupported)
    paths = {hours: place.parent / f".{KEY}.{hours:08d}" for hours in (1, 30)}
    for hours, path in paths.items():
        path.mkdir(parents=True)
        os.utime(path, (time.time() - 3600 * hours,) * 2)
    Entry().open()
    assert (paths[1].exists(), paths[30].exists()) == (True, False)


# --- several users -----------------------------------------------------------------------------------------------


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
            found = open_or_build("data", key, lambda folder: put(folder, "new"), lambda folder: (folder / "rows").read_text())
        except BaseException as error:
            found = repr(error)
        os.write(write_end, json.dumps([found, "\n".join(said)]).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as answers:
        found, told = json.load(answers)
    os.waitpid(child, 0)
    return found, told


def put(folder: Path, text: str) -> None:
    (folder / "rows").write_text(text)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache that everybody may look into; pytest's own folders are for their owner alone."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("GLASSLOOP_CACHE", folder)
        monkeypatch.setenv("TMPDIR", f"{folder}/tmp")
        monkeypatch.setattr(tempfile, "tempdir", None)
        Path(folder, "tmp").mkdir()
        Path(folder, "tmp").chmod(0o777)
        Path(folder, "data").mkdir()
        for path in (Path(folder), Path(folder, "data")):
            path.chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("umask", "readable"), [(0o022, True), (0o077, False)])
def test_another_user_reads_the_shared_cache_or_gets_a_temporary_one(umask: int, readable: bool, shared: Path) -> None:
    before = os.umask(umask)
    try:
        open_or_build("data", KEY, lambda folder: put(folder, "old"), lambda _: None)
    finally:
        os.umask(before)
    found, told = as_nobody(KEY)
    assert found == ("old" if readable else "new")
    assert told == ("" if readable else TEMPORARY.format(shared))
    assert as_nobody("f" * 32) == ("new", TEMPORARY.format(shared)), "absent, and cannot be written"
    assert [path.name for path in (shared / "data").iterdir()] == [KEY]


TEMPORARY = (
    "this user cannot write to the cache {}; using a temporary cache for this run (set GLASSLOOP_CACHE to a folder to keep it)"
)
