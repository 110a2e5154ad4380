"""Settings as dataclasses: the type, default and help sentence of each field become an option of the command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from glassloop.base.errors import SettingsError, alternatives, closest, did_you_mean, listed, visible
from glassloop.base.files import path_problem, user_path

if TYPE_CHECKING:
    from glassloop.base.records import Dataclass

CLASSES, SEVERAL, SCORE = "single_label_classification", "multi_label_classification", "regression"


TASKS = ("auto", CLASSES, SEVERAL, SCORE)


MAX_NAME_LENGTH = 200


MOST_SHOWN = 80  # characters of a wrong value


MOST_ROWS = 100_000_000  # that many generated rows take 25 GB


PATHS = ("data_dir", "validation", "test")


FILE_SETTINGS = ("delimiter", "header", "columns", "encoding", "sheet", "bad_rows")  # how one file is read


Default = TypeVar("Default")


Kind = TypeVar("Kind", bound="Dataclass")


def setting(default: Default, help_text: str) -> Default:
    """Return a dataclass field with its default and its sentence of help."""
    found: Default = field(default=default, metadata={"help": help_text})
    return found


def described(kind: type[Kind]) -> type[Kind]:
    """Add the help sentence of each setting to the docstring of a settings class, for `help()` and editors."""
    lines = [f"    {entry.name}: {entry.metadata['help']}" for entry in fields(kind)]
    kind.__doc__ = "\n".join([cleandoc(kind.__doc__ or ""), "", "Attributes:", *lines])
    return kind


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with the settings, and how to correct it."""

    text: str
    remedy: str


def wrong(name: str, value: object, wanted: str) -> Problem:
    """Return the problem of a setting whose value is not `wanted`, for example "1 or more". A long value is cut."""
    shown = str(value)
    shown = shown if len(shown) <= MOST_SHOWN else f"{shown[: MOST_SHOWN - 1]}…"
    return Problem(f"{name} is {shown}, not {wanted}", f"set {name} to {wanted}")


def wrong_choice(name: str, value: object, choices: Sequence[str]) -> Problem:
    """Return the problem of a setting that is none of its choices; the remedy is the closest one, if any is close."""
    text = f"{name} is {visible(value)}, not one of {listed(choices)}"
    near = closest(str(value), choices)
    return Problem(text, f"set {name} to {near}" if near else f"set {name} to {alternatives(choices)}")


def refuse(problems: Sequence[Problem]) -> None:
    """Raise one `SettingsError` with all problems and all remedies, if there are any."""
    if problems:
        texts, remedies = (dict.fromkeys(parts) for parts in zip(*((one.text, one.remedy) for one in problems), strict=True))
        raise SettingsError("; ".join(texts), "; ".join(remedies))


@described
@dataclass(frozen=True)
class DataSettings:
    """How to read the data: which columns hold texts and labels, and what to do with unusual rows.

    The command's help is generated from the same sentences. In Python, names separated by commas may also be tuples. The names
    in `label`, `labels` and `columns` may then contain commas.

    Raises:
        SettingsError: A value is not allowed. All problems are reported together.
    """

    name: str | None = setting(None, "Configuration of a hub data set, for example a language.")
    data_dir: str | None = setting(None, "Folder with the original GLUE files, or its parent folder.")
    validation: str | None = setting(None, "File with the validation rows. Default: a part of the training rows is held out.")
    test: str | None = setting(None, "File with the test rows.")
    text: str | tuple[str, ...] | None = setting(
        None, "Column with the text, or with the first text of a pair. Several columns, separated by commas, are joined."
    )
    text_pair: str | tuple[str, ...] | None = setting(None, "Column with the second text of a pair, or several to join.")
    label: str | tuple[str, ...] | None = setting(None, "Column with the label, or several 0/1 columns separated by commas.")
    labels: str | tuple[str, ...] | None = setting(None, "Label names in the order of their ids, separated by commas.")
    task: str = setting("auto", "Task to train for: " + ", ".join(TASKS) + ".")
    label_separator: str | None = setting(
        None, "Separator between several labels in one cell. Implies multi-label classification."
    )
    delimiter: str | None = setting(None, "Column delimiter. Default: comma for .csv files, tab for .tsv files.")
    header: bool | None = setting(
        None, "Whether the first row holds the column names. Without a header, columns are called column_1, column_2."
    )
    columns: str | tuple[str, ...] | None = setting(
        None, "Column names of a file without a header, separated by commas. With --header, they replace its names."
    )
    encoding: str | None = setting(None, "Encoding of text files, for example cp1252. Default: UTF-8, or the byte order mark.")
    sheet: str | None = setting(None, "Sheet of an Excel file. Default: the only sheet with cells.")
    bad_rows: str = setting(
        "refuse", "What to do with rows that cannot be read (wrong number of fields, invalid bytes): refuse or skip."
    )
    empty: str = setting("refuse", "What to do with rows whose text is empty: refuse or keep.")
    unknown_labels: str = setting(
        "refuse", "What to do with evaluation rows whose label does not occur in the training rows: refuse or skip."
    )
    validation_share: float = setting(
        0.1, "Fraction of the training rows to hold out if there is no validation split. 0 holds out none."
    )
    selection_fold: str | None = setting(
        None,
        'Part of the training rows to hold out as the split "selection", to choose settings on: 2/5 is the second of 5 folds.',
    )
    split_seed: int = setting(42, "Random seed for the held-out validation rows and for generated data. Independent of --seed.")
    limit: int | None = setting(None, "Number of rows per split to use at most, drawn at random with --split_seed.")
    rows: int | None = setting(None, "Number of training pairs to generate (quickstart data only).")

    def __post_init__(self) -> None:
        refuse(data_problems(self))
        refuse(name_problems(self))
        for name in PATHS:
            if (path := getattr(self, name)) is not None:
                object.__setattr__(self, name, str(user_path(path)))

    def with_absolute_paths(self) -> DataSettings:
        """Return the settings with absolute paths, which hold in every working directory."""
        paths = {name: str(user_path(path).absolute()) for name in PATHS if (path := getattr(self, name))}
        return replace(self, **paths)  # type: ignore[arg-type]  # paths are texts

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Return the columns of the text that the user named."""
        return split_names(self.text)

    @property
    def pair_columns(self) -> tuple[str, ...]:
        """Return the columns of the second text that the user named."""
        return split_names(self.text_pair)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Return the names that the user gave to the columns of a file."""
        return split_names(self.columns)

    @property
    def label_columns(self) -> tuple[str, ...]:
        """Return the label columns the user named. Several columns hold 0 or 1 for one label each."""
        return split_names(self.label)

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """Return the label names the user gave, in the order of their ids."""
        return split_names(self.labels) or None

    @property
    def delimiter_sign(self) -> str | None:
        """Return the delimiter as one character: `tab` and `\\t` mean a tab."""
        return "\t" if self.delimiter in ("tab", "\\t") else self.delimiter


def data_problems(settings: DataSettings) -> list[Problem]:
    """Return what is wrong with the value of each setting."""
    problems = []
    skipping = ("refuse", "skip")
    choices = {"task": TASKS, "empty": ("refuse", "keep"), "unknown_labels": skipping, "bad_rows": skipping}
    for choice, allowed in choices.items():
        if (value := getattr(settings, choice)) not in allowed:
            problems.append(wrong_choice(choice, value, allowed))
    share = settings.validation_share
    if not (isinstance(share, int | float) and 0 <= share < 1):
        problems.append(wrong("validation_share", repr(share), "a fraction from 0 to less than 1"))
    if settings.selection_fold is not None and fold_of(settings.selection_fold) is None:
        problems.append(wrong("selection_fold", repr(settings.selection_fold), "a part such as 1/10"))
    for whole, least in (("split_seed", 0), ("limit", 1), ("rows", 10)):
        value = getattr(settings, whole)
        is_given = value is not None or whole == "split_seed"
        if is_given and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            problems.append(wrong(whole, repr(value), f"a whole number of {least} or more"))
    if isinstance(settings.rows, int) and settings.rows > MOST_ROWS:
        problems.append(wrong("rows", f"{settings.rows:,}", f"{MOST_ROWS:,} or less"))
    sign = settings.delimiter_sign
    if sign is not None and (not isinstance(sign, str) or len(sign) != 1 or sign in '"\r\n'):
        problems.append(wrong("delimiter", visible(settings.delimiter), "a single character (write tab for a tab)"))
    separator = settings.label_separator
    if separator is not None and (not isinstance(separator, str) or not separator):
        problems.append(wrong("label_separator", repr(separator), "one or more characters"))
    if settings.header is not None and not isinstance(settings.header, bool):
        problems.append(wrong("header", repr(settings.header), "true or false"))
    if settings.encoding is not None and not is_encoding(settings.encoding):
        text = f"encoding is {visible(settings.encoding)}, which is not an encoding of text that Python knows"
        problems.append(Problem(text, "use a name such as utf-8, latin-1, cp1252 or utf-16"))
    for named in PATHS:
        path, kind = getattr(settings, named), "folder" if named == "data_dir" else "file"
        if path is not None and (not isinstance(path, str | Path) or not str(path)):
            problems.append(wrong(named, repr(path), f"a {kind}"))
        elif path is not None and (found := path_problem(path)):
            problems.append(Problem(f"{named} is {visible(path)}: {found}", f"set {named} to an existing {kind}"))
    for named in ("text", "text_pair", "label", "labels", "columns", "name", "sheet"):
        value = getattr(settings, named)
        several = named not in ("name", "sheet") and isinstance(value, str | tuple)
        parts = split_names(value) if several else (value,)
        if value is not None and not (parts and all(isinstance(part, str) and part for part in parts)):
            problems.append(wrong(named, repr(value), "a name"))
    return problems


def fold_of(text: object) -> tuple[int, int] | None:
    """Return 1/5 as (1, 5): the number of a fold and of all folds; None for anything else."""
    parts = text.split("/") if isinstance(text, str) else []
    if len(parts) != 2 or not all(part.isascii() and part.isdecimal() and len(part) < 6 for part in parts):
        return None
    number, folds = map(int, parts)
    return (number, folds) if 1 <= number <= folds >= 2 else None


def is_encoding(name: object) -> bool:
    """Return whether Python can decode text with the encoding of this name."""
    try:
        return isinstance(name, str) and "a".encode(name).decode(name) == "a"
    except (LookupError, ValueError):
        return False


def name_problems(settings: DataSettings) -> list[Problem]:
    """Return what is wrong with the names of columns and labels, alone and together."""
    columns = [*settings.text_columns, *settings.pair_columns, *settings.label_columns]
    names = [*columns, *(settings.label_names or ()), *settings.column_names]
    names += [name for name in (settings.name, settings.sheet) if name]
    problems = [Problem(found, "use a shorter or printable name") for name in names if (found := name_problem(name))]
    if settings.text_pair is not None and settings.text is None:
        problems.append(Problem("text_pair is set, but text is not", "set text to the column with the first text"))
    for name in (*repeated(columns), *repeated(settings.column_names)):
        problems.append(Problem(f"column {visible(name)} is named twice", "name each column once"))
    for given in (settings.text, settings.text_pair):
        for name in given if isinstance(given, tuple) and len(given) > 1 else ():
            if "," in name:
                problems.append(Problem(f"column {visible(name)} contains a comma and cannot be joined", "rename the column"))
    for name in repeated(settings.label_names or ()):
        problems.append(Problem(f"label {visible(name)} is named twice", "name each label once"))
    return problems


def refuse_invalid_bytes(arguments: Sequence[str]) -> None:
    """Raise `SettingsError` for a command-line argument that is not UTF-8, which cannot be recorded in a file."""
    for argument in arguments:
        if any("\ud800" <= sign <= "\udfff" for sign in argument):
            raise SettingsError(f"the argument {visible(argument)} is not UTF-8", "rename the file, or write the text in UTF-8")


def data_settings(given: Mapping[str, object]) -> DataSettings:
    """Return the settings for names and values. Raise `SettingsError` for an unknown name, with the closest known one."""
    known = [entry.name for entry in fields(DataSettings)]
    unknown = [f"unknown setting {visible(name)}{did_you_mean(name, known)}" for name in given if name not in known]
    if unknown:
        raise SettingsError("; ".join(unknown), f"use one of {listed(known, 30)}")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return DataSettings(**values)  # type: ignore[arg-type]  # each value is checked when the settings are made


def split_names(names: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the names in `a, b` as ("a", "b"). A tuple is returned unchanged: its names may contain commas."""
    if isinstance(names, str):
        return tuple(name.strip() for name in names.split(",") if name.strip())
    return names or ()


def repeated(names: Sequence[str]) -> list[str]:
    """Return the names that occur more than once, in their order."""
    return [name for name, count in Counter(names).items() if count > 1]


def name_problem(name: str) -> str | None:
    """Return why `name` cannot name a label, a column or a model, or None if it can."""
    if len(name) > MAX_NAME_LENGTH:
        return f"the name {visible(name, 40)} has {len(name):,} characters; at most {MAX_NAME_LENGTH} are allowed"
    if any("\ud800" <= sign <= "\udfff" for sign in name):
        return f"the name {visible(name)} contains invalid Unicode"
    if any(ord(sign) < 32 or ord(sign) == 127 for sign in name):
        return f"the name {visible(name)} contains a line break or another control character"
    return None
