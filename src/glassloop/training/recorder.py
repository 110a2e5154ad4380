"""Record a training by a Trainer while it runs, and write its report at the end. Nothing here fails a training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from glassloop.engine.evaluate import Evaluation
from glassloop.engine.interfaces import LRScheduler, Optimizer
from glassloop.measures import Measures
from glassloop.report.build import Report, report_of, source_report, write_report
from glassloop.report.source import UNKNOWN, RunSource
from glassloop.run_folder.history import Entry
from glassloop.run_folder.record import RunRecord
from glassloop.run_folder.sessions import resumed_steps
from glassloop.training.parts import TrainingParts
from glassloop.training.record import Evaluations, KeptEvaluation, write_end, write_start
from glassloop.transformers_types import Tokenizer


class Recorder:
    """Keeps the evaluations of a training and writes trainer.json, the predictions and report.html, in the main process.

    Args:
        parts: The parts of the training.
        measures: Glassloop's metrics; None if the user computes others.
        tokenizer: Decodes rows that have no text columns.
        with_report: Whether to write report.html.

    Attributes:
        parts: The parts, which now write the record before the first step.
        record: What was recorded before the first step; None if nothing was.
    """

    def __init__(
        self, parts: TrainingParts, measures: Measures | None, tokenizer: Tokenizer | None, *, with_report: bool
    ) -> None:
        self.parts = replace(parts, started=self.start)
        self.then, self.measures, self.tokenizer, self.with_report = parts.started, measures, tokenizer, with_report
        self.record: RunRecord | None = None
        self.evaluations = Evaluations()
        self.shown: KeptEvaluation | None = None  # in the report
        self.result: dict[str, float] | None = None

    def start(self, optimizer: Optimizer, scheduler: LRScheduler) -> None:
        """Write the record before the first step."""
        if self.parts.backend.processes.is_main and not self.parts.in_run:  # a run has a record of its own
            self.safely(self.note_start)
        self.then(optimizer, scheduler)

    def note_start(self) -> None:
        """Write and keep the record."""
        self.record = write_start(self.parts, self.measures)

    def evaluated(self, found: Evaluation, prefix: str) -> None:
        """Keep an evaluation. After the training, write the report again if it does not show this result yet."""
        known = self.shown.scores if self.shown else None
        self.evaluations.add(found, prefix, self.parts.state)
        if self.result is not None and self.evaluations.latest and self.evaluations.latest.scores != known:
            self.write(self.evaluations.latest)

    def end(self, result: dict[str, float]) -> None:
        """Write the record, the predictions and the report of a finished training."""
        self.result = result
        best = self.parts.args.load_best_model_at_end
        self.write(self.evaluations.of_the_model(self.parts.state, best=best))

    def write(self, kept: KeptEvaluation | None) -> None:
        """Write everything, with the results of an evaluation."""
        record, result, self.shown = self.record, self.result, kept
        if record is None or result is None:
            return
        written = self.safely(lambda: write_end(record, self.parts, kept, self.measures, self.tokenizer, result))
        if written and self.with_report:
            write_report(self.parts.folder)

    def safely(self, act: Callable[[], None]) -> bool:
        """Return whether something was done. An exception becomes one line."""
        try:
            act()
        except Exception as error:
            self.parts.say(f"the training could not be recorded for its report: {type(error).__name__}: {error}")
            return False
        return True


def report_so_far(recorder: Recorder | None, folder: Path, history: Sequence[Entry]) -> Report:
    """Return the report of the folder that a Trainer writes to; without a record there, that of its history.

    Args:
        recorder: What records the latest training of the Trainer; None before the first one.
        folder: The output folder.
        history: The logged steps and evaluations.
    """
    if recorder is not None and recorder.record is not None:
        return report_of(folder)
    return source_report(RunSource(folder, None, UNKNOWN, history, resumed_steps(folder), by_trainer=True))
