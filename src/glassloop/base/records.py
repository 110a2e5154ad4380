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
from dataclasses import MISSING, Field, asdict, field, fields, is_dataclass
from functools import cache
from hashlib import sha256
from inspect import cleandoc
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from glassloop.base.errors import GlassloopError, ModelError, listed, shortened, visible
from glassloop.base.files import write_text

MOST_SHOWN = 8  # entries of a list in a sentence
MOST_BYTES = 100_000_000  # a record has a few kilobytes; a file this large is not a record
KINDS = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}
PACKAGES = ("glassloop", "torch", "transformers", "datasets", "accelerate", "tokenizers", "numpy")

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[object]]]


Record = TypeVar("Record", bound=Dataclass)
Value = TypeVar("Value")


def entry(default: Value, help_text: str) -> Value:
    """Return a dataclass field with its default and what it means; of a setting, the command makes an option with this help."""
    # Each record gets a dict of its own.
    start: dict[str, Any] = {"default_factory": default.copy} if isinstance(default, dict) else {"default": default}
    made: Value = field(**start, metadata={"help": help_text})
    return made


def described(kind: type[Record]) -> type[Record]:
    """Add the meaning of each field to the docstring of a dataclass, for `help()` and editors."""
    lines = [f"    {one.name}: {one.metadata['help']}" for one in fields(kind)]
    kind.__doc__ = "\n".join([cleandoc(kind.__doc__ or ""), "", "Attributes:", *lines])
    return kind


class NotARecordError(ValueError):
    """What is wrong with a JSON value, and where in the file it is."""


def read_json(path: Path) -> Json:
    """Return the value in a JSON file. Raises `NotARecordError` if it cannot be read, for whatever reason."""

    def refuse_constant(name: str) -> float:  # Python reads NaN and Infinity, which JSON does not have
        raise NotARecordError(f"{name} is not a JSON number")

    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode):  # opening a pipe would wait forever
            raise NotARecordError("not a file")
        if state.st_size > MOST_BYTES:
            raise NotARecordError(f"{state.st_size:,} bytes, too large to be a record")
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse_constant)  # type: ignore[no-any-return]
    except NotARecordError:
        raise
    except FileNotFoundError as error:
        raise NotARecordError("missing") from error
    except OSError as error:
        raise NotARecordError(error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise NotARecordError(f"not UTF-8: {error.reason} at byte {error.start:,}") from error
    except RecursionError as error:
        raise NotARecordError("nested too deeply") from error
    except ValueError as error:
        raise NotARecordError(f"not JSON: {error}") from error


def sealed(content: Mapping[str, object]) -> dict[str, object]:
    """Return a record with a SHA-256 of its content, which shows whether it was edited or damaged later."""
    content = {name: value for name, value in content.items() if name != "sha256"}
    return {**content, "sha256": sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}


def sealed_text(record: Dataclass | Mapping[str, object]) -> str:
    """Return a record as the text of its file, with its checksum. Raises `ValueError` if a number is not finite."""
    content = record if isinstance(record, Mapping) else asdict(record)
    # Sealed as it will be read: JSON turns tuples into lists.
    return json.dumps(sealed(json.loads(json.dumps(content, allow_nan=False))), indent=1, ensure_ascii=False) + "\n"


def write_sealed(path: Path, record: Dataclass | Mapping[str, object]) -> None:
    """Replace a file with a record and its checksum, completely or not at all."""
    write_text(path, sealed_text(record))


def read_sealed(kind: type[Record], path: Path, newest: int, what: str, remedy: str) -> Record:
    """Return the record `what` from a file. Raises `ModelError` if it is damaged, with a `remedy`, edited, or too new."""
    try:
        content = read_json(path)
        format_ = content.get("format", newest) if isinstance(content, dict) else newest
        if type(format_) is int and format_ > newest:
            problem = f"{path}: has format {format_}, but this version of Glassloop reads formats up to {newest}"
            raise ModelError(problem, "update Glassloop")
        record = decoded(kind, content)
        if sealed(object_of(content, "")) != content:
            raise NotARecordError("its checksum differs, so it was edited or damaged")
    except NotARecordError as error:
        denied = isinstance(error.__cause__, PermissionError)
        problem = f"{path}: {what} cannot be read: {error}"
        raise ModelError(problem, "check its owner and permissions" if denied else remedy) from error
    return record


hints_of = cache(get_type_hints)  # evaluating them takes longer than reading a record


def decoded(kind: type[Record], value: Json, where: str = "") -> Record:
    """Return a JSON object as a dataclass. A missing field gets its default, and unknown fields are ignored."""
    content = object_of(value, where)
    hints = hints_of(kind)
    values: dict[str, object] = {}
    for entry in fields(kind):
        if entry.name in content:
            values[entry.name] = decode(hints[entry.name], content[entry.name], joined(where, entry.name))
        elif entry.default is MISSING and entry.default_factory is MISSING:
            raise NotARecordError(f"{joined(where, entry.name)} is missing")
    try:
        return kind(**values)
    except GlassloopError as error:
        raise NotARecordError(f"{where}.{error.problem}" if where else error.problem) from error
    except (ValueError, TypeError) as error:
        raise NotARecordError(f"{where}: {error}") from error


def decode(kind: object, value: Json, where: str) -> object:
    """Return a JSON value as `kind`: a plain value, a dataclass, a tuple or dict of one kind, a union, or any `object`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is object or (value is None and NoneType in arguments):
        return value
    if origin in (Union, UnionType):  # the first kind that it fits
        problem = NotARecordError(f"{where} is {in_words(value)}")
        for one in arguments:
            try:
                if one is not NoneType:
                    return decode(one, value, where)
            except NotARecordError as error:
                problem = error
        raise problem
    if isinstance(kind, type) and is_dataclass(kind):
        return decoded(kind, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise NotARecordError(f"{where or 'the file'} is {in_words(value)}, not a list")
        return tuple(decode(arguments[0], entry, f"{where}[{number}]") for number, entry in enumerate(value))
    if origin in (dict, Mapping):
        return {name: decode(arguments[1], entry, joined(where, name)) for name, entry in object_of(value, where).items()}
    try:
        if kind is float and type(value) in (int, float) and math.isfinite(value):  # type: ignore[arg-type]
            return float(value)  # type: ignore[arg-type]
        if type(value) is kind and kind in (bool, int, str):
            if isinstance(value, str):
                value.encode()  # half a character cannot be written again
            return value
    except (OverflowError, UnicodeEncodeError):
        pass
    expected = KINDS.get(kind, "a valid value") if isinstance(kind, type) else "a valid value"
    raise NotARecordError(f"{where} is {in_words(value)}, not {expected}")


def object_of(value: Json, where: str) -> dict[str, Json]:
    if isinstance(value, dict):
        return value
    raise NotARecordError(f"{where or 'the file'} is {in_words(value)}, not an object")


def in_words(value: Json) -> str:
    """Return a JSON value in a few characters, for a sentence."""
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value):,}"
    if type(value) is int and value.bit_length() > 64:
        return "a very large number"
    return visible(value) if isinstance(value, str) else json.dumps(value)


def joined(where: str, name: str) -> str:
    """Return the place of an entry in a record; a long key is cut."""
    return f"{where}.{shortened(name, 80)}" if where else shortened(name, 80)


def differences(stored: object, now: object, name: str = "") -> list[str]:
    """Return a sentence for each value that differs, with both values side by side."""
    if isinstance(stored, Mapping) and isinstance(now, Mapping):
        pairs = ((entry, f"{name}.{entry}" if name else entry) for entry in {**stored, **now})
        return [line for entry, place in pairs for line in differences(stored.get(entry), now.get(entry), place)]
    if stored == now:
        return []
    if isinstance(stored, list) and isinstance(now, list) and max(len(stored), len(now)) > MOST_SHOWN:
        removed, added = ([entry for entry in one if entry not in other] for one, other in ((stored, now), (now, stored)))
        if removed or added:
            before, after = (f"({listed(entries, 3) or 'all'})" for entries in (removed, added))
            return [f"{name}: {len(stored):,} then {before}, {len(now):,} now {after}"]

    def text(value: object) -> str:
        return listed(value, MOST_SHOWN) if isinstance(value, list) and len(value) > MOST_SHOWN else shortened(value)

    return [f"{name}: {text(stored)} then, {text(now)} now"]


@cache
def package_version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # takes as long as all other imports of this module

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a run's numbers depend on."""
    packages = {name: number for name in PACKAGES if (number := package_version(name))}
    return {"python": platform.python_version(), **packages}


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
