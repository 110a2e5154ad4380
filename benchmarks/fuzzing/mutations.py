"""Damages that know nothing of what they damage: bytes, JSON values, and the files of a folder."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

HOSTILE_TEXTS = (
    "", " ", "\0", "\x1b[31m", "\n", "a\nb", "é" * 3, "\u202etext", "\ud800", "x" * 70_000, "../../etc/passwd", "/dev/zero",
    "'); import os; os.abort() #", '"""', "{0}", "%s", "nan", "-1", "0", "true", "null", "\ufeff", "~nobody", "glue/mrpc",
    "[red]", "=cmd()", "\\", "\u2028",
)  # fmt: skip
NUMBERS = (0, -1, 1, 2, 3, 2**31, 2**63, 10**30, -(10**9), 0.5, 1e308, -0.0, 1e-300)


def flip(content: bytes, chance: random.Random) -> bytes:
    if not content:
        return b"\0"
    place = chance.randrange(len(content))
    return content[:place] + bytes([content[place] ^ (1 << chance.randrange(8))]) + content[place + 1 :]


def overwrite(content: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(content) + 1)
    return content[:start] + chance.randbytes(chance.randint(1, 16)) + content[start + chance.randint(0, 16) :]


def insert(content: bytes, chance: random.Random) -> bytes:
    part = chance.choice(
        [b"\0", b"\xff", b"\xef\xbb\xbf", b'"', b"\r", b"\n", b"\t", b",", b"\xed\xa0\x80", b"{", b"[" * 2000, b"9" * 50]
    )
    place = chance.randrange(len(content) + 1)
    return content[:place] + part * chance.choice([1, 1, 1, 3]) + content[place:]


def remove(content: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(content) + 1)
    return content[:start] + content[start + chance.randint(1, 40) :]


def truncate(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.choice([0, 1, len(content) // 2, max(len(content) - 1, 0), chance.randrange(len(content) + 1)])]


def duplicate(content: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(content) + 1)
    part = content[start : start + chance.randint(1, 200)]
    return content[:start] + part * 2 + content[start + len(part) :]


def extend(content: bytes, chance: random.Random) -> bytes:
    return content + chance.choice([b"\0" * 9, b"\n", b"\n\n", b"x", content, chance.randbytes(30)])


BYTES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flip,
    flip,
    overwrite,
    insert,
    remove,
    truncate,
    duplicate,
    extend,
)


def mutated_bytes(content: bytes, chance: random.Random) -> tuple[bytes, str]:
    """The content after one to three damages, and their names."""
    names = []
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        damage = chance.choice(BYTES)
        content = damage(content, chance)
        names.append(damage.__name__)
    return content, "+".join(names)


SIGNS = (
    "\0",
    '"',
    '""',
    ",",
    "\t",
    "\n",
    "\r",
    "\r\n",
    " ",
    "\ufeff",
    "\u200b",
    "é",
    "e\u0301",
    "😀",
    "\\",
    "{",
    "}",
    "[",
    "]",
    ":",
    "0",
    "null",
)


def mutated_text(content: bytes, chance: random.Random) -> tuple[bytes, str]:
    """The content with one to three characters put in, replaced or removed: still UTF-8."""
    text = content.decode("utf-8", "replace")
    for _ in range(chance.choice([1, 1, 2, 3])):
        place = chance.randrange(len(text) + 1)
        text = text[:place] + chance.choice([*SIGNS, ""]) + text[place + chance.choice([0, 0, 1, 1, 5]) :]
    return text.encode(), "signs"


def strange_value(chance: random.Random, old: Any) -> Any:
    """A value in the place of another: another kind, an extreme of the same kind, or nested."""
    if isinstance(old, bool) and chance.random() < 0.5:
        return not old
    if isinstance(old, int | float) and chance.random() < 0.5:
        return chance.choice([old + 1, old - 1, -old, old * 1000, *NUMBERS])
    if isinstance(old, str) and chance.random() < 0.4:
        return chance.choice([old + "x", old[:-1], old.upper(), *HOSTILE_TEXTS])
    if isinstance(old, list) and old and chance.random() < 0.5:
        return chance.choice([old[::-1], old[:-1], old + old[:1], old * 50, [old]])
    return chance.choice(
        [None, True, False, [], {}, [None], {"": None}, nested(chance.choice([3, 50, 900])), *NUMBERS, *HOSTILE_TEXTS]
    )


def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


def places_in(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values below a JSON value."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = []
    for key, entry in entries:
        found += [(*place, key), *places_in(entry, (*place, key))]
    return found


def mutated_json(value: Any, chance: random.Random) -> tuple[Any, str]:
    """A JSON value with one to three entries replaced, removed, added or renamed; and which."""
    value, names = json.loads(json.dumps(value)), []
    if chance.random() < 0.03:
        return strange_value(chance, value), "whole value"
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        places = places_in(value)
        if not places:
            break
        *parents, key = chance.choice(places)
        holder = value
        for parent in parents:
            holder = holder[parent]
        action = chance.choice(["replace", "replace", "replace", "remove", "add", "rename"])
        if action == "remove":
            del holder[key]
        elif action == "rename" and isinstance(holder, dict):
            holder[chance.choice([*HOSTILE_TEXTS, str(key).upper()])] = holder.pop(key)
        elif action == "add" and isinstance(holder, dict):
            holder[chance.choice(["x", *HOSTILE_TEXTS])] = strange_value(chance, None)
        else:
            holder[key] = strange_value(chance, holder[key])
        names.append(f"{action} {'.'.join(map(str, (*parents, key)))}")
    return value, "; ".join(names)


def json_value(content: bytes) -> Any:
    """The value in a JSON file; None where an earlier damage has left none."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def json_bytes(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode("utf-8", "surrogatepass")


def damage_file(path: Path, chance: random.Random) -> str:
    """Damage one file, JSON by its values half of the time; return what was done."""
    content = path.read_bytes()
    known = json_value(content) if path.suffix == ".json" and chance.random() < 0.6 else None
    if known is not None:
        changed, what = mutated_json(known, chance)
        path.write_bytes(json_bytes(changed))
    else:
        changed, what = mutated_bytes(content, chance)
        path.write_bytes(changed)
    return f"{path.name}: {what}"


def damage_place(path: Path, chance: random.Random) -> str:
    """Put something else in the place of a file or folder: nothing, a folder, a link, a pipe, an empty file."""
    what = chance.choice(["missing", "folder", "link loop", "dangling link", "link to a copy", "pipe", "empty", "device"])
    aside = path.with_name(f"aside-{len(list(path.parent.iterdir()))}-{path.name}")  # a place may be damaged twice
    path.rename(aside)
    if what == "folder":
        path.mkdir()
        (path / "file").write_text("x")
    elif what == "link loop":
        path.symlink_to(path.name)
    elif what == "dangling link":
        path.symlink_to("nowhere")
    elif what == "link to a copy":
        path.symlink_to(aside.name)
        return f"{path.name}: {what}"
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "empty":
        path.write_bytes(b"")
    elif what == "device":
        path.symlink_to("/dev/zero")
    shutil.rmtree(aside) if aside.is_dir() and not aside.is_symlink() else aside.unlink()
    return f"{path.name}: {what}"


def damage_folder(folder: Path, chance: random.Random, files: list[Path] | None = None) -> str:
    """Damage one file below a folder, or what stands in its place, or add a stray one."""
    files = files or sorted(path for path in folder.rglob("*") if path.is_file())
    kind = chance.random()
    if kind < 0.7:
        return damage_file(chance.choice(files), chance)
    if kind < 0.85:
        return damage_place(chance.choice(files), chance)
    if kind < 0.93:
        return stray(folder, chance)
    first, second = chance.choice(files), chance.choice(files)
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    return f"swapped {first.relative_to(folder)} and {second.relative_to(folder)}"


def stray(folder: Path, chance: random.Random) -> str:
    """Add something that does not belong there."""
    folders = sorted(path for path in [folder, *folder.rglob("*")] if path.is_dir())
    name = chance.choice(
        [".DS_Store", "Thumbs.db", "x~", ".x.swp", "checkpoint-99", ".checkpoint-2.abcdefgh", "model.bin", "é\n", "tmp"]
    )
    path = chance.choice(folders) / name
    if os.path.lexists(path):
        return f"{name} is there already"
    chance.choice([lambda: path.write_bytes(b"x"), path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to(path.name)])()
    return f"stray {path.relative_to(folder)}"
