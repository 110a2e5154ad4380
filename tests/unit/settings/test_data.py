"""Data settings: every wrong value has its sentence, all of them are told at once, and unknown names get an offer."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

from glassloop.base.errors import SettingsError
from glassloop.settings import training
from glassloop.settings.training import MAX_NAME_LENGTH, DataSettings, data_settings, name_problem, split_names

OPTIONAL = (
    *("name", "data_dir", "validation", "test", "text", "text_pair", "label", "labels", "label_separator", "delimiter"),
    *("header", "columns", "encoding", "sheet", "selection_fold", "limit", "rows"),
)
DEFAULTS: dict[str, Any] = dict.fromkeys(OPTIONAL) | {
    **{"task": "auto", "bad_rows": "refuse", "empty": "refuse", "unknown_labels": "refuse"},
    **{"validation_share": 0.1, "split_seed": 42},
}


def problem_of(**given: Any) -> str:
    """The problem of these settings. A value that is not of the right kind has the right kind as its remedy."""
    with pytest.raises(SettingsError) as raised:
        data_settings(given)
    for part in raised.value.problem.split("; "):
        if match := re.fullmatch(r"(\w+) is .+, not (?!one of )(.+)", part):
            assert f"set {match[1]} to {match[2]}" in raised.value.remedy.split("; ")
    assert raised.value.remedy
    return raised.value.problem


def test_the_settings_their_defaults_and_a_sentence_of_help_in_the_docstring() -> None:
    assert {entry.name: entry.default for entry in fields(DataSettings)} == DEFAULTS
    assert DataSettings() == data_settings({}) == DataSettings(**DEFAULTS)
    assert (DataSettings.__doc__ or "").startswith("How to read the data")
    for entry in fields(DataSettings):
        sentence = entry.metadata["help"]
        assert re.fullmatch(r"[A-Z].+\.", sentence), entry.name
        assert f"    {entry.name}: {sentence}" in (DataSettings.__doc__ or "")
    with pytest.raises(FrozenInstanceError):
        DataSettings().split_seed = -1  # type: ignore[misc]


# --- each wrong setting ------------------------------------------------------------------------------------------
TASKS_TOLD = "auto, single_label_classification, multi_label_classification, regression"
ENCODINGS = "utf-8, latin-1, cp1252 or utf-16"
NOT_ALLOWED: dict[str, tuple[str, list[Any]]] = {  # what a setting must be, and values that are not
    "task": (f"one of {TASKS_TOLD}", ["regresion", "ner", None, "au\nto\x1b"]),
    "empty": ("one of refuse, keep", ["kep"]),
    "unknown_labels": ("one of refuse, skip", ["keep"]),
    "bad_rows": ("one of refuse, skip", ["keep"]),
    "selection_fold": ("a part such as 1/10", ["0/5", "6/5", "1/1", "1", "a/b", "1/2/3", 3, ""]),
    "validation_share": ("a fraction from 0 to less than 1", [1.0, -0.1, float("nan"), "0.1", True, None]),
    "split_seed": ("a whole number of 0 or more", [-1, 1.5, True, "7", None]),
    "limit": ("a whole number of 1 or more", [0, "5"]),
    "rows": ("a whole number of 10 or more", [9, 2.0]),
    "delimiter": ("a single character (write tab for a tab)", ["", ";;", "\n", '"', 5]),
    "label_separator": ("one or more characters", ["", 5]),
    "header": ("true or false", ["no"]),
    "encoding": (f"an encoding of text that Python knows, such as {ENCODINGS}", ["utf-9", "rot13", "a\0b", 5]),
    "data_dir": ("a folder", ["", 5]),
    "validation": ("a file", [""]),
    "text": ("a name", ["", 5, (), ("a", 5)]),
    "columns": ("a name", [","]),
    "sheet": ("a name", [""]),
    "name": ("a name", [""]),
    "label": ("a name", ["", " , ", ()]),
    "labels": ("a name", [",", (), ("a", 1), ("a", ""), {"a": 0}]),
}


def test_a_wrong_value_is_reported_and_the_remedy_names_the_fix(says) -> None:
    for name, (wanted, values) in NOT_ALLOWED.items():
        for value in values:
            written = f'"{str(value).encode("unicode_escape").decode()}"' if wanted.startswith("one of") else repr(value)
            assert problem_of(**{name: value}) == f"{name} is {written}, not {wanted}"
    for given, problem in [
        ({"rows": 10**12}, "rows is 1000000000000, not 100,000,000 or less"),
        ({"data_dir": "~nobody-is-here"}, 'data_dir is "~nobody-is-here": no such user, or the user has no home folder'),
        ({"test": "a\0b"}, 'test is "a\\x00b": the path contains a NUL character'),
        ({"text": "\udcff"}, 'the name "\\udcff" contains invalid Unicode'),
        ({"labels": ["a", "\ud800"]}, 'the name "\\ud800" contains invalid Unicode'),
        ({"text": ["a", "b,c"]}, 'column "b,c" contains a comma and cannot be joined'),
        ({"text": "a", "text_pair": ""}, "text_pair is '', not a name"),
        ({"text_pair": "b"}, "text_pair is set, but text is not"),
        ({"text": "a,a"}, 'column "a" is named twice'),
        ({"text": "a,b", "text_pair": "b"}, 'column "b" is named twice'),
        ({"text": "a", "label": "a"}, 'column "a" is named twice'),
        ({"columns": "a,a"}, 'column "a" is named twice'),
        ({"label": "a,b,a"}, 'column "a" is named twice'),
        ({"labels": "no,yes,no"}, 'label "no" is named twice'),
        ({"labels": ["no", "yes", "yes"]}, 'label "yes" is named twice'),
        (
            {"text_pair": "p\nq", "label": "a,a", "labels": "b,b"},  # all at once
            r'the name "p\nq" contains a line break or another control character; text_pair is set, but text is not; '
            'column "a" is named twice; label "b" is named twice',
        ),
    ]:
        assert problem_of(**given) == problem
    for given, remedy in [
        ({"task": "regresion"}, "set task to regression"),
        ({"task": "ner"}, f"set task to {' or '.join(TASKS_TOLD.rsplit(', ', 1))}"),
        (
            {"split_seed": -1, "delimiter": ""},
            "set split_seed to a whole number of 0 or more; set delimiter to a single character (write tab for a tab)",
        ),
        ({"text_pair": "b"}, "set text to the column with the first text"),
        ({"labels": "no,yes,no,yes"}, "name each label once"),
    ]:
        with pytest.raises(SettingsError) as raised:
            data_settings(given)
        assert raised.value.remedy == remedy
    red = r'the name "\x1b[31mred" contains a line break or another control character'
    for where in ["text", "label", "labels", "name"]:
        assert problem_of(**{where: "x" * 300}) == f'the name "{"x" * 39}…" has 300 characters; at most 200 are allowed'
        assert problem_of(**{where: "\x1b[31mred"}) == red
    names = ["task", "empty", "unknown_labels", "validation_share", "split_seed", "rows", "delimiter", "text"]
    problem = problem_of(**dict.fromkeys(names, ""))
    assert [part.partition(" is ")[0] for part in problem.split("; ")] == names


# --- what is fine ------------------------------------------------------------------------------------------------
def test_what_is_fine_is_kept_and_a_path_or_a_delimiter_made_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for given in [
        *({"task": task} for task in training.TASKS),
        *({"validation_share": 0.001}, {"validation_share": 0}, {"split_seed": 0}, {"split_seed": 2**70}, {"rows": 10}),
        *({"empty": "keep"}, {"unknown_labels": "skip"}, {"label_separator": " / "}, {"data_dir": "glue"}, {"labels": "a"}),
        *({"text": "a, b"}, {"text": "x" * MAX_NAME_LENGTH}, {"text": "a", "text_pair": "b", "label": "c"}),
    ]:
        settings = data_settings(given)
        assert {name: getattr(settings, name) for name in given} == given
    monkeypatch.setenv("HOME", "/home/somebody")
    for given in ("~/glue", Path("~/glue")):
        assert data_settings({"data_dir": given}).data_dir == "/home/somebody/glue"
    for given, sign in [(None, None), ("tab", "\t"), (r"\t", "\t"), ("\t", "\t"), (";", ";"), ("|", "|")]:
        assert data_settings({"delimiter": given}).delimiter_sign == sign


def test_arguments_in_another_encoding_and_unknown_settings_are_refused(says) -> None:
    training.refuse_invalid_bytes(["data", "café.csv", "👍"])
    with says('the argument "caf\\udce9.csv" is not UTF-8', "rename the file, or write the text in UTF-8"):
        training.refuse_invalid_bytes(["data", "caf\udce9.csv"])
    problem = (
        r'unknown setting "delimeter"; did you mean "delimiter"?; unknown setting "xyzzy"; '
        rf'unknown setting "splitseed\n"; did you mean "split_seed"?; unknown setting "{"y" * 79}…"'
    )
    with says(problem, "use one of " + ", ".join(entry.name for entry in fields(DataSettings))):
        data_settings({"delimeter": ",", "xyzzy": 1, "splitseed\n": 2, "y" * 300: 1})


def test_names_are_split_listed_checked_and_found_if_repeated() -> None:
    written = data_settings({"label": " a , b,", "labels": "no, yes"})
    assert (written.label_columns, written.label_names) == (("a", "b"), ("no", "yes"))
    listed = data_settings({"label": ["a", "b"], "labels": ["no, never", " yes "]})
    assert (listed.label_columns, listed.label_names) == (("a", "b"), ("no, never", " yes "))
    assert (DataSettings().label_columns, DataSettings().label_names) == ((), None)
    assert hash(listed) == hash(data_settings({"label": ("a", "b"), "labels": ("no, never", " yes ")}))
    assert split_names("a, b ,,c ") == ("a", "b", "c")
    assert split_names(("a, b",)) == ("a, b",)
    assert split_names(None) == split_names("") == split_names(" , ") == ()
    for sign in ["\n", "\r", "\t", "\0", "\x1b", "\x1f", "\x7f"]:
        problem = name_problem(f"a{sign}b")
        assert problem is not None
        assert problem.endswith('" contains a line break or another control character')
        assert sign not in problem
    for name in ("a", "not_equivalent", "Straße 7", "北京", "a/b", "a, b", "x" * MAX_NAME_LENGTH):
        assert name_problem(name) is None
    assert "has 201 characters" in (name_problem("x" * (MAX_NAME_LENGTH + 1)) or "")
    assert training.repeated(["a", "b", "c", "b", "a", "b"]) == ["a", "b"]
    assert training.repeated([f"name {number}" for number in range(100_000)]) == []
