"""One training from its first or next step to its end: its parts, lock, checkpoints, the loop, and the final model."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from glassloop.base.errors import (
    DivergedError,
    ModelError,
    ResourceError,
    ResumeError,
    SettingsError,
    TooLargeError,
    listed,
    no_memory,
)
from glassloop.base.files import absolute_name, locked, replacing, replacing_dir, reserved, share_files, user_path, write_text
from glassloop.base.output import stage
from glassloop.base.records import sealed, versions
from glassloop.data.batches import Batches, is_standard, seed_all
from glassloop.data.interfaces import Model, Rows
from glassloop.data.rows import Repeats, collator_repeats, content_of, lengths_of, random_states_kept, repeats_of
from glassloop.models.interface import config_of, label_names
from glassloop.runs.history import Entry, write_history
from glassloop.runs.record import (
    MODEL_NAME,
    RESERVE_NAME,
    RUN_NAME,
    TRAINED_NAME,
    TRAINED_WEIGHTS_NAME,
    Difference,
    Plan,
    RunRecord,
    checkpoint_name,
    checkpoints_in,
    is_run,
    remove_leftovers,
    split_changes,
)
from glassloop.scores.metrics import Measures
from glassloop.settings.file import GivenSettings
from glassloop.settings.training import TrainingArguments, data_settings, training_arguments
from glassloop.training.callbacks import (
    PAUSE,
    Callback,
    History,
    NotFiniteError,
    Sessions,
    State,
    Trackers,
    leave,
    listening,
    progress_for,
)
from glassloop.training.checkpoints import (
    FORMAT,
    WEIGHTS_NAME,
    BestWeights,
    Checkpoint,
    CheckpointFolder,
    Identity,
    PlainValues,
    SaveBest,
    Saver,
    Snapshot,
    config_values,
    differences,
    digest,
    frozen_names,
    full_disk,
    identified,
    names_in,
    open_checkpoint,
    optimizer_tensors,
    optimizer_values,
    random_tensors,
    refuse_other_identity,
    refuse_other_tensors,
    restore_optimizer,
    restore_random,
    rows_fingerprint,
    schedule_values,
    sum_of,
    sums_of,
    weightless_parts,
)
from glassloop.training.interfaces import (
    Backend,
    LossSum,
    LRScheduler,
    Optimizer,
    ProcessGroup,
    Say,
    Tensors,
    TrainingBatch,
    TrainingUse,
)
from glassloop.training.loop import fit, train_step
from glassloop.training.losses import check_loss, refuse_other_loss
from glassloop.training.optimizer import make_optimizers, unwrap_optimizer

BatchLoss = Callable[[torch.nn.Module, TrainingBatch], torch.Tensor]


BatchStep = Callable[[torch.nn.Module, TrainingBatch, int], torch.Tensor]


Optimizers = tuple[Optimizer | None, LRScheduler | None]


class ModelWriter(Protocol):
    """Writes the model of a checkpoint or the final model to a folder, with other `weights` if given."""

    def __call__(self, folder: Path, weights: Tensors | None = None) -> None: ...


@dataclass(frozen=True)
class ScriptParts:
    """The parts of a training that a script for transformers may replace."""

    callbacks: Sequence[Callback]
    optimizers: Optimizers  # of the user
    write_model: ModelWriter
    quiet: bool = False  # no progress bar
    batch_loss: BatchLoss | None = None  # replaces the forward pass and the loss of a batch
    batch_step: BatchStep | None = None  # replaces the backward pass of a batch, too
    loss_compared: bool = False  # the loss of the model was compared with Glassloop's
    loss_name: str | None = None  # what that loss is, so that a resumed run uses the same
    before_update: Callable[[list[TrainingBatch]], None] | None = None  # called between clipping and the update of the weights
    after_update: Callable[[], None] | None = None  # called after it, before gradients are cleared
    asked_only: bool = False  # callbacks ask for every log entry, evaluation and checkpoint
    saves_in_background: bool = True  # False: code of the user writes the model of a checkpoint, or reads the checkpoint
    started: Callable[[Optimizer, LRScheduler], None] | None = None  # called before the first step


@dataclass(frozen=True)
class TrainingParts:
    """Everything one training needs. The Trainer checks and builds it; results come back through `state` and return values."""

    model: Model
    args: TrainingArguments
    backend: Backend
    difference: Difference | None  # of a fast backend from the plain one
    use: TrainingUse
    plan: Plan
    state: State
    folder: Path
    in_run: bool  # a run holds the lock of the folder, and gets the final model

    batches: Batches  # of the training rows, padded
    train_rows: Rows
    eval_rows: Rows | None
    eval_batches: Callable[[], Batches]

    task: str
    loss_sum: LossSum
    custom_loss: LossSum | None
    class_weights: Sequence[float] | None
    on_gradients: Callable[[torch.nn.Module], None] | None

    evaluate: Callable[[], dict[str, float] | None]  # returns None if a signal interrupts it
    measures: Callable[[], Measures | None]  # of an evaluation; None: those of `compute_metrics`
    compute_metrics: Callable[..., dict[str, float]] | None
    say: Say
    say_once: Say
    script: ScriptParts

    def metric_title(self, key: str) -> str:
        """Return the name to show for a metric."""
        measures = self.measures()
        return measures.title(key) if measures else key


# Settings that do not change any weight: a run may be resumed with other values.
FREE = ("output_dir", "overwrite_output_dir", "per_device_train_batch_size", "per_device_eval_batch_size",
        "eval_strategy", "eval_steps", "eval_delay", "eval_on_start", "logging_strategy", "logging_steps", "logging_first_step",
        "logging_dir", "save_strategy", "save_steps", "save_total_limit",
        "report_to", "run_name", "disable_tqdm", "backend", "device", "precision", "positive_label")  # fmt: skip


# Settings that do not change anything in the folder of a finished run.
NOT_STORED = ("output_dir", "overwrite_output_dir", "disable_tqdm")


SAME = "use the settings and the data it was started with"


def refuse_other_request(folder: Path, stored: RunRecord, given: GivenSettings) -> None:
    """Raise `SettingsError` if a finished run was trained with other settings than those given."""
    training = training_arguments({**stored.settings.to_dict(), **given.training}).to_dict()
    data = asdict(data_settings({**stored.data.given(), **given.data}).with_absolute_paths())
    then = {**asdict(stored.data.settings), **stored.settings.to_dict()}
    then |= {"data": stored.data.source, "model": stored.model.name, "new_head": stored.model.new_head}
    now = {**data, **training, "new_head": given.new_head or stored.model.new_head}
    now |= {"data": absolute_name(given.source or stored.data.source), "model": absolute_name(given.model or stored.model.name)}
    wanted = {name: value for name, value in then.items() if name not in NOT_STORED}
    if changed := differences(wanted, {name: now[name] for name in wanted}):
        raise SettingsError(
            f"{folder} is finished and was trained with different settings: {'; '.join(changed)}",
            f"omit these settings, or train a new run; --model {folder} starts from the model of this one",
        )


def refuse_other_run(stored: RunRecord, now: RunRecord, *, from_start: bool) -> None:
    """Raise `ResumeError` with old and new values if a run would be resumed with other settings or data.

    Args:
        stored: The record of the run that was started.
        now: The record of the run that would resume it.
        from_start: No checkpoint is used, which would compare settings, model and each training row by itself.
    """
    changed = split_changes(stored.data.splits, now.data.splits, stored.data.splits)
    if not from_start and split_changes(stored.data.splits, now.data.splits, ["train"]):
        return  # the checkpoint names the rows that have changed, if the model gets other rows
    if from_start and stored.identity:
        changed = differences(stored.identity, json.loads(json.dumps(now.identity))) + changed
    if changed:
        raise ResumeError(f"the run was started with different settings or data: {'; '.join(changed)}", SAME)


def refuse_other_model(given: str | None, stored: str) -> None:
    """Raise `ResumeError` if a run would be resumed with a model of another name."""
    if given and absolute_name(given) != stored:
        raise ResumeError(f"the run was started with different settings: model: {stored} then, {given} now", "omit --model")


def identity_of(parts: TrainingParts) -> Identity:
    """Return everything but the training rows that must be the same for the weights to be the same.

    The weights to start from are not part of it: a checkpoint replaces them all.
    """
    args, backend, model = parts.args, parts.backend, parts.model
    optimizer, schedule = parts.script.optimizers
    evaluation: Identity = {}
    if args.load_best_model_at_end or args.early_stopping_patience:  # evaluations decide which weights a training ends with
        measures = parts.measures()
        metrics = ", ".join(map(measures.title, measures.keys)) if measures else identified(parts.compute_metrics)
        evaluation = {"eval_strategy": args.eval_strategy, "eval_every": parts.plan.eval_every, "metrics": metrics}
        evaluation["validation"] = None  # the rows are hashed only if they are needed
    return {
        **{name: value for name, value in args.to_dict().items() if name not in FREE},
        "batch_size": args.per_device_train_batch_size * backend.processes.num_processes,
        "max_steps": parts.plan.max_steps,
        "device": backend.device.type,
        "precision": backend.precision,
        "model": f"{type(model).__name__}, {sum(weight.numel() for weight in model.parameters()):,} parameters",
        "labels": [*label_names(config_of(model))],
        "config": config_values(config_of(model)),
        "parts without weights": weightless_parts(model),
        "frozen": frozen_names(model),
        "on_gradients": None if parts.on_gradients is None else identified(parts.on_gradients),
        "loss": parts.script.loss_name or (parts.task if parts.custom_loss is None else identified(parts.custom_loss)),
        "optimizer": None if optimizer is None else optimizer_values(model, optimizer),
        "schedule": None if schedule is None else schedule_values(schedule),
        # Only rows that are not shuffled: earlier checkpoints have no entry for the order.
        **({"order": "sequential"} if isinstance(parts.batches, Batches) and parts.batches.seed is None else {}),
        **evaluation,
    }


STATE_NAME = "trainer_state.json"


def log_history(history: Sequence[Entry]) -> list[dict[str, object]]:
    """Return the entries of a history as transformers' `state.log_history` has them: the step comes last."""
    return [{**{name: value for name, value in entry.items() if name != "step"}, "step": entry["step"]} for entry in history]


def lasting_facts(plan: Plan, args: TrainingArguments) -> dict[str, int]:
    """Return the entries that stay the same during a training."""
    return {
        "max_steps": plan.max_steps,
        "num_train_epochs": -(-plan.max_steps // plan.steps_per_epoch),
        "logging_steps": plan.log_every,
        "eval_steps": plan.eval_every,
        "save_steps": plan.save_every,
        "train_batch_size": args.per_device_train_batch_size,
    }


def best_checkpoint(folder: Path, best_step: int | None) -> str | None:
    """Return the checkpoint of the best evaluation; None if it does not exist."""
    path = folder / checkpoint_name(best_step or 0)
    return str(path) if best_step is not None and path.is_dir() else None


def state_text(
    state: State,
    epoch: float,
    history: list[dict[str, object]],
    best_model_checkpoint: str | None,
    facts: Mapping[str, int],
) -> str:
    """Return the content of trainer_state.json.

    Args:
        state: Where the training stands.
        epoch: The epoch as a number with a fraction.
        history: The entries of the log.
        best_model_checkpoint: The checkpoint of the best evaluation.
        facts: What stays the same during the training.
    """
    values = {
        **facts,
        "epoch": epoch,
        "global_step": state.step,
        "best_metric": state.best_score,
        "best_global_step": state.best_step,
        "best_model_checkpoint": best_model_checkpoint,
        "is_local_process_zero": True,
        "is_world_process_zero": True,
        "log_history": history,
    }
    return json.dumps(values, indent=2, sort_keys=True) + "\n"


class StartedTraining:
    """The parts of a training with everything that is made from them once, before the first step.

    Attributes:
        parts: What the Trainer handed down.
        batches: The training batches in the form the backend trains on.
        model, optimizer, scheduler: As the backend prepared them.
        bare: The user's model behind a prepared one.
        best: The weights of the best evaluation.
        checkpoint_folder, saver: The checkpoints of the folder, and what writes them.
    """

    def __init__(self, parts: TrainingParts, callbacks: Sequence[Callback] = ()) -> None:
        backend = parts.backend
        self.parts = parts
        self.more_callbacks = callbacks
        if parts.custom_loss is None and parts.script.batch_loss is None and not parts.script.loss_compared:
            refuse_other_loss(parts.model, next(parts.batches.epoch()), parts.task, backend, parts.say_once)
        self.fixed: Identity = json.loads(json.dumps(identity_of(parts)))
        self.report_random_rows()
        if parts.args.gradient_checkpointing:
            checkpoint_gradients(parts.model)
        make_optimizer = backend.start_training(parts.model, parts.use)
        self.batches = backend.adapt_batches(parts.batches, parts.train_rows)
        if parts.custom_loss is not None and parts.script.batch_loss is None:
            check_loss(parts.loss_sum, parts.model, next(self.batches.epoch()), backend)
        optimizer, scheduler = make_optimizers(parts.args, parts.model, parts.plan, parts.script.optimizers, make_optimizer)
        self.model, self.optimizer, self.scheduler = backend.prepare(parts.model, optimizer, scheduler)
        self.bare = backend.unwrap(self.model)
        self.best = BestWeights(self.bare)
        self.checkpoint_folder = CheckpointFolder(parts.folder, parts.say)
        self.saver = Saver(self.checkpoint_folder, parts.args.save_total_limit, parts.script.write_model)
        self.hashes: torch.Tensor | None = None

    def report_random_rows(self) -> None:
        """Report which rows differ each time they are read, and what that means for a resumed run."""
        parts, batches, say = self.parts, self.parts.batches, self.parts.say_once
        if not isinstance(batches, Batches):
            say("the batches are those of a DataLoader: a resumed run skips those it has seen, but may draw different ones")
            return
        if batches.repeats is not Repeats.SAME:
            say(f"the training rows differ between reads: {batches.repeats.value}")
        if not is_standard(batches.collate):
            rows = batches.read(np.arange(min(len(batches.rows), batches.batch_size)))
            if (found := collator_repeats(batches.collate, rows)) is not Repeats.SAME:
                say(f"the collator returns different batches each time: {found.value}")
            elif batches.repeats is Repeats.SAME:
                self.fixed["collator"] = digest(content_of(batches.collate(deepcopy(rows))))
        has_number = hasattr(parts.eval_rows, "__len__")  # a stream is read by a DataLoader
        if parts.eval_rows is not None and has_number and repeats_of(parts.eval_rows) is not Repeats.SAME:
            say("the evaluation rows differ between reads, and so do their scores")
            if "validation" in self.fixed:
                self.fixed["validation"] = rows_fingerprint(np.zeros(len(parts.eval_rows), dtype=np.int64))
        if batches.repeats is Repeats.OWN and parts.args.group_by_length:
            if parts.backend.processes.num_processes > 1:
                problem = "group_by_length orders rows by lengths that differ in each process"
                raise SettingsError(problem, "set group_by_length to false, or draw from the global generators")
            say("group_by_length: the order of these rows may also change when the run is resumed")

    def identity(self) -> Identity:
        """Return what must be the same for the numbers to be the same, as it was before the first step."""
        if "validation" in self.fixed and self.fixed["validation"] is None:  # only now: a training may never need it
            with random_states_kept():
                self.fixed["validation"] = rows_fingerprint(self.parts.eval_batches().row_hashes())
        return self.fixed

    def row_hashes(self) -> torch.Tensor:
        """Return eight bytes for each training row as the model gets it."""
        if self.hashes is None:
            self.hashes = torch.from_numpy(self.batches.row_hashes())
        return self.hashes

    def known_row_hashes(self) -> torch.Tensor:
        """Return `row_hashes` for a checkpoint: zero for rows that are slow to read and were not read yet."""
        batches = self.parts.batches
        known = batches.known_row_hashes() if self.hashes is None and isinstance(batches, Batches) else None
        return self.row_hashes() if known is None else torch.from_numpy(known)

    def evaluate(self) -> dict[str, float] | None:
        """Return the metrics between two steps; None if a signal interrupts the evaluation."""
        self.parts.backend.sync_to_model()
        with random_states_kept():  # evaluation rows may draw random numbers as well
            return self.parts.evaluate()  # with the bare model: a wrapped one waits for processes with no batch left

    def callbacks(self, history: History) -> list[Callback]:
        """Return the callbacks of Glassloop followed by those of the user."""
        parts, args = self.parts, self.parts.args
        found: list[Callback] = [history, *([self.best] if args.load_best_model_at_end else [])]
        found += [SaveBest()] if args.save_strategy == "best" else []
        if parts.backend.processes.is_main:
            found.append(Sessions(parts.folder, parts.plan.max_steps))
        if parts.backend.processes.is_main and args.trackers:
            name = args.run_name or parts.folder.name
            folder = parts.folder if args.logging_dir is None else user_path(args.logging_dir)
            found.append(Trackers(args.trackers, folder, name, args.to_dict()))
        if parts.backend.processes.is_main and not parts.script.quiet:
            found.append(progress_for(parts.plan, args.disable_tqdm, parts.metric_title))
        return [*found, *self.more_callbacks, *parts.script.callbacks]

    @property
    def num_bytes(self) -> int:
        """The size of the model's weights."""
        return sum(weight.nbytes for weight in self.bare.parameters())


def checkpoint_gradients(model: Model) -> None:
    """Let a model compute activations again in the backward pass. Raises `SettingsError` if it cannot."""
    try:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    except (AttributeError, ValueError) as error:
        problem = f"{type(model).__name__} does not support gradient_checkpointing"
        raise SettingsError(problem, "omit it, and lower per_device_train_batch_size instead") from error


def with_slack(num_bytes: int) -> int:
    """Return the disk space for a model with this many bytes of weights, its config and its tokenizer."""
    return num_bytes + num_bytes // 20 + (1 << 16)


def refuse_full_disk(training: StartedTraining) -> None:
    """Raise `ResourceError` if the disk cannot hold two checkpoints and, in a run, the final model."""
    parts, num_bytes, wanted = training.parts, training.num_bytes, {}
    if parts.args.save_strategy != "no":
        wanted["two checkpoints"] = 2 * (4 if parts.args.load_best_model_at_end else 3) * num_bytes
    if parts.in_run:
        wanted["the final model"] = with_slack(num_bytes)
    needed, free = sum(wanted.values()), shutil.disk_usage(parts.folder).free
    if free < needed:
        raise ResourceError(
            f"{parts.folder}: {needed:,} bytes are needed for {' and '.join(wanted)}, {free:,} are free",
            "free disk space or choose another output_dir"
            + ("; save_strategy no needs less" if "two checkpoints" in wanted else ""),
        )


def refuse_not_finite_weights(weights: Tensors, step: int) -> None:
    """Raise `NotFiniteError` with the first weight that is not finite after a step."""
    for name, value in weights.items():
        if value.numel() and not torch.isfinite(torch.stack(torch.aminmax(value))).all():  # no copy as large as the value
            raise NotFiniteError(f"step {step:,}: the weight {name} is not finite", step)


def diverged(training: StartedTraining, error: NotFiniteError) -> DivergedError:
    """Return the error for a step with a figure that is not finite, with its rows and the learning rate."""
    parts, (problem, step) = training.parts, error.args
    epoch, place = divmod(step - 1 + parts.state.steps_left_out, parts.plan.steps_per_epoch)
    group = training.batches.order(epoch)[place * parts.plan.accumulate : (place + 1) * parts.plan.accumulate]
    rows = listed(np.concatenate(group).tolist(), 8)
    last = "none" if parts.state.last_loss is None else f"{parts.state.last_loss:.4g}"
    rate = unwrap_optimizer(training.optimizer).param_groups[0].get("initial_lr", parts.args.learning_rate)
    return DivergedError(
        f"{problem} (last finite loss {last}, learning rate {rate:g}, rows {rows} of the training data)",
        f"{advice(trained=parts.state.last_loss is not None)}, or look at these rows",
    )


def advice(*, trained: bool) -> str:
    """Return what to do about a figure that is not finite. Before the first update, the learning rate is not its cause."""
    if trained:
        return "lower learning_rate, add warmup_steps, use precision fp32"
    return "no weight was updated yet: use another model, use precision fp32"


def out_of_memory(training: StartedTraining, error: BaseException) -> TooLargeError:
    """Return the error for a batch that does not fit into memory, with the setting to lower."""
    parts = training.parts
    kind = "eval" if parts.state.evaluation_due else "train"
    rows = parts.eval_rows if parts.state.evaluation_due and parts.eval_rows is not None else parts.train_rows
    size = getattr(parts.args, f"per_device_{kind}_batch_size")
    return TooLargeError(
        f"not enough memory for a batch of {size} rows{longest(rows)} ({error})",
        f"lower per_device_{kind}_batch_size"
        + (" and raise gradient_accumulation_steps by the same factor" if kind == "train" else "")
        + ", or lower max_length",
    )


def longest(rows: Rows) -> str:
    """Return how many tokens the longest row has, as part of a sentence; nothing if rows have no tokens to count."""
    try:
        return f" of up to {max(lengths_of(rows)):,} tokens"
    except (TypeError, KeyError, IndexError, ValueError):
        return ""


def save_checkpoint(training: StartedTraining) -> None:
    """Copy the training between two steps and write the copy. All processes take part; the main process writes.

    The copy is written in a thread while the training continues, unless code of the user writes or reads it.
    """
    snapshot = snapshot_of(training)
    in_background = training.parts.script.saves_in_background
    with nullcontext() if in_background else random_states_kept():  # code of the user may draw random numbers
        if snapshot is not None:
            training.saver.save(snapshot, in_background=in_background)
    if not in_background:
        training.parts.backend.processes.wait()


def snapshot_of(training: StartedTraining) -> Snapshot | None:
    """Return a copy of the training in the main process, and None in the others. All processes take part."""
    parts, backend, bare = training.parts, training.parts.backend, training.bare
    randoms = backend.processes.gather_objects([random_tensors(backend.device)])  # in the order of the processes
    backend.sync_to_model()
    gathered = backend.gather_optimizer_state(training.optimizer)
    if not backend.processes.is_main:
        return None
    weights = {name: value.detach().to("cpu", copy=True) for name, value in bare.state_dict().items()}
    refuse_not_finite_weights(weights, parts.state.step)
    optimizer, plain_optimizer = optimizer_tensors(bare, training.optimizer, gathered)
    scheduler = {name: value for name, value in training.scheduler.state_dict().items() if name != "lr_lambdas"}
    plain: PlainValues = {
        "state": parts.state.to_dict(),
        "optimizer": plain_optimizer,
        "scheduler": scheduler,
        "scaler": backend.scaler.state_dict(),
        "random": [plain_random for _, plain_random in randoms],
        "processes": backend.processes.num_processes,
        "versions": versions(),
    }
    return Snapshot(
        weights,
        optimizer,
        best=training.best.weights,
        randoms=[found for found, _ in randoms],
        rows=training.known_row_hashes(),
        plain=plain,
        identity=training.identity(),
        texts={STATE_NAME: trainer_state(parts)},
    )


def trainer_state(parts: TrainingParts) -> str:
    """Return trainer_state.json of a checkpoint. The checkpoint itself may be that of the best evaluation."""
    state, plan, folder = parts.state, parts.plan, parts.folder
    is_best = state.best_step == state.step
    best = str(folder / checkpoint_name(state.step)) if is_best else best_checkpoint(folder, state.best_step)
    epoch = state.epoch + state.batch / plan.batches_per_epoch
    return state_text(state, epoch, log_history(state.history), best, lasting_facts(plan, parts.args))


def find_checkpoint(training: StartedTraining, resume: bool | str | Path, skipped: list[str]) -> Checkpoint | None:
    """Return the checkpoint to resume from, None to start from the first step.

    Args:
        training: The training to resume.
        resume: True for the newest intact checkpoint, a path for that one.
        skipped: Why something newer than all checkpoints cannot be used.
    """
    if resume is not True:
        return training.checkpoint_folder.open(user_path(resume)) if resume else None
    found = training.checkpoint_folder.newest(skipped)
    if found is None:
        training.parts.say(f"{training.parts.folder}: no checkpoint to resume from, so training starts at step 0")
    return found


def restore(training: StartedTraining, checkpoint: Checkpoint) -> None:
    """Restore everything as it was after the checkpoint's step. Raises `ModelError` if settings or data changed."""
    parts, backend, bare = training.parts, training.parts.backend, training.bare
    stored_rows = checkpoint.tensors("rows").get("rows", torch.zeros(0, dtype=torch.int64))
    refuse_other_identity(checkpoint.manifest["identity"], training.identity(), stored_rows, training.row_hashes())
    weights, plain = checkpoint.weights(), checkpoint.plain
    refuse_other_tensors(bare.state_dict(), weights, checkpoint.path.name)
    bare.load_state_dict(weights)
    restore_optimizer(bare, training.optimizer, checkpoint.tensors("optimizer"), plain["optimizer"])
    backend.sync_from_model()
    scheduler = training.scheduler
    scheduler.load_state_dict(plain["scheduler"] | {"lr_lambdas": scheduler.state_dict().get("lr_lambdas")})
    if plain["scaler"]:
        backend.scaler.load_state_dict(plain["scaler"])
    for name, value in plain["state"].items():
        setattr(parts.state, name, value)
    training.best.weights = checkpoint.tensors("best")
    rank, then, now = backend.processes.rank, plain["processes"], backend.processes.num_processes
    if rank < len(plain["random"]) and then == now:
        restore_random(checkpoint.tensors(f"random-{rank}"), plain["random"][rank], backend.device)
    else:
        seed_all(parts.args.seed + rank + 1000 * parts.state.step)
        parts.say(f"{now} processes instead of {then}: every step has the same rows, but different dropout masks")
    parts.say(f"resuming after step {parts.state.step:,} ({checkpoint.path})")


@contextmanager
def disk_space_reserved(training: StartedTraining) -> Iterator[None]:
    """Remove incomplete files, check the disk, and reserve space for the final model of a run while the block runs."""
    parts, backend = training.parts, training.parts.backend
    if not backend.processes.is_main:
        backend.processes.wait()
        yield
        return
    if names := remove_leftovers(parts.folder):
        parts.say(f"removed incomplete files of an earlier crash: {listed(names)}")
    refuse_full_disk(training)
    with reserved(parts.folder / RESERVE_NAME, with_slack(training.num_bytes)) if parts.in_run else nullcontext():
        backend.processes.wait()
        yield


def save_final_model(training: StartedTraining, metrics: dict[str, float]) -> None:
    """Write the trained model, and everything needed to resume the run after its last step."""
    parts, folder = training.parts, training.parts.folder
    if parts.backend.processes.is_main:
        (folder / RESERVE_NAME).unlink(missing_ok=True)
        try:
            with replacing_dir(folder / MODEL_NAME, replace=True) as writing:
                parts.script.write_model(writing)
            files = {f"{MODEL_NAME}/{name}": entry for name, entry in sums_of(folder / MODEL_NAME).items()}
            weights = training.bare.state_dict()
            if names_in(folder / MODEL_NAME / WEIGHTS_NAME) != {*weights}:  # weights with several names are saved once
                with replacing(folder / TRAINED_WEIGHTS_NAME) as writing:
                    save_file({name: value.detach().to("cpu", copy=True) for name, value in weights.items()}, writing)
                share_files(folder, TRAINED_WEIGHTS_NAME)
                files[TRAINED_WEIGHTS_NAME] = sum_of(folder / TRAINED_WEIGHTS_NAME)
            manifest = {
                "format": FORMAT,
                "step": parts.state.step,
                "identity": whole_identity(training),
                "files": files,
                "state": parts.state.to_dict(),
                "metrics": metrics,
            }
            write_text(folder / TRAINED_NAME, json.dumps(sealed(manifest), indent=1, allow_nan=False) + "\n")
        except Exception as error:
            raise not_saved(training, error) or error from error
    parts.backend.processes.wait()


def not_saved(training: StartedTraining, error: Exception) -> ResourceError | None:
    """Return the error of a full disk after the last step, with what to do and what a resumed run repeats.

    Returns None for other errors.
    """
    found = full_disk(error, training.parts.folder / MODEL_NAME, "the trained model", with_slack(training.num_bytes))
    if found is None:
        return None
    saved = [path.name for path in checkpoints_in(training.parts.folder)[:1]]
    repeats = f"resumes from {saved[0]}" if saved else "trains again from the first step: there is no checkpoint"
    return ResourceError(found.problem, f"{found.remedy} (it {repeats})")


def restore_final_model(training: StartedTraining, skipped: list[str]) -> dict[str, float] | None:
    """Restore a training that had taken its last step, and return its metrics; None if there is none.

    A final model that cannot be used is described in `skipped`.
    """
    parts, folder = training.parts, training.parts.folder
    if not (folder / TRAINED_NAME).exists():
        return None
    try:
        manifest = open_checkpoint(folder, TRAINED_NAME).manifest
    except ModelError as error:
        skipped.append(error.problem)
        return None
    refuse_other_identity(manifest["identity"], whole_identity(training), training.row_hashes(), training.row_hashes())
    saved_apart = TRAINED_WEIGHTS_NAME in manifest["files"]
    weights = load_file(folder / (TRAINED_WEIGHTS_NAME if saved_apart else f"{MODEL_NAME}/{WEIGHTS_NAME}"))
    refuse_other_tensors(training.bare.state_dict(), weights, f"{folder}/{MODEL_NAME}")
    training.bare.load_state_dict(weights)
    parts.backend.sync_from_model()
    for name, value in manifest["state"].items():
        setattr(parts.state, name, value)
    parts.say(f"resuming after the last step, {parts.state.step:,} ({folder / MODEL_NAME})")
    metrics: dict[str, float] = manifest["metrics"]
    return metrics


def remove_manifest(folder: Path) -> None:
    """Remove what only a run that is not finished needs, beside its final model."""
    (folder / TRAINED_NAME).unlink(missing_ok=True)
    (folder / TRAINED_WEIGHTS_NAME).unlink(missing_ok=True)


def whole_identity(training: StartedTraining) -> Identity:
    """Return what must be the same for another process to finish the run, with the training rows."""
    return training.identity() | {"training rows": rows_fingerprint(training.row_hashes().numpy())}


@contextmanager
def trained(
    parts: TrainingParts, resume: bool | str | Path | None = None, *, restart: bool = False, callbacks: Sequence[Callback] = ()
) -> Iterator[dict[str, float]]:
    """Train to the end, save the final model of a run, and yield the metrics.

    A signal saves a checkpoint, or the final model, and ends the process with the signal's exit status. A signal that
    arrives while the block runs is only noted in the state: see `stop_if_asked`.

    Args:
        parts: What to train.
        resume: True for the newest intact checkpoint of the folder, a path for that one, None to start a new training.
        restart: Start again from step 0, and move existing checkpoints aside.
        callbacks: Callbacks beside those of the user.
    """
    began = time.perf_counter()
    backend = parts.backend
    with ExitStack() as held:
        with backend.training_context():
            try:
                training = StartedTraining(parts, callbacks)
                held.enter_context(
                    nullcontext() if parts.in_run or not backend.processes.is_main else locked(parts.folder, parts.say)
                )
                held.enter_context(listening(parts.state))
                held.enter_context(disk_space_reserved(training))
                skipped: list[str] = []
                if restart or (parts.args.overwrite_output_dir and not resume):
                    move_earlier_aside(training)
                elif not resume:
                    refuse_earlier(training)
                saved = restore_final_model(training, skipped) if resume is True and not restart else None
                metrics = run(training, None if restart else resume, skipped, began) if saved is None else saved
            finally:
                backend.end_training()
        if parts.in_run and saved is None:
            with stage("saving the model"):
                save_final_model(training, metrics)
        if backend.processes.is_main:
            with resume_named(parts.folder) if parts.in_run else nullcontext():
                write_history(parts.folder, parts.state.history)  # lines may be missing if the disk was full
        if parts.in_run:
            stop_if_asked(parts.state, backend.processes, parts.say)
        yield metrics


@contextmanager
def resume_named(folder: Path) -> Iterator[None]:
    """Raise the error of a full disk with the command that finishes the run: its model is saved."""
    try:
        yield
    except OSError as error:
        raise full_disk(error, folder / RUN_NAME, "the results; the trained model is saved") or error from error


def stop_if_asked(state: State, processes: ProcessGroup, say: Say) -> None:
    """End the process after the last step of a run if a signal has asked for it; the trained model is saved."""
    if number := processes.agree(state.asked_to_stop):
        name = signal.Signals(number).name
        say(f"stopped by {name} after the last step; the model is saved; use --resume to finish the run")
        processes.wait()
        leave(number)


def run(training: StartedTraining, resume: bool | str | Path | None, skipped: list[str], began: float) -> dict[str, float]:
    """Restore the checkpoint to resume from, run the loop, and return loss and timings."""
    parts = training.parts
    args, backend, plan, state = parts.args, parts.backend, parts.plan, parts.state
    history = History(parts.folder if backend.processes.is_main else None, partial(next_rate, training), plan)
    checkpoint = find_checkpoint(training, resume or False, skipped)
    training.model.train()
    training.optimizer.zero_grad(set_to_none=True)  # gradients of the user's own backward pass
    seed_all(args.seed + backend.processes.rank)
    if checkpoint is not None:
        restore(training, checkpoint)
    first = state.step
    step = partial(
        train_step,
        training.model,
        loss_sum=parts.loss_sum,
        optimizer=training.optimizer,
        backend=backend,
        max_norm=args.max_grad_norm,
        on_gradients=parts.on_gradients,
        batch_loss=parts.script.batch_loss,
        batch_step=parts.script.batch_step,
        before_update=parts.script.before_update,
        after_update=parts.script.after_update,
    )
    if parts.script.started is not None:
        parts.script.started(training.optimizer, training.scheduler)
    asked = replace(plan, log_every=0, eval_every=0, save_every=0, log_first=False) if parts.script.asked_only else plan
    try:
        fit(
            backend.wrap_step(step, training.optimizer, training.scheduler, parts.say),
            training.batches,
            asked,
            state,
            callbacks=training.callbacks(history),
            evaluate=training.evaluate if parts.eval_rows is not None else None,
            save=partial(save_checkpoint, training),
            gather=backend.processes.gather_figures,
            agree=backend.processes.agree,
        )
        backend.sync_to_model()
        refuse_not_finite_weights(training.bare.state_dict(), state.step)
        if not (state.signal or parts.in_run):  # a run saves its model first
            state.signal = backend.processes.agree(state.asked_to_stop)
            if state.signal:
                save_checkpoint(training)
    except NotFiniteError as error:
        raise diverged(training, error) from error
    except (RuntimeError, MemoryError) as error:
        raise out_of_memory(training, error) if no_memory(error) else error from None
    finally:
        training.saver.wait()
    if state.signal == PAUSE:
        parts.say(f"paused after step {state.step:,}")
        leave(state.signal)
    if state.signal:
        parts.say(f"stopped by {signal.Signals(state.signal).name} after step {state.step:,}; resume with --resume")
        backend.processes.wait()
        leave(state.signal)
    if args.load_best_model_at_end and training.best.weights:
        training.bare.load_state_dict(training.best.weights)
        backend.sync_from_model()
    seconds = time.perf_counter() - began
    return {
        "train_loss": state.mean_loss,
        "train_runtime": seconds,
        "train_steps_per_second": (state.step - first) / seconds,
        "train_samples_per_second": (state.step - first) * plan.accumulate * training.batches.batch_size / seconds,
        "epoch": state.epoch_by(plan),
    }


def refuse_earlier(training: StartedTraining) -> None:
    """Raise `SettingsError` if a new training would overwrite an earlier one."""
    folder, found = training.parts.folder, checkpoints_in(training.parts.folder)
    refuse_run_of_command(training)
    if found:
        raise SettingsError(
            f"output_dir {folder} contains the checkpoints of an earlier training (the newest is {found[0].name})",
            "resume it with train(resume_from_checkpoint=True), choose another output_dir, or set overwrite_output_dir=True, "
            "which moves the earlier training aside",
        )


def refuse_run_of_command(training: StartedTraining) -> None:
    """Raise `SettingsError` if a Trainer would write into the folder of a run, whose record and model it does not replace."""
    folder = training.parts.folder
    if is_run(folder) and not training.parts.in_run:
        raise SettingsError(f"output_dir {folder} contains a run of glassloop train", "choose another output_dir")


def move_earlier_aside(training: StartedTraining) -> None:
    """Move everything aside that a run could resume from: its checkpoints, or the model of its last step."""
    refuse_run_of_command(training)
    if training.parts.backend.processes.is_main:
        folder = training.parts.folder
        if (folder / TRAINED_NAME).exists():
            for path in filter(Path.exists, (folder / name for name in (TRAINED_NAME, TRAINED_WEIGHTS_NAME, MODEL_NAME))):
                training.checkpoint_folder.set_aside(path)
        training.checkpoint_folder.restart()
    training.parts.backend.processes.wait()


def next_rate(training: StartedTraining) -> float:
    """Return the learning rate of the next step."""
    return float(unwrap_optimizer(training.scheduler.optimizer).param_groups[0]["lr"])
