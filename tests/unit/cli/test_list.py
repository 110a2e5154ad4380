"""`glassloop list`: a table and plain values, without torch."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from run_folders import drawn_rows, write_drawn_run

from glassloop.base.errors import SettingsError
from glassloop.base.output import CommandResult
from glassloop.cli.list import list_runs, show_run_list
from glassloop.runs.status import ListedRun, RunFolders


def test_it_prints_and_returns_all_runs_and_a_folder_that_is_missing_is_an_error(tmp_path: Path, capsys, monkeypatch) -> None:
    write_drawn_run(tmp_path / "one", drawn_rows(10))
    found = list_runs(str(tmp_path))
    assert "accuracy 0.7500" in capsys.readouterr().out
    assert isinstance(found, CommandResult)
    assert '"status": "finished"' in str(found)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match="runs is not a folder"):
        list_runs(None)


def test_no_heavy_package_is_loaded(tmp_path: Path) -> None:
    write_drawn_run(tmp_path / "one", drawn_rows(10))
    code = (
        f"import sys\nfrom glassloop.cli.list import list_runs\nlist_runs({str(tmp_path)!r})\n"
        "sys.exit(str([name for name in ('torch', 'transformers', 'datasets', 'scipy', 'pandas') if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]"


# --- The table of runs: at most 80 columns, results, progress and problems.
HERE = Path()


def shown(*entries: ListedRun, links: int = 0, complete: bool = True) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    show_run_list(console, RunFolders({}, links, complete, entries=entries), "runs")
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_every_kind_of_entry() -> None:
    seeds = (ListedRun("s/seed-1", HERE, "finished"), ListedRun("s/seed-2", HERE, "waiting"))
    found = shown(
        ListedRun("mrpc", HERE, "finished", {"f1": 0.9, "loss": 0.1}, positive_label="yes", seconds=75.0, size=91_000_000),
        ListedRun("s", HERE, "waiting", {"accuracy": 0.5}, seeds=seeds),
        ListedRun("all", HERE, "finished", {"accuracy": 0.5}, {"accuracy": 0.01}, seeds=seeds),
        ListedRun("now", HERE, "running", step=20, max_steps=1000),
        ListedRun("bad\x1b[31m", HERE, "damaged", problem="run.json: [red] not JSON"),
        links=2,
        complete=False,
    )
    assert found[0].split() == ["run", "status", "result", "time", "size"]
    assert found[1].split() == ["mrpc", "finished", "f1", "(yes)", "0.9000", "1", "min", "15", "s", "91", "MB"]
    text = "\n".join(found)
    for part in ("s (2 seeds)", "1 of 2 seeds finished", "accuracy 0.5000 ± 0.0100", "step 20 of 1,000", "[red] not JSON"):
        assert part in text
    assert "\x1b" not in text
    assert "5 runs, 2 links were not followed, not all folders were searched" in found


def test_long_names_fit_and_no_runs_are_said() -> None:
    entry = ListedRun("folder/" + "x" * 90, HERE, "finished", {"accuracy": 0.5}, seconds=99_000.0, size=12 * 10**9)
    found = shown(entry)
    assert max(map(len, found)) <= 80
    assert "12.0 GB" in found[1]
    assert shown() == ["no runs in runs"]
