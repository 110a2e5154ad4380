"""Paths as people give them: the home folder, the umask, invalid bytes, names too long, pipes; in the real command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import environment, run_forked
from trials import Ended, Servers

TRAINING = ["--max_steps", "2", "--max_length", "16", "--device", "cpu", "--precision", "fp32", "--disable_tqdm"]


@contextmanager
def umask_of(value: int) -> Iterator[None]:
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


@pytest.fixture
def home(write, tiny_model_dir: Path, tmp_path: Path) -> Path:
    """A home folder with a data file and a model."""
    write("home/d.csv", "text,label\n" + "".join(f"the film is {number},{'ab'[number % 2]}\n" for number in range(20)))
    (tmp_path / "home" / "model").symlink_to(tiny_model_dir)
    return tmp_path / "home"


def modes(folder: Path) -> set[tuple[str, int]]:
    """Kind and permissions of everything in `folder`, and of itself."""
    found = [folder, *(path for path in folder.rglob("*"))]
    return {("folder" if path.is_dir() else "file", path.stat().st_mode & 0o777) for path in found}


def test_the_home_folder_and_the_umask_hold_everywhere(home: Path, tmp_path: Path, servers: Servers) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with umask_of(0o002):
        ended = run_forked(
            servers,
            ["init", "~/d.csv", "--model", "~/model", "--out", "~/run.toml"],
            ["train", "--config", "~/run.toml", "--output_dir=~/run", *TRAINING],
            ["train", "--resume", "~/run"],
            ["evaluate", "~/run", "--device", "cpu"],
            ["predict", "~/run", "--file", "~/d.csv", "--out", "~/answers.jsonl", "--device", "cpu"],
            ["eject", "~/run", "--out", "~/ejected"],
            folder=elsewhere,
            HOME=str(home),
            GLASSLOOP_CACHE="~/cache",
        )
    assert [(step.code, step.err) for step in ended if step.code] == []
    assert "is already complete" in ended[2].err
    assert [*elsewhere.iterdir()] == [], "nothing is called ~"
    assert (home / "ejected").is_dir()
    assert modes(home / "run") | modes(home / "cache") == {("folder", 0o775), ("file", 0o664)}
    assert modes(home / "answers.jsonl") == {("file", 0o664)}


LONG = "x" * 300
NOBODY = "~nobody-is-called-this"
TOO_LONG = [
    *(["data", "glue/mrpc", "--data_dir", LONG], ["train", "d.csv", "--output_dir", LONG], ["train", "--config", LONG]),
    *(["train", "--resume", LONG], ["evaluate", LONG], ["predict", "run", "--file", LONG]),
    *(
        ["predict", "run", "--file", "d.csv", "--out", LONG],
        ["init", "d.csv", "--out", LONG],
        ["eject", LONG],
        ["verify", LONG],
    ),
]
NO_USER = [
    *(["data", "glue/mrpc", "--data_dir", NOBODY], ["train", "d.csv", "--output_dir", f"{NOBODY}/x"]),
    *(["train", "--config", f"{NOBODY}/x"], ["predict", NOBODY, "text"]),
]
WRONG = [
    (["data", f"{NOBODY}/d.csv"], 3, "there is no such file or folder"),
    (["data", f"{LONG}.csv"], 3, "there is no such file or folder"),
    *((command, 2, "the path is too long") for command in TOO_LONG),
    *((command, 2, "no such user") for command in NO_USER),
    (["data", "pipe.csv"], 3, "pipe.csv is a pipe, not a file"),
    (["data", "pipe"], 3, "pipe is a pipe, not a file"),
    (["data", "/dev/null"], 3, "/dev/null is a device, not a file"),
    (["data", "caf\udce9.csv"], 2, 'the argument "caf\\udce9.csv" is not UTF-8'),
    (["predict", "run", "\udcff"], 2, 'the argument "\\udcff" is not UTF-8'),
    (["data", "d.csv", "--label", "\udcff"], 2, 'the argument "\\udcff" is not UTF-8'),
]


def test_an_invalid_path_is_two_lines_and_an_exit_code(servers: Servers, tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("text,label\na b,x\nc d,y\n")
    for name in ("pipe", "pipe.csv"):
        os.mkfifo(tmp_path / name)
    commands = [command for command, _, _ in WRONG]
    every = run_forked(servers, *commands, folder=tmp_path, GLASSLOOP_CACHE=str(tmp_path / "cache"))
    for (command, code, sentence), ended in zip(WRONG, every, strict=True):
        assert (ended.code, len(ended.lines)) == (code, 2), f"{command}: {ended.err}"
        assert sentence in ended.err, command


DRIVER = """
import contextlib, io, json, sys
from glassloop.cli import main as cli

ended = []
for arguments in json.load(sys.stdin):
    out, err, code = io.StringIO(), io.StringIO(), 0
    sys.argv = ["glassloop", *arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else int(left.code is not None)
    ended.append([code, out.getvalue(), err.getvalue()])
json.dump(ended, sys.__stdout__)
"""
WITHOUT_POWER = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--inh-caps", "-all"]


def test_what_another_user_keeps_private_is_one_error(tmp_path: Path) -> None:
    """Folders and files without any permission; root gives up its power to read them all the same."""
    if os.geteuid() == 0 and not shutil.which("setpriv"):
        pytest.skip("root may read everything, and setpriv is not here")
    (tmp_path / "secret").mkdir()
    for name in ("secret/train.csv", "locked.csv", "d.csv"):
        (tmp_path / name).write_text("text,label\n" + "a b,x\nc d,y\n" * 10)
    for name in ("secret", "locked.csv"):
        (tmp_path / name).chmod(0)
    commands = [
        *("data secret", "data locked.csv", "data secret/train.csv", "data glue/mrpc --data_dir secret"),
        *("init d.csv --out secret/run.toml", "train d.csv --output_dir secret/run"),
        *("evaluate secret/run", "train --config locked.csv"),
    ]
    driver = [*(WITHOUT_POWER if os.geteuid() == 0 else []), sys.executable, "-c", DRIVER]
    given = json.dumps([command.split() for command in commands])
    place = {"cwd": tmp_path, "env": environment(GLASSLOOP_CACHE=str(tmp_path / "cache"))}
    done = subprocess.run(driver, input=given, capture_output=True, encoding="utf-8", check=True, **place)
    for command, entry in zip(commands, json.loads(done.stdout), strict=True):
        ended = Ended(*entry)
        assert ended.code in (2, 3, 6), f"{command}: {ended.err}"
        assert "Permission denied" in ended.err, command
        assert len(ended.lines) == 2, f"{command}: {ended.err}"
