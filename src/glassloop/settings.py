"""The settings of a run as dataclasses: a type, a default and one sentence each, from which flags and help are made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from glassloop.errors import SettingsError, did_you_mean, listed, visible
from glassloop.files import path_problem, user_path

CLASSES, SEVERAL, SCORE = "single_label_classification", "multi_label_classification", "regression"
TASKS = ("auto", CLASSES, SEVERAL, SCORE)
MAX_NAME_LENGTH = 200
MOST_ROWS = 100_000_000  # generated ones: 25 GB
SETTINGS_HELP = "glassloop data --help lists the settings"


def setting(default: Any, help_text: str) -> Any:
    """A dataclass field with its one sentence of help."""
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True)
class DataSettings:
    """Where the examples are in the data, and what to do with rows that have no text or an unknown label."""

    # From Python, `label` and `labels` may also be several names, which may hold commas.
    name: str | None = setting(None, "Configuration of a hub data set, for example a language.")
    data_dir: str | None = setting(None, "Folder with the original GLUE files: it holds MRPC/ or is that folder itself.")
    text: str | None = setting(None, "Column that holds the text (or the first text of a pair).")
    text_pair: str | None = setting(None, "Column that holds the second text of a pair.")
    label: str | tuple[str, ...] | None = setting(None, "Column that holds the label; several 0/1 columns separated by commas.")
    labels: str | tuple[str, ...] | None = setting(None, "Label names in the order of their numbers, separated by commas.")
    task: str = setting("auto", "What to learn: " + ", ".join(TASKS) + ".")
    label_separator: str | None = setting(None, "Sign between several labels in one cell; makes the task multi-label.")
    delimiter: str | None = setting(None, "Sign between the columns of a delimited file; by default , in .csv, tab in .tsv.")
    empty: str = setting("refuse", "Rows whose text is empty: refuse or keep.")
    unknown_labels: str = setting("refuse", "Rows outside training whose label training never saw: refuse or skip.")
    validation_share: float = setting(
        0.1, "Share of the training rows cut off for validation where there is no such split; 0: none."
    )
    split_seed: int = setting(
        42, "Random seed of the validation split and of generated data. Independent of --seed: all seeds share their rows."
    )
    rows: int | None = setting(None, "Number of generated training pairs (quickstart data only).")

    def __post_init__(self) -> None:
        problems = []
        for choice, allowed in (("task", TASKS), ("empty", ("refuse", "keep")), ("unknown_labels", ("refuse", "skip"))):
            if (value := getattr(self, choice)) not in allowed:
                problems.append(
                    f"{choice} is {visible(value)}, not one of {listed(allowed)}{did_you_mean(str(value), allowed)}"
                )
        if not (isinstance(self.validation_share, int | float) and 0 <= self.validation_share < 1):
            problems.append(f"validation_share is {self.validation_share!r}, not a share from 0 to below 1")
        for whole, least in (("split_seed", 0), ("rows", 10)):
            value = getattr(self, whole)
            wanted = value is not None or whole == "split_seed"
            if wanted and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                problems.append(f"{whole} is {value!r}, not a whole number of {least} or more")
        if isinstance(self.rows, int) and self.rows > MOST_ROWS:
            problems.append(f"rows is {self.rows:,}, not {MOST_ROWS:,} or less")
        sign = self.delimiter_sign
        if sign is not None and (not isinstance(sign, str) or len(sign) != 1 or sign in '"\r\n'):
            problems.append(f"delimiter is {visible(self.delimiter)}, not a single sign (write tab for a tab)")
        if self.label_separator is not None and (not isinstance(self.label_separator, str) or not self.label_separator):
            problems.append(f"label_separator is {self.label_separator!r}, not a sign")
        if self.data_dir is not None and (not isinstance(self.data_dir, str | Path) or not str(self.data_dir)):
            problems.append(f"data_dir is {self.data_dir!r}, not a folder")
        elif self.data_dir is not None and (problem := path_problem(self.data_dir)):
            problems.append(f"data_dir is {visible(self.data_dir)}: {problem}")
        for named in ("text", "text_pair", "label", "labels", "name"):
            value = getattr(self, named)
            parts = split_names(value) if named in ("label", "labels") and isinstance(value, str | tuple) else (value,)
            if value is not None and not (parts and all(isinstance(part, str) and part for part in parts)):
                problems.append(f"{named} is {value!r}, not a name")
        if problems:
            raise SettingsError("; ".join(problems), SETTINGS_HELP)
        names = [*self.label_columns, *(self.label_names or ()), *filter(None, (self.text, self.text_pair, self.name))]
        problems += filter(None, map(name_problem, names))
        if self.text_pair is not None and self.text is None:
            problems.append("text_pair is given without text")
        columns = [column for column in (self.text, self.text_pair, *self.label_columns) if column]
        problems += [f"column {visible(name)} is named twice" for name in repeated(columns)]
        problems += [f"label {visible(name)} is named twice" for name in repeated(self.label_names or ())]
        if problems:
            raise SettingsError("; ".join(problems), SETTINGS_HELP)
        if self.data_dir is not None:
            object.__setattr__(self, "data_dir", str(user_path(self.data_dir)))

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The label columns named by the user; several mean one 0/1 column a label."""
        return split_names(self.label)

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """The label names given by the user, in the order of their numbers."""
        return split_names(self.labels) or None

    @property
    def delimiter_sign(self) -> str | None:
        """The delimiter as one character: `tab` and `\\t` mean a tab."""
        return "\t" if self.delimiter in ("tab", "\\t") else self.delimiter


def refuse_invalid_bytes(arguments: Sequence[str]) -> None:
    """Raise for a command-line argument that is not UTF-8: neither a record nor a report could name it."""
    for argument in arguments:
        if any("\ud800" <= sign <= "\udfff" for sign in argument):
            raise SettingsError(f"the argument {visible(argument)} is not UTF-8", "rename the file, or write the text in UTF-8")


def data_settings(given: Mapping[str, Any]) -> DataSettings:
    """Settings from names and values; an unknown name is an error that offers the nearest known one."""
    known = [entry.name for entry in fields(DataSettings)]
    unknown = [f"unknown setting {visible(name)}{did_you_mean(name, known)}" for name in given if name not in known]
    if unknown:
        raise SettingsError("; ".join(unknown), f"the data settings are {listed(known, 20)}")
    ready: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return DataSettings(**ready)


def split_names(names: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """`a, b` as ("a", "b"); a tuple (from Python, where a name may hold a comma) as it is."""
    if isinstance(names, str):
        return tuple(name.strip() for name in names.split(",") if name.strip())
    return names or ()


def repeated(names: Sequence[str]) -> list[str]:
    """Return the names that are there more than once, in their order."""
    return [name for name, count in Counter(names).items() if count > 1]


def name_problem(name: str) -> str | None:
    """Why `name` cannot be the name of a label, a column or a model; None where it can."""
    if len(name) > MAX_NAME_LENGTH:
        return f"the name {visible(name, 40)} has {len(name):,} characters; at most {MAX_NAME_LENGTH} are allowed"
    if any("\ud800" <= sign <= "\udfff" for sign in name):
        return f"the name {visible(name)} holds half a character or invalid bytes"
    if any(ord(sign) < 32 or ord(sign) == 127 for sign in name):
        return f"the name {visible(name)} holds a line end or another control character"
    return None
