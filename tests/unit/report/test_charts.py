"""Charts: scales and ticks, marks within the axes, data tables, files, and names that cannot become markup."""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ElementTree

import pytest
from drawn import HOSTILE, Reader, every_chart, marks, places, tree

from glassloop.markup.templates import LINEAR, PERCENT, number_text, value_text
from glassloop.report import charts
from glassloop.report.charts import CHART_CSS, COUNT, LOG, Axis, BarChart, Bars, Chart, LineChart, Series, scale_of, standalone
from glassloop.report.page import figure

CHARTS = every_chart()
KINDS = [type(chart).__name__ for chart in CHARTS]
SVG = "{http://www.w3.org/2000/svg}"


def kinds_of(chart: Chart, kind: str) -> list[ElementTree.Element]:
    """Return the marks of a kind."""
    return [mark for mark in marks(tree(chart)) if mark.get("class") == kind]


# --- what all charts share
@pytest.mark.parametrize("chart", CHARTS, ids=KINDS)
def test_a_chart_is_an_image_with_a_description_whose_marks_say_their_values(chart: Chart) -> None:
    drawn = tree(chart)
    assert drawn.get("role") == "img"
    names = drawn.get("aria-labelledby", "").split()
    assert [(child.tag, child.get("id"), child.text) for child in drawn][:2] == [
        ("title", names[0], chart.title),
        ("desc", names[1], chart.description),
    ]
    assert not drawn.get("width"), "it scales with the page"
    zero, _, width, height = map(float, drawn.get("viewBox", "").split())
    corners = [place for mark in marks(drawn) for place in places(mark)]
    assert corners
    assert all(zero <= x <= width and 0 <= y <= height for x, y in corners), "all marks lie within the drawing"
    assert any("loss" in (name.text or "") for name in drawn.iter("title"))


def test_the_data_is_a_table_and_a_csv_file_whose_names_cannot_become_markup() -> None:
    for chart in CHARTS:
        seen = Reader(figure(chart)).tags
        assert {"figure", "figcaption", "svg", "details", "table"} <= {*seen}
        assert seen.count("tr") == len(chart.table().rows) + 1
        head, *rows = csv.reader(io.StringIO(charts.csv_of(chart)))
        assert (tuple(head), len(rows)) == (chart.table().columns, len(chart.table().rows))
    for chart in every_chart(HOSTILE):
        for written in (figure(chart, note=HOSTILE), standalone(chart, below=HOSTILE)):
            assert "<script" not in written
            assert not re.search(r"=\"[^\"]*<", written)
        assert ElementTree.fromstring(standalone(chart)).find(f"{SVG}title").text == HOSTILE


def test_files_have_styles_without_variables_and_legends_of_several_series_wrap() -> None:
    text = standalone(CHARTS[0])
    assert "var(" not in text
    assert "prefers-color-scheme:dark" in text
    assert "prefers-color-scheme" not in standalone(CHARTS[0], dark=False)
    assert "1 more rows are not shown" in figure(CHARTS[0], most_rows=2)
    several = [Series(f"a name of a series {number}", [(0, 0), (1, 1)]) for number in range(6)]
    chart = LineChart("Loss", "", Axis(), Axis(), several)
    drawn = ElementTree.fromstring(standalone(chart))
    squares = [mark for mark in drawn.iter(f"{SVG}rect") if mark.get("class") == "key"]
    assert len(squares) == 6
    assert len({mark.get("y") for mark in squares}) > 1
    assert figure(chart).count('<button type="button" data-series') == 6
    assert "legend" not in figure(LineChart("Loss", "", Axis(), Axis(), several[:1])), "one series needs no legend"


def luminance(color: str) -> float:
    """Return the relative luminance of a color as WCAG defines it."""
    full = color if len(color) == 7 else "#" + "".join(part * 2 for part in color[1:])
    parts = [int(full[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_a_page_has_both_palettes_with_enough_contrast() -> None:
    assert charts.LIGHT in CHART_CSS
    assert CHART_CSS.count(charts.NIGHT) == 2, "by choice of the reader, and of the system"
    used = {*re.findall(r"var\(--(\w+)\)", CHART_CSS)}
    for palette in (charts.LIGHT, charts.NIGHT):
        colors = dict(re.findall(r"--(\w+):(#\w+)", palette))
        assert used <= {*colors}
        for name in ("ink", "soft", "accent", "wrong", *(f"s{number}" for number in range(8))):
            low, high = sorted([luminance(colors["paper"]), luminance(colors[name])])
            assert (high + 0.05) / (low + 0.05) >= (4.5 if name in ("ink", "soft") else 3.0), name


# --- ranges, ticks and the numbers written at them
def test_ticks_are_round_numbers_around_the_data() -> None:
    for values, axis, ticks in [
        ([0.1, 0.72], Axis(), "0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8"),
        ([0.813, 0.861], Axis(), "0.81 0.82 0.83 0.84 0.85 0.86 0.87"),
        ([0, 4321], Axis(), "0 1,000 2,000 3,000 4,000 5,000"),
        ([0.0, 5e-5], Axis(), "0 1e-5 2e-5 3e-5 4e-5 5e-5"),
        ([0.0, 1.7e-4], Axis(), "0 5e-5 1e-4 1.5e-4 2e-4"),
        ([0, 2.9e-4], Axis(), "0 5e-5 1e-4 1.5e-4 2e-4 2.5e-4 3e-4"),
        ([0.2, 0.9], Axis(kind=PERCENT, low=0, high=1), "0% 20% 40% 60% 80% 100%"),
        ([3], Axis(kind=COUNT), "0 1 2 3"),
        ([0.02, 70], Axis(kind=LOG), "0.01 0.1 1 10 100"),
        ([1.5, 8], Axis(kind=LOG), "1 2 5 10"),
        ([-30, 45], Axis(), "-40 -20 0 20 40 60"),
    ]:
        scale = scale_of(axis, values, 0, 100, 7)
        assert [scale.written(tick).replace(" ", "_") for tick in scale.ticks] == ticks.split()
        assert all(0 <= scale.place(value) <= 100 for value in values)
    for values in [[], [0.0], [5.0, 5.0], [-2.0], [float("nan"), 1.0], [float("inf"), 2.0], [1e-300], [1e300]]:
        for kind in [LINEAR, LOG, PERCENT, COUNT]:
            scale = scale_of(Axis(kind=kind), values, 10, 90)
            assert scale.low < scale.high
            assert all(10 <= scale.place(value) <= 90 for value in [*values, 0.5] if value == value)
            assert all(scale.written(tick) for tick in scale.ticks)
    for kind in [LINEAR, LOG, PERCENT, COUNT]:
        for end in [1.0, 3e38, 1e-300]:
            assert 0 <= scale_of(Axis(kind=kind, low=end, high=end), [end], 0, 100).place(end) <= 100
    scale = scale_of(Axis(), [0, 10], 0, 200)
    assert [scale.place(value) for value in (0, 2.5, 10, 11)] == [0, 50, 200, 200]
    logarithmic = scale_of(Axis(kind=LOG), [1, 100], 0, 200)
    assert logarithmic.place(10) == pytest.approx(100)
    assert logarithmic.place(0) == 0, "zero has no logarithm and is drawn at the end"
    texts = {12345: "12,345", 0.123456: "0.1235", 2.5e-5: "2.50e-5", 3.2e6: "3.2M", 2e9: "2G", 7.0: "7", 0: "0"}
    assert {value: number_text(value) for value in texts} == texts
    assert value_text(None) == value_text(float("nan")) == "–"
    assert value_text(0.256, PERCENT) == "25.6%"
    assert [charts.short(value) for value in (1, 2.04, 3.96, -0.01)] == ["1", "2", "4", "0"]


def test_long_texts_are_cut_and_escaped_and_a_line_needs_two_points() -> None:
    read = ElementTree.fromstring(
        charts.element("text", charts.title(HOSTILE), class_=HOSTILE, text_anchor="end", x=1.25, y=None)
    )
    assert read[0].text == HOSTILE
    assert read.attrib == {"class": HOSTILE, "text-anchor": "end", "x": "1.2"}
    assert charts.path([(1, 2)], "line") == ""
    assert charts.path([(1, 2), (3, 4)], "line") == '<path class="line" d="M1 2L3 4"/>'
    assert charts.path([(0, 1), (2, 1), (2, 0), (0, 0)], "band", "z") == '<path class="band" d="M0 1L2 1L2 0L0 0z"/>'
    name = "a class with a very long name"
    assert charts.cut(name, 60).endswith("…")
    assert charts.width_of(charts.cut(name, 60)) <= 60
    assert charts.cut(name, 1000) == name
    assert ElementTree.fromstring(charts.label(name, 0, 0, limit=60))[0].text == name
    assert "<title>" not in charts.label(name, 0, 0, limit=1000)
    assert charts.width_of("漢字") > charts.width_of("ab"), "wide characters"
    drawn = tree(BarChart("Rows", "", [name * 4], [Bars("rows", [1])]))
    assert [text[0].text for text in drawn.iter("text") if len(text)] == [name * 4]


def test_bars_start_at_zero_and_are_proportional_and_a_missing_value_has_none() -> None:
    drawn = tree(BarChart("Rows", "", ["a", "b"], [Bars("rows", [50, 100])], colors=[3, 7]))
    spans = [[x for x, _ in places(mark)] for mark in marks(drawn)]
    lengths = [right - left for left, right in spans]
    assert spans[0][0] == spans[1][0]
    assert lengths[1] == pytest.approx(2 * lengths[0], abs=0.2)
    assert [mark[0].text for mark in marks(drawn)] == ["a\nrows: 50", "b\nrows: 100"]
    assert {"s3", "s7"} <= {group.get("class") for group in drawn.iter("g")}, "labels may have their own colors"
    chart = BarChart("F1", "", ["a"], [Bars("precision", [0.5]), Bars("recall", [None])], Axis("score", high=1))
    assert len(marks(tree(chart))) == 1
    assert chart.table().rows == (("a", 0.5, None),)


def test_columns_of_a_histogram_lie_on_top_of_each_other() -> None:
    chart = charts.Histogram(
        "Scores", "", charts.even_edges(0, 2, 2), [Bars("right", [4, 1]), Bars("wrong", [2, 0])], Axis("score")
    )
    right, alone, wrong = ([*places(mark)] for mark in marks(tree(chart)))
    assert wrong[1][1] == right[0][1], "the second series starts where the first one ends"
    heights = [low - high for (_, high), (_, low) in (right, alone, wrong)]
    assert heights[0] == pytest.approx(4 * heights[1], abs=0.5)
    assert chart.table().rows == ((0, 1, 4, 2), (1, 2, 1, 0))


LONG = [(float(step), float(step % 7)) for step in range(10_000)]


def lines(*series: Series, **more: object) -> LineChart:
    return LineChart("Loss", "Loss by step.", Axis("step"), Axis("loss"), series, **more)  # type: ignore[arg-type]


def test_long_lines_are_thinned_with_their_peaks_and_smoothed_by_the_mean_of_a_window() -> None:
    peaked = [*LONG[:5_000], (5_000.0, 99.0), *LONG[5_001:]]
    kept = charts.thinned(peaked)
    assert len(kept) <= charts.MOST_POINTS
    assert (5_000.0, 99.0) in kept
    assert (kept[0], kept[-1]) == (peaked[0], peaked[-1])
    assert [*kept] == sorted(kept)
    assert charts.thinned(LONG[:10]) == LONG[:10]
    assert len(kinds_of(lines(Series("loss", LONG, raw=LONG)), "hit")) <= charts.MOST_HITS
    line = [(float(x), 2.0 * x) for x in range(100)]
    smooth = charts.smoothed(line, 0.2)
    assert [value for _, value in smooth[10:90]] == pytest.approx([value for _, value in line[10:90]])
    assert smooth[0] == (0.0, 10.0), "the mean of the first eleven values"
    assert charts.smoothed(line[:5], 0.1) == line[:5], "few points stay as they are"


def test_lines_have_tables_events_references_and_names_on_hover() -> None:
    table = lines(
        Series("loss", [(1, 2.0)], raw=[(1, 3.0)], band=[(1, 1.0, 4.0)]), Series("ideal", [(9, 9)], quiet=True)
    ).table()
    assert table.columns == ("step", "loss", "loss (raw)", "loss, low", "loss, high")
    assert table.rows == ((1, 2.0, 3.0, 1.0, 4.0),)
    chart = lines(Series("loss", [(1, 1.0), (9, 2.0)]), events=[charts.Event(4, "resumed")], references=[("majority", 1.5)])
    assert {"resumed", "majority"} <= {text.text for text in tree(chart).iter("text")}
    (event,), (line,) = kinds_of(chart, "event"), kinds_of(chart, "line")
    (left, _), (right, _) = places(line)
    assert next(iter(places(event)))[0] == pytest.approx(left + (right - left) * 3 / 8, abs=0.2)
    assert [mark.tag for mark in kinds_of(lines(Series("loss", [(5, 1.0)])), "dot")] == ["circle"]
    assert tree(lines()).tag == tree(lines(Series("loss", []))).tag == "svg"
    chart = lines(Series("a", [(1, 0.5), (2, 0.25)]), Series("b", [(2, 0.75)]))
    assert [mark[0].text for mark in kinds_of(chart, "hit")] == ["step 1\na: 0.5", "step 2\na: 0.25\nb: 0.75"]


def test_a_value_lies_within_its_interval_and_every_seed_is_a_point() -> None:
    chart = charts.DotChart("Metrics", "", [charts.Dots("accuracy", 0.8, 0.7, 0.9, baseline=0.6)], Axis(kind=PERCENT))
    whisker, baseline = kinds_of(chart, "whisker")
    (left, _), (right, _) = places(whisker)
    ((middle, _),) = places(*kinds_of(chart, "dot"))
    assert next(iter(places(baseline)))[0] < left < middle < right
    assert kinds_of(chart, "hit")[0][0].text == "accuracy\n80.0% (95% interval 70.0% to 90.0%)\nbaseline: 60.0%"
    rows = [charts.Dots("accuracy", points=[0.5, 0.6, 0.7, 0.8], note="4 seeds"), charts.Dots("f1", 0.6)]
    chart = charts.DotChart("Seeds", "", rows, Axis("score"))
    assert len(kinds_of(chart, "point")) == 4
    assert [mark[0].text for mark in kinds_of(chart, "hit")] == ["accuracy\npoints: 0.5, 0.6, 0.7, 0.8\n4 seeds", "f1\n0.6"]
    assert chart.table().rows[0] == ("accuracy", None, None, None, 0.5, 0.6, 0.7, 0.8, "4 seeds")


def test_points_say_their_values_are_listed_and_lie_on_the_diagonal_if_they_are_equal() -> None:
    axes, clouds = (Axis("true"), Axis("predicted")), [charts.Cloud("rows", [(1, 2), (3, 3)])]
    chart = charts.ScatterChart("Scores", "", *axes, clouds, diagonal=True)
    (left, low), (right, high) = places(*kinds_of(chart, "dashed"))
    ((x, y),) = places(kinds_of(chart, "point")[1])
    assert (y - low) / (high - low) == pytest.approx((x - left) / (right - left), abs=0.01)
    leveled = charts.ScatterChart("Scores", "", *axes, clouds, level=2.5)
    assert kinds_of(leveled, "point")[0][0].text == "true: 1\npredicted: 2"
    assert len(kinds_of(leveled, "dashed")) == 1
    assert chart.table().rows == (("rows", 1, 2), ("rows", 3, 3))


def confusion(size: int) -> charts.HeatMap:
    names = [f"class {number}" for number in range(size)]
    values = [[0.9 if row == column else 0.01 for column in range(size)] for row in range(size)]
    texts = [[[f"{value * 1000:.0f}", f"{value:.0%}"] for value in row] for row in values]
    return charts.HeatMap("Confusion", "", names, names, values, texts, "true", "predicted", True)


def test_errors_have_another_color_small_cells_no_text_and_the_table_has_the_counts() -> None:
    cells = marks(tree(confusion(2)))
    assert [cell.get("class") for cell in cells] == ["cell", "cell wrong", "cell wrong", "cell"]
    assert cells[1][0].text == "true class 0, predicted class 1\n10\n1%"
    assert float(cells[0].get("fill-opacity", 0)) > float(cells[1].get("fill-opacity", 0))
    assert confusion(2).table().rows[0] == ("class 0", 900.0, 10.0)
    assert charts.HeatMap("", "", ["r"], ["a", "b"], [[0, 0]], [[["a"], []]]).table().rows == (("r", "a", ""),)
    drawn = tree(confusion(40))
    assert len(marks(drawn)) == 1600
    assert not [text for text in drawn.iter("text") if "through" in text.get("class", "")]


def test_parallel_lines_are_drawn_and_listed_with_places_for_names_and_wide_ranges() -> None:
    numbers, texts = charts.axis_places([1e-5, 1e-4, 1e-3])
    assert numbers[1e-5] - numbers[1e-4] == pytest.approx(numbers[1e-4] - numbers[1e-3])
    assert len(texts) == 3
    names, texts = charts.axis_places(["linear", None, True])
    assert len({*names.values()}) == 3
    assert {text for text, _ in texts} == {"linear", "None", "True"}
    assert [*charts.axis_places([3, 3])[0].values()]
    threads = [
        charts.Thread("a", [1e-5, "linear", True, 0.8]),
        charts.Thread("b", [1e-3, "cosine", False, 0.9], chosen=True),
        charts.Thread("c", [1e-4, "cosine", None, 0.7]),
    ]
    chart = charts.ParallelChart("Settings", "lines", ["rate", "schedule", "group", "score"], threads)
    html = figure(chart)
    assert (html.count('class="line"'), html.count('class="raw"')) == (1, 2)
    assert html.index('class="raw"') < html.index('class="line"'), "the chosen line is on top"
    assert chart.table().columns == ("setting", "rate", "schedule", "group", "score")
    assert chart.table().rows[1] == ("b", 1e-3, "cosine", "false", 0.9)
