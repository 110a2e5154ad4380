"""One training from its first or next step to its end: the loop with its lock, signals, checkpoints and resume."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassloop.engine.checkpoint import optimizer_of
from glassloop.engine.history import History
from glassloop.engine.loop import fit, train_step
from glassloop.engine.saver import full_disk
from glassloop.engine.signals import leave, listening
from glassloop.engine.state import NotFiniteError, State
from glassloop.errors import SettingsError, no_memory
from glassloop.lock import locked
from glassloop.run_folder.history import write_history
from glassloop.run_folder.layout import RUN_NAME, TRAINED_NAME, checkpoints_in, is_run
from glassloop.seeding import seed_all
from glassloop.training.final_model import restore_final_model, room_for_model, save_final_model
from glassloop.training.parts import Training

if TYPE_CHECKING:
    from glassloop.trainer import Trainer


@contextmanager
def trained(trainer: Trainer, resume: bool | str | Path | None = None, *, restart: bool = False) -> Iterator[dict[str, float]]:
    """Train to the end, in a run save the model, and yield the metrics.

    A signal saves a checkpoint, or the trained model, and ends the process as it asks. One that comes while the block
    runs is only noted in the state: see `stop_if_asked`.
    """
    began = time.perf_counter()
    state = trainer.state = State()
    backend = trainer.backend
    with ExitStack() as held:
        with backend.stage():
            try:
                training = Training(trainer)
                alone = backend.is_main and not trainer.in_run
                held.enter_context(locked(training.folder, trainer.say) if alone else nullcontext())
                held.enter_context(listening(state))
                held.enter_context(room_for_model(training))
                skipped: list[str] = []
                if restart or (trainer.args.overwrite_output_dir and not resume):
                    start_again(training)
                elif not resume:
                    refuse_earlier(training)
                saved = restore_final_model(training, skipped) if resume is True and not restart else None
                metrics = run(training, resume, skipped, began) if saved is None else saved
            finally:
                backend.close()
        if trainer.in_run and saved is None:
            save_final_model(training, metrics)
        if backend.is_main:
            with retry_named(training.folder) if trainer.in_run else nullcontext():
                write_history(training.folder, state.history)  # lines may be missing where the disk was full
        if trainer.in_run:
            stop_if_asked(trainer)
        yield metrics


@contextmanager
def retry_named(folder: Path) -> Iterator[None]:
    """Say how to finish a run whose results cannot be written: its model is saved."""
    try:
        yield
    except OSError as error:
        raise full_disk(error, folder / RUN_NAME, "the results; the trained model is saved") or error from error


def stop_if_asked(trainer: Trainer) -> None:
    """After the last step of a run, end as a signal asks: the trained model is saved."""
    if number := trainer.backend.agree(trainer.state.asked_to_stop):
        name = signal.Signals(number).name
        trainer.say(f"stopped by {name} after the last step; the model is saved, finish the run with --resume")
        trainer.backend.wait()
        leave(number)


def run(training: Training, resume: bool | str | Path | None, skipped: list[str], began: float) -> dict[str, float]:
    """Restore what a checkpoint holds, run the loop, and return how it went."""
    trainer, args, backend, plan = training.trainer, training.args, training.backend, training.plan
    state = training.state
    history = History(training.folder if backend.is_main else None, lambda: rate_of(training.scheduler), plan.batches_per_epoch)
    checkpoint = training.find_checkpoint(resume or False, skipped)
    training.model.train()
    training.optimizer.zero_grad(set_to_none=True)  # what somebody's own backward pass has left
    seed_all(args.seed + backend.rank)
    if checkpoint is not None:
        training.restore(checkpoint)
    first = state.step
    step = partial(
        train_step,
        training.model,
        loss_sum=training.loss_sum,
        optimizer=training.optimizer,
        backend=backend,
        max_norm=args.max_grad_norm,
        on_gradients=trainer.on_gradients,
    )
    try:
        fit(
            backend.runner(step, training.optimizer, training.scheduler, trainer.say),
            training.batches,
            plan,
            state,
            callbacks=training.watchers(history),
            evaluate=training.evaluate if plan.eval_every or plan.eval_on_start else None,
            save=training.save,
            gather=backend.gather_figures,
            agree=backend.agree,
        )
        backend.settle()
        training.refuse_not_finite(training.bare.state_dict())
        if not (state.signal or trainer.in_run):  # a run saves its model first
            state.signal = backend.agree(state.asked_to_stop)
            if state.signal:
                training.save()
    except NotFiniteError as error:
        raise training.diverged(error) from error
    except (RuntimeError, MemoryError) as error:
        raise training.out_of_memory(error) if no_memory(error) else error from None
    finally:
        training.saver.wait()
    if state.signal:
        trainer.say(f"stopped by {signal.Signals(state.signal).name} after step {state.step:,}; resume with --resume")
        backend.wait()
        leave(state.signal)
    if args.load_best_model_at_end and training.best.weights:
        training.bare.load_state_dict(training.best.weights)
        backend.reload()
    seconds = time.perf_counter() - began
    return {
        "train_loss": state.mean_loss,
        "train_runtime": seconds,
        "train_steps_per_second": (state.step - first) / seconds,
        "train_samples_per_second": (state.step - first) * plan.accumulate * training.batches.batch_size / seconds,
        "epoch": history.epoch(state),
    }


def refuse_earlier(training: Training) -> None:
    """Raise `SettingsError` where a new training would write over an earlier one."""
    folder, found = training.folder, checkpoints_in(training.shelf.folder)
    if found or (is_run(folder) and not training.trainer.in_run):
        what = f"the checkpoints of an earlier training (the newest is {found[0].name})" if found else "a run"
        raise SettingsError(
            f"output_dir {folder} holds {what}",
            "resume it with train(resume_from_checkpoint=True), choose another output_dir, or set overwrite_output_dir=True: "
            "what is there is moved aside",
        )


def start_again(training: Training) -> None:
    """Move everything aside that a run could resume from."""
    if training.backend.is_main:
        (training.folder / TRAINED_NAME).unlink(missing_ok=True)
        training.shelf.restart()
    training.backend.wait()


def rate_of(scheduler: Any) -> float:
    """The learning rate of the next step."""
    return float(optimizer_of(scheduler.optimizer).param_groups[0]["lr"])
