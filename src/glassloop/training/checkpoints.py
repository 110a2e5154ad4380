"""Save a training to a checkpoint between two steps, and restore it from one."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import torch

from glassloop.engine.checkpoint import Checkpoint, refuse_other_identity, refuse_other_tensors
from glassloop.engine.snapshot import (
    PlainValues,
    Snapshot,
    optimizer_tensors,
    random_tensors,
    restore_optimizer,
    restore_random,
)
from glassloop.engine.versions import versions
from glassloop.run_folder.layout import checkpoint_name
from glassloop.seeding import random_states_kept, seed_all
from glassloop.training.failures import refuse_not_finite_weights
from glassloop.training.parts import TrainingParts
from glassloop.training.started import StartedTraining
from glassloop.training.trainer_state import STATE_NAME, best_checkpoint, lasting_facts, log_history, state_text


def save_checkpoint(training: StartedTraining) -> None:
    """Copy the training between two steps and write the copy. All processes take part; the main process writes.

    The copy is written in a thread while the training continues, unless code of the user writes or reads it.
    """
    snapshot = snapshot_of(training)
    in_background = training.parts.saves_in_background
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
        return training.checkpoint_folder.open(Path(str(resume))) if resume else None
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
