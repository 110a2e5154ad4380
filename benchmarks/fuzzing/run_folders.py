"""Cases of run folders and checkpoints: whatever is damaged is refused, or the answer is that of the undamaged run."""

from __future__ import annotations

import ast
import inspect
import json
import re
import shutil
import stat
import struct
from pathlib import Path

import trials

from fuzzing.bench import SHORT, Bench, answered
from fuzzing.cases import Case, Finding, Ran, writable_again
from fuzzing.mutations import damage_file, damage_folder, damage_place, json_bytes, mutated_json, stray
from glassloop.runs.record import checkpoints_in
from glassloop.share import eject as eject_module

CHANGED_FILES = {"run.json": 7, "config.json": 5, "tokenizer.json": 3, "tokenizer_config.json": 2, "model.safetensors": 4}
REPORTS = ("damaged", "missing", "cannot be read", "skipp", "ignor", "removed", "moved", "building it again", "no checkpoint")


def fuzz_run(case: Case, bench: Bench) -> None:
    """A finished or a stopped run whose files were damaged: evaluate, predict, eject, resume."""
    if case.chance.random() < 0.25:
        fuzz_stopped(case, bench)
        return
    run = copied(bench.finished, case)
    case.lock_away(run) if case.chance.random() < 0.03 else damage_run(run, case)
    before = snapshot(run)
    with answered() as logits:
        ran = case.run(*bench.predict(run))
    if ran.code and all(what.startswith("stray ") for what in case.done):
        raise Finding(f"silent: a stray file must be ignored, but the exit code is {ran.code}\n{ran.err[-1000:]}")
    if ran.code == 0:
        case.equal("the prediction", ran.out, bench.answers.predict)
        case.equal("the logits", logits, bench.answers.logits)
        reported(case, ran)
    if case.chance.random() < 0.4:
        ran = case.run(*bench.evaluate(run))
        if ran.code == 0:
            case.equal("the evaluation", ran.out, bench.answers.evaluate)
    if case.chance.random() < 0.3:
        eject(case, bench, run)
    if case.chance.random() < 0.15:
        ran = case.run(*bench.train(case.folder / "from-run", model=run, **SHORT))
        if ran.code == 0:
            case.equal("what differs in a run from its model", trials.differences(bench.from_run, case.folder / "from-run"), [])
    if case.chance.random() < 0.15:
        ran = case.run("train", "--resume", run)
        if ran.code == 0 and "already complete" not in ran.err:
            raise Finding("silent: a finished run was trained again")
    case.equal("the run folder after commands that only read", snapshot(run), before)


def fuzz_forged(case: Case, bench: Bench) -> None:
    """A damaged run with all checksums made good again, or its model alone: any answer, but no traceback and no hang."""
    run = copied(bench.finished if case.chance.random() < 0.8 else bench.stopped, case)
    damage_run(run, case)
    forge(run)
    model = run / "model" if case.chance.random() < 0.3 and (run / "model").is_dir() else run
    case.run(*bench.predict(model))
    if case.chance.random() < 0.4:
        case.run(*bench.evaluate(run))
    if case.chance.random() < 0.3 and case.run("eject", run, "--out", case.folder / "ejected").code == 0:
        found = names_in((case.folder / "ejected" / "train.py").read_text())
        ours = {*re.findall(r"\w+", inspect.getsource(eject_module))}
        case.equal("what an ejected file calls and Glassloop did not write", sorted(found - ours), [])
    if case.chance.random() < 0.2:
        case.run("train", "--resume", run)


def names_in(script: str) -> set[str]:
    """Every name, attribute and import of a script: what it could do."""
    parts = [*ast.walk(ast.parse(script))]
    imports = {alias.name for part in parts if isinstance(part, ast.Import | ast.ImportFrom) for alias in part.names}
    attributes = {part.attr for part in parts if isinstance(part, ast.Attribute)}
    return imports | attributes | {part.id for part in parts if isinstance(part, ast.Name)}


def forge(run: Path) -> None:
    """Give run.json the checksums of what is there now, as somebody would who forges a run."""
    from glassloop.base.files import sha256_of
    from glassloop.base.records import sealed

    try:
        record = json.loads((run / "run.json").read_bytes()) if (run / "run.json").is_file() else None
    except (ValueError, RecursionError):
        return
    if isinstance(record, dict):
        files = record.get("files")
        if isinstance(files, dict):
            there = [name for name in files if "\0" not in name and (run / "model" / name).is_file()]
            record["files"] = files | {name: sha256_of(run / "model" / name) for name in there}
        (run / "run.json").write_bytes(json_bytes(sealed(record)))


def damage_run(run: Path, case: Case) -> None:
    """Damage a file that a command reads; now and then any file, or what stands in its place."""
    chance, kind = case.chance, case.chance.random()
    if kind < 0.8:
        name = chance.choices([*CHANGED_FILES], [*CHANGED_FILES.values()])[0]
        path = next((path for path in (run / name, run / "model" / name) if path.exists()), run / "run.json")
        if path.suffix == ".safetensors" and chance.random() < 0.5:
            case.note(damage_header(path, case))
        else:
            case.note(damage_file(path, chance))
    elif kind < 0.85 and (run / "model").exists():
        case.note(damage_place(run / "model", chance))
    else:
        case.note(damage_folder(run, chance))


def damage_header(path: Path, case: Case) -> str:
    """Change the header of a safetensors file by its values, so that the rest still fits."""
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    changed, what = mutated_json(json.loads(content[8 : 8 + size]), case.chance)
    header = json_bytes(changed)
    path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + size :])
    return f"{path.name}, header: {what}"


def eject(case: Case, bench: Bench, run: Path) -> None:
    out = case.folder / "ejected"
    if case.run("eject", run, "--out", out).code == 0:
        text = (out / "train.py").read_text()
        ast.parse(text)
        case.equal("the ejected file", text, bench.answers.ejected)


def fuzz_stopped(case: Case, bench: Bench) -> None:
    """A stopped run whose record, history or lock was damaged."""
    run = copied(bench.stopped, case)
    own = sorted(path for path in run.iterdir() if path.is_file())
    for path in own[:] if case.chance.random() < 0.1 else [case.chance.choice([run / "run.json", run / "run.json", *own])]:
        case.note(damage_file(path, case.chance) if case.chance.random() < 0.85 else damage_place(path, case.chance))
    resumed(case, bench, run, run)


def fuzz_checkpoint(case: Case, bench: Bench) -> None:
    """A stopped run whose checkpoints were damaged: resume ends as if nothing had happened, or is refused."""
    run = copied(bench.stopped, case)
    chance = case.chance
    named = chance.choice(checkpoints_in(run)) if chance.random() < 0.2 else run
    for _ in range(chance.choice([1, 1, 2, 3])):
        if steps := sorted(path for path in checkpoints_in(run) if path.is_dir() and not path.is_symlink()):
            case.note(damage_checkpoints(run, steps, case))
    if chance.random() < 0.03:
        case.lock_away(run)
    resumed(case, bench, run, named)


def damage_checkpoints(run: Path, steps: list[Path], case: Case) -> str:
    chance = case.chance
    first, second = chance.choice(steps), chance.choice(steps)
    kind = chance.random()
    if kind < 0.6 and any(path.is_file() for path in first.rglob("*")):
        return f"{first.name}/{damage_folder(first, chance)}"
    if kind < 0.7:
        names = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file() and not path.is_symlink())
        name = chance.choice(names or [Path("manifest.json")])
        if (first / name).is_file() and (second / name).is_file():
            shutil.copyfile(second / name, second / "copied")
            (second / "copied").replace(first / name)
        return f"{name} of {second.name} in {first.name}"
    if kind < 0.8:
        target = run / f"checkpoint-{chance.choice([0, 1, 3, 6, 7, 99, 99999999])}"
        if not target.exists():
            shutil.copytree(first, target, symlinks=True) if chance.random() < 0.6 else first.rename(target)
        return f"{first.name} as {target.name}"
    if kind < 0.9:
        return damage_place(first, chance)
    if kind < 0.95:
        shutil.rmtree(first)
        return f"{first.name} removed"
    return stray(run, chance)


def resumed(case: Case, bench: Bench, run: Path, named: Path) -> None:
    """Resume; the end must be that of the run that was never stopped."""
    before = checkpoints_in(run)
    ran = case.run("train", "--resume", named)
    if ran.code:
        return
    for path in before:  # damaged ones stay where they are, and intact ones are only read
        shutil.rmtree(path, onerror=writable_again) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    reported(case, ran)
    if not (run / "run.json").is_file():
        raise Finding("silent: exit 0 without a run.json")
    found = [entry for entry in trials.differences(bench.reference, run) if not entry.startswith("left over")]
    case.equal("what differs from the run that was never stopped", found, [])


def reported(case: Case, ran: Ran) -> None:
    case.reports += [line for line in ran.err.splitlines() if any(word in line for word in REPORTS)]


def copied(run: Path, case: Case) -> Path:
    return Path(shutil.copytree(run, case.folder / "run"))


def snapshot(folder: Path) -> dict[str, str]:
    """Name, kind and size of everything below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        try:
            status = path.lstat()
        except PermissionError:  # its folder may be listed only
            continue
        found[str(path.relative_to(folder))] = (
            f"{status.st_mode} {status.st_size} {status.st_mtime_ns if stat.S_ISREG(status.st_mode) else ''}"
        )
    return found
