"""The real command in a process of its own: what is printed where, the exit code, and what is left in the cache."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from trials import Servers, without_stages

import glassloop

SOURCE = Path(glassloop.__file__).parent.parent
HEAVY = ("torch", "transformers", "datasets", "numpy", "pyarrow", "accelerate", "sklearn", "scipy")
WORDS = "good bad film story".split()


class Ran:
    """What a command printed, and its exit status."""

    def __init__(self, *arguments: str, interpreter: tuple[str, ...] = (), **environment: str) -> None:
        search = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
        settings = {**os.environ, "PYTHONPATH": search, "COLUMNS": "100", "PYTHONIOENCODING": "utf-8", **environment}
        ended = subprocess.run(
            [sys.executable, *interpreter, "-m", "glassloop", *arguments],
            capture_output=True,
            encoding="utf-8",
            env=settings,
            timeout=60,
            check=False,
        )
        self.code, self.out, self.err = ended.returncode, ended.stdout, without_stages(ended.stderr)


@pytest.fixture
def table(write) -> Path:
    """A small CSV file of pairs."""
    rows = [f"the {WORDS[n % 4]} is {n},it was a {WORDS[n % 3]} one,{'no yes'.split()[n % 2]}" for n in range(30)]
    return write("pairs.csv", "\n".join(["sentence1,sentence2,label", *rows, ""]))


def kept(cache: Path) -> dict[str, tuple[int, int]]:
    """Every file in the cache with its size and the time of its last change."""
    files = {str(path.relative_to(cache)): path.stat() for path in cache.rglob("*") if path.is_file()}
    return {name: (found.st_size, found.st_mtime_ns) for name, found in files.items()}


def test_help_loads_nothing_heavy() -> None:
    told = Ran("--help", interpreter=("-X", "importtime"))
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in told.err.splitlines() if "|" in line}
    assert told.code == 0
    assert "glassloop" in loaded
    assert not loaded & {*HEAVY}


def test_the_help_of_a_command_and_the_version_load_nothing_heavy_either() -> None:
    for arguments in (["data", "--help"], ["train", "--help"], ["--version"]):
        told = Ran(*arguments, interpreter=("-X", "importtime"))
        loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in told.err.splitlines() if "|" in line}
        assert told.code == 0
        assert not loaded & {*HEAVY}, arguments


def test_the_installed_command_is_this_one() -> None:
    from importlib.metadata import PackageNotFoundError, entry_points, version

    try:
        version("glassloop")
    except PackageNotFoundError:
        pytest.skip("glassloop is not installed here, only on the path")
    (entry,) = entry_points(group="console_scripts", name="glassloop")
    assert entry.value == "glassloop.cli.main:main"


def test_data_shows_a_file_and_the_second_time_comes_from_the_cache(
    table: Path, tiny_model_dir: Path, tmp_path: Path, servers: Servers
) -> None:
    cache = tmp_path / "cache"
    arguments = ("data", str(table), "--model", str(tiny_model_dir))
    first = servers.run(*arguments, GLASSLOOP_CACHE=str(cache))
    assert (first.code, first.err) == (0, "")
    for part in ("Splits", "Columns", "Labels", "Tokens per row of train", "Padding of train in batches of 8", "Notes"):
        assert re.search(f"^{part}", first.out, re.MULTILINE), part
    assert re.search(r"^train +26 ", first.out, re.MULTILINE)
    assert re.search(r"^validation +4 ", first.out, re.MULTILINE)
    assert re.search(r"^token +\[CLS\] +the +\w+ +is ", first.out, re.MULTILINE)
    assert "\x1b" not in first.out, "colours belong to terminals"
    before = kept(cache)
    assert {name.partition("/")[0] for name in before} == {"data", "encodings"}
    assert not [name for name in before if "/." in f"/{name}"], "something temporary was left behind"

    second = servers.run(*arguments, GLASSLOOP_CACHE=str(cache))
    assert (second.code, second.err, second.out) == (0, "", first.out)
    assert kept(cache) == before, "the second run wrote again"


def test_data_goes_into_a_closed_pipe_without_a_traceback(table: Path, tiny_model_dir: Path) -> None:
    command = [sys.executable, "-m", "glassloop", "data", str(table), "--model", str(tiny_model_dir)]
    settings = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=settings) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()  # as `| head -0` does
        said = running.stderr.read().decode()
    assert "Traceback" not in said


WRONG = {
    "unknown command": (["dta"], 2, None),
    "unknown flag": (["data", "--sede", "7"], 2, None),
    "wrong settings": (
        ["data", "--empty", "drop", "--rows", "3"],
        2,
        'settings: empty is "drop", not one of refuse, keep; rows is 3, not a whole number of 10 or more\n'
        "try:  set empty to refuse or keep; set rows to a whole number of 10 or more\n",
    ),
    "no such file": (
        ["data", "/no/such/file.csv"],
        3,
        'data: "/no/such/file.csv": there is no such file or folder\n'
        "try:  use a file, a folder, glue/mrpc, quickstart, or a hub data set (owner/name)\n",
    ),
    "no such column": (
        ["data", "TABLE", "--text", "sentense1"],
        3,
        'data: pairs.csv: there is no column "sentense1"; found sentence1, sentence2, label; did you mean "sentence1"?\n'
        "try:  name the columns with --text, --text_pair and --label\n",
    ),
    "no such model": (
        ["data", "TABLE", "--model", "/no/such/model"],
        4,
        'model: "/no/such/model": there is no such folder\ntry:  use a folder, a hub model (owner/name), or quickstart\n',
    ),
}


@pytest.mark.parametrize(("arguments", "code", "told"), WRONG.values(), ids=WRONG)
def test_wrong_input_is_two_lines_and_an_exit_code(arguments: list[str], code: int, told: str | None, table: Path) -> None:
    ended = Ran(*(str(table) if argument == "TABLE" else argument for argument in arguments))
    assert (ended.code, ended.out) == (code, "")
    assert "Traceback" not in ended.err
    if told is not None:
        assert ended.err == told


def test_debug_adds_the_traceback() -> None:
    ended = Ran("data", "/no/such/file.csv", "--debug")
    assert ended.code == 3
    assert ended.err.startswith("Traceback (most recent call last):\n")


def test_doctor_runs_to_its_end(servers: Servers) -> None:
    ended = servers.run("doctor", HF_HUB_OFFLINE="1")
    assert ended.err == ""
    lines = ended.out.splitlines()
    assert ended.code == (1 if any(line.startswith("✗") for line in lines) else 0)
    for name in ("Python", "torch", "bf16", "packaged model", "model hub", "disk"):
        assert re.search(rf"^[✓!✗]  {name} ", ended.out, re.MULTILINE), name
    assert "not reachable (HF_HUB_OFFLINE is set)" in ended.out
