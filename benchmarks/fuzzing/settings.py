"""Cases of settings: damaged TOML files and strange options are refused, or the run is made with what they say."""

from __future__ import annotations

import json
import random
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from fuzzing.bench import Bench
from fuzzing.cases import Case
from fuzzing.mutations import HOSTILE_TEXTS, NUMBERS, damage_place, mutated_bytes, mutated_text

WORDS = (
    "no", "steps", "epoch", "linear", "cosine", "constant", "balanced", "auto", "cpu", "plain", "packed", "fp32", "bf16", "tab",
    "text", "label",
    "good", "bad", "good,bad", "accuracy", "f1", "loss", "eval_loss", "12", "0.5", "1e-3", "1", "10", "100", "8",
)  # fmt: skip
FIXED = ("output_dir", "device", "max_steps", "disable_tqdm", "data_dir")  # a case must end soon, in its own folder
COUNTS = ("0", "1", "2", "3", "8", "16", "100", "0.1", "0.5", "1e-3", "1e-5", "1e3")
TOML = 'source = "{data}"\nmodel = "{model}"\n\n[data]\ntext = "text"\nlabel = "label"\n\n[training]\n{lines}\n'
VALID = (
    "learning_rate = 1e-3", "per_device_train_batch_size = 8", "logging_steps = 2", 'save_strategy = "no"', "seed = 7",
    'lr_scheduler_type = "cosine"', "warmup_steps = 1", "weight_decay = 0.01", "group_by_length = true", "max_length = 16",
)  # fmt: skip


def fuzz_settings(case: Case, bench: Bench) -> None:
    """A run with a damaged settings file, with strange options, or with both."""
    run, kind = case.folder / "run", case.chance.choice(["file", "file", "options", "both"])
    words = ["train", "--output_dir", run, "--device", "cpu", "--max_steps", 1, "--disable_tqdm"]
    wanted: dict[str, Any] = {}
    if kind != "options":
        path = write_file(case, bench, strange=kind == "file")
        words += ["--config", path]
        wanted |= settings_in(path)
    else:
        words += [bench.data, "--model", bench.model]
    if kind != "file":
        for name, value in strange_options(case.chance).items():
            words += [f"--{name}={value}"]
            wanted[name] = value
        case.note(f"{[word for word in words[8:] if str(word).startswith('--')]}")
    ran = case.run(*words)
    if ran.code == 0:
        compare_settings(case, run, wanted)


def write_file(case: Case, bench: Bench, *, strange: bool) -> Path:
    chance, path = case.chance, case.folder / "run.toml"
    lines = chance.sample(VALID, chance.randint(0, len(VALID)))
    if strange and lines and chance.random() < 0.6:  # still TOML
        name, value = lines[0].partition(" = ")[0], chance.choice([*COUNTS, "true", "false", "[1, 2]", '"1"', "{a = 1}", "nan"])
        lines[0], strange = f"{name} = {value}", False
        case.note(f"{path.name}: {lines[0]}")
    path.write_text(TOML.format(data=bench.data, model=bench.model, lines="\n".join(lines)))
    if strange:
        content, what = chance.choice([mutated_bytes, mutated_text, mutated_text])(path.read_bytes(), chance)
        path.write_bytes(content)
        case.note(f"{path.name}: {what}")
        if chance.random() < 0.05:
            case.note(damage_place(path, chance))
    return path


def settings_in(path: Path) -> dict[str, Any]:
    """What the file says for the training, by Python's own reader; nothing where there is no reading."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    training = found.get("training", {})
    return dict(training) if isinstance(training, dict) else {}


def strange_options(chance: random.Random) -> dict[str, str]:
    from glassloop.settings.training import DataSettings, TrainingArguments

    kinds = {entry.name: str(entry.type) for kind in (TrainingArguments, DataSettings) for entry in fields(kind)}
    names = [name for name, kind in kinds.items() if name not in FIXED and "bool" not in kind]
    strange = [*WORDS, *WORDS, *map(str, NUMBERS), *(text for text in HOSTILE_TEXTS if "\0" not in text)]
    found = {}
    for name in chance.sample(names, chance.choice([1, 1, 1, 2, 3])):
        is_number = "int" in kinds[name] or "float" in kinds[name]
        found[name] = chance.choice(COUNTS if is_number and chance.random() < 0.6 else strange)
    return found


def compare_settings(case: Case, run: Path, wanted: dict[str, Any]) -> None:
    """The record of the run has the value that was given, as the same number or text."""
    record = json.loads((run / "run.json").read_text())
    found = {**record["data"]["settings"], **record["settings"]}
    for name in wanted:
        if name in found and name not in FIXED:
            case.equal(name, same(found[name]), same(wanted[name]))


def same(value: Any) -> Any:
    """A number as a number, however it was written; several names as one text."""
    if isinstance(value, bool):
        return value
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return ",".join(map(str, value)) if isinstance(value, list) else value
