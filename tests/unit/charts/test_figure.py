"""Test what all charts share: the figure of a page, standalone files, the data table, and marks within the axes."""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest
from drawn import HOSTILE, every_chart, marks, places, tree

from glassloop.report.charts.figure import CHART_CSS, LIGHT, NIGHT, Chart, csv_of, figure, legend, legend_rows, standalone
from glassloop.report.charts.figure import Key as LegendKey

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
