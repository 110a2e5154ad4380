"""`glassloop calibrate`: fit a temperature and thresholds on the stored validation rows of a run."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from glassloop.base.errors import counted
from glassloop.base.files import user_path
from glassloop.base.output import CommandResult, say, show
from glassloop.cli.options import Json, completed_runs
from glassloop.runs.record import CALIBRATION_NAME, model_of_run, store_calibration

GAIN_KEYS = ("name", "before", "after", "change", "low", "high")  # for --json
TARGET_HELP = (
    "What thresholds are chosen for: f1, precision (with --min_recall), recall (with --min_precision), cost (with --cost), or "
    "none for a temperature only. Default: f1 for two classes and for several labels, none for more classes."
)
COST_HELP = "Costs of wrong labels, such as false_positive=1,false_negative=5."
SPLIT_HELP = "Split with stored predictions to fit on. Default: the first for validation."
POSITIVE_HELP = "Positive class of a two-class run. Default: the class chosen for the run."
FOLDS_HELP = "Number of folds that the gain is measured with. Default: 10, or the number of rows of the rarer class."


def calibrate(
    run: Annotated[str, Argument(help="Folder of a finished run.", autocompletion=completed_runs)],
    target: Annotated[str | None, Option(metavar="<str>", help=TARGET_HELP)] = None,
    min_recall: Annotated[float | None, Option(metavar="<float>", help="Minimum recall, for the highest precision.")] = None,
    min_precision: Annotated[float | None, Option(metavar="<float>", help="Minimum precision, for the highest recall.")] = None,
    cost: Annotated[str | None, Option(metavar="<str>", help=COST_HELP)] = None,
    split: Annotated[str | None, Option(help=SPLIT_HELP)] = None,
    positive_label: Annotated[str | None, Option(help=POSITIVE_HELP)] = None,
    folds: Annotated[int | None, Option(metavar="<int>", help=FOLDS_HELP)] = None,
    force: Annotated[bool, Option("--force", help="Store the calibration even if it gains nothing.")] = False,
    remove: Annotated[bool, Option("--remove", help="Remove the stored calibration.")] = False,
    as_json: Json = False,
) -> CommandResult:
    """Fit a temperature and thresholds on the validation rows."""
    from rich.console import Console

    from glassloop.predict import calibration
    from glassloop.report.card import show_fitted
    from glassloop.scores.calibration import fitted_calibration

    if remove:
        return calibration.remove_calibration(run)
    folder = user_path(run)
    name = calibration.named_target(target, min_recall, min_precision, cost)
    model, record = model_of_run(folder, finished=True)
    split = calibration.chosen_split(folder, split)
    rows = calibration.usable_rows(folder, record, split)
    positive = calibration.positive_class(record, positive_label)
    aim = calibration.target_for(rows, name, min_recall, min_precision, cost)
    folds = calibration.chosen_folds(folds, rows, positive)
    stored = calibration.stored_calibration(model, record)
    in_use = stored.temperature if stored else 1.0
    fitted = fitted_calibration(rows, aim, positive, folds=folds, in_use=in_use)
    calibration.refuse_unreachable(fitted)
    kept = calibration.Kept.of(fitted, force, in_use)
    show_fitted(Console(), fitted, f"{split} ({counted(len(rows), 'row', 'rows')}, {folds} folds)", positive)
    for line in kept.lines(fitted):
        show(line)
    path = None
    if kept.anything:
        path = store_calibration(
            folder,
            record,
            split,
            kept.temperature,
            kept.gains(fitted),
            num_rows=len(rows),
            folds=folds,
            thresholds=kept.thresholds,
            target=aim if kept.thresholds else None,
            positive_label=positive,
            temperature_rows=(stored.temperature_rows or stored.fingerprint) if stored and kept.temperature == in_use else "",
            warning=calibration.warning_after(record, stored, kept, fitted, split),
        )
        show(f"→ {path}")
        calibration.refresh(folder)
    elif (model / CALIBRATION_NAME).is_file():
        say(f"{model / CALIBRATION_NAME} was not changed")
    gains = [{key: getattr(gain, key) for key in GAIN_KEYS} for gain in (*fitted.temperature_gains, *fitted.target_gains)]
    fit = {"temperature": fitted.temperature, "thresholds": fitted.thresholds(fitted.temperature)}
    content = {"run": run, "split": split, "rows": len(rows), "target": fitted.target, "fitted": fit, "gains": gains}
    thresholds = kept.thresholds if path or stored is None else stored.thresholds
    used = {"temperature": kept.temperature, "thresholds": thresholds, "stored": path is not None, "file": path}
    return CommandResult({**content, **used})
