"""Test what all charts share: the figure of a page, standalone files, the data table, and marks within the axes."""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest
from drawn import HOSTILE, every_chart, marks, places, tree

from glassloop.report.charts import (
    CHART_CSS,
    COUNT,
    LIGHT,
    LINEAR,
    LOG,
    NIGHT,
    PERCENT,
    Axis,
    Chart,
    area,
    csv_of,
    cut,
    element,
    figure,
    label,
    legend,
    legend_rows,
    multiples,
    number_text,
    path,
    round_step,
    scale_of,
    short,
    standalone,
    title,
    value_text,
    width_of,
)
from glassloop.report.charts import Key as LegendKey

CHARTS = every_chart()


KINDS = [type(chart).__name__ for chart in CHARTS]


@pytest.mark.parametrize("chart", CHARTS, ids=KINDS)
def test_a_chart_is_an_image_with_title_and_description(chart: Chart) -> None:
    drawn = tree(chart)
    assert drawn.get("role") == "img"
    names = drawn.get("aria-labelledby", "").split()
    assert [(child.tag, child.get("id"), child.text) for child in drawn][:2] == [
        ("title", names[0], chart.title),
        ("desc", names[1], chart.description),
    ]
    assert drawn.get("viewBox", "").startswith("0 0 ")
    assert not drawn.get("width"), "it scales with the page"


@pytest.mark.parametrize("chart", CHARTS, ids=KINDS)
def test_all_marks_lie_within_the_drawing(chart: Chart) -> None:
    drawn = tree(chart)
    *_, width, height = map(float, drawn.get("viewBox", "").split())
    found = [place for mark in marks(drawn) for place in places(mark)]
    assert found
    assert all(0 <= x <= width and 0 <= y <= height for x, y in found)


@pytest.mark.parametrize("chart", every_chart(HOSTILE), ids=KINDS)
def test_names_cannot_become_markup(chart: Chart) -> None:
    for written in (figure(chart, note=HOSTILE), standalone(chart, below=HOSTILE)):
        assert "<script" not in written
        assert not re.search(r"=\"[^\"]*<", written)
    assert ElementTree.fromstring(standalone(chart)).find("{http://www.w3.org/2000/svg}title").text == HOSTILE


@pytest.mark.parametrize("chart", CHARTS, ids=KINDS)
def test_marks_say_their_values(chart: Chart) -> None:
    assert any("loss" in (name.text or "") for name in tree(chart).iter("title"))


class Tags(HTMLParser):
    """Counts tags and checks that they are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.seen.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("chart", CHARTS, ids=KINDS)
def test_a_figure_has_its_data_table(chart: Chart) -> None:
    reader = Tags()
    reader.feed(figure(chart))
    assert not reader.open
    assert {"figure", "figcaption", "svg", "details", "table"} <= {*reader.seen}
    assert reader.seen.count("tr") == len(chart.table().rows) + 1


@pytest.mark.parametrize("chart", CHARTS, ids=KINDS)
def test_csv_has_all_rows(chart: Chart) -> None:
    head, *rows = csv.reader(io.StringIO(csv_of(chart)))
    assert (tuple(head), len(rows)) == (chart.table().columns, len(chart.table().rows))


def test_a_long_data_table_says_what_it_omits() -> None:
    assert "1 more rows are not shown" in figure(CHARTS[0], most_rows=2)


def test_files_have_styles_without_variables() -> None:
    text = standalone(CHARTS[0])
    assert "var(" not in text
    assert "prefers-color-scheme:dark" in text
    assert "prefers-color-scheme" not in standalone(CHARTS[0], dark=False)
    assert 'xmlns="http://www.w3.org/2000/svg"' in text


def test_a_page_has_both_palettes() -> None:
    assert LIGHT in CHART_CSS
    assert CHART_CSS.count(NIGHT) == 2, "by choice of the reader, and of the system"
    names = [{*re.findall(r"(--\w+):", palette)} for palette in (LIGHT, NIGHT)]
    assert names[0] == names[1] >= {*re.findall(r"var\((--\w+)\)", CHART_CSS)}


def luminance(color: str) -> float:
    """Return the relative luminance of a color as WCAG defines it."""
    full = color if len(color) == 7 else "#" + "".join(part * 2 for part in color[1:])
    parts = [int(full[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("palette", [LIGHT, NIGHT], ids=["light", "dark"])
def test_colors_have_enough_contrast(palette: str) -> None:
    colors = dict(re.findall(r"--(\w+):(#\w+)", palette))
    paper = luminance(colors["paper"])
    for name in ("ink", "soft", "accent", "wrong", *(f"s{number}" for number in range(8))):
        low, high = sorted([paper, luminance(colors[name])])
        least = 4.5 if name in ("ink", "soft") else 3.0
        assert (high + 0.05) / (low + 0.05) >= least, name


def test_legends_wrap() -> None:
    keys = [LegendKey(f"a name of a series {number}", number) for number in range(6)]
    rows = legend_rows(keys, 300)
    assert len(rows) > 1
    assert sum(map(len, rows)) == 6
    assert legend(keys[:1]) == "", "one series needs no legend"
    assert legend(keys).count("<button") == 6


# --- Test ranges, ticks and the numbers written at them.


@pytest.mark.parametrize(
    ("values", "axis", "ticks"),
    [
        ([0.1, 0.72], Axis(), ["0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8"]),
        ([0.813, 0.861], Axis(), ["0.81", "0.82", "0.83", "0.84", "0.85", "0.86", "0.87"]),
        ([0, 4321], Axis(), ["0", "1,000", "2,000", "3,000", "4,000", "5,000"]),
        ([0.0, 5e-5], Axis(), ["0", "1e-5", "2e-5", "3e-5", "4e-5", "5e-5"]),
        ([0.0, 1.7e-4], Axis(), ["0", "5e-5", "1e-4", "1.5e-4", "2e-4"]),
        ([0.2, 0.9], Axis(kind=PERCENT, low=0, high=1), ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]),
        ([3], Axis(kind=COUNT), ["0", "1", "2", "3"]),
        ([0.02, 70], Axis(kind=LOG), ["0.01", "0.1", "1", "10", "100"]),
        ([1.5, 8], Axis(kind=LOG), ["1", "2", "5", "10"]),
        ([-30, 45], Axis(), ["-40", "-20", "0", "20", "40", "60"]),
    ],
)
def test_ticks_are_round_numbers_around_the_data(values: list[float], axis: Axis, ticks: list[str]) -> None:
    scale = scale_of(axis, values, 0, 100, 7)
    assert [scale.written(tick) for tick in scale.ticks] == ticks
    assert all(0 <= scale.place(value) <= 100 for value in values)


@pytest.mark.parametrize("values", [[], [0.0], [5.0, 5.0], [-2.0], [float("nan"), 1.0], [float("inf"), 2.0], [1e-300], [1e300]])
@pytest.mark.parametrize("kind", [LINEAR, LOG, PERCENT, COUNT])
def test_any_data_has_a_scale(values: list[float], kind: str) -> None:
    scale = scale_of(Axis(kind=kind), values, 10, 90)
    assert scale.low < scale.high
    assert all(10 <= scale.place(value) <= 90 for value in [*values, 0.5] if value == value)
    assert all(scale.written(tick) for tick in scale.ticks)


def test_places_are_proportional() -> None:
    scale = scale_of(Axis(), [0, 10], 0, 200)
    assert [scale.place(value) for value in (0, 2.5, 10, 11)] == [0, 50, 200, 200]
    logarithmic = scale_of(Axis(kind=LOG), [1, 100], 0, 200)
    assert logarithmic.place(10) == pytest.approx(100)
    assert logarithmic.place(0) == 0, "zero has no logarithm and is drawn at the end"


def test_steps_and_multiples() -> None:
    assert round_step(1, 5) == 0.2
    assert round_step(3, 6, COUNT) == 1
    assert multiples(0.1, 0.35, 0.1) == [0.1, 0.2, 0.3]


@pytest.mark.parametrize(
    ("value", "text"),
    [(12345, "12,345"), (0.123456, "0.1235"), (2.5e-5, "2.50e-5"), (3.2e6, "3.2M"), (2e9, "2G"), (7.0, "7"), (0, "0")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number_text(value) == text


def test_a_value_without_number_is_a_dash() -> None:
    assert value_text(None) == value_text(float("nan")) == "–"
    assert value_text(0.256, PERCENT) == "25.6 %"


def test_small_ticks_stay_distinct() -> None:
    scale = scale_of(Axis(), [0, 2.9e-4], 0, 100)
    assert [scale.written(tick) for tick in scale.ticks] == ["0", "5e-5", "1e-4", "1.5e-4", "2e-4", "2.5e-4", "3e-4"]


@pytest.mark.parametrize("kind", [LINEAR, LOG, PERCENT, COUNT])
@pytest.mark.parametrize("end", [1.0, 3e38, 1e-300])
def test_an_axis_with_equal_ends_has_a_length(kind: str, end: float) -> None:
    """All rows of a run may have one confidence."""
    scale = scale_of(Axis(kind=kind, low=end, high=end), [end], 0, 100)
    assert 0 <= scale.place(end) <= 100


# --- Test SVG elements: escaping, short numbers, widths.


def test_attributes_and_texts_are_escaped() -> None:
    drawn = element("text", title(HOSTILE), class_=HOSTILE, text_anchor="end", x=1.25, y=None)
    read = ElementTree.fromstring(drawn)
    assert read.get("class") == HOSTILE
    assert read[0].text == HOSTILE
    assert read.attrib == {"class": HOSTILE, "text-anchor": "end", "x": "1.2"}
    assert "<script" not in drawn


def test_numbers_are_short_of_svg() -> None:
    assert [short(value) for value in (1, 2.04, 3.96, -0.01)] == ["1", "2", "4", "0"]


def test_a_line_needs_two_points() -> None:
    assert path([(1, 2)], "line") == area([(1, 2)], [(1, 1)], "band") == ""
    assert path([(1, 2), (3, 4)], "line") == '<path class="line" d="M1 2L3 4"/>'
    assert area([(0, 1), (2, 1)], [(0, 0), (2, 0)], "band") == '<path class="band" d="M0 1L2 1L2 0L0 0z"/>'


def test_long_texts_are_cut_and_shown_in_full_on_hover() -> None:
    name = "a class with a very long name"
    assert cut(name, 60).endswith("…")
    assert width_of(cut(name, 60)) <= 60
    assert cut(name, 1000) == name
    assert ElementTree.fromstring(label(name, 0, 0, limit=60))[0].text == name
    assert "<title>" not in label(name, 0, 0, limit=1000)
    assert width_of("漢字") > width_of("ab"), "wide characters"
