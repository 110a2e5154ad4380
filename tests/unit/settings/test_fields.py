"""Settings: every wrong value has its sentence, all of them are told at once, and unknown names get an offer."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

from glassloop.base.errors import SettingsError
from glassloop.settings.training import (
    MAX_NAME_LENGTH,
    TASKS,
    DataSettings,
    data_settings,
    name_problem,
    refuse_invalid_bytes,
    repeated,
    split_names,
)

DEFAULTS: dict[str, Any] = {
    "name": None,
    "data_dir": None,
    "validation": None,
    "test": None,
    "text": None,
    "text_pair": None,
    "label": None,
    "labels": None,
    "task": "auto",
    "label_separator": None,
    "delimiter": None,
    "header": None,
    "columns": None,
    "encoding": None,
    "sheet": None,
    "bad_rows": "refuse",
    "empty": "refuse",
    "unknown_labels": "refuse",
    "validation_share": 0.1,
    "selection_fold": None,
    "split_seed": 42,
    "limit": None,
    "rows": None,
}


def problem_of(**given: Any) -> str:
    with pytest.raises(SettingsError) as raised:
        data_settings(given)
    for part in raised.value.problem.split("; "):
        if match := re.fullmatch(r"(\w+) is .+, not (?!one of )(.+)", part):
            assert f"set {match[1]} to {match[2]}" in raised.value.remedy.split("; ")
    assert raised.value.remedy
    return raised.value.problem


def test_the_settings_and_their_defaults_are_these() -> None:
    assert {entry.name: entry.default for entry in fields(DataSettings)} == DEFAULTS
    assert DataSettings() == data_settings({}) == DataSettings(**DEFAULTS)


def test_every_setting_has_one_sentence_of_help() -> None:
    for entry in fields(DataSettings):
        sentence = entry.metadata["help"]
        assert sentence[0].isupper(), entry.name
        assert sentence.endswith("."), entry.name
        assert "\n" not in sentence, entry.name


def test_settings_cannot_be_changed_behind_their_check() -> None:
    with pytest.raises(FrozenInstanceError):
        DataSettings().split_seed = -1  # type: ignore[misc]


# --- each wrong setting ------------------------------------------------------------------------------------------

TASKS_TOLD = "auto, single_label_classification, multi_label_classification, regression"
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"task": "regresion"}, f'task is "regresion", not one of {TASKS_TOLD}'),
    ({"task": "ner"}, f'task is "ner", not one of {TASKS_TOLD}'),
    ({"task": None}, f'task is "None", not one of {TASKS_TOLD}'),
    ({"task": "au\nto\x1b"}, f'task is "au\\nto\\x1b", not one of {TASKS_TOLD}'),
    ({"empty": "kep"}, 'empty is "kep", not one of refuse, keep'),
    ({"unknown_labels": "keep"}, 'unknown_labels is "keep", not one of refuse, skip'),
    *(
        ({"selection_fold": fold}, f"selection_fold is {fold!r}, not a part such as 1/10")
        for fold in ("0/5", "6/5", "1/1", "1", "a/b", "1/2/3", 3, "")
    ),
    ({"validation_share": 1.0}, "validation_share is 1.0, not a fraction from 0 to less than 1"),
    ({"validation_share": -0.1}, "validation_share is -0.1, not a fraction from 0 to less than 1"),
    ({"validation_share": float("nan")}, "validation_share is nan, not a fraction from 0 to less than 1"),
    ({"validation_share": "0.1"}, "validation_share is '0.1', not a fraction from 0 to less than 1"),
    ({"validation_share": True}, "validation_share is True, not a fraction from 0 to less than 1"),
    ({"validation_share": None}, "validation_share is None, not a fraction from 0 to less than 1"),
    ({"split_seed": -1}, "split_seed is -1, not a whole number of 0 or more"),
    ({"split_seed": 1.5}, "split_seed is 1.5, not a whole number of 0 or more"),
    ({"split_seed": True}, "split_seed is True, not a whole number of 0 or more"),
    ({"split_seed": "7"}, "split_seed is '7', not a whole number of 0 or more"),
    ({"split_seed": None}, "split_seed is None, not a whole number of 0 or more"),
    ({"rows": 9}, "rows is 9, not a whole number of 10 or more"),
    ({"rows": 10**12}, "rows is 1,000,000,000,000, not 100,000,000 or less"),
    ({"rows": 2.0}, "rows is 2.0, not a whole number of 10 or more"),
    ({"delimiter": ""}, 'delimiter is "", not a single character (write tab for a tab)'),
    ({"delimiter": ";;"}, 'delimiter is ";;", not a single character (write tab for a tab)'),
    ({"delimiter": "\n"}, r'delimiter is "\n", not a single character (write tab for a tab)'),
    ({"delimiter": '"'}, 'delimiter is """, not a single character (write tab for a tab)'),
    ({"delimiter": 5}, 'delimiter is "5", not a single character (write tab for a tab)'),
    ({"label_separator": ""}, "label_separator is '', not one or more characters"),
    ({"label_separator": 5}, "label_separator is 5, not one or more characters"),
    ({"data_dir": ""}, "data_dir is '', not a folder"),
    ({"data_dir": 5}, "data_dir is 5, not a folder"),
    (
        {"data_dir": "~nobody-is-called-this"},
        'data_dir is "~nobody-is-called-this": no such user, or the user has no home folder',
    ),
    ({"text": "\udcff"}, 'the name "\\udcff" contains invalid Unicode'),
    ({"labels": ["a", "\ud800"]}, 'the name "\\ud800" contains invalid Unicode'),
    ({"text": ""}, "text is '', not a name"),
    ({"text": 5}, "text is 5, not a name"),
    ({"text": []}, "text is (), not a name"),
    ({"text": ["a", 5]}, "text is ('a', 5), not a name"),
    ({"text": ["a", "b,c"]}, 'column "b,c" contains a comma and cannot be joined'),
    ({"text": "a,a"}, 'column "a" is named twice'),
    ({"text": "a,b", "text_pair": "b"}, 'column "b" is named twice'),
    ({"columns": "a,a"}, 'column "a" is named twice'),
    ({"columns": ","}, "columns is ',', not a name"),
    ({"header": "no"}, "header is 'no', not true or false"),
    ({"sheet": ""}, "sheet is '', not a name"),
    ({"bad_rows": "keep"}, 'bad_rows is "keep", not one of refuse, skip'),
    ({"encoding": "utf-9"}, 'encoding is "utf-9", which is not an encoding of text that Python knows'),
    ({"encoding": "rot13"}, 'encoding is "rot13", which is not an encoding of text that Python knows'),
    ({"encoding": "a\0b"}, 'encoding is "a\\x00b", which is not an encoding of text that Python knows'),
    ({"encoding": 5}, 'encoding is "5", which is not an encoding of text that Python knows'),
    ({"limit": 0}, "limit is 0, not a whole number of 1 or more"),
    ({"limit": "5"}, "limit is '5', not a whole number of 1 or more"),
    ({"validation": ""}, "validation is '', not a file"),
    ({"test": "a\0b"}, 'test is "a\\x00b": the path contains a NUL character'),
    ({"text": "a", "text_pair": ""}, "text_pair is '', not a name"),
    ({"name": ""}, "name is '', not a name"),
    ({"label": ""}, "label is '', not a name"),
    ({"label": " , "}, "label is ' , ', not a name"),
    ({"label": []}, "label is (), not a name"),
    ({"labels": ","}, "labels is ',', not a name"),
    ({"labels": []}, "labels is (), not a name"),
    ({"labels": ["a", 1]}, "labels is ('a', 1), not a name"),
    ({"labels": ["a", ""]}, "labels is ('a', ''), not a name"),
    ({"labels": {"a": 0}}, "labels is {'a': 0}, not a name"),
    ({"text_pair": "b"}, "text_pair is set, but text is not"),
    ({"text": "a", "text_pair": "a"}, 'column "a" is named twice'),
    ({"text": "a", "label": "a"}, 'column "a" is named twice'),
    ({"label": "a,b,a"}, 'column "a" is named twice'),
    ({"labels": "no,yes,no"}, 'label "no" is named twice'),
    ({"labels": ["no", "yes", "yes"]}, 'label "yes" is named twice'),
]


@pytest.mark.parametrize(("given", "problem"), WRONG, ids=[str(given)[:50] for given, _ in WRONG])
def test_a_wrong_setting_is_reported(given: dict[str, Any], problem: str) -> None:
    assert problem_of(**given) == problem


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"task": "regresion"}, "set task to regression"),
        ({"task": "ner"}, f"set task to {' or '.join(TASKS_TOLD.rsplit(', ', 1))}"),
        ({"rows": 9}, "set rows to a whole number of 10 or more"),
        (
            {"split_seed": -1, "delimiter": ""},
            "set split_seed to a whole number of 0 or more; set delimiter to a single character (write tab for a tab)",
        ),
        ({"text_pair": "b"}, "set text to the column with the first text"),
        ({"labels": "no,yes,no,yes"}, "name each label once"),
    ],
)
def test_the_remedy_names_the_fix(given: dict[str, Any], remedy: str) -> None:
    with pytest.raises(SettingsError) as raised:
        data_settings(given)
    assert raised.value.remedy == remedy


@pytest.mark.parametrize("where", ["text", "label", "labels", "name"])
def test_names_that_cannot_be_names_are_reported(where: str) -> None:
    long = "x" * 300
    assert problem_of(**{where: "two\nlines"}) == r'the name "two\nlines" contains a line break or another control character'
    assert problem_of(**{where: long}) == f'the name "{"x" * 39}…" has 300 characters; at most 200 are allowed'
    assert problem_of(**{where: "\x1b[31mred"}) == r'the name "\x1b[31mred" contains a line break or another control character'


def test_all_problems_are_reported_at_once() -> None:
    problem = problem_of(
        task="x", empty="x", unknown_labels="x", validation_share=2, split_seed=-1, rows=1, delimiter="xx", text=""
    )
    told = [part.partition(" is ")[0] for part in problem.split("; ")]
    assert told == ["task", "empty", "unknown_labels", "validation_share", "split_seed", "rows", "delimiter", "text"]


def test_all_problems_of_names_are_reported_at_once() -> None:
    problem = problem_of(text_pair="p\nq", label="a,a", labels="b,b")
    assert problem == (
        r'the name "p\nq" contains a line break or another control character; text_pair is set, but text is not; '
        'column "a" is named twice; label "b" is named twice'
    )


# --- what is fine ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
def test_every_task_can_be_chosen(task: str) -> None:
    assert data_settings({"task": task}).task == task


@pytest.mark.parametrize(
    "given",
    [
        {"validation_share": 0.001},
        {"validation_share": 0},
        {"split_seed": 0},
        {"split_seed": 2**70},
        {"rows": 10},
        {"empty": "keep"},
        {"unknown_labels": "skip"},
        {"label_separator": " / "},
        {"text": "a, b"},
        {"text": "x" * MAX_NAME_LENGTH},
        {"text": "a", "text_pair": "b", "label": "c"},
        {"data_dir": "glue"},
        {"labels": "a"},
    ],
    ids=str,
)
def test_what_is_fine_is_kept(given: dict[str, Any]) -> None:
    settings = data_settings(given)
    assert {name: getattr(settings, name) for name in given} == given


def test_the_home_folder_is_expanded_and_a_path_becomes_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    for given in ("~/glue", Path("~/glue")):
        assert data_settings({"data_dir": given}).data_dir == "/home/somebody/glue"


def test_arguments_in_another_encoding_are_refused() -> None:
    refuse_invalid_bytes(["data", "café.csv", "👍"])
    with pytest.raises(SettingsError) as raised:
        refuse_invalid_bytes(["data", "caf\udce9.csv"])
    assert raised.value.problem == 'the argument "caf\\udce9.csv" is not UTF-8'
    assert raised.value.remedy == "rename the file, or write the text in UTF-8"


@pytest.mark.parametrize(("given", "sign"), [(None, None), ("tab", "\t"), (r"\t", "\t"), ("\t", "\t"), (";", ";"), ("|", "|")])
def test_a_delimiter_is_one_sign(given: str | None, sign: str | None) -> None:
    assert data_settings({"delimiter": given}).delimiter_sign == sign


def test_names_may_come_as_a_text_or_from_python_as_a_list() -> None:
    written = data_settings({"label": " a , b,", "labels": "no, yes"})
    assert (written.label_columns, written.label_names) == (("a", "b"), ("no", "yes"))
    listed = data_settings({"label": ["a", "b"], "labels": ["no, never", " yes "]})
    assert (listed.label_columns, listed.label_names) == (("a", "b"), ("no, never", " yes "))
    assert data_settings({"labels": ("no", "yes")}).label_names == ("no", "yes")
    nothing = DataSettings()
    assert (nothing.label_columns, nothing.label_names) == ((), None)


def test_lists_become_tuples_so_that_settings_can_be_compared_and_kept() -> None:
    settings = data_settings({"label": ["a", "b"]})
    assert settings.label == ("a", "b")
    assert hash(settings) == hash(data_settings({"label": ("a", "b")}))


# --- unknown names -----------------------------------------------------------------------------------------------


def test_an_unknown_setting_offers_the_nearest() -> None:
    with pytest.raises(SettingsError) as raised:
        data_settings({"delimeter": ",", "xyzzy": 1, "splitseed\n": 2})
    assert raised.value.problem == (
        r'unknown setting "delimeter"; did you mean "delimiter"?; unknown setting "xyzzy"; '
        r'unknown setting "splitseed\n"; did you mean "split_seed"?'
    )
    assert raised.value.remedy == "use one of " + ", ".join(DEFAULTS)


def test_an_unknown_setting_of_300_characters_is_cut() -> None:
    with pytest.raises(SettingsError) as raised:
        data_settings({"x" * 300: 1})
    assert raised.value.problem == f'unknown setting "{"x" * 79}…"'


# --- the helpers -------------------------------------------------------------------------------------------------


def test_split_names() -> None:
    assert split_names("a, b ,,c ") == ("a", "b", "c")
    assert split_names(("a, b",)) == ("a, b",)
    assert split_names(None) == split_names("") == split_names(" , ") == ()


@pytest.mark.parametrize("sign", ["\n", "\r", "\t", "\0", "\x1b", "\x1f", "\x7f"])
def test_a_control_character_is_no_part_of_a_name(sign: str) -> None:
    problem = name_problem(f"a{sign}b")
    assert problem is not None
    assert problem.endswith('" contains a line break or another control character')
    assert sign not in problem


@pytest.mark.parametrize("name", ["a", "not_equivalent", "Straße 7", "北京", "a/b", "a, b", "x" * MAX_NAME_LENGTH])
def test_other_names_are_fine(name: str) -> None:
    assert name_problem(name) is None


def test_one_character_too_many() -> None:
    assert name_problem("x" * (MAX_NAME_LENGTH + 1)) == (f'the name "{"x" * 39}…" has 201 characters; at most 200 are allowed')


def test_repeated_names_are_found_in_their_order() -> None:
    assert repeated(["a", "b", "c", "b", "a", "b"]) == ["a", "b"]
    assert repeated([f"name {number}" for number in range(100_000)]) == []


def test_help_describes_every_setting() -> None:
    for entry in fields(DataSettings):
        assert f"    {entry.name}: {entry.metadata['help']}" in (DataSettings.__doc__ or "")
    assert (DataSettings.__doc__ or "").startswith("How to read the data")
