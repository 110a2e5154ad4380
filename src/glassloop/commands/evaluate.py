"""`glassloop evaluate`: score a trained model, or the models of several seeds, on a split of its own or of other data."""

from __future__ import annotations

from rich.console import Console

from glassloop.command_result import CommandResult
from glassloop.commands.evaluate_seeds import evaluate_seeds
from glassloop.data.writers import refuse_existing, refuse_target
from glassloop.ensemble import has_seeds
from glassloop.evaluation import Wanted, evaluate_run
from glassloop.files import user_path
from glassloop.show.contents import outcomes_content
from glassloop.show.results import show_outcome


def evaluate(run: str, wanted: Wanted, out: str | None = None, *, overwrite: bool = False) -> CommandResult:
    """Print the metrics of a trained model, or of the models of several seeds, and write their predictions to `out`."""
    target = user_path(out) if out is not None else None
    if target:
        refuse_target(target)  # before the model is loaded
        if not overwrite:
            refuse_existing(target)
    if has_seeds(user_path(run)):
        return evaluate_seeds(user_path(run), wanted, target)
    found = evaluate_run(run, wanted)
    for outcome in found.outcomes:
        show_outcome(Console(), outcome, found.title(outcome))
    if target:
        found.save(target)
    return CommandResult({"run": run, "data": found.source, "splits": outcomes_content(found.outcomes), "out": target})
