"""Streams that cannot be written, stages that are shown only where somebody asked, and JSON alone on standard output."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from glassloop import encode, load_examples, load_tokenizer
from glassloop.base import output as streams
from glassloop.base.errors import DataError
from glassloop.base.output import Clock, CommandResult, Stage, advance, show, stage, timed
from glassloop.cli import main as cli
from glassloop.training.progress import StageLines

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")


def test_nothing_is_shown_unless_a_display_is_chosen_or_can_control_it(capfd: pytest.CaptureFixture[str]) -> None:
    streams.say("a \x1b[31mred\nline")
    show("\x9b31m \u202eevil")
    assert capfd.readouterr() == ("\\x9b31m \\u202eevil\n", "glassloop: a \\x1b[31mred\\nline\n")
    with stage("reading", 3):
        advance(3)
        streams.clear()
    assert capfd.readouterr() == ("", "")


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("kind", [None, "closed", "gone", pytest.param("full", marks=needs_full)])
def test_messages_never_raise(monkeypatch: pytest.MonkeyPatch, kind: str | None) -> None:
    stream = None if kind is None else FULL.open("w") if kind == "full" else Gone()
    if kind == "closed":
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    streams.say("a line")
    streams.note("a line")
    StageLines().begin(Stage("reading"))
    assert not streams.has_terminal()
    if kind == "full":
        stream.close()  # nothing is left in its buffer


@needs_full
def test_the_first_error_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    with FULL.open("w") as opened:
        monkeypatch.setattr(sys, "stdout", opened)
        with streams.tolerant_streams() as output:
            print("lost")
            assert output.error is None, "it is in the buffer"
            output.flush()
            assert "No space left" in str(output.error)
        assert sys.stdout is opened


def test_a_stream_keeps_its_own_attributes() -> None:
    stream = streams.TolerantStream(io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    assert (stream.encoding, stream.isatty(), stream.write("text")) == ("latin-1", False, 4)


def shell(redirection: str, code: str) -> subprocess.CompletedProcess[str]:
    """Run Python with its output redirected."""
    return subprocess.run(
        ["bash", "-c", f'"$0" -c "$1" {redirection}; exit ${{PIPESTATUS[0]}}', sys.executable,
         f"import sys; sys.path[:] = {sys.path!r}\n{code}"],
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
    arguments = ["glassloop", "list", str(tmp_path), "--json"]
    ended = shell(redirection, f"sys.argv = {arguments!r}\nfrom glassloop.cli.main import main\nmain()")
    assert ended.returncode == status, ended.stderr
    assert problem in ended.stderr
    assert len(ended.stderr.splitlines()) == (2 if problem else 0) + ("2>" not in redirection), ended.stderr  # "no runs in"
    assert bool(ended.stdout) == (redirection == "2>&-")
    if ended.stdout:
        assert json.loads(ended.stdout)["runs"] == []


@needs_full
def test_a_script_whose_messages_are_lost_ends_with_status_0() -> None:
    """Python exits with 120 if standard error cannot be flushed."""
    assert shell("2>/dev/full", "from glassloop.base.output import say; say('a line')").returncode == 0


@pytest.mark.parametrize("by_child", [pytest.param(False, marks=needs_full), True])
@pytest.mark.parametrize(("arguments", "status"), [(["train"], 0), (["train", "--json"], 6), (["data"], 6)])
def test_a_message_about_a_file_is_not_worth_a_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, by_child: bool
) -> None:
    """What is lost was printed by this process or, if standard output was closed from the start, perhaps by a child."""

    def command(args: list[str], **_: object) -> CommandResult:
        if by_child:
            sys.exit(0)
        print("a table")
        return CommandResult({})

    monkeypatch.setattr(cli, "app", command)
    monkeypatch.setattr(sys, "argv", ["glassloop", *arguments])
    with Path(os.devnull if by_child else FULL).open("w") as opened:
        monkeypatch.setattr(sys, "stdout", None if by_child else opened)
        with pytest.raises(SystemExit) as left:
            cli.main()
    assert left.value.code == status
    assert by_child or "standard output cannot be written: No space left on device" in capsys.readouterr().err


# --- stages ------------------------------------------------------------------------------------------------------
class Recorder:
    """A display that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.begin = self.advance = self.told.append

    def end(self) -> None:
        self.told.append("end")

    def clear(self) -> None:
        self.told.append("clear")


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    display = Recorder()
    streams.show_on(display)
    yield display
    streams.show_on(None)


def test_a_stage_begins_advances_and_ends_and_a_line_makes_room_for_itself(
    recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    advance(1)
    with stage("reading", 3):
        advance(2)
    advance(1)
    with pytest.raises(ValueError, match="broken"), stage("writing"):
        raise ValueError("broken")
    with stage("predicting", 9):
        with stage("evaluating", 5):  # inside another, it is part of it
            advance(5)
        advance(4)
    assert recorder.told == [
        *(Stage("reading", 3), 2, "end"),
        *(Stage("writing"), "end"),
        *(Stage("predicting", 9), 5, 4, "end"),
    ]
    recorder.told.clear()
    with stage("saving"):
        show("a line")
    show("another")
    assert recorder.told == [Stage("saving"), "clear", "end"]
    assert capsys.readouterr().out == "a line\nanother\n"


class FakeTime:
    """A clock that goes on only when it is told to."""

    CLOCK_BOOTTIME = 7

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def clock_gettime(self, clock: int) -> float:
        assert clock == self.CLOCK_BOOTTIME
        return self.now + 1000

    def process_time(self) -> float:
        return 0.25


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(streams, "time", fake)
    monkeypatch.setattr(streams, "COUNTED", streams.Counted())
    return fake


@pytest.mark.parametrize("shown", [False, True])
def test_stages_and_the_rest_add_up_to_the_whole(passing: FakeTime, shown: bool) -> None:
    """Whether they are shown or not, nested, repeated, ended by an error, or around others."""
    streams.show_on(Recorder() if shown else None)
    with stage("before"):
        passing.now += 50
    clock = Clock()
    passing.now += 0.1
    with stage("reading rows.csv", counts_as="reading"):
        passing.now += 2
        with stage("checking"), timed("more"):
            passing.now += 3
    with suppress(ValueError), stage("writing"):
        passing.now += 4
        raise ValueError
    with timed("steps", between=True):
        passing.now += 10
        with timed("first step"):
            passing.now += 1
        for _ in range(2):
            with timed("evaluating during training"), stage("evaluating", 5):
                passing.now += 5
        with suppress(ValueError), timed("more steps", between=True):
            passing.now += 7
            raise ValueError
        passing.now += 20
    passing.now += 0.4
    streams.show_on(None)
    stages = clock.stages()
    assert stages == pytest.approx(
        {
            **{"reading": 5, "writing": 4, "steps": 30, "first step": 1},
            **{"evaluating during training": 10, "more steps": 7, "everything else": 0.5},
        }
    )
    assert sum(stages.values()) == pytest.approx(passing.now - 150)
    assert [*stages] == [
        *("reading", "writing", "steps", "first step", "evaluating during training", "more steps", "everything else"),
    ]


def test_a_stage_of_another_thread_is_not_counted_twice(passing: FakeTime) -> None:
    clock = Clock()

    def work() -> None:
        with stage("beside it"):
            passing.now += 3

    def run() -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    run()
    with stage("waiting"):
        run()
    assert clock.stages() == {"waiting": 3, "everything else": 3}


def test_a_command_counts_from_the_start_of_its_process(passing: FakeTime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "process_age", lambda: 2.0)
    clock = Clock.of_process()
    with stage("starting"):
        passing.now += 1
    assert clock.stages() == {"starting": 3, "everything else": 0}
    again = Clock.of_process()  # in the same process, as in tests
    assert again.stages() == {"starting": 2, "everything else": 0}


def test_the_age_of_a_process_is_read_from_the_system(passing: FakeTime, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"/proc/self/stat": f"77 (a ) b) S {' '.join(map(str, range(4, 22)))} 109850 0 0"}
    monkeypatch.setattr(streams.os, "sysconf", lambda name: {"SC_CLK_TCK": 100}[name])
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: files[str(path)])
    assert streams.process_age() == pytest.approx(1.5)
    files["/proc/self/stat"] = "77 (python) S"
    assert streams.process_age() == 0.25, "a system without this file, or with another one"


def test_reading_and_tokenizing_count_every_row(recorder: Recorder, tiny_model_dir: Path, write) -> None:
    path = write("rows.csv", "text,label\n" + "".join(f"good film {number},{number % 2}\n" for number in range(50)))
    examples = load_examples(path)
    encode(examples, load_tokenizer(tiny_model_dir), 16)
    expected: list[object] = [Stage("reading rows.csv"), 50, "end"]
    for name, fact in examples.facts.items():
        expected += [Stage(f"tokenizing {name}", fact.num_rows), fact.num_rows, "end"]
    assert recorder.told == expected


# --- JSON --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Record:
    """Something with fields."""

    name: str
    values: tuple[float, ...]


def test_every_value_becomes_plain_json() -> None:
    content = {"record": Record("a", (1.0, float("inf"))), "path": Path("runs/run-001"), "nothing": None, "yes": True}
    plain = {"record": {"name": "a", "values": [1.0, None]}, "path": "runs/run-001", "nothing": None, "yes": True}
    content, plain = content | {"seeds": {42: {"score": float("nan")}}}, plain | {"seeds": {"42": {"score": None}}}
    assert json.loads(str(CommandResult(content))) == plain
    error = streams.error_result(DataError("row 3 is empty", "fill it"))
    assert error.exit_status == 3
    assert error.content["error"] == {"area": "data", "problem": "row 3 is empty", "remedy": "fill it", "exit_status": 3}


def test_only_json_of_the_main_process_goes_to_standard_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for as_json in (False, True):
        with streams.output_of(as_json) as output:
            print("a table")
            print("a document", file=output)
        print("after")
        printed = capsys.readouterr()
        assert printed.out == ("a document\nafter\n" if as_json else "a table\na document\nafter\n")
        assert printed.err == ("a table\n" if as_json else "")
    output = io.StringIO()
    monkeypatch.setenv("RANK", "1")
    streams.show_result(CommandResult({"ok": True}), output)
    assert output.getvalue() == ""
    monkeypatch.setenv("RANK", "0")
    streams.show_result(CommandResult({"ok": True}), output)
    assert json.loads(output.getvalue()) == {"ok": True}
