"""The reports of finished runs, made on request from the run folder and kept for the next reader."""

from __future__ import annotations

import stat
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from glassloop.comparing.results import compare_runs
from glassloop.comparing.web_page import comparison_page
from glassloop.errors import GlassloopError
from glassloop.report.build import report_of
from glassloop.run_folder.layout import is_study
from glassloop.run_folder.study_json import read_study
from glassloop.run_folder.summary import RunSummary
from glassloop.study.page import study_page
from glassloop.web.groups import GroupSummary

MOST_KEPT = 8  # a report has up to two megabytes


@dataclass(frozen=True)
class Report:
    """The report of a run, or why there is none."""

    html: str = ""
    problem: str = ""


class Reports:
    """Makes reports and comparisons. The report.html of a run folder is not read: anyone may have written it."""

    def __init__(self) -> None:
        self.lock, self.kept = Lock(), OrderedDict[tuple[object, ...], Report]()

    def of(self, *runs: RunSummary | GroupSummary) -> Report:
        """Return the report of a run, of several seeds or of a study, or the comparison of several runs.

        It is made once for each version of their files.
        """
        versions = tuple(run.version for run in runs)
        with self.lock:
            if versions not in self.kept:
                self.kept[versions] = made(*(run.folder for run in runs))
            self.kept.move_to_end(versions)
            while len(self.kept) > MOST_KEPT:
                self.kept.popitem(last=False)
            return self.kept[versions]


def made(*folders: Path) -> Report:
    """Make a report or a comparison. Whatever the files of the folders contain, the answer is one or a sentence."""
    try:
        if strange := [path.name for folder in folders for path in folder.iterdir() if not is_usual(path)]:
            return Report(problem=f"There is no report: {strange[0]} is a link, a pipe or a device.")
        if len(folders) > 1:
            return Report(comparison_page(compare_runs([str(folder) for folder in folders])))
        (folder,) = folders
        return Report(study_html(folder) if is_study(folder) else report_of(folder).html)
    except GlassloopError as error:
        return Report(problem=f"{error.problem}. {error.remedy}.")
    except Exception as error:
        return Report(problem=f"The report cannot be made: {type(error).__name__}: {error}")


def study_html(folder: Path) -> str:
    """Return the page of a study. Raises `ModelError` if study.json is damaged."""
    return study_page(folder.name, read_study(folder))


def is_usual(path: Path) -> bool:
    """Return whether a path is a regular file or a folder. Opening a pipe would wait forever."""
    mode = path.lstat().st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)
