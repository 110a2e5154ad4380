"""The real command in a process of its own: what is printed where, the exit code, and what is left in the cache."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run_command
from trials import BROKEN, Servers

HEAVY = ("torch", "transformers", "datasets", "numpy", "pyarrow", "accelerate", "sklearn", "scipy")
WORDS = "good bad film story".split()


@pytest.fixture
def table(write) -> Path:
    """A small CSV file of pairs."""
    rows = [f"the {WORDS[n % 4]} is {n},it was a {WORDS[n % 3]} one,{'no yes'.split()[n % 2]}" for n in range(30)]
    return write("pairs.csv", "\n".join(["sentence1,sentence2,label", *rows, ""]))


def kept(cache: Path) -> dict[str, tuple[int, int]]:
    """Every file in the cache with its size and the time of its last change."""
    files = {str(path.relative_to(cache)): path.stat() for path in cache.rglob("*") if path.is_file()}
    return {name: (found.st_size, found.st_mtime_ns) for name, found in files.items()}


@pytest.mark.parametrize("arguments", [["--help"], ["data", "--help"], ["train", "--help"], ["--version"]], ids=" ".join)
def test_help_and_version_load_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    told = run_command(*arguments, folder=tmp_path, launcher=("-X", "importtime"))
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in told.err.splitlines() if "|" in line}
    assert told.code == 0
    assert loaded & {"glassloop", *HEAVY} == {"glassloop"}


def test_the_installed_command_is_this_one() -> None:
    from importlib.metadata import PackageNotFoundError, entry_points, version

    try:
        version("glassloop")
    except PackageNotFoundError:
        pytest.skip("glassloop is not installed here, only on the path")
    (entry,) = entry_points(group="console_scripts", name="glassloop")
    assert entry.value == "glassloop.cli.main:command"


ENDING = """
import sys
sys.argv[1:] = {arguments}
class Last:
    def __del__(self):
        print("freed by Python")
kept = Last()
import glassloop.cli.main as commands
import atexit, tempfile, threading
folder = tempfile.TemporaryDirectory()
show = commands.main
def main():
    atexit.register(print, "registered at exit")
    threading.Timer(0.2, print, ["from a thread"]).start()
    print(folder.name, end="\\n", flush=False)
    show()
commands.main = main
commands.command()
"""


@pytest.mark.parametrize(
    ("arguments", "code"), [(["--version"], 0), (["train", "--no_such_option"], 2), (["data", "no.csv"], 3)]
)
def test_a_command_ends_without_what_python_does_at_the_end(arguments: list[str], code: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDING.format(arguments=arguments)], capture_output=True, text=True, cwd=tmp_path
    )
    folder, *lines = done.stdout.splitlines()
    assert done.returncode == code
    assert [line for line in lines if not line.startswith("glassloop ")] == ["from a thread", "registered at exit"]
    assert not Path(folder).exists()


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


def test_data_goes_into_a_closed_pipe_without_a_traceback(table: Path, tiny_model_dir: Path, servers: Servers) -> None:
    ended = servers.run("data", table, "--model", tiny_model_dir, out=BROKEN)  # as `| head -0` does
    assert "Traceback" not in ended.err


WRONG = {
    "unknown command": (["dta"], 2, ["dta"]),
    "unknown flag": (["data", "--sede", "7"], 2, ["--sede"]),
    "wrong settings": (["data", "--empty", "drop", "--rows", "3"], 2, ['empty is "drop"', "rows is 3", "refuse or keep"]),
    "no such file": (["data", "/no/such/file.csv"], 3, ['data: "/no/such/file.csv": there is no such file', "quickstart"]),
    "no such column": (["data", "TABLE", "--text", "sentense1"], 3, ['no column "sentense1"', 'did you mean "sentence1"?']),
    "no such model": (["data", "TABLE", "--model", "/no/such/model"], 4, ['model: "/no/such/model": there is no such folder']),
}


@pytest.mark.parametrize(("arguments", "code", "parts"), WRONG.values(), ids=WRONG)
def test_wrong_input_is_two_lines_and_an_exit_code(
    arguments: list[str], code: int, parts: list[str], table: Path, servers: Servers
) -> None:
    ended = servers.run(*(table if argument == "TABLE" else argument for argument in arguments))
    assert (ended.code, ended.out) == (code, "")
    assert "Traceback" not in ended.err
    assert all(part in ended.err for part in parts), ended.err
    assert arguments[0] == "dta" or "--sede" in arguments or [line[:4] for line in ended.lines[1:]] == ["try:"]


def test_debug_adds_the_traceback(servers: Servers) -> None:
    ended = servers.run("data", "/no/such/file.csv", "--debug")
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
