"""One training from its first or next step to its end: its parts, its checkpoints, its final model, and what a resume needs."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from glassloop.base import errors
from glassloop.base.errors import SettingsError, counted, listed
from glassloop.base.files import absolute_name, locked, replacing, replacing_dir, reserved, share_files, user_path, write_text
from glassloop.base.output import stage, timed
from glassloop.base.records import differences, versions
from glassloop.data.batches import Batch, Batches, is_standard, seed_all
from glassloop.data.interfaces import Model, Rows
from glassloop.data.rows import Repeats, collator_repeats, content_of, lengths_of, random_states_kept, repeats_of
from glassloop.models.families import FAMILIES
from glassloop.models.interface import config_of, label_names
from glassloop.runs import record as records
from glassloop.runs.history import Entry, write_history
from glassloop.scores.metrics import Measures
from glassloop.settings.file import GivenSettings
from glassloop.settings.training import TrainingArguments, data_settings, training_arguments
from glassloop.training import callbacks as events
from glassloop.training import checkpoints
from glassloop.training.interfaces import (
    Backend,
    LossSum,
    LRScheduler,
    Optimizer,
    ProcessGroup,
    Say,
    StepFunction,
    Tensors,
    TrainingUse,
)
from glassloop.training.loop import TrainingBatch, fit, train_step
from glassloop.training.losses import OTHER_LOSS_REMEDY, check_loss, other_loss
from glassloop.training.optimizer import make_optimizers, unwrap_optimizer
from glassloop.training.progress import progress_for

STATE_NAME = "trainer_state.json"
FIRST_STEP, CHECKPOINTS = "first step", "saving checkpoints"
Optimizers = tuple[Optimizer | None, LRScheduler | None]


@dataclass(frozen=True)
class ScriptParts:
    """The parts of a training that a script for transformers may replace."""

    callbacks: Sequence[events.Callback]
    optimizers: Optimizers  # of the user
    write_model: Callable[..., None]  # writes the model to a folder, with other `weights` if given
    quiet: bool = False  # no progress bar
    # Replaces the forward pass and the loss of a batch; `batch_step` its backward pass, too.
    batch_loss: Callable[[torch.nn.Module, TrainingBatch], torch.Tensor] | None = None
    batch_step: Callable[[torch.nn.Module, TrainingBatch, int], torch.Tensor] | None = None
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
    difference: records.Difference | None  # of a fast backend from the plain one
    use: TrainingUse
    plan: records.Plan
    state: events.State
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
        measures = self.measures()
        return measures.title(key) if measures else key

    def timed(self, title: str, *, between: bool = False) -> AbstractContextManager[None]:
        """Count the time of a block as `base.output.timed` does, if this is the training of a run, whose record has it."""
        return timed(title, between=between) if self.in_run else nullcontext()


@contextmanager
def trained(
    parts: TrainingParts,
    resume: bool | str | Path | None = None,
    *,
    restart: bool = False,
    callbacks: Sequence[events.Callback] = (),
) -> Iterator[dict[str, float]]:
    """Train to the end, save the final model of a run, and yield the metrics. Arguments are those of `Trainer.train`.

    A signal saves a checkpoint, or the final model, and ends the process with the signal's exit status. A signal that
    arrives while the block runs is only noted in the state: see `stop_if_asked`.
    """
    began = time.perf_counter()
    backend, is_main = parts.backend, parts.backend.processes.is_main
    resume = False if restart or not resume else resume
    with ExitStack() as held:
        with backend.training_context(), parts.timed("preparing the training", between=True):
            try:
                session = Session(parts, callbacks)
                if is_main and not parts.in_run:
                    held.enter_context(locked(parts.folder, parts.say))
                held.enter_context(events.listening(parts.state))
                held.enter_context(session.disk_space())
                if not resume:
                    session.leave_earlier_training(move_aside=restart or parts.args.overwrite_output_dir)
                skipped: list[str] = []  # why something newer than all checkpoints cannot be used
                saved = session.restore_final_model(skipped) if resume is True else None
                metrics = session.run(resume, skipped, began) if saved is None else saved
            finally:
                backend.end_training()
        if parts.in_run and saved is None:
            with stage("saving the model"):
                session.save_final_model(metrics)
        if is_main:
            with resume_named(parts.folder) if parts.in_run else nullcontext():
                write_history(parts.folder, parts.state.history)  # lines may be missing if the disk was full
        if parts.in_run:
            stop_if_asked(parts.state, backend.processes, parts.say)
        yield metrics


@contextmanager
def resume_named(
    folder: Path, name: str = records.RUN_NAME, what: str = "the results; the trained model is saved"
) -> Iterator[None]:
    """Raise the error of a full disk while `what` is written, with the command that finishes the run."""
    try:
        yield
    except OSError as error:
        raise checkpoints.full_disk(error, folder / name, what) or error from error


def stop_if_asked(state: events.State, processes: ProcessGroup, say: Say) -> None:
    """End the process after the last step of a run if a signal has asked for it; the trained model is saved."""
    if number := processes.agree(state.asked_to_stop):
        name = signal.Signals(number).name
        say(f"stopped by {name} after the last step; the model is saved; use --resume to finish the run")
        processes.wait()
        events.leave(number)


class Best(events.Callback):
    """Keeps a copy of the weights of the best evaluation in main memory, or asks for a checkpoint of it, or both."""

    def __init__(self, model: torch.nn.Module, *, keep_weights: bool, save: bool) -> None:
        self.model, self.keep_weights, self.save = model, keep_weights, save
        self.weights: Tensors = {}

    def on_evaluate(self, state: events.State, metrics: dict[str, float]) -> None:
        if state.best_step == state.step:
            self.weights = copied(self.model) if self.keep_weights else {}
            state.asked |= {"save"} if self.save else set()


class Session:
    """The parts of a training with everything that is made from them once, before the first step."""

    def __init__(self, parts: TrainingParts, callbacks: Sequence[events.Callback] = ()) -> None:
        args, backend, script = parts.args, parts.backend, parts.script
        self.parts, self.more_callbacks = parts, callbacks
        # The loss of a known family is Glassloop's, and that of a pooled head, too: nobody has changed a model of the command.
        known = parts.in_run and config_of(parts.model).model_type in FAMILIES
        if parts.custom_loss is None and script.batch_loss is None and not script.loss_compared and not known:
            first = next(parts.batches.epoch())
            if problem := other_loss(parts.model, first, parts.task, backend, parts.say_once):
                raise SettingsError(problem, OTHER_LOSS_REMEDY)  # the model's own loss would not be used
        self.fixed: checkpoints.Identity = json.loads(json.dumps(identity_of(parts)))
        self.report_random_rows()
        if args.gradient_checkpointing:
            try:
                parts.model.gradient_checkpointing_enable({"use_reentrant": False})
            except (AttributeError, ValueError) as error:
                problem = f"{type(parts.model).__name__} does not support gradient_checkpointing"
                raise SettingsError(problem, "omit it, and lower per_device_train_batch_size instead") from error
        make_optimizer = backend.start_training(parts.model, parts.use)
        self.batches = backend.adapt_batches(parts.batches, parts.train_rows)
        if parts.custom_loss is not None and script.batch_loss is None:
            check_loss(parts.loss_sum, parts.model, next(self.batches.epoch()), backend)
        optimizer, scheduler = make_optimizers(args, parts.model, parts.plan, script.optimizers, make_optimizer)
        self.model, self.optimizer, self.scheduler = backend.prepare(parts.model, optimizer, scheduler)
        self.bare = backend.unwrap(self.model)  # the user's model
        self.best = Best(self.bare, keep_weights=args.load_best_model_at_end, save=args.save_strategy == "best")
        limit = args.save_total_limit
        self.checkpoint_folder = checkpoints.CheckpointFolder(parts.folder, parts.say, script.write_model, limit)
        self.num_bytes = sum(weight.nbytes for weight in self.bare.parameters())
        self.model_bytes = self.num_bytes + self.num_bytes // 20 + (1 << 16)  # on disk, with config and tokenizer

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
            if (repeats := collator_repeats(batches.collate, rows)) is not Repeats.SAME:
                say(f"the collator returns different batches each time: {repeats.value}")
            elif batches.repeats is Repeats.SAME:
                self.fixed["collator"] = checkpoints.digest(content_of(batches.collate(deepcopy(rows))))
        has_number = hasattr(parts.eval_rows, "__len__")  # a stream is read by a DataLoader
        if parts.eval_rows is not None and has_number and repeats_of(parts.eval_rows) is not Repeats.SAME:
            say("the evaluation rows differ between reads, and so do their scores")
            if "validation" in self.fixed:
                self.fixed["validation"] = checkpoints.rows_fingerprint(np.zeros(len(parts.eval_rows), dtype=np.int64))
        if batches.repeats is Repeats.OWN and parts.args.group_by_length:
            if parts.backend.processes.num_processes > 1:
                problem = "group_by_length orders rows by lengths that differ in each process"
                raise SettingsError(problem, "set group_by_length to false, or draw from the global generators")
            say("group_by_length: the order of these rows may also change when the run is resumed")

    @contextmanager
    def disk_space(self) -> Iterator[None]:
        """Remove incomplete files, check the disk, and reserve space for the final model of a run while the block runs."""
        parts, processes, wanted = self.parts, self.parts.backend.processes, {}
        with ExitStack() as held:
            if processes.is_main:
                if names := records.remove_leftovers(parts.folder):
                    parts.say(f"removed incomplete files of an earlier crash: {listed(names)}")
                if parts.args.save_strategy != "no":
                    wanted["two checkpoints"] = 2 * (4 if parts.args.load_best_model_at_end else 3) * self.num_bytes
                if parts.in_run:
                    wanted["the final model"] = self.model_bytes
                needed, free = sum(wanted.values()), shutil.disk_usage(parts.folder).free
                if free < needed:
                    less = "; save_strategy no needs less" if "two checkpoints" in wanted else ""
                    problem = f"{parts.folder}: {needed:,} bytes are needed for {' and '.join(wanted)}, {free:,} are free"
                    raise errors.ResourceError(problem, f"free disk space or choose another output_dir{less}")
                if parts.in_run:
                    held.enter_context(reserved(parts.folder / records.RESERVE_NAME, self.model_bytes))
            processes.wait()
            yield

    def leave_earlier_training(self, *, move_aside: bool) -> None:
        """Raise `SettingsError` if a new training would overwrite an earlier one, unless that is to be moved aside."""
        folder, earlier = self.parts.folder, records.checkpoints_in(self.parts.folder)
        if records.is_run(folder) and not self.parts.in_run:  # whose record and model a Trainer does not replace
            raise SettingsError(f"output_dir {folder} contains a run of glassloop train", "choose another output_dir")
        if earlier and not move_aside:
            raise SettingsError(
                f"output_dir {folder} contains the checkpoints of an earlier training (the newest is {earlier[0].name})",
                "resume it with train(resume_from_checkpoint=True), choose another output_dir, or set "
                "overwrite_output_dir=True, which moves the earlier training aside",
            )
        if move_aside:
            if self.parts.backend.processes.is_main:
                of_final_model = (records.TRAINED_NAME, records.TRAINED_WEIGHTS_NAME, records.MODEL_NAME)
                for name in of_final_model if (folder / records.TRAINED_NAME).exists() else ():
                    if (folder / name).exists():
                        self.checkpoint_folder.set_aside(folder / name)
                self.checkpoint_folder.restart()
            self.parts.backend.processes.wait()

    def run(self, resume: bool | str | Path, skipped: list[str], began: float) -> dict[str, float]:
        parts, script, args, backend = self.parts, self.parts.script, self.parts.args, self.parts.backend
        plan, state = parts.plan, parts.state
        if resume is not True:
            checkpoint = self.checkpoint_folder.open(user_path(resume)) if resume else None
        elif (checkpoint := self.checkpoint_folder.newest(skipped)) is None:
            parts.say(f"{parts.folder}: no checkpoint to resume from, so training starts at step 0")
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)  # gradients of the user's own backward pass
        seed_all(args.seed + backend.processes.rank)
        if checkpoint is not None:
            self.restore(checkpoint)
        first = state.step
        step = partial(
            train_step,
            self.model,
            loss_sum=parts.loss_sum,
            optimizer=self.optimizer,
            backend=backend,
            max_norm=args.max_grad_norm,
            on_gradients=parts.on_gradients,
            batch_loss=script.batch_loss,
            batch_step=script.batch_step,
            before_update=script.before_update,
            after_update=script.after_update,
        )
        if script.started is not None:
            script.started(self.optimizer, self.scheduler)
        asked = replace(plan, log_every=0, eval_every=0, save_every=0, log_first=False) if script.asked_only else plan
        try:
            with parts.timed(FIRST_STEP):
                wrapped = backend.wrap_step(step, self.optimizer, self.scheduler, parts.say)
            with parts.timed("other steps", between=True):
                fit(
                    first_in(parts.timed(FIRST_STEP), wrapped),
                    self.batches,
                    asked,
                    state,
                    callbacks=self.callbacks(),
                    evaluate=self.evaluate if parts.eval_rows is not None else None,
                    save=self.save,
                    gather=backend.processes.gather_figures,
                    agree=backend.processes.agree,
                )
            backend.sync_to_model()
            refuse_not_finite_weights(self.bare.state_dict(), state.step)
            if not (state.signal or parts.in_run):  # a run saves its model first
                state.signal = backend.processes.agree(state.asked_to_stop)
                if state.signal:
                    self.save()
        except events.NotFiniteError as error:
            raise self.diverged(*error.args) from error
        except (RuntimeError, MemoryError) as error:
            raise self.out_of_memory(error) if errors.no_memory(error) else error from None
        finally:
            with parts.timed(CHECKPOINTS):
                self.checkpoint_folder.wait()
        if state.signal:
            stopped = f"stopped by {signal.Signals(state.signal).name} after step {state.step:,}; resume with --resume"
            parts.say(f"paused after step {state.step:,}" if state.signal == events.PAUSE else stopped)
            backend.processes.wait()
            events.leave(state.signal)
        if args.load_best_model_at_end and self.best.weights:
            self.bare.load_state_dict(self.best.weights)
            backend.sync_from_model()
        seconds = time.perf_counter() - began
        return {
            "train_loss": state.mean_loss,
            "train_runtime": seconds,
            "train_steps_per_second": (state.step - first) / seconds,
            "train_samples_per_second": (state.step - first) * plan.accumulate * self.batches.batch_size / seconds,
            "epoch": state.epoch_by(plan),
        }

    def callbacks(self) -> list[events.Callback]:
        parts, args, plan, is_main = self.parts, self.parts.args, self.parts.plan, self.parts.backend.processes.is_main

        def next_rate() -> float:
            return float(unwrap_optimizer(self.scheduler.optimizer).param_groups[0]["lr"])

        callbacks: list[events.Callback] = [events.History(parts.folder if is_main else None, next_rate, plan), self.best]
        if is_main and args.trackers:
            folder = parts.folder if args.logging_dir is None else user_path(args.logging_dir)
            callbacks.append(events.Trackers(args.trackers, folder, args.run_name or parts.folder.name, args.to_dict()))
        if is_main and not parts.script.quiet:
            callbacks.append(progress_for(plan, args.disable_tqdm, parts.metric_title))
        return [*callbacks, *self.more_callbacks, *parts.script.callbacks]

    def evaluate(self) -> dict[str, float] | None:
        """Return the metrics between two steps; None if a signal interrupts the evaluation."""
        self.parts.backend.sync_to_model()
        with (
            self.parts.timed("evaluating during training"),
            random_states_kept(),
        ):  # evaluation rows may draw random numbers as well
            return self.parts.evaluate()  # with the bare model: a wrapped one waits for processes with no batch left

    # --- errors

    def diverged(self, problem: str, step: int) -> errors.DivergedError:
        plan, state = self.parts.plan, self.parts.state
        epoch, place = divmod(step - 1 + state.steps_left_out, plan.steps_per_epoch)
        group = self.batches.order(epoch)[place * plan.accumulate : (place + 1) * plan.accumulate]
        rows = listed(np.concatenate(group).tolist(), 8)
        last = "none" if state.last_loss is None else f"{state.last_loss:.4g}"
        rate = unwrap_optimizer(self.optimizer).param_groups[0].get("initial_lr", self.parts.args.learning_rate)
        problem += f" (last finite loss {last}, learning rate {rate:g}, rows {rows} of the training data)"
        return errors.DivergedError(problem, f"{advice(trained=state.last_loss is not None)}, or look at these rows")

    def out_of_memory(self, error: BaseException) -> errors.TooLargeError:
        parts, evaluating = self.parts, self.parts.state.evaluation_due
        rows = parts.eval_rows if evaluating and parts.eval_rows is not None else parts.train_rows
        name = f"per_device_{'eval' if evaluating else 'train'}_batch_size"
        try:
            longest = f" of up to {max(lengths_of(rows)):,} tokens"
        except (TypeError, KeyError, IndexError, ValueError):  # rows without tokens to count
            longest = ""
        more = "" if evaluating else " and raise gradient_accumulation_steps by the same factor"
        problem = f"not enough memory for a batch of {getattr(parts.args, name)} rows{longest} ({error})"
        return errors.TooLargeError(problem, f"lower {name}{more}, or lower max_length")

    # --- checkpoints

    def identity(self) -> checkpoints.Identity:
        """Return what must be the same for the numbers to be the same, as it was before the first step."""
        if "validation" in self.fixed and self.fixed["validation"] is None:  # only now: a training may never need it
            with random_states_kept():
                self.fixed["validation"] = checkpoints.rows_fingerprint(self.parts.eval_batches().row_hashes())
        return self.fixed

    def whole_identity(self) -> checkpoints.Identity:
        """Return what must be the same for another process to finish the run, with the training rows."""
        return self.identity() | {"training rows": checkpoints.rows_fingerprint(self.row_hashes.numpy())}

    @cached_property
    def row_hashes(self) -> torch.Tensor:
        """Eight bytes for each training row as the model gets it."""
        return torch.from_numpy(self.batches.row_hashes())

    def save(self) -> bool:
        """Copy the training between two steps and write the copy; return False if that was left out.

        All processes take part; the main process writes.
        """
        in_background = self.parts.script.saves_in_background
        if self.leaves_out_checkpoint():
            return False
        with self.parts.timed(CHECKPOINTS):
            snapshot = self.snapshot()  # a thread writes it while the training continues, unless code of the user takes part
            with nullcontext() if in_background else random_states_kept():  # code of the user may draw random numbers
                if snapshot is not None:
                    self.checkpoint_folder.save(snapshot, in_background=in_background)
            if not in_background:
                self.parts.backend.processes.wait()
        return True

    def leaves_out_checkpoint(self) -> bool:
        """Return whether the checkpoint of an epoch is left out because the one before is still being written."""
        # A short epoch takes less time than a checkpoint, so a run would mostly wait for the disk, to lose less than that wait
        # if it is killed. Scripts may look for the checkpoint of each epoch, so a Trainer writes them all.
        parts, state = self.parts, self.parts.state
        planned = parts.in_run and parts.args.save_strategy == "epoch" and not state.signal and "save" not in state.asked
        return planned and parts.backend.processes.gather_objects([self.checkpoint_folder.is_writing])[0]

    def snapshot(self) -> checkpoints.Snapshot | None:
        """Return a copy of the training in the main process, and None in the others. All processes take part."""
        parts, backend = self.parts, self.parts.backend
        # In the order of the processes.
        randoms = backend.processes.gather_objects([checkpoints.random_tensors(backend.device)])
        backend.sync_to_model()
        gathered = backend.gather_optimizer_state(self.optimizer)
        if not backend.processes.is_main:
            return None
        weights = copied(self.bare)
        refuse_not_finite_weights(weights, parts.state.step)
        optimizer, optimizer_settings = checkpoints.optimizer_tensors(self.bare, self.optimizer, gathered)
        # Rows that are slow to read and were not read yet have the hash zero.
        all_read = "row_hashes" in vars(self) or not isinstance(parts.batches, Batches)
        known = None if all_read else parts.batches.known_row_hashes()
        return checkpoints.Snapshot(
            weights,
            optimizer,
            best=self.best.weights,
            randoms=[tensors for tensors, _ in randoms],
            rows=self.row_hashes if known is None else torch.from_numpy(known),
            plain={
                "state": parts.state.to_dict(),
                "optimizer": optimizer_settings,
                "scheduler": {name: value for name, value in self.scheduler.state_dict().items() if name != "lr_lambdas"},
                "scaler": backend.scaler.state_dict(),
                "random": [values for _, values in randoms],
                "processes": backend.processes.num_processes,
                "versions": versions(),
            },
            identity=self.identity(),
            texts={STATE_NAME: trainer_state(parts)},
        )

    def restore(self, checkpoint: checkpoints.Checkpoint) -> None:
        """Restore everything as it was after the checkpoint's step. Raises `ModelError` if settings or data changed."""
        parts, backend, scheduler, plain = self.parts, self.parts.backend, self.scheduler, checkpoint.plain
        stored_rows = checkpoint.tensors("rows").get("rows", torch.zeros(0, dtype=torch.int64))
        checkpoints.refuse_other_identity(checkpoint.manifest["identity"], self.identity(), stored_rows, self.row_hashes)
        self.load(checkpoint.weights(), checkpoint.path.name, plain["state"])
        checkpoints.restore_optimizer(self.bare, self.optimizer, checkpoint.tensors("optimizer"), plain["optimizer"])
        backend.sync_from_model()
        scheduler.load_state_dict(plain["scheduler"] | {"lr_lambdas": scheduler.state_dict().get("lr_lambdas")})
        if plain["scaler"]:
            backend.scaler.load_state_dict(plain["scaler"])
        self.best.weights = checkpoint.tensors("best")
        rank, then, now = backend.processes.rank, plain["processes"], backend.processes.num_processes
        if rank < len(plain["random"]) and then == now:
            checkpoints.restore_random(checkpoint.tensors(f"random-{rank}"), plain["random"][rank], backend.device)
        else:
            seed_all(parts.args.seed + rank + 1000 * parts.state.step)
            parts.say(f"{now} processes instead of {then}: every step has the same rows, but different dropout masks")
        parts.say(f"resuming after step {parts.state.step:,} ({checkpoint.path})")

    def load(self, weights: Tensors, place: str, state: Mapping[str, object]) -> None:
        checkpoints.refuse_other_tensors(checkpoints.shapes_of(self.bare.state_dict()), weights, place)
        self.bare.load_state_dict(weights)
        for name, value in state.items():
            setattr(self.parts.state, name, value)

    # --- the final model of a run

    def save_final_model(self, metrics: dict[str, float]) -> None:
        """Write the trained model, and everything needed to resume the run after its last step."""
        parts, folder, model_folder = self.parts, self.parts.folder, self.parts.folder / records.MODEL_NAME
        if parts.backend.processes.is_main:
            (folder / records.RESERVE_NAME).unlink(missing_ok=True)
            try:
                with replacing_dir(model_folder, replace=True) as writing:
                    parts.script.write_model(writing)
                files = checkpoints.sums_of(folder, below=records.MODEL_NAME)
                if checkpoints.names_in(model_folder / checkpoints.WEIGHTS_NAME) != {*self.bare.state_dict()}:
                    # Weights with several names are saved once, and could not be loaded under all of them.
                    with replacing(folder / records.TRAINED_WEIGHTS_NAME) as writing:
                        save_file(copied(self.bare), writing)
                    share_files(folder, records.TRAINED_WEIGHTS_NAME)
                    files |= checkpoints.sums_of(folder, below=records.TRAINED_WEIGHTS_NAME)
                state, identity = parts.state.to_dict(), self.whole_identity()
                manifest = checkpoints.manifest_of(parts.state.step, identity, files, state=state, metrics=metrics)
                write_text(folder / records.TRAINED_NAME, json.dumps(manifest, indent=1, allow_nan=False) + "\n")
            except Exception as error:
                full = checkpoints.full_disk(error, model_folder, "the trained model", self.model_bytes)
                if full is None:
                    raise
                saved = [path.name for path in records.checkpoints_in(folder)[:1]]
                repeats = f"resumes from {saved[0]}" if saved else "trains again from the first step: there is no checkpoint"
                raise errors.ResourceError(full.problem, f"{full.remedy} (it {repeats})") from error
        parts.backend.processes.wait()

    def restore_final_model(self, skipped: list[str]) -> dict[str, float] | None:
        """Restore a training after its last step, and return its metrics; None, with a reason in `skipped`, if that fails."""
        parts, folder, model_folder = self.parts, self.parts.folder, self.parts.folder / records.MODEL_NAME
        if not (folder / records.TRAINED_NAME).exists():
            return None
        try:
            manifest = checkpoints.open_checkpoint(folder, records.TRAINED_NAME).manifest
        except errors.ModelError as error:
            skipped.append(error.problem)
            return None
        checkpoints.refuse_other_identity(manifest["identity"], self.whole_identity(), self.row_hashes, self.row_hashes)
        saved_apart = records.TRAINED_WEIGHTS_NAME in manifest["files"]
        place = folder / records.TRAINED_WEIGHTS_NAME if saved_apart else model_folder / checkpoints.WEIGHTS_NAME
        self.load(load_file(place), str(model_folder), manifest["state"])
        parts.backend.sync_from_model()
        parts.say(f"resuming after the last step, {parts.state.step:,} ({model_folder})")
        return manifest["metrics"]


def first_in(context: AbstractContextManager[None], step: StepFunction) -> StepFunction:
    """Return the step, whose first call runs in a context: it also allocates memory and compiles what is not compiled yet."""
    contexts: Iterator[AbstractContextManager[None]] = chain([context], repeat(nullcontext()))

    def run(group: list[Batch]) -> torch.Tensor:
        with next(contexts):
            return step(group)

    return run


def copied(model: torch.nn.Module) -> Tensors:
    return {name: value.detach().to("cpu", copy=True) for name, value in model.state_dict().items()}


def refuse_not_finite_weights(weights: Tensors, step: int) -> None:
    for name, value in weights.items():
        if value.numel() and not torch.isfinite(torch.stack(torch.aminmax(value))).all():  # no copy as large as the value
            raise events.NotFiniteError(f"step {step:,}: the weight {name} is not finite", step)


def advice(*, trained: bool) -> str:
    """Return what to do about a figure that is not finite. Before the first update, the learning rate is not its cause."""
    if trained:
        return "lower learning_rate, add warmup_steps, use precision fp32"
    return "no weight was updated yet: use another model, use precision fp32"


def log_history(history: Sequence[Entry]) -> list[dict[str, object]]:
    """Return the entries of a history as transformers' `state.log_history` has them: the step comes last."""
    return [{**{name: value for name, value in entry.items() if name != "step"}, "step": entry["step"]} for entry in history]


def trainer_state(parts: TrainingParts) -> str:
    """Return trainer_state.json of a checkpoint, as transformers reads it."""
    state, plan = parts.state, parts.plan
    best = None if state.best_step is None else parts.folder / records.checkpoint_name(state.best_step)
    exists = best is not None and (state.best_step == state.step or best.is_dir())  # it may be this checkpoint itself
    values = {
        "max_steps": plan.max_steps,
        "num_train_epochs": -(-plan.max_steps // plan.steps_per_epoch),
        "logging_steps": plan.log_every,
        "eval_steps": plan.eval_every,
        "save_steps": plan.save_every,
        "train_batch_size": parts.args.per_device_train_batch_size,
        "epoch": state.epoch + state.batch / plan.batches_per_epoch,
        "global_step": state.step,
        "best_metric": state.best_score,
        "best_global_step": state.best_step,
        "best_model_checkpoint": str(best) if exists else None,
        "is_local_process_zero": True,
        "is_world_process_zero": True,
        "log_history": log_history(state.history),
    }
    return json.dumps(values, indent=2, sort_keys=True) + "\n"


def started_record(parts: TrainingParts, data: records.DataRecord, model: records.ModelRecord) -> records.RunRecord:
    """Return the record of a training that starts, of the command or of a Trainer, without what must be read from the rows."""
    backend, measures = parts.backend, parts.measures()
    # Glassloop's own settings, without those that only transformers has.
    settings = {entry.name: getattr(parts.args, entry.name) for entry in fields(TrainingArguments)}
    return records.RunRecord(
        status=records.RUNNING,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        data=data,
        model=model,
        settings=TrainingArguments(**settings | {"device": vars(parts.args)["device"]}),
        max_length=0,
        plan=parts.plan,
        device=str(backend.device),
        machine=machine_name(str(backend.device)),
        precision=backend.precision,
        backend=backend.name,
        savings=tuple(backend.describe_savings(parts.model, parts.use)),
        difference=parts.difference,
        processes=backend.processes.num_processes,
        versions=versions(),
        metrics=measures.keys if measures else (),
        positive_label=measures.positive if measures else None,
    )


def machine_name(device: str) -> str:
    if device.startswith("cuda") and torch.cuda.is_available():
        return torch.cuda.get_device_name(torch.device(device))
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{named or platform.processor() or platform.machine()}, {counted(os.cpu_count() or 1, 'core', 'cores')}"


# --- what a resumed run must share with the first one ------------------------------------------------------------------
# Settings that do not change any weight: a run may be resumed with other values.
FREE = ("output_dir", "overwrite_output_dir", "per_device_train_batch_size", "per_device_eval_batch_size",
        "eval_strategy", "eval_steps", "eval_delay", "eval_on_start", "logging_strategy", "logging_steps", "logging_first_step",
        "logging_dir", "save_strategy", "save_steps", "save_total_limit",
        "report_to", "run_name", "disable_tqdm", "backend", "device", "precision", "positive_label", "baselines")  # fmt: skip
# Settings that do not change anything in the folder of a finished run.
NOT_STORED = ("output_dir", "overwrite_output_dir", "disable_tqdm")
# Entries of a config that describe where a model comes from, not what it computes. Labels are compared by name.
ORIGIN = ("_name_or_path", "_commit_hash", "architectures", "dtype", "torch_dtype", "transformers_version", "id2label",
          "label2id")  # fmt: skip


def identity_of(parts: TrainingParts) -> checkpoints.Identity:
    """Return everything but the training rows that must be the same for the weights to be the same."""
    # The weights to start from are not part of it: a checkpoint replaces them all.
    args, backend, model = parts.args, parts.backend, parts.model
    config = config_of(model)
    stored = json.loads(config.to_json_string(use_diff=False)) if hasattr(config, "to_json_string") else {}
    # Modules without weights, which a checkpoint does not restore.
    leaves = {name: part for name, part in model.named_modules() if not ([*part.children()] or part.state_dict())}
    described = " ".join(f"{name} {part!r}" for name, part in leaves.items())
    rates = sorted({part.p for part in leaves.values() if isinstance(part, torch.nn.Dropout)})
    loss = parts.task if parts.custom_loss is None else checkpoints.identified(parts.custom_loss)
    optimizer, schedule = parts.script.optimizers
    identity: checkpoints.Identity = {
        **{name: value for name, value in args.to_dict().items() if name not in FREE},
        "batch_size": args.per_device_train_batch_size * backend.processes.num_processes,
        "max_steps": parts.plan.max_steps,
        "device": backend.device.type,
        "precision": backend.precision,
        "model": f"{type(model).__name__}, {sum(weight.numel() for weight in model.parameters()):,} parameters",
        "labels": [*label_names(config)],
        "config": {name: value for name, value in sorted(stored.items()) if name not in ORIGIN},
        "parts without weights": f"dropout {listed(rates) or 'none'} ({checkpoints.digest(described)})",
        "frozen": sorted(name for name, parameter in model.named_parameters() if not parameter.requires_grad),
        "on_gradients": None if parts.on_gradients is None else checkpoints.identified(parts.on_gradients),
        "loss": parts.script.loss_name or loss,
        "optimizer": None if optimizer is None else checkpoints.optimizer_values(model, optimizer),
        "schedule": None if schedule is None else checkpoints.schedule_values(schedule),
    }
    if isinstance(parts.batches, Batches) and parts.batches.seed is None:
        identity["order"] = "sequential"  # only of rows that are not shuffled: earlier checkpoints have no such entry
    if args.load_best_model_at_end or args.early_stopping_patience:  # evaluations decide which weights a training ends with
        measures = parts.measures()
        metrics = ", ".join(map(measures.title, measures.keys)) if measures else checkpoints.identified(parts.compute_metrics)
        identity |= {"eval_strategy": args.eval_strategy, "eval_every": parts.plan.eval_every, "metrics": metrics}
        identity["validation"] = None  # the rows are hashed only if they are needed
    return identity


def refuse_other_request(folder: Path, stored: records.RunRecord, given: GivenSettings) -> None:
    """Raise `SettingsError` if a finished run was trained with other settings than those given."""
    training = training_arguments({**stored.settings.to_dict(), **given.training}).to_dict()
    data = asdict(data_settings({**stored.data.given(), **given.data}).with_absolute_paths())
    then = {**asdict(stored.data.settings), **stored.settings.to_dict()}
    then |= {"data": stored.data.source, "model": stored.model.name, "new_head": stored.model.new_head}
    now = {**data, **training, "new_head": given.new_head or stored.model.new_head}
    now |= {"data": absolute_name(given.source or stored.data.source), "model": absolute_name(given.model or stored.model.name)}
    wanted = {name: value for name, value in then.items() if name not in NOT_STORED}
    if changed := differences(wanted, {name: now[name] for name in wanted}):
        problem = f"{folder} is finished and was trained with different settings: {'; '.join(changed)}"
        remedy = f"omit these settings, or train a new run; --model {folder} starts from the model of this one"
        raise SettingsError(problem, remedy)


def refuse_other_run(stored: records.RunRecord, now: records.RunRecord, *, from_start: bool) -> None:
    """Raise `ResumeError` with old and new values if a run would be resumed with other settings or data."""
    # From the start, no checkpoint is used, which would compare settings, model and each training row by itself.
    changed = records.split_changes(stored.data.splits, now.data.splits, stored.data.splits)
    if not from_start and records.split_changes(stored.data.splits, now.data.splits, ["train"]):
        return  # the checkpoint names the rows that have changed, if the model gets other rows
    if from_start and stored.identity:
        changed = differences(stored.identity, json.loads(json.dumps(now.identity))) + changed
    if changed:
        problem = f"the run was started with different settings or data: {'; '.join(changed)}"
        raise errors.ResumeError(problem, "use the settings and the data it was started with")


def refuse_other_model(given: str | None, stored: str) -> None:
    if given and absolute_name(given) != stored:
        problem = f"the run was started with different settings: model: {stored} then, {given} now"
        raise errors.ResumeError(problem, "omit --model")
