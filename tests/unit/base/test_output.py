"""Streams that cannot be written: messages are lost without an error, and the end of the process does not fail."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from glassloop.base.output import CommandResult, Stage, TolerantStream, has_terminal, note, say, tolerant_streams
from glassloop.cli import main as cli
from glassloop.training.progress import StageLines

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")


@pytest.mark.parametrize("stream", [None, "closed", pytest.param("full", marks=needs_full)])
def test_messages_never_raise(monkeypatch: pytest.MonkeyPatch, stream: str | None) -> None:
    found = None if stream is None else FULL.open("w") if stream == "full" else io.StringIO()
    if stream == "closed":
        found.close()
    monkeypatch.setattr(sys, "stderr", found)
    say("a line")
    note("a line")
    StageLines().begin(Stage("reading"))
    assert not has_terminal()
    if stream == "full":
        found.close()  # nothing is left in its buffer


@needs_full
def test_the_first_error_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    with FULL.open("w") as opened:
        monkeypatch.setattr(sys, "stdout", opened)
        with tolerant_streams() as output:
            print("lost")
            assert output.error is None, "it is in the buffer"
            output.flush()
            assert "No space left" in str(output.error)
        assert sys.stdout is opened


def test_a_stream_keeps_its_own_attributes() -> None:
    stream = TolerantStream(io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    assert (stream.encoding, stream.isatty(), stream.write("text")) == ("latin-1", False, 4)


SHELL = """import sys; sys.path[:] = {path!r}; sys.argv = ["glassloop", *{arguments!r}]
from glassloop.cli.main import main
main()"""


def shell(redirection: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a quick command with its output redirected."""
    code = SHELL.format(path=sys.path, arguments=arguments)
    return subprocess.run(
        ["bash", "-c", f'"$0" -c "$1" {redirection}; exit ${{PIPESTATUS[0]}}', sys.executable, code],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "COLUMNS": "400"},  # no line breaks
    )  # fmt: skip


@pytest.mark.parametrize(
    ("redirection", "status", "problem"),
    [
        (">&-", 6, "resources: standard output cannot be written: Bad file descriptor"),
        pytest.param(">/dev/full", 6, "resources: standard output cannot be written: No space left", marks=needs_full),
        ("| true", 141, ""),
        (">&- 2>&-", 6, ""),
        ("2>&-", 0, ""),
    ],
)
def test_a_result_that_cannot_be_printed_is_a_failure_without_a_traceback(
    tmp_path: Path, redirection: str, status: int, problem: str
) -> None:
    ended = shell(redirection, "list", str(tmp_path), "--json")
    assert ended.returncode == status, ended.stderr
    assert problem in ended.stderr
    assert len(ended.stderr.splitlines()) == (2 if problem else 0) + ("2>" not in redirection), ended.stderr  # "no runs in"
    assert bool(ended.stdout) == (redirection == "2>&-")
    if ended.stdout:
        assert json.loads(ended.stdout)["runs"] == []


@needs_full
def test_a_script_whose_messages_are_lost_ends_with_status_0() -> None:
    code = f"import sys; sys.path[:] = {sys.path!r}; from glassloop.base.output import say; say('a line')"
    ended = subprocess.run(["bash", "-c", '"$0" -c "$1" 2>/dev/full', sys.executable, code], timeout=60, check=False)
    assert ended.returncode == 0  # Python exits with 120 if standard error cannot be flushed


@needs_full
@pytest.mark.parametrize(("arguments", "status"), [(["train"], 0), (["train", "--json"], 6), (["data"], 6)])
def test_a_message_about_a_file_is_not_worth_a_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int
) -> None:
    def command(args: list[str], **_: object) -> CommandResult:
        print("a table")
        return CommandResult({})

    monkeypatch.setattr(cli, "app", command)
    monkeypatch.setattr(sys, "argv", ["glassloop", *arguments])
    with FULL.open("w") as opened:
        monkeypatch.setattr(sys, "stdout", opened)
        with pytest.raises(SystemExit) as left:
            cli.main()
    assert left.value.code == status
    assert "standard output cannot be written: No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "status"), [(["train"], 0), (["train", "--json"], 6)])
def test_a_result_that_a_child_process_should_have_printed(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], status: int
) -> None:
    def launch(args: list[str], **_: object) -> None:
        sys.exit(0)

    monkeypatch.setattr(cli, "app", launch)
    monkeypatch.setattr(sys, "argv", ["glassloop", *arguments])
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == status
