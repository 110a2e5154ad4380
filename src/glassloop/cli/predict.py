"""`glassloop predict`: predict texts or every row of a file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from glassloop.base.errors import SettingsError, counted
from glassloop.base.files import user_path
from glassloop.base.output import CommandResult, say, show
from glassloop.cli.options import Device, Json, Precision, Run, given_for, with_settings
from glassloop.settings.training import FILE_SETTINGS, DataSettings, data_settings
from glassloop.training.processes import run_together
from glassloop.training.progress import starting

if TYPE_CHECKING:
    from glassloop.predict.answers import Prediction
    from glassloop.predictor import Predictor

TEXT_HELP = "Column with the text. Default: the text column of the run."
PROCESSES_HELP = "Number of processes that predict a file, one per GPU or CPU core."


@with_settings(DataSettings, only=FILE_SETTINGS)
def predict(
    run: Run,
    text: Annotated[str | None, Argument(help="Text to predict.")] = None,
    text_pair: Annotated[str | None, Argument(help="Second text of a pair.")] = None,
    file: Annotated[str | None, Option(help="Data file whose rows to predict.")] = None,
    out: Annotated[str | None, Option("-o", "--out", help="Output file: .csv, .tsv, .jsonl or .parquet.")] = None,
    text_column: Annotated[str | None, Option("--text", help=TEXT_HELP)] = None,
    pair_column: Annotated[str | None, Option("--text_pair", help="Column with the second text of a pair.")] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the output file if it exists.")] = False,
    processes: Annotated[int, Option(help=PROCESSES_HELP)] = 1,
    device: Device = "auto",
    precision: Precision = "auto",
    as_json: Json = False,
    **options: object,
) -> CommandResult:
    """Predict one text, one pair of texts, or every row of a file."""
    with starting(lines=file is not None):  # one answer needs no log
        from glassloop.predictor import Predictor, SeedsPredictor, has_seeds

    def load(*, light: bool = False) -> Predictor:
        folder = user_path(run)
        if has_seeds(folder):
            return SeedsPredictor(folder, device=device, precision=precision)
        return Predictor(run, device=device, light=light, precision=precision)

    if file is None:
        if text is None:
            raise SettingsError("there is no text to predict", 'glassloop predict RUN "text" ["second text"], or --file FILE')
        answer = predict_text(load(light=True), text, text_pair)
        described = {"text": text, "text_pair": text_pair, "label": answer.label, "scores": answer.scores or None}
        return CommandResult({"run": run, "predictions": [described]})

    from glassloop.data.writers import refuse_existing
    from glassloop.predict.files import SHARE, part_folders, share_environments

    if processes < 1:
        raise SettingsError(f"processes is {processes}, not 1 or more", "set processes to 1 or more")
    data = user_path(file)
    path = output_path(data, out)  # checked before the model is loaded
    if not overwrite and not part_folders(path):
        refuse_existing(path)
    reading = given_for(DataSettings, options)
    data_settings(reading)
    is_part = SHARE in os.environ  # this process predicts one part of the file for another process, which reports
    if processes > 1 and not is_part:
        import torch

        num_gpus = torch.cuda.device_count() if device in ("auto", "cuda") else 0
        run_together(sys.argv[1:], share_environments(processes, num_gpus))
        overwrite = True  # the processes have checked it, and this one only joins their parts
    predictor = load()
    try:
        number = predictor.predict_file(data, path, text_column, pair_column, overwrite=overwrite, **reading)
    except KeyboardInterrupt:
        if part_folders(path) and not is_part:
            say("stopped; the same command continues after the rows that are done")
        raise
    if not is_part:
        say_notes(predictor)
        if skipped := predictor.skipped.num_rows:
            listing = path.with_name(f"{path.stem}-skipped-rows.csv")
            predictor.skipped.write(listing)
            say(f"skipped {counted(skipped, 'row', 'rows')} that cannot be read; {listing} lists them")
        show(f"{counted(number, 'row', 'rows')} → {path}")
    return CommandResult({"run": run, "file": file, "rows": number, "out": path})


def predict_text(predictor: Predictor, text: str, text_pair: str | None) -> Prediction:
    from rich.console import Console

    from glassloop.data.examples import SHOWN_LABELS
    from glassloop.markup import terminal

    trained_on_pairs = predictor.run is not None and predictor.run.data.columns.text_pair is not None
    if trained_on_pairs and text_pair is None:
        raise SettingsError("the model was trained on pairs of texts", 'glassloop predict RUN "text" "second text"')
    if text_pair is not None and predictor.run and not trained_on_pairs:
        raise SettingsError("the model was trained on single texts", 'glassloop predict RUN "text"')
    answer = predictor.predict(text, text_pair)[0]
    say_notes(predictor)
    table = terminal.bare_table()
    if not answer.scores:
        table.add_row("score", f"{answer.label:.4f}")
    for name, score in sorted(answer.scores.items(), key=lambda entry: -entry[1])[:SHOWN_LABELS]:
        chosen = name == answer.label or (isinstance(answer.label, list) and name in answer.label)
        table.add_row(terminal.text(name, "bold" if chosen else ""), f"{score:.4f}")
    if (hidden := len(answer.scores) - SHOWN_LABELS) > 0:
        table.add_row(f"and {hidden:,} more")
    Console().print(table)
    return answer


def output_path(data: Path, out: str | None) -> Path:
    """Return the file for the predictions: `out`, or one beside the data. Raise if it cannot be one."""
    from glassloop.data.sources import bare_name
    from glassloop.data.writers import PARQUET, TARGETS, refuse_target

    path = user_path(out) if out is not None else data.parent / f"{bare_name(data)}-predictions.csv"
    if os.path.realpath(path) == os.path.realpath(data):  # resolve() raises for a link that leads to itself
        raise SettingsError("the predictions would overwrite the data file", "choose another file with --out")
    refuse_target(path, (*TARGETS, PARQUET))
    return path


def say_notes(predictor: Predictor) -> None:
    """Print on standard error what a person should know: truncated texts, special tokens, a calibration, and warnings."""
    from glassloop.predict.answers import calibration_note

    # Every run has a temperature; thresholds were asked for, and change answers.
    chosen = predictor.calibration if predictor.answering.thresholds else None
    used = [calibration_note(chosen, predictor.answering)] if chosen else []
    for note in (*predictor.notes, *used, *predictor.warnings):
        say(note)
