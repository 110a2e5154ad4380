"""Errors: two lines whatever is in them, an exit code by kind, and text that no terminal can mistake for orders."""

from __future__ import annotations

import errno
import os
import pickle

import pytest

from glassloop.base import errors
from glassloop.base.errors import DataError, GlassloopError, listed, printable, visible

KINDS = {
    GlassloopError: ("error", 1),
    errors.SettingsError: ("settings", 2),
    DataError: ("data", 3),
    errors.ModelError: ("model", 4),
    errors.ResumeError: ("resume", 4),
    errors.DivergedError: ("diverged", 5),
    errors.ResourceError: ("resources", 6),
    errors.TooLargeError: ("resources", 6),
    errors.LockedError: ("locked", 7),
}

# What must never reach a terminal raw, and how it is written instead.
ESCAPED = {
    **{"\n": r"\n", "\r": r"\r", "\t": r"\t", "\0": r"\x00", "\b": r"\x08", "\x7f": r"\x7f"},
    **{"\x1b[31m": r"\x1b[31m", "\x1b]0;title\x07": r"\x1b]0;title\x07"},
    "\x85": r"\x85",  # a line end to str.splitlines
    "\x9b31m": r"\x9b31m",  # an ANSI escape in one character
    "\u202e": r"\u202e",  # right-to-left override
    **{"\u2028": r"\u2028", "\u2029": r"\u2029", "\u202a": r"\u202a", "\u2066": r"\u2066", "\u2069": r"\u2069"},
    "\udcff": r"\udcff",  # half a character: a byte of a file name that is not UTF-8
}
NASTY, WRITTEN = "".join(ESCAPED), "".join(ESCAPED.values())


def test_an_error_is_two_lines_whatever_is_put_into_it_and_each_kind_has_its_exit_code() -> None:
    for kind in KINDS:
        error = kind(f"file {NASTY}", f"use {NASTY}")
        assert (error.area, error.exit_code) == KINDS[kind]
        assert (error.problem, error.remedy) == (f"file {WRITTEN}", f"use {WRITTEN}")
        assert str(error).splitlines() == [f"{error.area}: {error.problem}", f"try:  {error.remedy}"]
        str(error).encode()  # no half characters left
        with pytest.raises(TypeError):
            kind("only a problem")  # type: ignore[call-arg]
    kinds = [kind for kind in GlassloopError.__subclasses__() if kind.__module__ == "glassloop.base.errors"]
    codes = [kind.exit_code for kind in kinds]
    assert len(codes) == len({*codes}), "two kinds of error share an exit code"
    assert not {0, 1} & {*codes}, "0 is success, 1 an error of no kind"
    # Other libraries quote values of any length.
    problem, remedy = str(DataError("\x1b" * 70_000, "y" * 70_000)).splitlines()
    assert problem == "data: " + r"\x1b" * 325 + " … " + "b" + r"\x1b" * 149
    assert remedy == "try:  " + "y" * 1300 + " … " + "y" * 597
    # A worker process sends its error to the main one by pickling it.
    error = pickle.loads(pickle.dumps(DataError("row 3", "fix it")))  # noqa: S301 - our own bytes
    assert (type(error), str(error)) == (DataError, "data: row 3\ntry:  fix it")


def test_text_is_printable_quoted_listed_and_offered() -> None:
    assert [visible(value) for value in ("two\nlines", "", 3.5, None)] == [r'"two\nlines"', '""', '"3.5"', '"None"']
    assert visible("a" * 80) == '"' + "a" * 80 + '"'
    assert visible("a" * 81) == '"' + "a" * 79 + '…"'
    assert visible("a" * 1_000_000, 10) == '"aaaaaaaaa…"'
    assert visible("\x1b" * 81, 4) == r'"\x1b\x1b\x1b…"', "no escape is cut in two"
    assert listed([]) == ""
    assert listed(["a", "b"]) == "a, b"
    assert listed(map(str, range(3)), 2) == "0, 1 and 1 more"
    assert listed(range(5000), 2) == "0, 1 and 4,998 more"
    assert listed(range(12)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11"
    assert listed(["\x1b[31m", "a\nb"]) == r"\x1b[31m, a\nb"
    assert listed(["a", "x" * 200_000]) == "a, " + "x" * 149 + "…"
    for name, known, offer in [
        ("sentense1", ["label", "sentence1", "sentence2"], '; did you mean "sentence1"?'),
        ("model", ["mod\x1bel"], r'; did you mean "mod\x1bel"?'),
        ("zzz", ["label", "sentence1"], ""),
        ("", ["label"], ""),
        ("label", [], ""),
        ("x" * 100_000, ["label", "text"], ""),
    ]:
        assert errors.did_you_mean(name, known) == offer
    for raw, written in ESCAPED.items():
        assert printable(f"a{raw}b") == printable(printable(f"a{raw}b")) == f"a{written}b"
    for text in ("plain", "Grüße", "北京", "café", "👍🏽", "[red]", "<script>", 'say "hi"', r"C:\new", ""):
        assert printable(text) == text


DISK = "free some disk space, or write to another disk"
MEMORY = "use a smaller batch, a smaller max_length or a smaller model"
PERMISSION = "ask the owner for permission, or use another path"


def system_error(number: int) -> OSError:
    return OSError(number, os.strerror(number), "place")


def test_a_lack_of_resources_is_recognised_whoever_reports_it() -> None:
    for error, problem, remedy in [
        # A full disk, whether Python says so with a number, or safetensors in words.
        *((system_error(number), os.strerror(number), DISK) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)),
        (RuntimeError(f"Error while serializing: {os.strerror(errno.ENOSPC)} (os error 28)"), "os error 28", DISK),
        *((system_error(number), "place: ", PERMISSION) for number in (errno.EACCES, errno.EPERM, errno.EROFS)),
        (MemoryError(), "not enough memory: none is left", MEMORY),
        (system_error(errno.ENOMEM), "not enough memory: ", MEMORY),
        (RuntimeError("unable to mmap 7 bytes: Cannot allocate memory (12)"), "not enough memory: unable", MEMORY),
        (RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB."), "not enough memory: CUDA", MEMORY),
        (RuntimeError("can't start new thread"), "not enough memory: ", MEMORY),
        (RuntimeError("[gloo] Connection reset by peer"), "another process of this run ended", "see its message, then resume"),
    ]:
        known = errors.resource_error(error)
        assert known is not None
        assert problem in known.problem
        assert known.remedy.startswith(remedy)
        assert errors.failure_of(error) == (6, (known.problem, known.remedy))
    for error in [RuntimeError("something else"), FileNotFoundError(errno.ENOENT, "No such file", "x")]:
        assert errors.resource_error(error) is None
        assert errors.failure_of(error) == (1, (f"{type(error).__name__}: {error}",))
