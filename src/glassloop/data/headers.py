"""Column names of a table of cells: those in its first row, or those given by the user. A row of data is never a header."""

from __future__ import annotations

from collections import Counter

from glassloop.data.columns import LABEL_NAMES, PAIR_NAMES, TEXT_NAMES, is_number
from glassloop.errors import DataError, counted, listed, visible
from glassloop.settings import DataSettings, name_problem, repeated

MOST_COLUMNS = 100_000
SAMPLED_ROWS = 1000
DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
USUAL_NAMES = {
    *LABEL_NAMES,
    *TEXT_NAMES,
    *(name for pair in PAIR_NAMES for name in pair),
    *(
        "id",
        "idx",
        "index",
        "name",
        "date",
        "title",
        "body",
        "content",
        "comment",
        "message",
        "review",
        "document",
        "description",
    ),
    *("sentiment", "rating", "stars", "topic", "intent", "source", "url", "language", "split"),
}


def settle_header(
    name: str, head: list[list[str]], settings: DataSettings, delimiter: str | None = None
) -> tuple[list[str], bool]:
    """Return the column names of a table, and whether its first row holds them.

    Args:
        name: The name of the file, for errors.
        head: The first rows.
        settings: Whether there is a header, and names for the columns.
        delimiter: The delimiter of a text file, to notice a wrong one.

    Raises:
        DataError: If the first row looks like data, or a name is there twice or is not a name.
    """
    first, given = head[0], settings.column_names
    if given:
        refuse_wrong_names(name, first, given, settings.header)
        return [*given], settings.header is True
    if settings.header is False:
        return [f"column_{place}" for place in range(1, len(first) + 1)], False
    other = next(
        (sign for sign in DELIMITERS if delimiter and len(first) == 1 and sign != delimiter and sign in first[0]), None
    )
    if other:
        raise DataError(
            f"{name}: only one column was found: {visible(first[0])}",
            f'the columns may be separated by a {DELIMITERS[other]}: --delimiter "{other if other != chr(9) else "tab"}"',
        )
    if settings.header is None and looks_like_data(head, settings):
        raise DataError(
            f"{name}: row 1 looks like data, not like column names: {listed(map(visible, first), 4)}",
            f"name the columns, for example --columns {suggested_names(head)}, or use --no-header for column_1, column_2; "
            "if row 1 holds the names, use --header",
        )
    columns = [cell.strip() or f"column_{place}" for place, cell in enumerate(first, 1)]
    refuse_names(name, columns, "rename one of them, or replace all names: --header --columns NAME,NAME")
    return columns, True


def refuse_wrong_names(name: str, first: list[str], given: tuple[str, ...], header: bool | None) -> None:
    """Raise if the given names do not fit the first row, or if that row seems to hold names already."""
    if len(given) != len(first) and header is not False:
        fields = f"{counted(len(first), 'field', 'fields')}: {listed(map(visible, first), 4)}"
        raise DataError(
            f"{name}: --columns gives {counted(len(given), 'name', 'names')}, but row 1 has {fields}",
            "give one name for each field, or set the delimiter with --delimiter",
        )
    cells = [cell.strip().lower() for cell in first]
    if header is None and (cells == [one.lower() for one in given] or {*cells} & USUAL_NAMES):
        raise DataError(
            f"{name}: row 1 looks like column names ({listed(first)}), but --columns is for files without a header",
            "omit --columns, or add --header to replace the names in row 1, or --no-header if row 1 is data",
        )


def looks_like_data(head: list[list[str]], settings: DataSettings) -> bool:
    """Return whether the first row is data: one of its cells is a number, or occurs again in its column."""
    first = head[0]
    cells = [cell.strip() for cell in first]
    named = {*settings.text_columns, *settings.pair_columns, *settings.label_columns}
    if any(cell in named or cell.lower() in USUAL_NAMES for cell in cells):
        return False
    numbers = sum(map(is_number, cells))
    if numbers and numbers < sum(map(bool, cells)):  # a table whose names are all numbers was written by pandas
        return True
    others = [row for row in head[1:SAMPLED_ROWS] if row != first and len(row) == len(first)]
    return any(cell and any(row[place].strip() == cell for row in others) for place, cell in enumerate(cells))


def suggested_names(head: list[list[str]]) -> str:
    """Return names for the columns of a file without a header: text and text_pair for the texts, label for a short list."""
    rows = [row for row in head[:SAMPLED_ROWS] if len(row) == len(head[0])]
    columns = [*zip(*rows, strict=True)]
    words = [sum(cell.count(" ") for cell in column) / len(rows) for column in columns]
    texts = sorted(sorted(range(len(columns)), key=lambda place: -words[place])[: 2 if sum(n >= 2 for n in words) > 1 else 1])
    rest = [place for place in range(len(columns)) if place not in texts]
    label = min(rest, key=lambda place: len(Counter(columns[place])), default=None)
    roles = dict(zip(texts, ("text", "text_pair"), strict=False)) | ({} if label is None else {label: "label"})
    return ",".join(roles.get(place, f"column_{place + 1}") for place in range(len(columns)))


def refuse_names(name: str, columns: list[str], remedy: str = "rename one of them") -> None:
    """Raise if there are too many columns, or if a name is there twice or cannot be a name."""
    if len(columns) > MOST_COLUMNS:
        raise DataError(
            f"{name}: there are {len(columns):,} columns; at most {MOST_COLUMNS:,} are supported",
            "keep only the columns with texts and labels, or check the delimiter",
        )
    if twice := repeated(columns):
        raise DataError(f"{name}: column {visible(twice[0])} occurs twice: {listed(columns)}", remedy)
    for column in columns:
        if problem := name_problem(column) if isinstance(column, str) else f"the name {column!r} is not text":
            raise DataError(f"{name}: {problem}", "rename the column")
