"""A comparison in the terminal and as one HTML file: verdicts, metrics, settings, curves and rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassloop.base.errors import counted, printable, shortened
from glassloop.markup.templates import escaped
from glassloop.report.charts.figure import Axis, figure
from glassloop.report.charts.line import LineChart, Series
from glassloop.report.charts.points import DotChart, Dots
from glassloop.report.comparison import ComparedRuns, RowDifference, RowDifferences, answer_text
from glassloop.report.page import Cell, Number, Section, details, filters, grid, heading, page, paragraph, score, table, tag
from glassloop.runs.history import Entry, read_history
from glassloop.scores.conclusions import Conclusion
from glassloop.scores.intervals import NO_INTERVAL, Interval
from glassloop.settings.training import SCORE

LONGEST_NAME = 20
MOST_SETTINGS, MOST_ROWS = 20, 3
SINGLE_SEEDS = "One seed each: this compares single models. Train several seeds to compare their settings."


def show_comparison(console: Console, found: ComparedRuns) -> None:
    """Print the settings that differ, the metrics, the tests, and rows on which the runs differ."""
    first, *others = found.names
    line(console, f"{found.split}, {counted(found.num_rows, 'row', 'rows')}: {listed_names(others)} compared with {first}")
    if found.settings:
        console.print()
        console.print(settings_table(found))
        if len(found.settings) > MOST_SETTINGS:
            line(console, f"and {len(found.settings) - MOST_SETTINGS} more settings differ; --json lists all")
    for key, conclusion in found.conclusions.items():
        console.print()
        console.print(metric_table(found.measures.title(key), conclusion))
        for text in verdict_lines(conclusion):
            line(console, f"• {text}")
    if one_seed_of_different_settings(found):
        console.print()
        line(console, SINGLE_SEEDS)
    for rows in found.rows:
        console.print()
        show_rows(console, found, rows)


def one_seed_of_different_settings(found: ComparedRuns) -> bool:
    """Return whether single runs with different settings are compared, which says little about the settings."""
    return not found.has_several_seeds and bool({*found.settings} - {"seed", "best_step"})


def line(console: Console, text: str) -> None:
    """Print a line of plain text."""
    console.print(Text(printable(text)))


def listed_names(names: Sequence[str]) -> str:
    """Return names, or how many there are if they would not fit on a line."""
    return ", ".join(names) if sum(map(len, names)) < 40 else f"{len(names)} runs"


def short_name(name: str) -> Text:
    """Return a name that fits into a column: its end, which tells runs apart."""
    return Text(printable(name if len(name) <= LONGEST_NAME else "…" + name[1 - LONGEST_NAME :]))


def plain_table(*columns: str) -> Table:
    """Return a table whose first column is aligned to the left, all others to the right."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for place, name in enumerate(columns):
        table.add_column(Text(printable(name)), justify="right" if place else "left", overflow="fold")
    return table


def settings_table(found: ComparedRuns) -> Table:
    """Return the settings that differ, one row each. Long values are cut."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("setting")
    for name in found.names:
        table.add_column(short_name(name), overflow="fold")
    width = max(8, 56 // len(found.names))
    for name, values in [*found.settings.items()][:MOST_SETTINGS]:
        table.add_row(Text(shortened(name, 24)), *(Text(shortened(value, width)) for value in values))
    return table


def metric_table(title: str, conclusion: Conclusion) -> Table:
    """Return the results of all sides in one metric, with their differences from the first."""
    table = plain_table(
        shortened(title, LONGEST_NAME), "value", "95 % interval", "difference", difference_title(conclusion), "p"
    )
    compared = {one.name: one.difference for one in conclusion.comparisons}
    for result in conclusion.results:
        difference = compared.get(result.name)
        cells = ["", "", ""]
        if difference:
            cells = [f"{difference.value:+.4f}", in_brackets(difference.interval, sign="+"), p_text(difference.corrected)]
        value = "-" if result.mean is None else f"{result.mean:.4f}"
        span = in_brackets(result.interval) or (NO_INTERVAL if result.points else "")
        table.add_row(short_name(result.name), value, span, *cells)
    return table


def difference_title(conclusion: Conclusion) -> str:
    """Return the title of the intervals of differences: several are corrected, so that all hold together with 95 %."""
    return "corrected" if conclusion.correction else "95 % interval"


def in_brackets(interval: Interval | None, sign: str = "") -> str:
    """Return `0.805..0.875`."""
    return "" if interval is None else f"{interval.low:{sign}.3f}..{interval.high:{sign}.3f}"


def p_text(value: float) -> str:
    """Return a p-value with three decimals."""
    return f"{value:.3f}" if value >= 0.001 else "<0.001"


def verdict_lines(conclusion: Conclusion) -> list[str]:
    """Return a sentence for each comparison, and one about how they were computed."""
    lines = [f"{one.name}: {one.verdict}" for one in conclusion.comparisons]
    methods = ", ".join(dict.fromkeys(one.difference.method for one in conclusion.comparisons))
    return [*lines, f"test: {methods}" + (f"; {conclusion.correction}" if conclusion.correction else "")]


def show_rows(console: Console, found: ComparedRuns, rows: RowDifferences) -> None:
    """Print how many rows each of two sides does better on, and the clearest of them."""
    first = found.names[0]
    if found.sides[0].side.record.data.task == SCORE:
        words = f"closer on {rows.num_better:,}, farther off on {rows.num_worse:,}"
    elif not found.has_several_seeds:
        words = f"only it gets {counted(rows.num_better, 'row', 'rows')} right, only {first} {rows.num_worse:,}"
    else:
        words = f"more seeds right on {counted(rows.num_better, 'row', 'rows')}, fewer on {rows.num_worse:,}"
    line(console, f"{rows.name}: {words}, the same on {rows.num_equal:,}")
    for kind, several in (("better", rows.better), ("worse", rows.worse)):
        for row in several[:MOST_ROWS]:
            line(console, f"  {kind}: {row_text(row, shares=found.has_several_seeds and words.startswith('more'))}")


def row_text(row: RowDifference, *, shares: bool) -> str:
    """Return a row on one line: number, label, both answers or shares of seeds that are right, and its texts."""
    texts = " | ".join(str(value) for name, value in row.entry.items() if name != "label")
    answers = f"{shortened(answer_text(row.first_answer), 12)} → {shortened(answer_text(row.second_answer), 12)}"
    if shares:
        answers = f"{row.first:.0%} → {row.second:.0%} of seeds right"
    return shortened(f"row {row.row} [{shortened(answer_text(row.entry.get('label')), 12)}] {answers}: {texts}", 68)


def curves(found: ComparedRuns) -> list[LineChart]:
    """Return a chart of the training loss, of the evaluation loss, and of each metric, if the runs recorded them."""
    histories = {side.name: [read_history(path) for path in side.side.folders.values()] for side in found.sides}
    wanted = {"loss": "Training loss", "eval_loss": "Evaluation loss"}
    wanted |= {f"eval_{key}": found.measures.title(key) for key in found.measures.keys}
    charts = []
    for key, title in wanted.items():
        lines = [series_of(name, several, key) for name, several in histories.items()]
        shown = [line for line in lines if line.points]
        if shown:
            seeds = " Lines are means over seeds, areas reach from the lowest to the highest." * any(
                line.band for line in shown
            )
            charts.append(LineChart(title, f"{title} by step.{seeds}", Axis("step"), Axis(title), shown))
    return charts


def series_of(name: str, histories: Sequence[Sequence[Entry]], key: str) -> Series:
    """Return the values of one side by step: of several seeds the mean, with the lowest and highest as an area."""
    values: dict[float, list[float]] = {}
    for history in histories:
        for step, value in points_of(history, key).items():
            values.setdefault(step, []).append(value)
    steps = sorted(step for step, several in values.items() if len(several) == len(histories)) or sorted(values)
    points = [(step, sum(values[step]) / len(values[step])) for step in steps]
    band = [(step, min(values[step]), max(values[step])) for step in steps] if len(histories) > 1 else []
    return Series(name, points, band=band, dots=key != "loss")


def points_of(history: Sequence[Mapping[str, object]], key: str) -> dict[float, float]:
    """Return a figure of a history by step; of repeated steps, the last."""
    found: dict[float, float] = {}
    for entry in history:
        step, value = entry.get("step"), entry.get(key)
        if isinstance(step, int | float) and isinstance(value, int | float) and not isinstance(value, bool):
            found[float(step)] = float(value)
    return found


MOST_TEXT = 2000  # characters of a text that are shown
STYLE = "ul.rows{list-style:none;padding:0}ul.rows li{border-top:1px solid var(--line);padding:.5rem 0;overflow-wrap:anywhere}"


STYLE += "ul.rows p{margin:.3rem 0 0}main,header.top{overflow-wrap:anywhere}"  # names of runs are long paths


STYLE += "td.long{overflow-wrap:anywhere;min-width:5.5rem}td.long:last-child{overflow-wrap:normal}"


def comparison_page(found: ComparedRuns) -> str:
    """Return the HTML of a comparison. All texts and names in it are escaped."""
    first, *others = found.names
    title = f"{', '.join(others)} compared with {first}" if len(others) < 4 else f"{len(others)} runs compared with {first}"
    sections = [
        Section("result", "Result", result_part(found)),
        Section("settings", "Settings that differ", settings_part(found), "Settings"),
        Section("curves", "Curves", grid(*(figure(chart) for chart in curves(found)))),
        Section(
            "rows", "Rows that differ", "".join(rows_part(found, rows, place) for place, rows in enumerate(found.rows)), "Rows"
        ),
    ]
    subtitle = paragraph(f"{found.split}, {counted(found.num_rows, 'row', 'rows')}")
    return page(
        printable(title),
        sections,
        subtitle=subtitle,
        style=STYLE,
        footer=paragraph("Made by glassloop compare from the run folders."),
    )


def result_part(found: ComparedRuns) -> str:
    """Return the verdicts, a chart and a table for each metric."""
    parts = [paragraph(SINGLE_SEEDS)] if one_seed_of_different_settings(found) else []
    for key, conclusion in found.conclusions.items():
        title = found.measures.title(key)
        parts.append(heading(title))
        parts.append("<ul>" + "".join(f"<li>{escaped(line)}</li>" for line in verdict_lines(conclusion)) + "</ul>")
        parts.append(grid(figure(values_chart(title, conclusion)), figure(differences_chart(title, conclusion))))
        parts.append(details("Table", metric_section_table(conclusion)))
    return "".join(parts)


def values_chart(title: str, conclusion: Conclusion) -> DotChart:
    """Return all points, the mean and its interval for each side."""
    rows = [
        Dots(
            one.name,
            one.mean,
            one.interval.low if one.interval else None,
            one.interval.high if one.interval else None,
            points=[*one.points.values()] if len(one.points) > 1 else (),
            note=f"{one.failed} of {one.runs} runs at or below the baseline" if one.failed else "",
            color=place,
        )
        for place, one in enumerate(conclusion.results)
    ]
    return DotChart(title, "Value of each run with its 95 % interval; small points are single seeds.", rows, Axis(title))


def differences_chart(title: str, conclusion: Conclusion) -> DotChart:
    """Return the difference of each other side from the first with its interval."""
    rows = [
        Dots(
            one.name,
            one.difference.value,
            one.difference.interval.low,
            one.difference.interval.high,
            note=str(one.verdict),
            color=place + 1,
        )
        for place, one in enumerate(conclusion.comparisons)
    ]
    name = f"Difference in {title} from {conclusion.reference}"
    told = "An interval across zero leaves open which is better."
    if conclusion.correction:
        told += f" With {conclusion.correction}."
    return DotChart(name, told, rows, Axis("difference"), reference=0.0)


def metric_section_table(conclusion: Conclusion) -> str:
    """Return values, intervals and tests of one metric."""
    compared = {one.name: one for one in conclusion.comparisons}
    rows: list[list[Cell]] = []
    for result in conclusion.results:
        interval, one = result.interval, compared.get(result.name)
        cells: list[Cell] = [result.name, len(result.points), score(result.mean), score(result.deviation), between(interval)]
        if one:
            found = one.difference
            cells += [score(found.value), between(found.interval)]
            cells += [
                Number(found.p_value, p_text(found.p_value)),
                Number(found.corrected, p_text(found.corrected)),
                str(one.verdict),
            ]
        else:
            cells += [None, None, None, None, "reference"]
        rows.append(cells)
    columns = [
        "run",
        "seeds",
        "mean",
        "standard deviation",
        "95 % interval",
        "difference",
        "corrected interval" if conclusion.correction else "95 % interval",
        "p",
        "p (Holm)",
        "verdict",
    ]
    return table(columns, rows)


def between(interval: Interval | None) -> Number:
    """Return both ends of an interval as a cell."""
    return Number(interval.low, f"{interval.low:.4f} to {interval.high:.4f}") if interval else Number(None, "–")


def settings_part(found: ComparedRuns) -> str:
    """Return the settings that differ."""
    rows = [[name, *values] for name, values in found.settings.items()]
    return table(["setting", *found.names], rows) or paragraph("All recorded settings are the same.")


def rows_part(found: ComparedRuns, rows: RowDifferences, place: int) -> str:
    """Return the rows on which one side does better or worse than the first, with a filter."""
    better, worse, equal = (f"{number:,}" for number in (rows.num_better, rows.num_worse, rows.num_equal))
    counts = f"{rows.name} does better on {better} rows, worse on {worse}, and equally well on {equal}."
    listed = [("better", row) for row in rows.better] + [("worse", row) for row in rows.worse]
    hidden = rows.num_better + rows.num_worse - len(listed)
    note = f" The list shows the clearest {len(listed):,}; {hidden:,} more are omitted." if hidden else ""
    name = f"rows-{place}"
    items = "".join(row_item(found, rows.name, kind, row) for kind, row in listed)
    chosen = filters(name, {"kind": (rows.name, ("better", "worse"))}) + f'<ul class="rows" id="{name}">{items}</ul>'
    return heading(f"{rows.name} and {found.names[0]}") + paragraph(counts + note) + (chosen if items else "")


def row_item(found: ComparedRuns, name: str, kind: str, row: RowDifference) -> str:
    """Return one row: its number and label, both answers, and its texts."""
    regression = found.sides[0].side.record.data.task == SCORE
    answers = {found.names[0]: (row.first_answer, row.first), name: (row.second_answer, row.second)}
    words = [f"row {row.row}, label {cut(row.entry.get('label'))}"]
    for side, (answer, share) in answers.items():
        if found.has_several_seeds and not regression:
            words.append(f"{side}: {share:.0%} of seeds right")
        else:
            words.append(f"{side}: {cut(answer)}" + (f" (off by {share:.3g})" if regression else ""))
    texts = "".join(paragraph(cut(value)) for key, value in row.entry.items() if key != "label")
    tagged = tag(kind, "good" if kind == "better" else "bad")
    return f'<li data-kind="{kind}"><div>{tagged} {escaped("; ".join(words))}</div>{texts}</li>'


def cut(value: object) -> str:
    """Return a text or label, cut if it is very long."""
    text = answer_text(value)
    return text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + "…"
