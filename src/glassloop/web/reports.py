"""The reports of finished runs, made on request from the run folder and kept for the next reader."""

from __future__ import annotations

import stat
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from glassloop.report.build import report_of
from glassloop.web.watch import RunSummary

MOST_KEPT = 8  # a report has up to two megabytes


@dataclass(frozen=True)
class Report:
    """The report of a run, or why there is none."""

    html: str = ""
    problem: str = ""


class Reports:
    """Makes reports. The report.html of a run folder is not read: anyone may have written it."""

    def __init__(self) -> None:
        self.lock, self.kept = Lock(), OrderedDict[int, Report]()

    def of(self, run: RunSummary) -> Report:
        """Return the report of a run. It is made once for each version of its files."""
        with self.lock:
            if run.version not in self.kept:
                self.kept[run.version] = made(run.folder)
            self.kept.move_to_end(run.version)
            while len(self.kept) > MOST_KEPT:
                self.kept.popitem(last=False)
            return self.kept[run.version]


def made(folder: Path) -> Report:
    """Make a report. Whatever the files of the folder contain, the answer is a report or a sentence."""
    try:
        if strange := [path.name for path in folder.iterdir() if not is_usual(path)]:
            return Report(problem=f"There is no report: {strange[0]} is a link, a pipe or a device.")
        return Report(report_of(folder).html)
    except Exception as error:
        return Report(problem=f"The report cannot be made: {type(error).__name__}: {error}")


def is_usual(path: Path) -> bool:
    """Return whether a path is a regular file or a folder. Opening a pipe would wait forever."""
    mode = path.lstat().st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)
