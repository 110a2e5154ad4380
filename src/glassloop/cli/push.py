"""`glassloop push`: upload a model to a hub."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from glassloop.base.errors import ModelError, counted
from glassloop.base.files import user_path
from glassloop.base.output import CommandResult, show
from glassloop.cli.options import Json, completed_runs
from glassloop.runs.record import CARD_NAME, REPORT_NAME, is_run, model_of_run, refuse_seeds
from glassloop.share.upload import published_files, refuse_repository, upload

REPORT_HELP = "Also upload report.html, which contains texts of the validation rows."


def push(
    run: Annotated[str, Argument(help="Folder of a finished run, or of a model.", autocompletion=completed_runs)],
    repository: Annotated[str, Argument(help="Repository on the hub: owner/name. It is created if it does not exist.")],
    private: Annotated[bool, Option("--private", help="Make a new repository private.")] = False,
    revision: Annotated[str | None, Option(help="Branch to upload to. Default: the main branch.")] = None,
    message: Annotated[str, Option("-m", "--message", help="Message of the commit.")] = "Upload model trained with Glassloop",
    with_report: Annotated[bool, Option("--with_report", help=REPORT_HELP)] = False,
    dry_run: Annotated[bool, Option("--dry_run", help="List the files, but upload nothing.")] = False,
    as_json: Json = False,
) -> CommandResult:
    """Upload the model of a run to the Hugging Face hub, with a card."""
    from glassloop.report.card import update_card

    refuse_repository(repository)
    folder = user_path(run)
    refuse_seeds(folder)
    if not folder.is_dir():
        raise ModelError(f"{folder}: there is no such folder", "name the folder of a finished run, or of a model")
    model = folder
    if is_run(folder):
        model, _ = model_of_run(folder, finished=True)
        if not (model / CARD_NAME).exists():
            update_card(folder)
    report = folder / REPORT_NAME
    if with_report and not report.is_file():
        raise ModelError(f"{report}: there is no report to upload", f"write it first: glassloop report {folder}")
    more = {REPORT_NAME: report} if with_report else {}
    files = published_files(model, more)
    for file in files:
        show(f"{file.name}  {counted(file.num_bytes, 'byte', 'bytes')}")
    address = None
    if not dry_run:
        address = upload(model, repository, message, revision=revision, private=private or None, more=more)
        show(f"→ {address}")
    names = {file.name: file.num_bytes for file in files}
    return CommandResult({"run": run, "repository": repository, "revision": revision, "files": names, "address": address})
