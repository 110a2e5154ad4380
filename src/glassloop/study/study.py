"""`glassloop study`: many runs of different settings and seeds, an honest choice, and what it shows."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path

from glassloop.backends.choose import choose_device, launched_processes
from glassloop.backends.machine import runs_on_gpus
from glassloop.base.errors import ResumeError, SettingsError, counted, did_you_mean, listed, visible
from glassloop.base.files import absolute_name, locked, near_name, refuse_held, user_path
from glassloop.base.output import CommandResult, note
from glassloop.base.records import versions
from glassloop.data.examples import Examples
from glassloop.models.loading import load_config
from glassloop.report.card import update_card
from glassloop.report.study import show_study, study_content, write_page
from glassloop.runs.record import SELECTION, STOPPED, is_study
from glassloop.runs.status import free_folder, refuse_taken
from glassloop.runs.study import StudyRecord, read_study, write_study
from glassloop.scores.metrics import LOWER_IS_BETTER, chosen_measures, refuse_unknown_metric
from glassloop.settings.file import GivenSettings
from glassloop.settings.study import MODEL, SCRIPT, SEEDS, STRATEGIES, Choices, StudySettings, study_settings, vary_text
from glassloop.settings.training import TYPES, DataSettings, Problem, refuse, wrong_choice
from glassloop.study.conclusions import conclude
from glassloop.study.ray import RayTrials, refuse_unreachable
from glassloop.study.run import examples_for
from glassloop.study.running import Executor, StudyRunner
from glassloop.study.seeds import check_run
from glassloop.study.trials import RUNS_NAME, model_key
from glassloop.study.workers import LocalWorkers, cpu_runs_at_once, places_for, visible_gpus
from glassloop.training.callbacks import leave, leave_on_signal, noted_signals

BATCH = "per_device_train_batch_size"


class Study:
    """Trains runs with different settings and seeds, chooses one setting honestly, and compares all of them.

    Settings are chosen on a held-out part of the training rows, or on cross-validation folds. All settings are compared on the
    validation split, and the chosen one is tested once. `run` also continues a study that was stopped or killed.

    Args:
        source: Data to train on, as for `glassloop train`.
        model: Model to start from.
        vary: The values of each setting to vary: a list, or text such as "log:1e-5..1e-3" or "linear:0..0.1".
        seeds: Number of random seeds for each setting.
        strategy: "auto", "grid", "random", "halving" or "optuna".
        budget: The most that the search may cost, such as "2h" or "200_runs".
        fold: Number of cross-validation folds to choose on. Default: hold out a tenth of the training rows.
        samples: Number of settings to draw for random, optuna and ranges.
        output_dir: Folder of the study. A study that is there is continued.
        at_once: Number of runs to train at the same time on each GPU, or on the CPU.
        on: "ray" or the address of a Ray cluster, to train on its nodes.
        **settings: Training and data settings that all runs share.

    Attributes:
        given: The settings that all runs share.
        study: What is varied, and how it is searched.

    Raises:
        SettingsError: If a setting is unknown or not allowed. All problems are reported together.
    """

    def __init__(
        self,
        source: str | None = None,
        *,
        model: str | None = None,
        vary: Mapping[str, object],
        seeds: int = 3,
        strategy: str = "auto",
        budget: str | None = None,
        fold: int | None = None,
        samples: int | None = None,
        output_dir: str | Path | None = None,
        at_once: int | None = None,
        on: str | None = None,
        **settings: object,
    ) -> None:
        data_names = [entry.name for entry in fields(DataSettings)]
        known = [*TYPES, *data_names]
        refuse(
            [
                Problem(
                    f"unknown setting {visible(name)}{did_you_mean(name, known)}", "glassloop train --help lists all settings"
                )
                for name in settings
                if name not in known
            ]
        )
        training = {name: value for name, value in settings.items() if name in TYPES}
        data = {name: value for name, value in settings.items() if name in data_names}
        study = StudySettings({name: vary_text(value) for name, value in vary.items()}, seeds, strategy, budget, fold, samples)
        self.given, self.study = GivenSettings(source, model, training, data), study
        checked(self.given, study)
        self.output_dir, self.at_once, self.on = output_dir, at_once, on

    def run(self) -> StudyRecord:
        """Run the study to its end, or continue it, and return its record.

        Raises:
            GlassloopError: If data or model cannot be used. No run is started then.
            KeyboardInterrupt: Ctrl-C stopped the study. `run` continues it.
        """
        return run_study(self.given, self.study, str(self.output_dir) if self.output_dir else None, self.at_once, self.on)[1]


def study(
    given: GivenSettings, resume: str | None = None, *, at_once: int | None = None, on: str | None = None
) -> CommandResult:
    """Run a study, or continue the one in a folder, and print what it shows."""
    leave_on_signal()
    output_dir = given.training.get("output_dir")
    if resume is not None:
        folder = user_path(str(output_dir) if resume == "newest" and output_dir else resume)
        if folder.is_dir():
            refuse_held(folder)
        stored = read_study(folder)
        if stored.study.strategy == SCRIPT:
            problem = f"{folder} is the search of a script, Trainer.hyperparameter_search"
            raise SettingsError(problem, "run the script again: it continues its search")
        changed = [
            *given.training,
            *given.data,
            *given.study,
            *(["data"] if given.source else []),
            *(["model"] if given.model else []),
        ]
        if changed := [name for name in changed if name != "output_dir"]:
            problem = f"--resume continues {folder} with its own settings, but there are others: {listed(changed)}"
            raise SettingsError(problem, "omit them; or omit --resume and repeat the whole command with --output_dir")
        given, settings, output_dir = stored.base, stored.study, str(folder)
    else:
        settings = study_settings(given.study)
        checked(given, settings)
    folder, record = run_study(given, settings, str(output_dir) if output_dir else None, at_once, on)
    show_study(folder, record)
    return CommandResult(study_content(folder, record), 0 if record.chosen is not None and record.status != "failed" else 1)


def checked(given: GivenSettings, settings: StudySettings) -> None:
    """Raise `SettingsError` for settings that are not allowed, or that are both varied and given."""
    given.checked()
    if launched_processes() > 1:
        raise SettingsError("a study cannot be launched in several processes", "start it once: it uses all GPUs by itself")
    if settings.strategy in (SCRIPT, SEEDS):
        refuse([wrong_choice("strategy", settings.strategy, STRATEGIES)])
    both = [name for name in settings.vary if name in given.training or (name == MODEL and given.model)]
    problems = [Problem(f"{name} is both set and varied", f"omit {name}, or do not vary it") for name in both]
    if "selection_fold" in given.data:
        problems.append(Problem("selection_fold is set by the study", "use --fold for cross-validation"))
    refuse(problems)


def run_study(
    given: GivenSettings, settings: StudySettings, output_dir: str | None, at_once: int | None, on: str | None
) -> tuple[Path, StudyRecord]:
    """Run a study in its folder. Return the folder and the record."""
    found = user_path(output_dir) if output_dir else None
    if found is not None and found.is_dir():
        refuse_held(found)  # before data and model are loaded
    known = found is not None and is_study(found)
    examples = search_examples(given, settings)
    record = new_record(given, settings, examples)
    need = checked_need(record)
    if on is not None:
        refuse_unreachable(on)
    folder = found if known and found else free_folder(output_dir)
    with locked(folder, note), noted_signals() as signals:
        if known:
            earlier = read_study(folder)
            refuse_changed_inputs(folder, earlier, record)
            record = replace(record, runs=earlier.runs, seconds=earlier.seconds, threads=earlier.threads,
                             test_evaluations=earlier.test_evaluations, results=earlier.results)  # fmt: skip
        else:
            refuse_taken(folder)
        (folder / "runs").mkdir(exist_ok=True)
        note(described(settings, examples, folder))
        with executor_for(record, folder, need, at_once, on) as (executor, threads):
            record = replace(record, threads=record.threads or threads)
            write_study(folder, record)
            record = StudyRunner(folder, record, executor, signals, note).run()
        if record.status != STOPPED:
            record = conclude(folder, record, note)
            write_study(folder, record)
            write_page(folder, record)
            for name, run in ({} if record.chosen is None else record.runs_of(record.chosen, final=True)).items():
                if run.finished:
                    update_card(folder / RUNS_NAME / name)
    if record.status == STOPPED and signals:
        note(f"stopped by {signal.Signals(signals[0]).name}; continue with: glassloop study --resume {folder}")
        leave(signals[0])
    return folder, record


def refuse_changed_inputs(folder: Path, earlier: StudyRecord, record: StudyRecord) -> None:
    """Raise `ResumeError` if data or models have changed since the study was started: its runs could not be used again."""
    changed = []
    asked, before = ((one.base.source, one.base.model, one.base.data, one.study.folds) for one in (record, earlier))
    if asked == before:  # else the user has asked for other rows
        splits = [name for name in {**earlier.data, **record.data} if earlier.data.get(name) != record.data.get(name)]
        changed += [f"the rows of {listed(splits)} in {near_name(record.base.source or 'quickstart')}"] if splits else []
    changed += [f"the files of the model {name}" for name, key in earlier.models.items() if record.models.get(name, key) != key]
    if changed and earlier.runs:
        raise ResumeError(
            f"{folder}: {' and '.join(changed)} changed since the study was started, so none of its runs could be used again",
            "restore what changed, or start a new study with another --output_dir",
        )


def search_examples(given: GivenSettings, settings: StudySettings) -> Examples:
    """Return the data as the first runs see it. Raise `GlassloopError` if it cannot be used."""
    searching = replace(given, data={**given.data, "selection_fold": settings.folds[0]})
    space = settings.space.get(MODEL)
    model = str(space.values[0]) if isinstance(space, Choices) else given.model or "quickstart"
    examples = examples_for(searching, load_config(model))
    if not any(name.startswith("validation") for name in examples.splits):
        problem = "a study reports on a validation split, but the data has none"
        raise SettingsError(problem, "add one, or set validation_share above 0")
    return examples


def new_record(given: GivenSettings, settings: StudySettings, examples: Examples) -> StudyRecord:
    """Return the record of a study before its first run."""
    run = given.checked()
    args, paths = run.training, run.data.with_absolute_paths()
    names = examples.labels.names if examples.labels else ()
    measures = chosen_measures(examples.measures, examples.task, names, args.positive_label)
    refuse_unknown_metric(args.metric_for_best_model, measures)
    metric = (args.metric_for_best_model or measures.keys[0]).removeprefix("eval_")
    higher = args.greater_is_better if args.greater_is_better is not None else metric not in LOWER_IS_BETTER
    # Runs of a study are short: a killed one starts again. Progress bars of several runs would mix.
    training = {"save_strategy": "no", "save_total_limit": 1, **given.training, "disable_tqdm": True}
    training.pop("output_dir", None)
    data = {name: list(value) if isinstance(value := getattr(paths, name), tuple) else value for name in given.data}
    base = GivenSettings(
        given.source and absolute_name(given.source), given.model and absolute_name(given.model), training, data, given.new_head
    )
    rows = {name: fact.fingerprint for name, fact in examples.facts.items()}
    models = {name: model_key(name) for name in map(absolute_name, model_names(base.model, settings))}
    seeds = tuple(range(args.seed, args.seed + settings.seeds))
    return StudyRecord(base, settings, metric, higher, seeds, data=rows, models=models, versions=versions())


def described(settings: StudySettings, examples: Examples, folder: Path) -> str:
    """Return a line about the size of a study before it starts."""
    from glassloop.scores.comparisons import detectable_by_rows

    rows = max(fact.num_rows for name, fact in examples.facts.items() if name.startswith("validation"))
    reach = f"{100 * detectable_by_rows(rows):.1f} points"
    runs = settings.num_settings * settings.runs_per_setting
    return (
        f"{counted(settings.num_settings, 'setting', 'settings')} x {counted(settings.seeds, 'seed', 'seeds')}"
        + (f" x {settings.fold} folds" if settings.fold else "")
        + f" = {counted(runs, 'run', 'runs')}, {settings.chosen_strategy}; {counted(rows, 'validation row', 'validation rows')}"
        f" detect differences of about {reach} between two models; chosen on {listed(settings.folds)} of the training rows "
        f"({SELECTION}) → {folder}"
    )


@contextmanager
def executor_for(
    record: StudyRecord, folder: Path, need: float, at_once: int | None, on: str | None
) -> Iterator[tuple[Executor, int | None]]:
    """Yield what trains the runs, and the number of CPU threads of each run, if it is limited."""
    if on is not None:
        with RayTrials(record, on, at_once, need) as cluster:
            yield cluster, cluster.threads
        return
    import torch

    device, cores = choose_device(str(record.base.training.get("device", "auto"))), os.cpu_count() or 1
    gpus = visible_gpus(torch.cuda.device_count(), os.environ) if device == "cuda" else []
    each = [at_once] * len(gpus) if at_once else runs_on_gpus(len(gpus), need) if gpus else []
    places = places_for(dict(zip(gpus, each, strict=True)), at_once or cpu_runs_at_once(cores), cores)
    if record.threads:
        places = [replace(place, threads=record.threads) for place in places]
    where = f"{len(gpus)} GPUs ({', '.join(map(str, each))})" if len(gpus) > 1 else f"the {device}"
    note(f"{counted(len(places), 'run', 'runs')} at a time on {where}")
    with LocalWorkers(places) as workers:
        yield workers, places[0].threads


def checked_need(record: StudyRecord) -> float:
    """Check model and data with the largest batch, cache the tokens, and return the GPU memory that a run may need."""
    base, space = record.base, record.study.space
    sizes = space.get(BATCH)
    training = dict(base.training)
    if sizes is not None:
        training[BATCH] = max(sizes.values) if isinstance(sizes, Choices) else int(sizes.high)  # type: ignore[type-var]
    data = {**base.data, "selection_fold": record.study.folds[0]}
    return max(
        check_run(replace(base, model=name, training=training, data=data).checked(), record.seeds[0])[0]
        for name in model_names(base.model, record.study)
    )


def model_names(given: str | None, settings: StudySettings) -> list[str]:
    """Return the models of a study: those that are varied, else the given one or the default."""
    models = settings.space.get(MODEL)
    return [str(name) for name in models.values] if isinstance(models, Choices) else [given or "quickstart"]
