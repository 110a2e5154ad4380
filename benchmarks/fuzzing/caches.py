"""Cases of cache folders: a damaged entry is rebuilt with a message, and the command answers as with a clean cache."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import trials

from fuzzing.bench import Bench
from fuzzing.cases import Case, Finding
from fuzzing.mutations import damage_folder, damage_place, stray


def fuzz_cache(case: Case, bench: Bench) -> None:
    """A command whose cache was damaged."""
    name = case.chance.choices(["data", "evaluate", "train"], [5, 3, 2])[0]
    cache, user = case.folder / "cache", os.geteuid()
    shutil.copytree(bench.folder / f"cache-{name}", cache)
    os.environ["GLASSLOOP_CACHE"] = str(cache)
    before = contents(cache)
    if case.chance.random() < 0.05:
        case.lock_away(cache)
    for _ in range(case.chance.choice([1, 1, 1, 2, 3]) if os.geteuid() == user else 0):
        case.note(damage_cache(cache, case))
    changed = [path for path in before if Path(path).name != "manifest.json" and before[path] != contents_of(cache / path)]
    gone = [path for path in changed if not os.path.lexists((cache / path).parent)]  # an absent entry is built without a word
    ran = case.run(*bench.cached_commands(case.folder)[name])
    if ran.code == 6 and any(
        not path.is_dir() for path in [cache, *cache.iterdir()] if path.name in ("cache", "data", "encodings")
    ):
        return  # the folder of a whole kind is something else: there is no place to build
    if ran.code:
        raise Finding(f"silent: a damaged cache must be rebuilt, but the exit code is {ran.code}\n{ran.err[-1000:]}")
    case.equal(f"the answer of {name}", ran.out, bench.caches[name])
    if "building it again" in ran.err or "using a temporary cache" in ran.err:
        case.reports.append(ran.err)
    elif len(gone) < len(changed):
        raise Finding(f"silent: {changed} changed, but nothing was said\n{ran.err[-500:]}")
    for path in before if os.geteuid() == user else ():
        if not path.endswith("manifest.json"):  # which may have another layout
            case.equal(f"the rebuilt {path}", contents_of(cache / path), before[path])
    if name == "train":
        case.equal("what differs in the run", trials.differences(bench.folder / "used-train" / "run", case.folder / "run"), [])


def damage_cache(cache: Path, case: Case) -> str:
    chance = case.chance
    entries = sorted(path for path in cache.glob("*/*") if path.is_dir() and any(part.is_file() for part in path.iterdir()))
    kind = chance.random()
    if kind < 0.75 and entries:
        return damage_folder(chance.choice(entries), chance)
    if kind < 0.85 and entries:
        return damage_place(chance.choice(entries), chance)
    if kind < 0.87 and entries:
        return damage_place(chance.choice(entries).parent, chance)
    if kind < 0.95 and len(entries) > 1:
        first, second = chance.sample(entries, 2)
        first.rename(cache / "between")
        second.rename(first)
        (cache / "between").rename(second)
        return "swapped two entries"
    return stray(cache, chance)


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): contents_of(path) for path in sorted(folder.rglob("*")) if not path.is_dir()}


def contents_of(path: Path) -> bytes | None:
    """The content of a plain file; None for whatever else is there."""
    try:
        return path.read_bytes() if path.is_file() else None
    except OSError:
        return None
