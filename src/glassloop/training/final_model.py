"""The final model of a run: saved before anything else happens, so that a run can resume after its last step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from safetensors.torch import load_file, save_file

from glassloop.engine.checkpoint import (
    FORMAT,
    WEIGHTS_NAME,
    names_in,
    open_checkpoint,
    refuse_other_identity,
    refuse_other_tensors,
    sum_of,
    sums_of,
)
from glassloop.engine.identity import Identity, rows_fingerprint
from glassloop.engine.saver import full_disk
from glassloop.errors import ModelError, ResourceError, listed
from glassloop.files import replacing, replacing_dir, reserved, share_files, write_text
from glassloop.records import sealed
from glassloop.run_folder.layout import (
    MODEL_NAME,
    RESERVE_NAME,
    TRAINED_NAME,
    TRAINED_WEIGHTS_NAME,
    checkpoints_in,
    remove_leftovers,
)
from glassloop.training.failures import refuse_full_disk, with_slack
from glassloop.training.started import StartedTraining


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
                parts.write_model(writing)
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
