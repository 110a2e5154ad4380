"""A comparison as one HTML file: verdicts, metrics, settings, curves and rows."""

from __future__ import annotations

from glassloop.charts.dots import DotChart, Dots
from glassloop.charts.figure import figure
from glassloop.charts.scales import Axis
from glassloop.comparing.curves import curves
from glassloop.comparing.results import ComparedRuns, RowDifference, RowDifferences, answer_text
from glassloop.comparing.terminal import SINGLE_SEEDS, one_seed_of_different_settings, p_text, verdict_lines
from glassloop.errors import counted, printable
from glassloop.markup import escaped
from glassloop.pages.page import Section, page
from glassloop.pages.parts import Cell, Number, details, filters, grid, heading, paragraph, score, table, tag
from glassloop.settings import SCORE
from glassloop.statistics.conclusions import Conclusion
from glassloop.statistics.intervals import Interval

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
        parts.append(details("Table", metric_table(conclusion)))
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


def metric_table(conclusion: Conclusion) -> str:
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
