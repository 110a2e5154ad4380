"""`glassloop push`: upload the model of a run to a hub, with its card and calibration."""

from __future__ import annotations

from pathlib import Path

from glassloop.command_result import CommandResult
from glassloop.errors import ModelError, counted, show
from glassloop.files import user_path
from glassloop.run_folder.layout import CARD_NAME, REPORT_NAME, is_run
from glassloop.run_folder.run_json import model_of_run, refuse_seeds
from glassloop.sharing.card_file import update_card
from glassloop.sharing.upload import published_files, refuse_repository, upload


def push(
    run: str,
    repository: str,
    message: str,
    *,
    private: bool = False,
    revision: str | None = None,
    with_report: bool = False,
    dry_run: bool = False,
) -> CommandResult:
    """Upload the model of a run folder, or a model folder, and print its address.

    Args:
        run: The folder.
        repository: The repository on the hub.
        message: The message of the commit.
        private: Whether a new repository is private.
        revision: The branch.
        with_report: Whether to upload the report of the run, too.
        dry_run: List the files, but upload nothing.
    """
    refuse_repository(repository)
    folder = user_path(run)
    model = model_to_push(folder)
    more = {REPORT_NAME: report_of_run(folder)} if with_report else {}
    files = published_files(model, more)
    for file in files:
        show(f"{file.name}  {counted(file.num_bytes, 'byte', 'bytes')}")
    address = None
    if not dry_run:
        address = upload(model, repository, message, revision=revision, private=private or None, more=more)
        show(f"→ {address}")
    names = {file.name: file.num_bytes for file in files}
    return CommandResult({"run": run, "repository": repository, "revision": revision, "files": names, "address": address})


def model_to_push(folder: Path) -> Path:
    """Return the folder of the model to upload. A run without a model card gets one."""
    refuse_seeds(folder)
    if not folder.is_dir():
        raise ModelError(f"{folder}: there is no such folder", "name the folder of a finished run, or of a model")
    if not is_run(folder):
        return folder
    model, record = model_of_run(folder)
    if not record.finished:
        raise ModelError(f"{folder}: the run is not finished", f"train it to the end: glassloop train --resume {folder}")
    if not (model / CARD_NAME).exists():
        update_card(folder)
    return model


def report_of_run(folder: Path) -> Path:
    """Return the report of a run. Raise `ModelError` if there is none."""
    path = folder / REPORT_NAME
    if not path.is_file():
        raise ModelError(f"{path}: there is no report to upload", f"write it first: glassloop report {folder}")
    return path
