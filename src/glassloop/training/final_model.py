"""The trained model of a run: saved before anything else is done with it, so that a run can resume after its last step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from safetensors.torch import load_file

from glassloop.engine.checkpoint import (
    FORMAT,
    WEIGHTS_NAME,
    names_in,
    open_checkpoint,
    refuse_other_identity,
    refuse_other_tensors,
    sums_of,
)
from glassloop.engine.identity import Identity, rows_fingerprint
from glassloop.engine.saver import full_disk
from glassloop.errors import ModelError, ResourceError, listed
from glassloop.files import replacing_dir, reserved, write_text
from glassloop.records import sealed
from glassloop.run_folder.layout import MODEL_NAME, RESERVE_NAME, TRAINED_NAME, checkpoints_in, remove_leftovers
from glassloop.training.parts import Training, with_slack


@contextmanager
def room_for_model(training: Training) -> Iterator[None]:
    """Tidy the folder, check the disk, and reserve the room that the final model of a run will need."""
    trainer, folder = training.trainer, training.folder
    if not training.backend.is_main:
        training.backend.wait()
        yield
        return
    if names := remove_leftovers(folder) + remove_leftovers(training.shelf.folder):
        trainer.say(f"removed what a crash had left half-written: {listed(names)}")
    training.check_disk()
    with reserved(folder / RESERVE_NAME, with_slack(training.num_bytes)) if trainer.in_run else nullcontext():
        training.backend.wait()
        yield


def save_final_model(training: Training, metrics: dict[str, float]) -> None:
    """Write the trained model, and what it takes to resume a run after its last step."""
    trainer, folder = training.trainer, training.folder
    if training.backend.is_main:
        (folder / RESERVE_NAME).unlink(missing_ok=True)
        try:
            with replacing_dir(folder / MODEL_NAME, replace=True) as writing:
                trainer.write_model(writing)
            if names_in(folder / MODEL_NAME / WEIGHTS_NAME) == {*training.bare.state_dict()}:  # saved as it was trained
                manifest = {
                    "format": FORMAT,
                    "step": training.state.step,
                    "identity": identity_of(training),
                    "files": {f"{MODEL_NAME}/{name}": entry for name, entry in sums_of(folder / MODEL_NAME).items()},
                    "state": training.state.to_dict(),
                    "metrics": metrics,
                }
                write_text(folder / TRAINED_NAME, json.dumps(sealed(manifest), indent=1, allow_nan=False) + "\n")
        except Exception as error:
            raise not_saved(training, error) or error from error
    training.backend.wait()


def not_saved(training: Training, error: Exception) -> ResourceError | None:
    """Return a full disk at the end of a training with what a retry needs and will repeat; None for other errors."""
    found = full_disk(error, training.folder / MODEL_NAME, "the trained model", with_slack(training.num_bytes))
    if found is None:
        return None
    saved = [path.name for path in checkpoints_in(training.shelf.folder)[:1]]
    repeats = f"resumes from {saved[0]}" if saved else "trains again from the first step: there is no checkpoint"
    return ResourceError(found.problem, f"{found.remedy} (it {repeats})")


def restore_final_model(training: Training, skipped: list[str]) -> dict[str, float] | None:
    """Put back a training that had taken its last step, and return its metrics; None if there is none to put back.

    A model that is there but cannot be used is described in `skipped`.
    """
    folder = training.folder
    if not (folder / TRAINED_NAME).exists():
        return None
    try:
        found = open_checkpoint(folder, TRAINED_NAME)
    except ModelError as error:
        skipped.append(error.problem)
        return None
    manifest = found.manifest
    refuse_other_identity(manifest["identity"], identity_of(training), training.row_hashes(), training.row_hashes())
    weights = load_file(folder / MODEL_NAME / WEIGHTS_NAME)
    refuse_other_tensors(training.bare.state_dict(), weights, f"{folder}/{MODEL_NAME}")
    training.bare.load_state_dict(weights)
    training.backend.reload()
    for name, value in manifest["state"].items():
        setattr(training.state, name, value)
    training.trainer.say(f"resuming after the last step, {training.state.step:,} ({folder / MODEL_NAME})")
    metrics: dict[str, float] = manifest["metrics"]
    return metrics


def identity_of(training: Training) -> Identity:
    """Return what must be the same for a run to be finished by another process, the training rows included."""
    return training.identity() | {"training rows": rows_fingerprint(training.row_hashes().numpy())}
