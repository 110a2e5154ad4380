"""The result of an export in the terminal: metrics, logits, changed answers, size and speed."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from glassloop.comparing.results import answer_text, measures_of
from glassloop.comparing.terminal import line, plain_table
from glassloop.errors import counted, shortened
from glassloop.exporting.folder import Exported, FlippedRow
from glassloop.settings import SCORE

MOST_ROWS = 10
TITLES = {"glassloop": "Glassloop", "transformers": "transformers"}


def show_export(console: Console, found: Exported) -> None:
    """Print how an export compares with its run."""
    check, measures = found.check, measures_of(found.record.run)
    table = plain_table(
        f"{check.split}, {counted(check.rows, 'row', 'rows')}", "run", "exported", "difference", "95 % interval"
    )
    for key, one in check.metrics.items():
        cells = f"{one.run:.4f}", f"{one.exported:.4f}", f"{one.difference:+.4f}", f"{one.low:+.4f}..{one.high:+.4f}"
        table.add_row(Text(shortened(measures.title(key), 30)), *cells)
    console.print(table)
    console.print()
    line(console, f"largest difference of logits: {check.largest_difference:.2g} (row {check.largest_row})")
    if found.record.task != SCORE:
        line(console, f"answers that changed: {len(found.flipped):,} of {check.rows:,}")
        for row in found.flipped[:MOST_ROWS]:
            line(console, f"  {flipped_text(row)}")
        if (more := len(found.flipped) - MOST_ROWS) > 0:
            line(console, f"  and {more:,} more; --json lists all")
    size, before = check.num_bytes["exported"], check.num_bytes["run"]
    line(console, f"size: {size / 1e6:,.1f} MB ({size / max(before, 1):.0%} of the run's {before / 1e6:,.1f} MB)")
    own, others = check.rows_per_second["exported"], [name for name in check.rows_per_second if name != "exported"]
    threads = counted(check.threads, "thread", "threads")
    compared = [f"{own / (speed := check.rows_per_second[name]):.2f}x {TITLES[name]} ({speed:,.0f})" for name in others]
    line(console, f"rows per second with {threads}: {own:,.0f}")
    line(console, f"  {', '.join(compared)}")
    line(console, f"{found.record.kind} → {found.folder}")


def flipped_text(row: FlippedRow) -> str:
    """Return a row on one line: number, label, both answers, and its texts."""
    label, before, after = (shortened(answer_text(value), 14) for value in (row.label, row.before, row.after))
    return shortened(f"row {row.row} [{label}] {before} → {after}: {' | '.join(row.texts)}", 76)
