"""Find the columns with the texts and the label. Ask for their names if there is any doubt."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from glassloop.base.errors import DataError, did_you_mean, listed, visible
from glassloop.runs.record import Columns
from glassloop.settings.training import DataSettings, split_names

LABEL_NAMES = ("label", "labels", "target", "class", "category", "score")
TEXT_NAMES = ("text", "sentence")
PAIR_NAMES = (
    ("sentence1", "sentence2"),
    ("text", "text_pair"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("query", "passage"),
)
NUMBERS_SAMPLED = 1000
# More are dropped with a note, except texts and labels.
MOST_KEPT_COLUMNS = 1_000  # `datasets` takes a second for every ten thousand, each time a data set is opened


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


def find_columns(head: pa.Table, source: str, settings: DataSettings, known: Known) -> Columns:
    """Return the columns named by the user, else those the source knows, else those that can be found without doubt."""
    label = settings.label_columns or ((known.label,) if known.label else ()) or (find_label(head, source),)
    known_names = dict.fromkeys(head.column_names)  # Arrow makes a new list each time it is asked
    if settings.text:
        text, pair = text_name(settings.text, known_names) or "", text_name(settings.text_pair, known_names)
    elif known.text:
        text, pair = known.text, known.text_pair
    else:
        text, pair = find_texts(head, source, label)
    texts = [name for named in (text, pair) if named for name in columns_of_text(named, known_names)]
    for name in (*texts, *label):
        if name not in known_names:
            raise DataError(
                f"{source}: there is no column {visible(name)}; found {listed(known_names)}" + did_you_mean(name, known_names),
                "name the columns with --text, --text_pair and --label",
            )
    found = Columns(text, pair, tuple(label))
    if found.label_name not in label and found.label_name in known_names:
        raise DataError(
            f"{source}: there is a column {visible(found.label_name)} in addition to the label columns {listed(label)}",
            "rename or remove it: the labels are stored under that name",
        )
    for name in texts:
        if name in label:
            raise DataError(f"{source}: column {visible(name)} is named as text and as label", "name two different columns")
    return found


def text_name(named: str | tuple[str, ...] | None, known: Container[str]) -> str | None:
    """Return the column of a text that the user named. Several columns, which are joined, are named with commas."""
    if named is None or (isinstance(named, str) and named in known):
        return named
    return ",".join(split_names(named))


def find_label(head: pa.Table, source: str) -> str:
    found = [name for name in head.column_names if name.lower() in LABEL_NAMES]
    if len(found) == 1:
        return str(found[0])
    what = f"several could be the label: {listed(found)}" if found else "no column is called label"
    near = next((near for name in LABEL_NAMES[:2] if (near := did_you_mean(name, head.column_names))), "")
    raise DataError(f"{source}: {what}; found {listed(head.column_names)}{near}", "name the label column with --label")


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
    raise DataError(
        f"{source}: {what}; found {listed(head.column_names)}",
        f"name the text column with --text (and --text_pair for pairs){joining}",
    )


def is_string(kind: pa.DataType) -> bool:
    """Return whether cells of this type are texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_text(column: pa.ChunkedArray) -> bool:
    if not is_string(column.type):
        return False
    cells = [cell for cell in column.slice(0, NUMBERS_SAMPLED).to_pylist() if cell is not None and cell.strip()]
    return not (cells and all(is_number(cell) for cell in cells))


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def notes_on_columns(head: pa.Table, columns: Columns) -> list[str]:
    """Return a sentence about the columns that are not stored."""
    if head.num_columns > MOST_KEPT_COLUMNS:
        return [f"of {head.num_columns:,} columns only {listed((*columns.texts, *columns.label))} are kept"]
    dropped = [f"{field.name} ({field.type})" for field in head.schema if not storable(field.type)]
    return [f"dropped columns whose type datasets does not support: {listed(dropped)}"] if dropped else []


def storable(kind: pa.DataType) -> bool:
    """Return whether `datasets` supports values of this type. It does not support maps, for example."""
    from datasets.features.features import generate_from_arrow_type

    try:
        generate_from_arrow_type(kind)
    except (ValueError, TypeError, NotImplementedError):
        return False
    return True


def stored_columns(table: pa.Table, columns: Columns, label: pa.Array) -> pa.Table:
    """Return a table as it is stored: texts as strings without nulls, the label as numbers, other columns unchanged.

    Of a very wide table only texts and label are stored. A column whose type `datasets` does not support is dropped.
    """
    if table.num_columns > MOST_KEPT_COLUMNS:
        kept = {*table.column_names}
        table = table.select([name for name in (*columns.texts, *columns.label) if name in kept])
    table = table.drop_columns([field.name for field in table.schema if not storable(field.type)])
    for column in columns.texts:
        text = pc.fill_null(pc.cast(table[column], pa.string()), "")
        table = table.set_column(table.column_names.index(column), column, text)
    name = columns.label_name
    if name in table.column_names:
        table = table.set_column(table.column_names.index(name), name, label)
    else:
        table = table.append_column(name, label)
    return table.replace_schema_metadata(None)


JOIN = "\n"  # white space to most tokenizers, and a token of its own to those that keep it


def columns_of_text(name: str, found: Container[str]) -> tuple[str, ...]:
    """Return the columns of a text: the one called `name`, else those that it names, separated by commas."""
    return (name,) if name in found else split_names(name)


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
            table = table.append_column(name, pa.array(texts_of_rows, pa.string()))
    return table
