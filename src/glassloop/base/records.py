"""JSON files as typed records: every value is checked when it is read, and errors name its place in the file."""

from __future__ import annotations

import atexit
import gc
import json
import math
import platform
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import NoneType, UnionType
from typing import ClassVar, Protocol, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from glassloop.base.errors import GlassloopError, ModelError, visible
from glassloop.base.files import write_text

MOST_BYTES = 100_000_000  # a record has a few kilobytes; a file this large is not a record


KINDS = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}


Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class Dataclass(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]


Record = TypeVar("Record", bound=Dataclass)


class NotARecordError(ValueError):
    """What is wrong with a JSON value, and where in the file it is."""


def read_json(path: Path) -> Json:
    """Return the value in a JSON file. Raises `NotARecordError` if it cannot be read, for whatever reason."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # opening a pipe would wait forever
            raise NotARecordError("not a file")
        if found.st_size > MOST_BYTES:
            raise NotARecordError(f"{found.st_size:,} bytes, too large to be a record")
        value: Json = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse_constant)
        return value
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


def sealed(content: Mapping[str, object]) -> dict[str, object]:
    """Return a record with a SHA-256 of its content, which shows whether it was edited or damaged later."""
    content = {name: value for name, value in content.items() if name != "sha256"}
    return {**content, "sha256": sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}


def write_sealed(path: Path, record: Dataclass | Mapping[str, object]) -> None:
    """Replace a file with a record and its checksum, completely or not at all."""
    write_text(path, sealed_text(record))


def sealed_text(record: Dataclass | Mapping[str, object]) -> str:
    """Return a record as the text of its file, with its checksum. Raises `ValueError` if a number is not finite."""
    content = record if isinstance(record, Mapping) else asdict(record)
    # Sealed as it will be read: JSON turns tuples into lists.
    return json.dumps(sealed(json.loads(json.dumps(content, allow_nan=False))), indent=1, ensure_ascii=False) + "\n"


def read_sealed(kind: type[Record], path: Path, newest: int) -> Record:
    """Return a record from a file. Raises `NotARecordError` if it is damaged or edited, `ModelError` if it is too new.

    Args:
        kind: The class of the record.
        path: The file.
        newest: The newest format that is known.
    """
    found = read_json(path)
    version = found.get("format", newest) if isinstance(found, dict) else newest
    if type(version) is int and version > newest:
        problem = f"{path}: has format {version}, but this version of Glassloop reads formats up to {newest}"
        raise ModelError(problem, "update Glassloop")
    record = decoded(kind, found)
    if sealed(object_of(found, "")) != found:
        raise NotARecordError("its checksum differs, so it was edited or damaged")
    return record


def refuse_constant(name: str) -> float:
    """Raise `NotARecordError` for `NaN` and `Infinity`, which Python reads but JSON does not have."""
    raise NotARecordError(f"{name} is not a JSON number")


@cache
def hints_of(kind: type[Dataclass]) -> dict[str, object]:
    """Return the types of a dataclass's fields. Evaluating them takes longer than reading a record."""
    return get_type_hints(kind)


def decoded(kind: type[Record], value: Json, where: str = "") -> Record:
    """Return a JSON object as a dataclass, with its fields checked and converted.

    A field may be a plain value, a dataclass, a tuple or dict of one kind, a union, or an `object` for any JSON value. A
    missing field gets its default, and unknown fields are ignored. Raises `NotARecordError` with the place of the error.
    """
    given, hints, values = object_of(value, where), hints_of(kind), dict[str, object]()
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


def decode(kind: object, value: Json, where: str) -> object:
    """Return a JSON value as `kind`. Raises `NotARecordError` with the place of the error."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is object:  # any JSON value
        return value
    if origin in (Union, UnionType):
        return decode_union(arguments, value, where)
    if isinstance(kind, type) and is_dataclass(kind):
        return decoded(kind, value, where)
    if origin is tuple:
        return tuple(decode(arguments[0], entry, f"{where}[{number}]") for number, entry in enumerate(list_of(value, where)))
    if origin in (dict, Mapping):
        return {name: decode(arguments[1], entry, joined(where, name)) for name, entry in object_of(value, where).items()}
    return decode_plain(kind, value, where)


def decode_union(kinds: tuple[object, ...], value: Json, where: str) -> object:
    """Return a JSON value as the first of several kinds that it fits."""
    if value is None and NoneType in kinds:
        return None
    problem = NotARecordError(f"{where} is {shortened(value)}")
    for kind in kinds:
        try:
            if kind is not NoneType:
                return decode(kind, value, where)
        except NotARecordError as error:
            problem = error
    raise problem


def decode_plain(kind: object, value: Json, where: str) -> object:
    """Return a JSON value as a bool, int, float or str."""
    try:
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
        if type(value) is kind and kind in KINDS and kind is not float:
            if isinstance(value, str):
                value.encode()  # half a character cannot be written again
            return value
    except (OverflowError, UnicodeEncodeError):
        pass
    expected = KINDS.get(kind, "a valid value") if isinstance(kind, type) else "a valid value"
    raise NotARecordError(f"{where} is {shortened(value)}, not {expected}")


def list_of(value: Json, where: str) -> list[Json]:
    """Return a JSON list. Raises `NotARecordError` for another value."""
    if isinstance(value, list):
        return value
    raise NotARecordError(f"{where or 'the file'} is {shortened(value)}, not a list")


def object_of(value: Json, where: str) -> dict[str, Json]:
    """Return a JSON object. Raises `NotARecordError` for another value."""
    if isinstance(value, dict):
        return value
    raise NotARecordError(f"{where or 'the file'} is {shortened(value)}, not an object")


def shortened(value: Json) -> str:
    """Return a JSON value in a few characters, for a sentence."""
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value):,}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 64:
        return "a very large number"
    return visible(value) if isinstance(value, str) else json.dumps(value)


def joined(where: str, name: str) -> str:
    """Return the place of an entry in a record; a long key is cut."""
    name = name if len(name) <= 80 else f"{name[:79]}…"
    return f"{where}.{name}" if where else name


PACKAGES = ("glassloop", "torch", "transformers", "datasets", "accelerate", "tokenizers", "numpy")


def package_version(name: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """Return the versions that a run's numbers depend on, by name. They are looked up once."""
    return dict(found_versions())


@cache
def found_versions() -> Mapping[str, str]:
    """Return the versions of Python and of the installed packages."""
    found = {name: package_version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **{name: text for name, text in found.items() if text}}


@contextmanager
def collection_paused() -> Iterator[None]:
    """Run the block without garbage collection of cycles, unless it was off before. Other memory is freed as usual."""
    # The collector walks over all objects of all modules several times, which takes half a second of three. Importing
    # in a thread gains nothing: imports hold the interpreter lock.
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def freeze_objects() -> None:
    """Free what is not used any more, and let later collections ignore everything that exists now."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # Python frees no frozen object when it exits, and Triton's bindings report each one as a leak
