"""The same run with several seeds, each in a process of its own: side by side where a GPU has room, then mean and deviation."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassloop.arguments import TrainingArguments
from glassloop.assembly import assemble
from glassloop.backends.choose import choose_backend, choose_device, launched_processes
from glassloop.backends.plain import PlainBackend
from glassloop.claim import free_folder, refuse_taken, remove_if_empty, resumed_folder
from glassloop.data.encoding import lengths_of
from glassloop.engine.signals import noted_signals
from glassloop.engine.versions import versions
from glassloop.errors import GlassloopError, ModelError, SettingsError, counted, show
from glassloop.files import absolute_name, user_path, write_text
from glassloop.gpu_memory import memory_need, runs_at_once
from glassloop.lock import locked
from glassloop.measures import short_metrics
from glassloop.records import decoded, read_json
from glassloop.run_folder.layout import CHECKPOINTS_NAME, SEEDS_CONFIG_NAME, SEEDS_NAME, is_run
from glassloop.run_folder.run_json import read_run
from glassloop.settings import DataSettings
from glassloop.show.progress import Several
from glassloop.show.seeds import measures_of, show_seeds, summary

PROGRAM = [sys.executable, "-m", "glassloop"]
OURS = ("--seeds", "--seeds_at_once", "--seed", "--output_dir", "--resume")  # what each child gets in its own way, or not
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class SeedsSettings:
    """What every seed is trained with."""

    source: str | None
    model: str | None
    training: TrainingArguments
    data: DataSettings
    new_head: bool


@dataclass(frozen=True)
class SeedsRecord:
    """What seeds.json must hold for seeds to be resumed."""

    words: tuple[str, ...]
    directory: str  # where they were started: words may name relative paths
    settings: SeedsSettings
    seeds: dict[str, Any]

    def __post_init__(self) -> None:
        if not self.seeds or not all(seed.isdecimal() for seed in self.seeds):
            raise ValueError("seeds are missing, or are not numbers")


@dataclass(frozen=True)
class Child:
    """One seed under way."""

    seed: int
    process: subprocess.Popen[bytes]
    log_start: int  # where its words begin in the log


def train_seeds(
    given: dict[str, Any],
    *,
    count: int | None,
    at_once: int | None,
    processes: int,
    config: str | None,
    resume: str | None,
    restart: bool = False,
) -> None:
    """Train with `count` seeds. `given` is what train_run is given: source, model, training, data, new_head."""
    if count is None:
        raise SettingsError("seeds_at_once is given without seeds", "say how many: --seeds 5")
    if processes > 1 or launched_processes() > 1:
        raise SettingsError("seeds and several processes cannot be combined", "omit --processes: each seed has its own")
    if restart:
        raise SettingsError(
            "seeds and restart cannot be combined", "restart the run of one seed: --resume RUN/seed-1 --restart"
        )
    words = without(sys.argv[1:], OURS)
    if resume is None:
        folder, record = new_record(given, words, count)
    else:
        folder, record = stored_record(resume, given["training"], words, count)
    settings, seeds = record["settings"], [int(seed) for seed in record["seeds"]]
    todo = [seed for seed in seeds if record["seeds"][str(seed)]["status"] != "finished"]
    for seed in seeds:
        if seed not in todo:
            say(f"seed {seed} is finished: {folder / f'seed-{seed}'}")
    width, num_steps = 1, 0
    if todo:
        args = TrainingArguments(**{**settings["training"], "seed": todo[0]})
        try:
            need, num_steps = look_at_all(settings, args)
        except BaseException:
            if not given["training"].get("output_dir"):
                remove_if_empty(folder)
            raise
        width = at_once or runs_at_once(choose_device(args.device), need)
    with locked(folder, say), noted_signals() as got:
        if resume is None:
            refuse_taken(folder)  # by a run that held the lock until now
        if config is not None and resume is None:  # as it is now: later seeds must not see it changed
            write_text(folder / SEEDS_CONFIG_NAME, user_path(config).read_text(encoding="utf-8"))
        write_record(folder, record, "running")
        if len(todo) > 1:
            say(f"{counted(len(todo), 'seed', 'seeds')}, {width} at a time → {folder}")
        plain = bool(settings["training"]["disable_tqdm"])
        codes, failed = run_children(folder, record, todo, width, num_steps, plain, got)
        left = [seed for seed in seeds if record["seeds"][str(seed)]["status"] != "finished"]
        write_record(folder, record, "stopped" if got and left else "failed" if failed else "finished")
    if not got or not left:
        show_seeds(record)
    for seed, lines in failed.items():
        say(f"seed {seed} failed with exit code {codes[seed]} ({folder / f'seed-{seed}.log'}):")
        for line in lines:
            say(f"  {line}")
    if left:
        how = f"go on with glassloop train --seeds {len(seeds)} --resume {shlex.quote(str(folder))}"
        say(f"stopped by {signal.Signals(got[0]).name}; {how}" if got else how)
        sys.exit(128 + got[0] if got else next(code for code in codes.values() if code))


def without(words: list[str], flags: tuple[str, ...]) -> list[str]:
    """A command without some of its flags and their values; `--resume` may have none."""
    kept, queue = [], [*words]
    while queue:
        word = queue.pop(0)
        if word.partition("=")[0] not in flags:
            kept.append(word)
        elif "=" not in word and queue and not (word == "--resume" and queue[0].startswith("--")):
            queue.pop(0)
    return kept


def new_record(given: dict[str, Any], words: list[str], count: int) -> tuple[Path, dict[str, Any]]:
    """The folder of new seeds, and what will be written down about them."""
    args = TrainingArguments(**given["training"])
    TrainingArguments(seed=args.seed + count - 1)  # the last one must be possible too
    if args.output_dir and (Path(args.output_dir) / SEEDS_NAME).is_file():
        remedy = f"go on with them: --seeds {count} --resume {args.output_dir}; or choose another"
        raise SettingsError(f"output_dir {args.output_dir} holds seeds already", remedy)
    training = {name: value for name, value in args.to_dict().items() if name not in ("seed", "output_dir")}
    seeds = {str(args.seed + number): {"status": "waiting"} for number in range(count)}
    names = {name: given[name] and absolute_name(given[name]) for name in ("source", "model")}
    settings = {**given, **names, "training": training}
    record = {"words": words, "directory": str(Path.cwd()), "settings": settings, "seeds": seeds}
    return free_folder(args.output_dir), record


def stored_record(resume: str, training: dict[str, Any], words: list[str], count: int) -> tuple[Path, dict[str, Any]]:
    """The folder of seeds to go on with, and what is written there; finished seeds are read again from their folders."""
    folder, _ = resumed_folder(resume, training.get("output_dir"))
    if is_run(folder) or user_path(resume).parent.name == CHECKPOINTS_NAME:
        raise SettingsError(f"{resume} is of one run, not of seeds", f"go on with it alone: glassloop train --resume {resume}")
    try:
        record: dict[str, Any] = read_json(folder / SEEDS_NAME)
        checked = decoded(SeedsRecord, record)
        stored, first, known = len(checked.seeds), min(int(seed) for seed in checked.seeds), [*checked.words]
    except ValueError as error:
        raise ModelError(f"{folder}: there are no seeds to resume: {SEEDS_NAME}: {error}", "start new ones") from error
    if not Path(checked.directory).is_dir():
        raise SettingsError(f"{folder}: the seeds were started in {checked.directory}, which is gone", "restore that folder")
    if [word for word in words if word not in ("train", "--debug")] and words != known:
        told = shlex.join(["glassloop", *known])
        raise SettingsError(f"the seeds were started with other words: {told}", f"give --seeds and --resume {folder} alone")
    if training.get("seed", first) != first or count < stored:
        problem = f"{folder} was started with {counted(stored, 'seed', 'seeds')} from {first} on"
        raise SettingsError(problem, f"use --seeds {stored}, or more to add some")
    for seed in range(first, first + count):
        record["seeds"][str(seed)] = result_of(folder / f"seed-{seed}") or {"status": "waiting"}
    return folder, record


def look_at_all(settings: dict[str, Any], args: TrainingArguments) -> tuple[float, int]:
    """Check settings, model and data once and fill the cache of tokens; the GPU memory a seed may need, and its steps."""
    if choose_device(args.device) != "cuda":  # there it would take memory that the children are to have
        choose_backend(args)
    source, model = settings["source"] or "quickstart", settings["model"] or "quickstart"
    new_head = settings["new_head"]
    trainer, _, _, record = assemble(source, model, args, settings["data"], new_head, PlainBackend("cpu", "fp32"))
    rows = max(args.per_device_train_batch_size, args.per_device_eval_batch_size / 4)  # evaluation keeps no activations
    tokens = rows * int(lengths_of(trainer.train_dataset).max())
    return memory_need(record.model.parameters, tokens), record.plan.max_steps


def run_children(
    folder: Path, record: dict[str, Any], todo: list[int], width: int, num_steps: int, plain: bool, got: list[int]
) -> tuple[dict[int, int], dict[int, list[str]]]:
    """Train all of `todo`, `width` at a time, or until a signal: exit codes, and the last words of those that failed."""
    waiting, running, num_told = [*todo], list[Child](), 0
    codes: dict[int, int] = {}
    failed: dict[int, list[str]] = {}
    done = [seed for seed in record["seeds"] if int(seed) not in todo]
    shown = Several({seed: folder / f"seed-{seed}" for seed in todo}, len(done), num_steps, plain)
    try:
        while running or (waiting and not got):
            while waiting and len(running) < width and not got:
                running.append(start(folder.absolute(), record, waiting.pop(0)))
                shown.line(f"seed {running[-1].seed} starts; its words are in {folder / f'seed-{running[-1].seed}.log'}")
            for number in got[num_told:]:
                num_told += 1
                for child in running:
                    child.process.send_signal(number)
            for child in [child for child in running if child.process.poll() is not None]:
                running.remove(child)
                code, run = child.process.returncode, folder / f"seed-{child.seed}"
                codes[child.seed] = code if code >= 0 else 128 - code
                entry = result_of(run) if code == 0 else None
                if entry:
                    title = measures_of(entry).title
                    figures = "".join(f"{title(name)} {value:.4f}  " for name, value in entry["metrics"].items())
                    shown.line(f"seed {child.seed} ends: {figures}{entry['seconds']:.0f} s → {run}")
                elif codes[child.seed] in [128 + number for number in got]:
                    entry = {"status": "stopped"}
                    shown.line(f"seed {child.seed} stopped")
                else:
                    entry, codes[child.seed] = {"status": "failed"}, codes[child.seed] or 1
                    failed[child.seed] = last_words(folder / f"seed-{child.seed}.log", child.log_start)
                    shown.line(f"seed {child.seed} failed")
                record["seeds"][str(child.seed)] = entry
                write_record(folder, record, "running")
            shown.look(ended=codes)
            time.sleep(POLL_SECONDS)
    finally:  # something of ours went wrong: nobody is left behind
        for child in running:
            child.process.terminate()
        for child in running:
            child.process.wait()
        shown.close()
    return codes, dict(sorted(failed.items()))


def start(folder: Path, record: dict[str, Any], seed: int) -> Child:
    """Start or resume a seed where all were started, in a session of its own: a Ctrl-C reaches it through us alone."""
    words = record["words"]
    run, log, copied = folder / f"seed-{seed}", folder / f"seed-{seed}.log", folder / SEEDS_CONFIG_NAME
    if is_run(run):
        command = ["train", "--resume", str(run)]  # all else is written there
    else:
        again = [*without(words, ("--config",)), "--config", str(copied)] if copied.is_file() else words
        command = [*again, "--seed", str(seed), "--output_dir", str(run)]
    with log.open("ab") as opened:
        begin = opened.tell()
        process = subprocess.Popen(
            [*PROGRAM, *command], cwd=record["directory"], stdin=subprocess.DEVNULL, stdout=opened, stderr=opened,
            start_new_session=True,
        )  # fmt: skip
    return Child(seed, process, begin)


def result_of(run: Path) -> dict[str, Any] | None:
    """What a finished run found; None for any other."""
    try:
        found = read_run(run)
    except GlassloopError:
        return None
    if not found.finished:
        return None
    measures = {"keys": found.metrics, "positive": found.positive_label}
    rows = {name: split.fingerprint for name, split in found.data.splits.items()}
    entry = {"metrics": short_metrics(found.evaluation or {}), "baseline": found.baseline or {}, "rows": rows}
    return {"status": "finished", "folder": run.name, "seconds": found.seconds, "measures": measures, **entry}


def last_words(log: Path, begin: int) -> list[str]:
    """The two lines of an error of ours, or the last lines where a child died otherwise."""
    lines = [line for line in log.read_bytes()[begin:].decode("utf-8", "replace").splitlines() if line.strip()]
    tries = [place for place, line in enumerate(lines) if line.startswith("try:  ") and place]
    return lines[tries[-1] - 1 : tries[-1] + 1] if tries else lines[-5:]


def write_record(folder: Path, record: dict[str, Any], status: str) -> None:
    """Replace what is written about the seeds; mean and standard deviation are of those that are finished."""
    record |= {
        "status": status,
        **summary(record),
        "versions": versions(),
    }
    write_text(folder / SEEDS_NAME, json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def say(text: str) -> None:
    show(text, sys.stderr)
