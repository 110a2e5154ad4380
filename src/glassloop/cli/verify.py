"""`glassloop verify`: check that all ways of training give equal results on the user's model and data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from typer import Argument

from glassloop.base.files import user_path
from glassloop.base.output import CommandResult, show
from glassloop.cli.options import Json, Model, given_for, with_settings
from glassloop.runs.record import is_run, read_run
from glassloop.settings.training import DataSettings, data_settings
from glassloop.training.progress import starting


@with_settings(DataSettings)
def verify(
    what: Annotated[str, Argument(help="Run folder, or data to train on.")] = "quickstart",
    model: Model = None,
    as_json: Json = False,
    **options: object,
) -> CommandResult:
    """Check that backends, processes and resume give equal results."""
    with starting(lines=False):
        from rich.console import Console

        from glassloop.markup.terminal import bare_table, text
        from glassloop.models.pooled import decoded_pooling
        from glassloop.study.verification import BATCH, STEPS, check_claims, usual_pooling

    data, trained_from = what, "quickstart"
    given = given_for(DataSettings, options)
    run = read_run(user_path(what)) if is_run(user_path(what)) else None
    if run is not None:
        data, trained_from = run.data.source, run.model.name
        given = {**run.data.given(), **given}
    model = trained_from if model is None else model
    if run is not None and model == run.model.name:
        pooling = None if run.model.pooling is None else decoded_pooling(run.model.pooling)
    else:
        pooling = usual_pooling(data, model, given)
    head = "the model family's own head" if pooling is None else f"{pooling.mode} pooling" + ", two towers" * pooling.towers
    show(f"{data} with {model} and {head}: {STEPS} steps of {BATCH} rows on the CPU, in fp32")
    claims = check_claims(data, model, data_settings(given), pooling)
    table = bare_table("", "claim", "largest difference", "allowed", right=2)
    for claim in claims:
        allowed = "none" if claim.allowed == 0 else f"{claim.allowed:.0e}"
        difference = "none" if claim.difference == 0 else f"{claim.difference:.1e}"
        table.add_row(text("✓", "green") if claim.holds else text("✗", "red"), claim.name, difference, allowed)
    Console().print(table)
    all_hold = all(claim.holds for claim in claims)
    described = [{**asdict(claim), "holds": claim.holds} for claim in claims]
    return CommandResult({"ok": all_hold, "data": data, "model": model, "claims": described}, 0 if all_hold else 1)
