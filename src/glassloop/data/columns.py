"""The columns of a data set: which hold texts and labels, and the class number that each label cell means."""

from __future__ import annotations

import ast
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from glassloop.base.errors import DataError, SettingsError, did_you_mean, listed, visible
from glassloop.data.rows import arrow_array, numbers_of
from glassloop.runs.record import Columns
from glassloop.settings.training import CLASSES, SCORE, SEVERAL, DataSettings, name_problem, split_names

LABEL_NAMES = ("label", "labels", "target", "class", "category", "score")
TEXT_NAMES = ("text", "sentence")
PAIR_NAMES = (
    *(("sentence1", "sentence2"), ("text", "text_pair"), ("text1", "text2"), ("text_a", "text_b")),
    *(("question1", "question2"), ("premise", "hypothesis"), ("question", "sentence"), ("query", "passage")),
)
NUMBERS_SAMPLED = 1000
# More are dropped with a note, except texts and labels.
MOST_KEPT_COLUMNS = 1_000  # `datasets` takes a second for every ten thousand, each time a data set is opened
JOIN = "\n"  # white space to most tokenizers, and a token of its own to those that keep it


@dataclass(frozen=True)
class Known:
    """What a source says about itself: a public task knows its columns, label names, task and metrics."""

    text: str | None = None
    text_pair: str | None = None
    label: str | None = None
    label_names: tuple[str, ...] | None = None
    task: str | None = None
    metrics: tuple[str, ...] | None = None


NOTHING_KNOWN = Known()


# --- which columns hold texts and labels ---------------------------------------------------------------------------
def find_columns(head: pa.Table, source: str, settings: DataSettings, known: Known) -> Columns:
    """Return the columns named by the user, else those the source knows, else those that can be found without doubt."""
    names = dict.fromkeys(head.column_names)  # Arrow makes a new list each time it is asked
    label = settings.label_columns or ((known.label,) if known.label else ())
    if not label:
        label = tuple(name for name in names if name.lower() in LABEL_NAMES)
        if len(label) != 1:
            what = f"several could be the label: {listed(label)}" if label else "no column is called label"
            near = next((near for name in LABEL_NAMES[:2] if (near := did_you_mean(name, names))), "")
            raise DataError(f"{source}: {what}; found {listed(names)}{near}", "name the label column with --label")
    if settings.text:
        # Several columns, which are joined, are named with commas.
        text, pair = (
            named if named is None or (isinstance(named, str) and named in names) else ",".join(split_names(named))
            for named in (settings.text, settings.text_pair)
        )
    else:
        text, pair = (known.text, known.text_pair) if known.text else find_texts(head, source, label)
    columns = Columns(text or "", pair, label)
    texts = [name for named in columns.texts for name in columns_of_text(named, names)]
    for name in (*texts, *label):
        if name not in names:
            problem = f"{source}: there is no column {visible(name)}; found {listed(names)}{did_you_mean(name, names)}"
            raise DataError(problem, "name the columns with --text, --text_pair and --label")
    if columns.label_name not in label and columns.label_name in names:
        problem = f"{source}: there is a column {visible(columns.label_name)} in addition to the label columns {listed(label)}"
        raise DataError(problem, "rename or remove it: the labels are stored under that name")
    if both := [name for name in texts if name in label]:
        raise DataError(f"{source}: column {visible(both[0])} is named as text and as label", "name two different columns")
    return columns


def find_texts(head: pa.Table, source: str, label: tuple[str, ...]) -> tuple[str, str | None]:
    """Return the only text column, or a pair with usual names. Raise `DataError` if there is any doubt."""
    labels = {*label}
    candidates = [name for name in head.column_names if name not in labels and is_text(head[name])]
    lowered = {name.lower(): name for name in candidates}
    pairs = [pair for pair in PAIR_NAMES if all(name in lowered for name in pair)]
    if len(pairs) == 1:
        return lowered[pairs[0][0]], lowered[pairs[0][1]]
    if len(candidates) == 1:
        return candidates[0], None
    named = [lowered[name] for name in TEXT_NAMES if name in lowered]
    if not pairs and len(candidates) > 1 and len(named) == 1:
        others = [head[name].slice(0, NUMBERS_SAMPLED).to_pylist() for name in candidates if name != named[0]]
        if not any(" " in cell for cells in others for cell in cells if cell is not None):  # such as names of sources
            return named[0], None
    what = f"several columns contain text: {listed(candidates)}" if candidates else "no column contains text"
    joined = ",".join(candidates)
    joining = f", or join columns: --text {joined}" if len(candidates) > 1 and len(joined) <= 100 else ""
    problem = f"{source}: {what}; found {listed(head.column_names)}"
    raise DataError(problem, f"name the text column with --text (and --text_pair for pairs){joining}")


def is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_text(column: pa.ChunkedArray) -> bool:
    """Return whether a column contains texts that are not all numbers."""
    if not is_string(column.type):
        return False
    cells = [cell for cell in column.slice(0, NUMBERS_SAMPLED).to_pylist() if cell is not None and cell.strip()]
    return not (cells and all(map(is_float, cells)))


def is_float(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def columns_of_text(name: str, columns: Container[str]) -> tuple[str, ...]:
    """Return the columns of a text: the one called `name`, else those that it names, separated by commas."""
    return (name,) if name in columns else split_names(name)


def with_joined(table: pa.Table, texts: Iterable[str], source: str) -> pa.Table:
    """Return a table with a new column for each text that is joined from several. Empty cells are omitted."""
    for name in texts:
        parts = columns_of_text(name, table.column_names)
        if len(parts) > 1:
            for part in parts:
                if not is_string(kind := table[part].type):
                    problem = f"{source}: column {visible(part)} has the type {kind}, which is not text"
                    raise DataError(problem, "join only columns with text: --text")
            rows = zip(*(table[part].to_pylist() for part in parts), strict=True)
            texts_of_rows = [JOIN.join(cell for cell in row if cell is not None and cell.strip()) for row in rows]
            table = table.append_column(name, arrow_array(texts_of_rows, pa.string()))
    return table


def notes_on_columns(head: pa.Table, columns: Columns) -> list[str]:
    """Return a sentence about the columns that are not stored."""
    if head.num_columns > MOST_KEPT_COLUMNS:
        return [f"of {head.num_columns:,} columns only {listed((*columns.texts, *columns.label))} are kept"]
    dropped = [f"{field.name} ({field.type})" for field in head.schema if not storable(field.type)]
    return [f"dropped columns whose type datasets does not support: {listed(dropped)}"] if dropped else []


USUAL_TYPES = (
    pa.types.is_string, pa.types.is_large_string, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating,
    pa.types.is_temporal, pa.types.is_null,
)  # fmt: skip


def storable(kind: pa.DataType) -> bool:
    """Return whether `datasets` supports values of this type. It does not support maps, for example."""
    if any(is_usual(kind) for is_usual in USUAL_TYPES):
        return True
    if is_list(kind):
        return storable(kind.value_type)
    from datasets.features.features import generate_from_arrow_type  # for the few others, because it takes a while to import

    try:
        generate_from_arrow_type(kind)
    except (ValueError, TypeError, NotImplementedError):
        return False
    return True


def stored_columns(table: pa.Table, columns: Columns, label: pa.Array) -> pa.Table:
    """Return a table as it is stored: texts as strings without nulls, the label as numbers, other columns unchanged."""
    if table.num_columns > MOST_KEPT_COLUMNS:
        names = {*table.column_names}
        table = table.select([name for name in (*columns.texts, *columns.label) if name in names])
    table = table.drop_columns([field.name for field in table.schema if not storable(field.type)])
    texts = {column: pc.cast(table[column], pa.string()) for column in columns.texts}
    cells = {column: pc.fill_null(text, "") if text.null_count else text for column, text in texts.items()}
    for name, column in {**cells, columns.label_name: label}.items():
        if name in table.column_names:
            table = table.set_column(table.column_names.index(name), name, column)
        else:
            table = table.append_column(name, column)
    return table.replace_schema_metadata(None)


# --- labels that look alike ----------------------------------------------------------------------------------------
# Cyrillic and Greek letters that most fonts draw like these Latin ones.
LATIN = str.maketrans(
    "АВЕЅІЈКМНОРСТХУԀԚԜаеѕіјорсхуԁһԛԝΑΒΕΖΗΙΚΜΝΟΡΤΥΧανορυχϲϳ", "ABESIJKMHOPCTXYDQWaesijopcxydhqwABEZHIKMNOPTYXavopuxcj"
)
# Dashes and quotes that programs put in the place of those on a keyboard.
PUNCTUATION = str.maketrans("\u2010\u2012\u2013\u2014\u2015\u2212\u2018\u2019\u02bc\u201c\u201d", "------'''\"\"")
INVISIBLE = {"\u034f", "\u115f", "\u1160", "\u3164", "\uffa0", *map(chr, range(0xFE00, 0xFE10))}


def look_alikes(names: Iterable[str]) -> list[tuple[str, ...]]:
    # Reported, not merged: Good and good may be a typo or two classes.
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(shape_of(name), []).append(name)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def shape_of(name: str) -> str:
    """Return a name without case, spaces, invisible characters, leading zeros and the choice of alphabet or dash."""
    text = unicodedata.normalize("NFKC", name)
    seen = "".join(sign for sign in text if sign not in INVISIBLE and unicodedata.category(sign) not in ("Cf", "Cc"))
    folded = " ".join(seen.translate(LATIN | PUNCTUATION).casefold().split())
    return folded.lstrip("0") or "0" if folded.isdigit() else folded


def spelled(group: tuple[str, ...]) -> Iterator[str]:
    """Yield each name in quotes; if more than case differs, with escapes for all but ASCII characters."""
    hidden = len({name.lower() for name in group}) > 1
    for name in group:
        yield visible(name.encode("ascii", "backslashreplace").decode() if hidden else name)


# --- several labels in a cell --------------------------------------------------------------------------------------
SEPARATORS = (";", "|", ",")
QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
BARE = r"""[^\s'",\[\]]+(?: +[^\s'",\[\]]+)*"""
ITEM = re.compile(rf"\s*({QUOTED}|{BARE})\s*(?:,|$)")
DECIMAL_COMMA = re.compile(r"-?\d+,\d+")
SINGLE = "use --task single_label_classification if each cell is one class"
Where = Callable[[str | None], str]  # what a person calls the first row with a label cell


def lists_in(cells: Sequence[str | None]) -> list[list[str] | None] | None:
    """Return cells such as "['a', 'b']" as lists; None unless all of them are lists, and one has a quote or a comma."""
    texts = [cell.strip() for cell in cells if cell is not None]
    if not texts or not all(text.startswith("[") and text.endswith("]") for text in texts):
        return None
    if not any(sign in text for text in texts for sign in "'\","):
        return None  # [POS] may be the name of a class
    known = {text: items_of(text[1:-1]) for text in {*texts}}
    if any(items is None for items in known.values()):
        return None
    return [None if cell is None else known[cell.strip()] for cell in cells]


def items_of(text: str) -> list[str] | None:
    """Return the items between the brackets of a list; None if they are not separated by commas."""
    items, place = [], 0
    while text[place:].strip():
        match = ITEM.match(text, place)
        if match is None:
            return None
        items.append(str(ast.literal_eval(match[1])) if match[1][0] in "'\"" else match[1])
        place = match.end()
    return items


def refuse_several(values: list[str], where: Where) -> None:
    """Raise `DataError` if label cells seem to contain several labels each: their parts occur in other cells too."""
    for value in values:
        if value.strip().startswith("[") and value.strip().endswith("]") and "'" in value:
            problem = f"label {visible(value)} looks like a list, but not all label cells can be read as lists"
            raise DataError(f"{where(value)}: {problem}", f"write all cells as ['a', 'b'], or {SINGLE}")
    for separator in SEPARATORS:
        parts = {value: {part.strip() for part in value.split(separator)} - {""} for value in values}
        several = [value for value in values if len(parts[value]) > 1]
        if not several:
            continue
        start = f"{where(several[0])}: label {visible(several[0])}"
        if separator == "," and all(DECIMAL_COMMA.fullmatch(value) or value.lstrip("-").isdigit() for value in values):
            remedy = 'write scores with a point (0.5); for several labels in one cell, use --label_separator ","'
            raise DataError(f"{start} is a number with a decimal comma, or two labels", remedy)
        counts = Counter(part for own in parts.values() for part in own)
        named = {part for value in several for part in parts[value]}
        if 2 * sum(counts[part] > 1 for part in named) > len(named):  # otherwise cells such as a;b are names
            combined = f"{len(several):,} different cells combine {listed(sorted(named), 6)}"
            remedy = f'use --label_separator "{separator}" for several labels in one cell, or {SINGLE}'
            raise DataError(f"{start} looks like several labels: {combined}", remedy)


# --- label cells ---------------------------------------------------------------------------------------------------
UNLABELLED = -1  # what public data sets write if the labels are secret
MAX_CLASSES = 10_000
Cell = str | tuple[str, ...] | None


class LabelCells:
    """The different label cells of a split, and four bytes per row that say which one it has."""

    def __init__(self) -> None:
        self.codes_of: dict[Cell, int] = {}
        self.parts: list[np.ndarray] = []
        self.overflowed = False

    def add(self, cells: pa.Array) -> None:
        """Add the cells of the next rows. After `MAX_CLASSES` different texts (scores), all new ones count as one."""
        if pa.types.is_list(cells.type):
            rows = [None if row is None or None in row else tuple(row) for row in cells.to_pylist()]
            codes = [self.codes_of.setdefault(row, len(self.codes_of)) for row in rows]  # lists are never scores
            self.parts.append(np.array(codes, dtype=np.int32))
        else:
            encoded = cells.dictionary_encode()
            known = [self.code(value) for value in encoded.dictionary.to_pylist()]
            lookup = np.array(known + ([self.code(None)] if encoded.null_count else []))
            indices = numbers_of(encoded.indices.fill_null(len(encoded.dictionary)) if encoded.null_count else encoded.indices)
            self.parts.append(lookup.astype(np.int32)[indices])

    def code(self, cell: Cell) -> int:
        if cell not in self.codes_of and len(self.codes_of) >= MAX_CLASSES:
            self.overflowed = True
            return MAX_CLASSES - 1
        return self.codes_of.setdefault(cell, len(self.codes_of))

    @property
    def codes(self) -> np.ndarray:
        """For each row, the number of its cell in `cells`."""
        if len(self.parts) > 1:
            self.parts = [np.concatenate(self.parts)]
        return self.parts[0] if self.parts else np.zeros(0, dtype=np.int32)

    @property
    def cells(self) -> list[Cell]:
        return list(self.codes_of)

    @property
    def are_lists(self) -> bool:
        return any(isinstance(cell, tuple) for cell in self.codes_of)

    @property
    def labelled(self) -> bool:
        """Whether there are labels: a column, and not only marks that the labels are secret."""
        return not set(self.cells) <= {str(UNLABELLED), f"{UNLABELLED}.0"}

    def values(self) -> list[str]:
        """Return the different label texts, one by one if rows have several."""
        return list(dict.fromkeys(value for cell in self.cells for value in parts_of(cell)))

    def counts(self, rows: np.ndarray | slice = slice(None)) -> Counter[str]:
        found: Counter[str] = Counter()
        for cell, number in zip(self.cells, np.bincount(self.codes[rows], minlength=len(self.codes_of)), strict=False):
            for value in parts_of(cell) if number else ():
                found[value] += int(number)
        return found

    def first_row(self, value: str | None) -> int | None:
        """Return the first row whose cell is or contains `value`; None if there is none."""
        wanted = [code for cell, code in self.codes_of.items() if cell == value or (isinstance(cell, tuple) and value in cell)]
        rows = np.flatnonzero(np.isin(self.codes, wanted))
        return int(rows[0]) if len(rows) else None


def parts_of(cell: Cell) -> tuple[str, ...]:
    """Return the labels of a cell; none of a missing one."""
    return cell if isinstance(cell, tuple) else () if cell is None else (cell,)


def label_cells(table: pa.Table, columns: tuple[str, ...], separator: str | None) -> pa.Array:
    """Return the label cells of a table as text, or as lists of text if a row may have several labels."""
    cells, *others = (as_text(table[name].combine_chunks()) for name in columns)
    if others:  # the names of the columns with 1; None if a cell is neither 0 nor 1
        meaning = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}
        parts = (part.to_pylist() for part in (cells, *others))
        marks = ([meaning.get((cell or "").lower()) for cell in row] for row in zip(*parts, strict=True))
        rows = [None if None in row else [name for name, mark in zip(columns, row, strict=True) if mark] for row in marks]
        return arrow_array(rows, pa.list_(pa.string()))
    if pa.types.is_string(cells.type) and (lists := lists_in(cells.to_pylist())) is not None:
        return arrow_array(lists, pa.list_(pa.string()))
    if separator is not None and not pa.types.is_list(cells.type):
        texts = cells.to_pylist()
        split = [None if text is None else [*filter(None, map(str.strip, text.split(separator)))] for text in texts]
        return arrow_array(split, pa.list_(pa.string()))
    return cells


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def as_text(cells: pa.Array) -> pa.Array:
    """Return label cells of any type as text; lists stay lists."""
    if pa.types.is_dictionary(cells.type):
        return as_text(cells.dictionary_decode())
    if pa.types.is_floating(cells.type):
        return arrow_array([None if cell is None else repr(cell) for cell in cells.to_pylist()], pa.string())
    return pc.cast(cells, pa.list_(pa.string()) if is_list(cells.type) else pa.string())


# --- the task, the label names and their numbers -------------------------------------------------------------------
SCORE_VALUES = 20  # more different fractions than this can only be scores
LARGEST_SCORE = 3.4e38  # the largest finite number in 32 bits
WHOLE_FRACTION = re.compile(r"(-?(?:0|[1-9]\d*))\.0+")  # as pandas writes whole numbers beside missing ones
WHOLE = re.compile(r"-?(0|[1-9]\d*)")
# One leading zero makes all labels names: numbers are not written like that.
CODE = re.compile(r"0\d+")
MODEL = "the model"  # whose labels a trained model keeps
OTHER_LABELS = "fix the row, or train the model for other labels: glassloop train --new_head"


@dataclass(frozen=True)
class LabelSet:
    """The label names and their numbers, fixed for a run.

    Attributes:
        names: The names in the order of their numbers.
        order: The names that the cells 0, 1, 2 mean, if the user or the source has said so. Without it, numbers in the data do
            not name labels.
    """

    names: tuple[str, ...]
    order: tuple[str, ...] | None = field(default=None, compare=False)

    @property
    def id2label(self) -> dict[int, str]:
        """The names by their numbers, as in a config of transformers."""
        return dict(enumerate(self.names))

    @property
    def label2id(self) -> dict[str, int]:
        """The numbers by their names, as in a config of transformers."""
        return {name: number for number, name in enumerate(self.names)}

    def numbers_of(self, values: Iterable[str]) -> dict[str, int]:
        """Return the numbers by cell text: names, or places in `order` if all `values` are places and no name is a number."""
        values, numbers = [*values], self.label2id
        places = {str(place): numbers[name] for place, name in enumerate(self.order or ())}
        are_places = all(whole(value) in places for value in values) and not any(map(is_finite, self.names))
        known = places if places and are_places else numbers
        alike = {whole(name): number for name, number in known.items()} | known  # 1.0 and 1 are the same label
        return known | {value: alike[whole(value)] for value in values if value not in known and whole(value) in alike}


def settle_labels(
    found: LabelCells, settings: DataSettings, known: tuple[str, ...] | None, where: Where, outputs: LabelSet | None = None
) -> tuple[str, LabelSet | None]:
    """Return the task and its labels. `known` are names in the order of the source, `outputs` the labels of a trained model."""
    # Integer labels must be consecutive and not negative: in this field -1 and -100 mean "no label".
    values, task = found.values(), settings.task
    several = found.are_lists or task == SEVERAL
    columns = settings.label_columns if len(settings.label_columns) > 1 else None
    if None in found.cells:
        missing = "0 or 1 to every label column" if columns else "the label"
        raise DataError(f"{where(None)}: the label is missing", f"add {missing}, or remove the row")
    if task == "auto" and not several and known is None and settings.label_names is None and outputs is None:
        # A few different fractions could be classes or scores, so the user has to say which.
        fractions = [value for value in values if not whole(value).lstrip("-").isdigit()]
        task = SCORE if len(fractions) > SCORE_VALUES and all(map(is_number, values)) else task
    if task == SCORE:
        if wrong := [value for value in values if not is_finite(value)]:
            problem = f"{where(wrong[0])}: label {visible(wrong[0])} is not a number"
            raise DataError(problem, "a score must be a finite number")
        return SCORE, None
    if not values:
        raise DataError(f"{where(None)}: no row has a label", "add at least one label, or name the right column with --label")
    order = order_of(settings, columns or known, outputs)
    names = outputs.names if outputs else settings.label_names or columns or known
    if task == SEVERAL and not found.are_lists:
        problem = f"{where(values[0])}: the label is a single value"
        raise DataError(problem, "set the separator between labels with --label_separator")
    if task == CLASSES and found.are_lists:
        raise DataError(f"{where(values[0])}: the label is a list", "use --task multi_label_classification")
    if names:
        refuse_unknown(values, LabelSet(names, order), where, MODEL if outputs else "the settings")
    else:
        if found.overflowed or (len(values) > 50 and len(values) > 0.5 * len(found.codes)):
            scores = ", or use --task regression for scores" if all(map(is_number, values)) else ""
            problem = f"{where(values[0])}: the label column has {len(values):,} different values"
            raise DataError(problem, f"name the right column with --label{scores}")
        if task == "auto" and not several:
            refuse_several(values, where)
        names = names_of(values, found, where, fractions=task == CLASSES)
    for name in names:
        if fault := name_problem(name):
            raise DataError(f"{where(name)}: {fault}", "use short label names on one line")
    if len(names) < (1 if several else 2):
        raise DataError(f"{where(None)}: all rows have the label {visible(names[0])}", "training needs at least two labels")
    return (SEVERAL if several else CLASSES), LabelSet(tuple(names), order)


def order_of(settings: DataSettings, known: tuple[str, ...] | None, outputs: LabelSet | None) -> tuple[str, ...] | None:
    """Return the names that numbers in the data mean: given by the user, else by the source, else by the model; or None."""
    # Numbers stand for names only if their order is defined: the alphabetical order does not show what 0 and 1 mean.
    order = settings.label_names or known
    if outputs is None or (order and {*order} == {*outputs.names}):
        return order
    if settings.label_names:
        problem = f"labels is {listed(settings.label_names)}, but the labels of the model are {listed(outputs.names)}"
        raise SettingsError(problem, "list the labels of the model in the order of the numbers in the data")
    return None if known else outputs.order


def names_of(values: list[str], found: LabelCells, where: Where, *, fractions: bool = False) -> tuple[str, ...]:
    """Return the names in the order of their numbers: numbers by size, words and codes such as 007 by alphabet."""
    for value in values:
        if value != value.strip() or not value:
            problem = f"{where(value)}: label {visible(value)} has stray spaces or is empty"
            raise DataError(problem, "remove the spaces in that row")
    numeric = [value for value in values if is_number(value)]
    if not numeric or any(map(CODE.fullmatch, values)):
        return tuple(sorted(values))
    if words := [value for value in values if not is_number(value)]:
        counts = found.counts()
        odd = min((numeric, words), key=lambda kind: sum(counts[value] for value in kind))
        others = listed([value for value in values if value not in odd], 6)
        problem = f"{where(odd[0])}: label {visible(odd[0])} among {others}: numbers and words are mixed"
        raise DataError(problem, "use only words or only numbers, or list the names with --labels")
    for value in values:
        if not WHOLE.fullmatch(whole(value)):
            if fractions:  # the user says that they are classes
                return tuple(sorted(values, key=float))
            remedy = "fix the row; use --task single_label_classification for classes, or --task regression for scores"
            raise DataError(f"{where(value)}: label {visible(value)} is not a whole number", remedy)
    negative = [value for value in values if float(value) < 0]
    if len(negative) == 1 and len(values) > 2 and not fractions:  # -1 and 1 are classes, and so are -2, -1, 0
        problem = f"{where(negative[0])}: label {negative[0]} is negative, which usually stands for an unknown label"
        raise DataError(problem, "remove the row, or use --task single_label_classification if it is a class")
    return tuple(map(str, sorted({int(whole(value)) for value in values})))


def whole(value: str) -> str:
    """Return 1.0 as 1, and any other text unchanged."""
    return match[1] if (match := WHOLE_FRACTION.fullmatch(value)) else value


def is_number(value: str) -> bool:
    """Return whether `value` is a number. Codes such as 007 are not."""
    return is_finite(value) and not CODE.fullmatch(value)


def is_finite(value: str) -> bool:
    """Return whether `value` is a finite number of 32 bits, as people write it: Python would read 1_2 as 12."""
    return is_float(value) and value == value.strip() and "_" not in value and abs(float(value)) <= LARGEST_SCORE


def refuse_unknown(values: Iterable[str], labels: LabelSet, where: Where, holder: str) -> None:
    """Raise for the first cell that is not a label. `holder` says who has the labels."""
    values = [*values]
    refuse_other_kind(values, labels, where, holder)
    numbers = labels.numbers_of(values)
    for value in values:
        if value not in numbers:
            label, near = visible(value), did_you_mean(value, labels.names)
            twin = next((name for name in labels.names if shape_of(name) == shape_of(value)), value)
            if twin.lower() != value.lower():
                label, known = spelled((value, twin))
                near = f"; it looks like {known}, but has different characters"
            problem = f"{where(value)}: label {label} is not one of {listed(labels.names)}{near}"
            raise DataError(problem, OTHER_LABELS if holder == MODEL else "fix the row, or add the label to --labels")


def refuse_other_kind(values: list[str], labels: LabelSet, where: Where, holder: str) -> None:
    """Raise for numbers if the labels are words, or words if they are numbers, unless an order is given."""
    kinds = [{is_number(name) for name in names} for names in (values, labels.names)]
    if labels.order is None and kinds in ([{True}, {False}], [{False}, {True}]):
        here, there = ("numbers", "words") if kinds[0] == {True} else ("words", "numbers")
        theirs = f"those of {holder} are {there} ({listed(labels.names, 6)})"
        problem = f"{where(values[0])}: the labels here are {here} ({listed(values, 6)}), but {theirs}"
        remedy = "use the same labels in all splits, or list their names in the order of their numbers: --labels NAME,NAME"
        raise DataError(problem, remedy)


def label_lookup(found: LabelCells, task: str, numbers: Mapping[str, int]) -> pa.Array:
    """Return the label numbers of each different cell; null for a missing or unknown label."""
    if task == CLASSES:
        return arrow_array([None if cell is None else numbers.get(str(cell)) for cell in found.cells], pa.int64())
    known = [cell if cell is not None and all(value in numbers for value in parts_of(cell)) else None for cell in found.cells]
    lists = [None if cell is None else sorted({numbers[value] for value in parts_of(cell)}) for cell in known]
    return arrow_array(lists, pa.list_(pa.int64()))


def scores_of(cells: pa.Array) -> pa.Array:
    scores = [None if cell is None or not is_finite(cell) else float(cell) for cell in cells.to_pylist()]
    return arrow_array(scores, pa.float32())
