"""Test SVG elements: escaping, short numbers, widths."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from drawn import HOSTILE

from glassloop.report.charts.figure import area, cut, element, label, path, short, title, width_of


def test_attributes_and_texts_are_escaped() -> None:
    drawn = element("text", title(HOSTILE), class_=HOSTILE, text_anchor="end", x=1.25, y=None)
    read = ElementTree.fromstring(drawn)
    assert read.get("class") == HOSTILE
    assert read[0].text == HOSTILE
    assert read.attrib == {"class": HOSTILE, "text-anchor": "end", "x": "1.2"}
    assert "<script" not in drawn


def test_numbers_are_short() -> None:
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
