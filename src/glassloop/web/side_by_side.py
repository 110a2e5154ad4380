"""Several runs side by side: their progress, curves over each other, results, and the settings that differ."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from urllib.parse import quote

from glassloop.markup import escaped
from glassloop.measures import short_metrics
from glassloop.pages.page import Section
from glassloop.pages.parts import Cell, Html, code_block, paragraph, score, table
from glassloop.quantities import duration
from glassloop.run_folder.record import FINISHED
from glassloop.run_folder.summary import RunSummary
from glassloop.run_folder.tail import Curves
from glassloop.web.curves import compared_figures, latest_metrics, title_of
from glassloop.web.view import View
from glassloop.web.views import link, quoted, seconds_between_updates, status_tag, way_back
from glassloop.web.words import list_progress

OWN_SETTINGS = ("output_dir", "overwrite_output_dir", "disable_tqdm", "run_name")  # differ in every run


def compare_view(runs: Sequence[RunSummary], every: Sequence[Curves], base: str) -> View:
    """Return several runs side by side."""
    rows = [progress_row(run, base) for run in runs]
    head = way_back(base) + table(("Run", "Status", "Progress", "Time"), rows)
    curves = compared_figures(runs, every) or paragraph("There is nothing to draw yet.", "soft")
    sections = [
        Section("curves", "Learning curves", curves),
        Section("results", "Results", results(runs, every) or paragraph("There is no evaluation yet.", "soft")),
        Section("settings", "Settings that differ", settings(runs)),
        Section("test", "Is one better?", comparison(runs, base)),
    ]
    return View(" and ".join(run.name for run in runs), head, sections, seconds_between_updates(runs))


def progress_row(run: RunSummary, base: str) -> list[Cell]:
    """Return where a run stands."""
    seconds = run.record.seconds if run.record else None
    return [Html(link(run.name, base)), Html(status_tag(run)), list_progress(run), duration(seconds) if seconds else ""]


def results(runs: Sequence[RunSummary], every: Sequence[Curves]) -> str:
    """Return the metrics of the final evaluation of each run or, while it trains, of its latest evaluation."""
    found = [
        short_metrics(run.record.evaluation if run.record and run.record.evaluation else latest_metrics(curves))
        for run, curves in zip(runs, every, strict=True)
    ]
    names = dict.fromkeys(name for metrics in found for name in metrics)
    rows: list[list[Cell]] = [
        [title_of(f"eval_{name}", runs[0]), *(score(metrics.get(name)) for metrics in found)] for name in names
    ]
    return table(["Metric", *(run.name for run in runs)], rows)


def settings(runs: Sequence[RunSummary]) -> str:
    """Return the settings, data and models that are not the same in all runs."""
    described = [values_of(run) for run in runs]
    names = dict.fromkeys(name for values in described for name in values)
    differ = [name for name in names if len({values.get(name, "–") for values in described}) > 1]
    rows: list[list[Cell]] = [[name, *(values.get(name, "–") for values in described)] for name in differ]
    same = paragraph("All settings, the data and the model are the same.", "soft")
    return table(["Setting", *(run.name for run in runs)], rows) or same


def comparison(runs: Sequence[RunSummary], base: str) -> str:
    """Return where to find a test of the difference, once all runs are finished."""
    if not all(run.status == FINISHED for run in runs):
        return paragraph("The results can be compared with a test when all runs are finished.", "soft")
    address = f"{base}comparison?" + "&".join(f"run={quote(quoted(run.name), safe='')}" for run in runs)
    command = code_block(f"glassloop compare {shlex.join(str(run.folder) for run in runs)}")
    return f'<p><a class="action" href="{escaped(address)}">Compare the results with a test</a></p>{command}'


def values_of(run: RunSummary) -> dict[str, str]:
    """Return everything that may differ between two runs, as text."""
    record = run.record
    if record is None:
        return {}
    values: dict[str, object] = {"data": record.data.source, "model": record.model.name}
    values |= {name: value for name, value in asdict(record.settings).items() if name not in OWN_SETTINGS}
    values["max_length"] = record.max_length  # as it was chosen
    values |= {f"rows of {name}": split.fingerprint[:8] for name, split in record.data.splits.items()}
    values |= {"device": record.device, "precision": record.precision, "backend": record.backend}
    return {name: str(value) for name, value in values.items()}
