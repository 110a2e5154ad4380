"""`glassloop clean`: drop rows and correct labels of a file, in a new file with a log."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from typer import Argument, Option

from glassloop.base.errors import DataError, SettingsError
from glassloop.base.files import user_path
from glassloop.base.output import CommandResult, show
from glassloop.cli.options import Device, Json, given_for, with_settings
from glassloop.settings.training import SCORE, DataSettings, data_settings
from glassloop.training.progress import starting

DROP_HELP = "Codes of the findings whose rows to drop, such as GL204, as glassloop inspect --deep reports them."
RELABEL_HELP = "CSV file with the columns row, label and suggested, as glassloop inspect --suggestions writes it."
UNDO_HELP = "Log of an earlier cleaning of the file: write its rows as they were before."


@with_settings(DataSettings)
def clean(
    file: Annotated[str, Argument(help="File to clean. It is not changed.")],
    out: Annotated[str, Option("-o", "--out", help="File to write: .csv or .jsonl.")],
    drop: Annotated[list[str] | None, Option(metavar="<str>", help=DROP_HELP)] = None,
    relabel: Annotated[str | None, Option(help=RELABEL_HELP)] = None,
    undo: Annotated[str | None, Option(help=UNDO_HELP)] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the file of --out if it exists.")] = False,
    model: Annotated[str, Option(help="Model whose embeddings find near duplicates.")] = "quickstart",
    device: Device = "auto",
    as_json: Json = False,
    **options: object,
) -> CommandResult:
    """Drop rows and correct labels, in a new file with a log."""
    with starting():
        from glassloop.data.sources import load_examples
        from glassloop.data.writers import refuse_existing
        from glassloop.diagnosis import cleaning, findings

    given = given_for(DataSettings, options)
    settings = data_settings({"validation_share": 0, **given})
    path, target = user_path(file), user_path(out)
    if not path.is_file():
        raise DataError(f"{path}: there is no such file", "name one file: its rows are written to a new one")
    cleaning.refuse_out(target)
    if not overwrite or (target.exists() and target.samefile(path)):
        refuse_existing(target)
    if undo is not None:
        if drop or relabel:
            raise SettingsError("--undo reverses changes, so it cannot make others", "omit --drop and --relabel")
        number = cleaning.restore_file(path, user_path(undo), target, settings)
        show(f"→ {target}")
        return CommandResult({"file": path, "out": target, "log": None, "rows": number, "dropped": 0, "relabelled": 0})
    codes = cleaning.droppable(drop or [])
    if not codes and relabel is None:
        raise SettingsError("there is nothing to change", "name findings with --drop, or a file with --relabel")
    labels = cleaning.read_suggestions(user_path(relabel)) if relabel is not None else {}
    examples = load_examples(file, **asdict(settings))
    if labels and len(examples.columns.label) > 1:
        raise SettingsError("the labels are in several columns, which --relabel cannot change", "edit the file by hand")
    found = findings.some_findings(examples, codes, model, device=device) if codes else []
    changes = cleaning.Changes(cleaning.dropped_rows(codes, found), labels)
    column = examples.columns.label[0] if examples.columns.label else ""
    cleaned = cleaning.clean_file(path, target, settings, changes, column, examples.labels, scores=examples.task == SCORE)
    show(cleaning.told(cleaned))
    for written in (cleaned.out, cleaned.log):
        show(f"→ {written}")
    content = {"file": path, "out": cleaned.out, "log": cleaned.log, "rows": cleaned.num_rows}
    return CommandResult({**content, "dropped": cleaned.num_dropped, "relabelled": cleaned.num_relabelled})
