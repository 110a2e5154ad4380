"""One training from its first or next step to its end: the loop with its lock, signals, checkpoints and resume."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from glassloop.engine.history import History
from glassloop.engine.interfaces import ProcessGroup, Say
from glassloop.engine.loop import fit, train_step
from glassloop.engine.optimizer import unwrap_optimizer
from glassloop.engine.saver import full_disk
from glassloop.engine.signals import PAUSE, leave, listening
from glassloop.engine.state import NotFiniteError, State
from glassloop.errors import SettingsError, no_memory
from glassloop.lock import locked
from glassloop.run_folder.history import write_history
from glassloop.run_folder.layout import MODEL_NAME, RUN_NAME, TRAINED_NAME, TRAINED_WEIGHTS_NAME, checkpoints_in, is_run
from glassloop.seeding import seed_all
from glassloop.stages import stage
from glassloop.training.checkpoints import find_checkpoint, restore, save_checkpoint
from glassloop.training.failures import diverged, out_of_memory, refuse_not_finite_weights
from glassloop.training.final_model import disk_space_reserved, restore_final_model, save_final_model
from glassloop.training.parts import TrainingParts
from glassloop.training.started import StartedTraining


@contextmanager
def trained(parts: TrainingParts, resume: bool | str | Path | None, *, restart: bool) -> Iterator[dict[str, float]]:
    """Train to the end, save the final model of a run, and yield the metrics.

    A signal saves a checkpoint, or the final model, and ends the process with the signal's exit status. A signal that
    arrives while the block runs is only noted in the state: see `stop_if_asked`.

    Args:
        parts: What to train.
        resume: True for the newest intact checkpoint of the folder, a path for that one, None to start a new training.
        restart: Start again from step 0, and move existing checkpoints aside.
    """
    began = time.perf_counter()
    backend = parts.backend
    with ExitStack() as held:
        with backend.training_context():
            try:
                training = StartedTraining(parts)
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
    history = History(parts.folder if backend.processes.is_main else None, partial(next_rate, training), plan.batches_per_epoch)
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
        batch_loss=parts.batch_loss,
        batch_step=parts.batch_step,
        before_update=parts.before_update,
        after_update=parts.after_update,
    )
    parts.started(training.optimizer, training.scheduler)
    asked = replace(plan, log_every=0, eval_every=0, save_every=0, log_first=False) if parts.asked_only else plan
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
        "epoch": history.epoch(state),
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
