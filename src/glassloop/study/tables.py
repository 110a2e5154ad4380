"""What a study shows, in the terminal, as JSON, and as tables in Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassloop.base.errors import counted, listed, printable
from glassloop.runs.study import RoundRecord, StudyRecord
from glassloop.settings.study import shown

Row = Mapping[str, object]


MOST_SHOWN = 24  # settings in the terminal


HOW_CHOSEN = "chosen by the mean on the selection split; validation was not used to choose"


def study_content(folder: Path, record: StudyRecord) -> dict[str, object]:
    """Return the result of `glassloop study`."""
    return {
        "study": folder,
        "status": record.status,
        "strategy": record.study.chosen_strategy,
        "seeds": record.seeds,
        "rounds": record.rounds,
        "seconds": record.seconds,
        "chosen_by": {"split": "selection", "folds": record.study.folds, "metric": record.metric},
        "test_evaluations": record.test_evaluations,
        "failed": {name: {"exit_status": run.exit_code, "error": " ".join(run.error)} for name, run in record.failed.items()},
        **record.results,
    }


def ranked(record: StudyRecord) -> list[Row]:
    """Return the settings, the chosen one first, then those that were trained furthest with the best selection score."""
    sign = 1 if record.greater_is_better else -1
    rows = [row for row in listed_rows(record) if isinstance(row, Mapping)]

    def order(row: Row) -> tuple[bool, float, float]:
        score = row["selection"]
        return (
            row["number"] != record.chosen,
            -number_of(row["trained"]),
            -sign * (score if isinstance(score, float) else -sign * 1e9),
        )

    return sorted(rows, key=order)


def listed_rows(record: StudyRecord) -> Sequence[object]:
    """Return the settings of the results; empty before they are known."""
    found = record.results.get("settings", [])
    return found if isinstance(found, list | tuple) else []


def number_of(value: object) -> float:
    """Return a plain number, 0 for anything else."""
    return float(value) if isinstance(value, int | float) else 0.0


def table_of(record: StudyRecord) -> tuple[list[str], list[list[str]]]:
    """Return the columns and the cells of the table of all settings."""
    names = [*record.study.vary]
    columns = [*names, "trained", f"{record.metric} (selection)", f"{record.results.get('metric', '')} (validation)"]
    columns += ["95 % interval", "failed", "difference", difference_title(record), "verdict"]
    rows = []
    for row in ranked(record):
        values, validation, comparison = (
            row[name] if isinstance(row[name], Mapping) else {} for name in ("values", "validation", "comparison")
        )
        rows.append(
            [
                *(shown(values.get(name)) for name in names),  # type: ignore[attr-defined]
                f"{number_of(row['trained']):.0%}",
                figure(row["selection"]),
                mean_and_deviation(validation),  # type: ignore[arg-type]
                between(validation),  # type: ignore[arg-type]
                f"{row['failed']} of {row['runs']}",
                signed(comparison.get("difference")),  # type: ignore[attr-defined]
                between(comparison, signed),  # type: ignore[arg-type]
                "chosen" if row["number"] == record.chosen else str(comparison.get("verdict") or without_result(row)),  # type: ignore[attr-defined]
            ]
        )
    return columns, rows


def without_result(row: Row) -> str:
    """Return why a setting has no result on validation."""
    if not row["trained"]:
        return "not trained"
    return "failed" if row["failed"] == row["runs"] and row["selection"] is None else "stopped early"


def figure(value: object) -> str:
    """Return a score with four digits."""
    return f"{value:.4f}" if isinstance(value, int | float) else "–"


def signed(value: object) -> str:
    """Return a difference with its sign."""
    return f"{value:+.4f}" if isinstance(value, int | float) else "–"


def mean_and_deviation(result: Mapping[str, object]) -> str:
    """Return `0.8412 ± 0.0091`."""
    deviation = result.get("deviation")
    return figure(result.get("mean")) + (f" ± {figure(deviation)}" if deviation is not None else "")


def between(result: Mapping[str, object], shown: Callable[[object], str] = figure) -> str:
    """Return the interval of a mean, or of a difference with signs."""
    return f"{shown(result['low'])} to {shown(result['high'])}" if result.get("low") is not None else "–"


def number_of_comparisons(record: StudyRecord) -> int:
    """Return how many settings were compared with the chosen one."""
    return sum(isinstance(row, Mapping) and isinstance(row["comparison"], Mapping) for row in listed_rows(record))


def difference_title(record: StudyRecord) -> str:
    """Return the title of the intervals of differences, with the number of comparisons that they are corrected for."""
    number = number_of_comparisons(record)
    return f"interval corrected for {number} comparisons" if number > 1 else "its 95 % interval"


def markdown_table(record: StudyRecord) -> str:
    """Return the table of all settings in Markdown."""
    columns, rows = table_of(record)
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines) + "\n"


def latex_table(record: StudyRecord) -> str:
    """Return the table of all settings in LaTeX, for the booktabs package."""
    columns, rows = table_of(record)
    head, *body = [" & ".join(map(latex, line)) + r" \\" for line in [columns, *rows]]
    begin = rf"\begin{{tabular}}{{{'l' * len(columns)}}}"
    return "\n".join([begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]) + "\n"


def latex(text: str) -> str:
    """Return text with the special characters of LaTeX escaped."""
    text = "".join(f"\\{sign}" if sign in "&%$#_{}" else r"\textbackslash{}" if sign == "\\" else sign for sign in text)
    return text.replace("±", r"$\pm$").replace("–", "--").replace("~", r"\textasciitilde ")


def lines_of(record: StudyRecord) -> list[str]:
    """Return what a study shows in sentences."""
    results, lines = record.results, []
    if results.get("sentence"):
        lines.append(f"{results['sentence']} ({HOW_CHOSEN})")
    if number_of_comparisons(record) > 1:
        corrected = f"intervals of differences and verdicts are corrected for {number_of_comparisons(record)} comparisons"
        lines.append(f"{corrected}: all hold together with 95 %; the intervals of single settings hold with 95 % each")
    final = results.get("final")
    for split, found in (final if isinstance(final, Mapping) else {}).items():
        if isinstance(found, Mapping):
            ensemble = found.get("ensemble")
            extra = f"; all seeds as one model {figure(ensemble['mean'])}" if isinstance(ensemble, Mapping) else ""
            once = "evaluated once, " if split == "test" else ""
            lines.append(
                f"{split} ({once}trained on all training rows): {mean_and_deviation(found)}, "
                f"95 % interval {between(found)}{extra}"
            )
    soup = results.get("soup")
    if isinstance(soup, Mapping):
        kept = "kept in soup/" if soup["offered"] else "not better than the mean of its seeds, so it is not kept"
        lines.append(f"model soup: {figure(soup['validation'])} on validation ({signed(soup['difference'])}): {kept}")
    if results.get("design"):
        lines.append(f"this design detects, with {results['design']}")
    if failed := len(record.failed):
        runs = counted(failed, "run failed and counts", "runs failed and count")
        lines.append(f"{runs} like the baseline: study.json has the errors")
    return [*lines, *([str(results["warning"])] if results.get("warning") else [])]


def show_study(folder: Path, record: StudyRecord, console: Console | None = None) -> None:
    """Print the table of the settings and what the study shows.

    Args:
        folder: The folder of the study.
        record: The study.
        console: Where to print. Default: standard error.
    """
    console = console or Console(stderr=True)
    columns, rows = table_of(record)
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in columns:
        table.add_column(Text(printable(name)), no_wrap=True)
    for row in rows[:MOST_SHOWN]:
        table.add_row(*(Text(printable(cell)) for cell in row))
    width, console.width = console.width, 1000
    console.width = max(width, console.measure(table).maximum)  # so that no number is cut
    console.print(table)
    if len(rows) > MOST_SHOWN:
        console.print(Text(f"and {len(rows) - MOST_SHOWN} more settings, in study.html"))
    for line in lines_of(record):
        console.print(Text(printable(f"• {line}")))
    console.print(Text(printable(f"→ {folder}/study.html")))


def setting_name(values: Mapping[str, object]) -> str:
    """Return a setting in words: `learning_rate 2e-05, weight_decay 0.1`."""
    return listed((f"{name} {shown(value)}" for name, value in values.items()), 20)  # type: ignore[arg-type]


def rounds_in_words(rounds: Sequence[RoundRecord]) -> str:
    """Return the rounds of a search: `24 settings to 25 %, 12 to 50 %, 6 to 100 %`."""
    return ", ".join(f"{len(part.settings)} to {part.fraction:.0%}" for part in rounds)
