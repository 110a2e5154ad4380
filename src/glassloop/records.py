"""JSON files as typed records: every value is checked where it is read, and what is wrong is named by its place."""

from __future__ import annotations

import json
import math
import stat
from dataclasses import MISSING, fields, is_dataclass
from hashlib import sha256
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from glassloop.errors import GlassloopError, visible

MOST_BYTES = 100_000_000  # a record is a few kilobytes; a file this large is none of ours
KINDS = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}
Record = TypeVar("Record")
Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class NotARecordError(ValueError):
    """What is wrong with a JSON value, and where in the file it is."""


def read_json(path: Path) -> Any:
    """Return the value in a JSON file. Raises `NotARecordError` for whatever keeps it from being read."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # opening a pipe would wait for ever
            raise NotARecordError("not a file")
        if found.st_size > MOST_BYTES:
            raise NotARecordError(f"{found.st_size:,} bytes, too large to be a record")
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse_constant)
    except FileNotFoundError as error:
        raise NotARecordError("missing") from error
    except OSError as error:
        raise NotARecordError(error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise NotARecordError(f"not UTF-8: {error.reason} at byte {error.start:,}") from error
    except RecursionError as error:
        raise NotARecordError("nested too deeply") from error
    except NotARecordError:
        raise
    except ValueError as error:
        raise NotARecordError(f"not JSON: {error}") from error


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """Return a record with a SHA-256 of its content, so that an edit of it is found like damage to any other file."""
    content = {name: value for name, value in content.items() if name != "sha256"}
    return {**content, "sha256": sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}


def refuse_constant(name: str) -> float:
    raise NotARecordError(f"{name} is not a number of JSON")


def decoded(kind: type[Record], value: Any, where: str = "") -> Record:
    """Return a JSON value as `kind`: a dataclass, a tuple or dict of one kind, a union, or a plain value.

    Fields that are missing get their defaults, and unknown ones are ignored. Raises `NotARecordError` with the place.
    """
    found: Any = decode(kind, value, where)
    return found  # type: ignore[no-any-return]


def decode(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in (object, Any):  # any JSON value
        return value
    if origin in (Union, UnionType):
        return decode_union(arguments, value, where)
    if is_dataclass(kind):
        return decode_fields(kind, value, where)
    if origin is tuple:
        return tuple(decode(arguments[0], entry, f"{where}[{number}]") for number, entry in enumerate(of(list, value, where)))
    if origin is dict:
        return {name: decode(arguments[1], entry, joined(where, name)) for name, entry in of(dict, value, where).items()}
    return decode_plain(kind, value, where)


def decode_union(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    """The value as the first of several kinds that it fits."""
    if value is None and NoneType in kinds:
        return None
    problem = NotARecordError(f"{where} is {shown(value)}")
    for kind in kinds:
        try:
            if kind is not NoneType:
                return decode(kind, value, where)
        except NotARecordError as error:
            problem = error
    raise problem


def decode_fields(kind: Any, value: Any, where: str) -> Any:
    """A JSON object as a dataclass, which may refuse values itself."""
    given, hints, values = of(dict, value, where), get_type_hints(kind), {}
    for entry in fields(kind):
        if entry.name in given:
            values[entry.name] = decode(hints[entry.name], given[entry.name], joined(where, entry.name))
        elif entry.default is MISSING and entry.default_factory is MISSING:
            raise NotARecordError(f"{joined(where, entry.name)} is missing")
    try:
        return kind(**values)
    except GlassloopError as error:
        raise NotARecordError(f"{where}.{error.problem}" if where else error.problem) from error
    except (ValueError, TypeError) as error:
        raise NotARecordError(f"{where}: {error}") from error


def decode_plain(kind: Any, value: Any, where: str) -> Any:
    try:
        if kind is float and type(value) in (int, float) and math.isfinite(value):
            return float(value)
        if type(value) is kind and kind in KINDS and kind is not float:
            if kind is str:
                value.encode()  # half a character cannot be written again
            return value
    except (OverflowError, UnicodeEncodeError):
        pass
    raise NotARecordError(f"{where} is {shown(value)}, not {KINDS.get(kind, 'what it should be')}")


def of(kind: type, value: Any, where: str) -> Any:
    if isinstance(value, kind):
        return value
    raise NotARecordError(f"{where or 'the file'} is {shown(value)}, not {'a list' if kind is list else 'an object'}")


def shown(value: Any) -> str:
    """A JSON value in a sentence, in a few characters."""
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value):,}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 64:
        return "a very large number"
    return visible(value) if isinstance(value, str) else json.dumps(value)


def joined(where: str, name: str) -> str:
    """The place of an entry; a key of any length takes a few characters."""
    name = name if len(name) <= 80 else f"{name[:79]}…"
    return f"{where}.{name}" if where else name
