"""HTML for notebooks: nothing in it runs, whatever the data contains, and it stays small."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from glassloop.markup import notebook, templates

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</td></tr></table><iframe src=javascript:alert(1)>",
    "a' onmouseover='alert(1)",
    "]]><!--",
    "&lt;b&gt;",
    "\x1b[31mred\u202e\x00\ud800",
]
TAGS = {"div", "span", "table", "tr", "th", "td", "svg", "rect", "polyline"}


def parsed(html: str) -> ElementTree.Element:
    """Return the elements of a view, which is well-formed and contains nothing but harmless tags and attributes."""
    root = ElementTree.fromstring(html)
    for element in root.iter():
        assert element.tag in TAGS
        assert not [name for name in element.attrib if name.startswith("on") or name in ("src", "href")]
    return root


@pytest.mark.parametrize("text", HOSTILE)
def test_text_stays_text(text: str) -> None:
    chart = notebook.chart({text: [(0, 1.0), (1, 2.0)]}, text)
    html = notebook.view(text, notebook.table([text, text], [[text, text]]), notebook.facts({text: text}), chart)
    cells = [element.text for element in parsed(html).iter("td")]
    assert cells == [templates.printable(text)] * 4
    assert parsed(notebook.scores(text, {text: 0.5}, {text: text}))
    # Autoescape does that: without it, a text in a template would be markup.
    template = templates.ENVIRONMENT.from_string('<b title="{{ value }}">{{ value }}</b>')
    element = ElementTree.fromstring(template.render(value=text))
    assert element.attrib == {"title": templates.readable(text)}
    assert element.text == templates.readable(text)


def test_formulas_long_texts_timings_and_empty_parts() -> None:
    classes = parsed(notebook.view("$\\href{javascript:alert(1)}{x}$")).attrib["class"].split()
    assert {"tex2jax_ignore", "mathjax_ignore"} <= {*classes}
    assert len(templates.short("a" * 10_000)) == templates.MOST_CHARACTERS
    assert templates.short("a" * 10_000).endswith("…")
    assert templates.escaped("<b>" + "a" * 1000) == "&lt;b&gt;" + "a" * 1000
    assert templates.escaped("one\ntwo\x1b\t'\"") == "one\ntwo\\x1b &#39;&#34;"
    html = notebook.scores("Evaluation", {"eval_accuracy": 0.5, "eval_runtime": 1.5, "eval_samples_per_second": 9.0})
    assert "eval_accuracy" in html
    assert "runtime" not in html
    assert "per_second" not in html
    assert (notebook.figure(0.84314), notebook.figure(None)) == ("0.8431", "-")
    assert notebook.table(("a", "b"), []) == ""
    assert notebook.view("x", "", "") == notebook.view("x")


def test_a_chart_draws_each_line_within_its_frame_and_thins_long_ones() -> None:
    html = notebook.chart({"training loss": [(0, 3.0), (5, 1.0), (10, 2.0)], "evaluation loss": [(5, 2.5), (10, 1.5)]}, "step")
    root = parsed(f"<div>{html}</div>")
    first, second = [[*map(float, re.split("[ ,]", line.attrib["points"]))] for line in root.iter("polyline")]
    assert (len(first), len(second)) == (6, 4)
    assert (min(first[::2]), max(first[::2])) == (notebook.MARGIN, notebook.WIDTH - notebook.MARGIN)
    assert (min(first[1::2]), max(first[1::2])) == (notebook.MARGIN, notebook.HEIGHT - notebook.MARGIN)
    assert first[1] < first[3], "the larger loss is higher"
    assert "1 to 3; step 0 to 10" in html
    for lines in ({}, {"loss": []}, {"loss": [(1, 0.5)]}):
        assert notebook.chart(lines, "step") == "", "without two points there is no chart"
    assert f"{notebook.HEIGHT / 2:.1f}" in notebook.chart({"loss": [(1, 0.5), (2, 0.5)]}, "step"), "a flat line"
    points = [(float(step), 0.0) for step in range(12_345)]
    kept = notebook.thinned(points)
    assert len(kept) <= notebook.MOST_POINTS + 1
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert len(notebook.chart({"a": points, "b": points}, "step")) < 10_000


def test_colors_can_be_seen_on_white_and_on_black() -> None:
    """The contrast of each line is at least 3 : 1, as WCAG asks of graphics. Everything else takes the color of the page."""

    def luminance(color: str) -> float:
        parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for color in notebook.COLORS:
        assert 1.05 / (luminance(color) + 0.05) >= 3
        assert (luminance(color) + 0.05) / (luminance("#1e1e1e") + 0.05) >= 3
    html = notebook.view("x", notebook.table(("a", "b"), [("c", "d")]))
    assert not re.search(r"#[0-9a-f]{3,6}|color:(?!inherit)", html)
    assert "color:inherit" in html, "tables of a page without a doctype would stay black"
