"""Errors: two lines whatever is in them, an exit code by kind, and text that no terminal can mistake for orders."""

from __future__ import annotations

import errno
import io
import os
import pickle

import pytest

from glassloop.base.errors import (
    DataError,
    GlassloopError,
    ModelError,
    ResourceError,
    SettingsError,
    did_you_mean,
    listed,
    printable,
    resource_error,
    visible,
)
from glassloop.base.output import say, show

KINDS = {SettingsError: ("settings", 2), DataError: ("data", 3), ModelError: ("model", 4), ResourceError: ("resources", 6)}

# What must never reach a terminal raw, and how it is written instead.
ESCAPED = {
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\0": r"\x00",
    "\b": r"\x08",
    "\x1b[31m": r"\x1b[31m",
    "\x1b]0;title\x07": r"\x1b]0;title\x07",
    "\x7f": r"\x7f",
    "\x85": r"\x85",  # a line end to str.splitlines
    "\x9b31m": r"\x9b31m",  # an ANSI escape in one character
    "\u2028": r"\u2028",
    "\u2029": r"\u2029",
    "\u202e": r"\u202e",  # right-to-left override
    "\u202a": r"\u202a",
    "\u2066": r"\u2066",
    "\u2069": r"\u2069",
    "\udcff": r"\udcff",  # half a character: a byte of a file name that is not UTF-8
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_is_two_lines_and_has_its_exit_code(kind: type[GlassloopError]) -> None:
    area, code = KINDS[kind]
    error = kind("row 3: the label is missing", "remove the row")
    assert str(error) == f"{area}: row 3: the label is missing\ntry:  remove the row"
    assert (error.exit_code, error.problem, error.remedy) == (code, "row 3: the label is missing", "remove the row")
    assert isinstance(error, GlassloopError)


def test_every_kind_of_error_is_known_here() -> None:
    own = [kind for kind in GlassloopError.__subclasses__() if kind.__module__ == "glassloop.base.errors"]
    assert {*own} >= {*KINDS}
    codes = [kind.exit_code for kind in own]
    assert len(codes) == len({*codes}), "two kinds of error share an exit code"
    assert not {0, 1} & {*codes}, "0 is success, 1 an error of no kind"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_stays_two_lines_whatever_is_put_into_it(kind: type[GlassloopError]) -> None:
    nasty, written = "".join(ESCAPED), "".join(ESCAPED.values())
    error = kind(f"file {nasty}", f"use {nasty}")
    assert str(error).splitlines() == [f"{error.area}: file {written}", f"try:  use {written}"]
    str(error).encode()  # no half characters left


@pytest.mark.parametrize(("raw", "written"), ESCAPED.items(), ids=ESCAPED.values())
def test_printable_writes_every_control_character_as_an_escape(raw: str, written: str) -> None:
    assert printable(f"a{raw}b") == f"a{written}b"


@pytest.mark.parametrize("text", ["plain", "Grüße", "北京", "café", "👍🏽", "[red]", "<script>", 'say "hi"', r"C:\new", ""])
def test_printable_leaves_other_text_alone(text: str) -> None:
    assert printable(text) == text


def test_printable_can_be_applied_twice() -> None:
    once = printable("".join(ESCAPED))
    assert printable(once) == once


def test_visible_quotes_on_one_line() -> None:
    assert visible("two\nlines") == r'"two\nlines"'
    assert visible("") == '""'
    assert visible(3.5) == '"3.5"'
    assert visible(None) == '"None"'


def test_visible_cuts_long_text_with_an_ellipsis() -> None:
    assert visible("a" * 80) == '"' + "a" * 80 + '"'
    assert visible("a" * 81) == '"' + "a" * 79 + '…"'
    assert visible("a" * 1_000_000, 10) == '"aaaaaaaaa…"'


def test_visible_never_cuts_an_escape_in_two() -> None:
    assert visible("\x1b" * 81, 4) == r'"\x1b\x1b\x1b…"'


def test_listed_joins_and_says_how_many_more() -> None:
    assert listed([]) == ""
    assert listed(["a", "b"]) == "a, b"
    assert listed(map(str, range(3)), 2) == "0, 1 and 1 more"
    assert listed(range(5000), 2) == "0, 1 and 4,998 more"
    assert listed(range(12)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11"
    assert listed(["\x1b[31m", "a\nb"]) == r"\x1b[31m, a\nb"
    assert listed(["a", "x" * 200_000]) == "a, " + "x" * 149 + "…"


def test_a_message_is_never_long() -> None:
    """Other libraries quote values of any length."""
    problem, remedy = str(DataError("\x1b" * 70_000, "y" * 70_000)).splitlines()
    assert problem == "data: " + r"\x1b" * 325 + " … " + "b" + r"\x1b" * 149
    assert remedy == "try:  " + "y" * 1300 + " … " + "y" * 597


def test_did_you_mean_offers_the_nearest_name_or_nothing() -> None:
    assert did_you_mean("sentense1", ["label", "sentence1", "sentence2"]) == '; did you mean "sentence1"?'
    assert did_you_mean("zzz", ["label", "sentence1"]) == ""
    assert did_you_mean("", ["label"]) == ""
    assert did_you_mean("label", []) == ""


def test_did_you_mean_shows_a_nasty_name_escaped() -> None:
    assert did_you_mean("model", ["mod\x1bel"]) == r'; did you mean "mod\x1bel"?'


def test_did_you_mean_does_not_choke_on_long_names() -> None:
    assert did_you_mean("x" * 100_000, ["label", "text"]) == ""


def test_errors_cannot_come_without_a_remedy() -> None:
    with pytest.raises(TypeError):
        SettingsError("only a problem")  # type: ignore[call-arg]


def test_errors_travel_between_processes() -> None:
    """A worker process sends its error to the main one by pickling it."""
    error = pickle.loads(pickle.dumps(DataError("row 3", "fix it")))  # noqa: S301 - our own bytes
    assert (type(error), str(error)) == (DataError, "data: row 3\ntry:  fix it")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
def test_a_disk_that_takes_no_more_is_a_lack_of_resources(number: int) -> None:
    """Whether Python says so with a number, or safetensors in words."""
    in_words = RuntimeError(f"Error while serializing: I/O error: {os.strerror(number)} (os error {number})")
    for error in (OSError(number, os.strerror(number), "place"), in_words):
        assert resource_error(error).exit_code == 6
    assert resource_error(RuntimeError("something else")) is None


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_missing_permission_is_a_glassloop_error(number: int) -> None:
    found = resource_error(OSError(number, os.strerror(number), "secret/run.json"))
    assert found is not None
    assert found.problem == f"secret/run.json: {os.strerror(number)}"
    assert (found.remedy, found.exit_code) == ("ask the owner for permission, or use another path", 6)
    assert resource_error(FileNotFoundError(errno.ENOENT, "No such file or directory", "x")) is None


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), "file"),
        RuntimeError("unable to mmap 706677504 bytes from file <model.safetensors>: Cannot allocate memory (12)"),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        RuntimeError("can't start new thread"),
    ],
)
def test_a_lack_of_memory_is_recognised_whoever_reports_it(error: Exception) -> None:
    found = resource_error(error)
    assert found is not None
    assert found.problem.startswith("not enough memory: ")
    assert found.remedy == "use a smaller batch, a smaller max_length or a smaller model"


def test_what_is_reported_and_shown_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    say("a \x1b[31mred\nline")
    show("\x9b31m \u202eevil")
    assert capsys.readouterr() == ("\\x9b31m \\u202eevil\n", "glassloop: a \\x1b[31mred\\nline\n")


def test_a_terminal_that_is_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stderr", Gone())
    say("nobody hears this")
