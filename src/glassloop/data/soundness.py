"""Check tables and texts that other programs wrote, before they are used."""

from __future__ import annotations

import pyarrow as pa

from glassloop.errors import DataError


def sound(table: pa.Table, source: str) -> pa.Table:
    """Return `table` with all its texts as plain strings. Raise `DataError` if its content is damaged.

    Arrow trusts the files it maps: a wrong offset would read other memory, and invalid UTF-8 would end in a traceback.
    """
    try:
        table.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"{source}: the rows are damaged: {error}", "write the data again") from error
    for place, field in enumerate(table.schema):
        if pa.types.is_string_view(field.type) or is_coded_text(field.type):
            table = table.set_column(place, field.name, table[place].cast(pa.string()))
    return table


def is_coded_text(kind: pa.DataType) -> bool:
    """Return whether texts are stored as numbers of a dictionary, as pandas stores categories."""
    text_kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return bool(pa.types.is_dictionary(kind)) and any(is_kind(kind.value_type) for is_kind in text_kinds)


def storable(kind: pa.DataType) -> bool:
    """Return whether `datasets` supports values of this type. It does not support maps, for example."""
    from datasets.features.features import generate_from_arrow_type

    try:
        generate_from_arrow_type(kind)
    except (ValueError, TypeError, NotImplementedError):
        return False
    return True


def refuse_half_character(text: str, what: str) -> None:
    """Raise if a text contains half of a surrogate pair, which cannot be saved or tokenized."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{what} contains {text[error.start]!r}, which is half of a surrogate pair",
            "write the whole character, or remove it",
        ) from error
