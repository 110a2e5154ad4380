"""Charts of every kind, and a reader for the SVG they become."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from html.parser import HTMLParser

from glassloop.report import charts
from glassloop.report.charts import Axis, BarChart, Bars, Chart, Cloud, DotChart, Dots, Event, HeatMap, Histogram, LineChart

VOID = {"meta", "link", "input", "br", "img"}
HOSTILE = "</svg><script>alert(1)</script>\"'&"


def every_chart(name: str = "loss") -> list[Chart]:
    """Return one chart of each kind, with a name in all places that take a text."""
    x, y = Axis(name), Axis(name)
    both = [name, "b"]
    points, band = [(1.0, 0.7), (2.0, 0.5), (3.0, 0.6)], [(1.0, 0.6, 0.8), (3.0, 0.5, 0.7)]
    return [
        LineChart(name, name, x, y, [charts.Series(name, points, points, band, dots=True)], [Event(2, name)], [(name, 0.65)]),
        BarChart(name, name, [name, f"{name} 2"], [Bars(name, [1, 2]), Bars(f"{name} 2", [3, None])], y),
        Histogram(name, name, [0, 1, 2], [Bars(name, [3, 0]), Bars(f"{name} 2", [1, 2])], x),
        charts.ScatterChart(name, name, x, y, [Cloud(name, points, [name] * 3)], diagonal=True, level=0.1),
        DotChart(name, name, [Dots(name, 0.5, 0.4, 0.6, [0.3, 0.7], 0.1, name)], x, 0.2, name),
        HeatMap(name, name, both, both, [[0.9, 0.1], [0, 1]], [[["9", "90 %"], ["1"]], [["0"], ["7"]]], name, name, True),
    ]


def tree(chart: Chart) -> ElementTree.Element:
    """Return the SVG of a chart as a tree."""
    return ElementTree.fromstring(charts.svg(chart))


def marks(drawn: ElementTree.Element) -> list[ElementTree.Element]:
    """Return what shows data: lines, bars, dots and cells, but neither axes nor texts."""
    kinds = {"line", "raw", "band", "bar", "dot", "point", "whisker", "cell", "hit", "dashed", "event"}
    return [element for element in drawn.iter() if kinds & {*element.get("class", "").split()}]


def places(mark: ElementTree.Element) -> Iterator[tuple[float, float]]:
    """Yield the corners of a mark."""
    number = {key: float(value) for key, value in mark.attrib.items() if re.fullmatch(r"-?[\d.]+", value)}
    if mark.tag == "circle":
        yield number["cx"], number["cy"]
    elif mark.tag == "rect":
        yield number["x"], number["y"]
        yield number["x"] + number["width"], number["y"] + number["height"]
    else:
        here = [0.0, 0.0]
        for command, values in re.findall(r"([MLHVv])([-\d. ]+)", mark.get("d", "")):
            found = [*map(float, values.split())]
            here = {"H": [found[0], here[1]], "V": [here[0], found[0]], "v": [here[0], here[1] + found[0]]}.get(command, found)
            yield here[0], here[1]


class Reader(HTMLParser):
    """Reads the visible text and the tags of a page, and checks that every tag is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & {*self.open}:
            self.texts.append(data)
