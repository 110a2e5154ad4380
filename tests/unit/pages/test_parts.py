"""Test pieces of pages: everything is escaped, numbers can be sorted."""

from __future__ import annotations

import re

from drawn import HOSTILE

from glassloop.report import page as parts
from glassloop.report.charts.figure import PERCENT


def test_every_part_escapes_its_texts() -> None:
    written = [
        parts.paragraph(HOSTILE, HOSTILE),
        parts.heading(HOSTILE),
        parts.tag(HOSTILE),
        parts.table([HOSTILE], [[HOSTILE]], sortable=True, name=HOSTILE),
        parts.fact_list({HOSTILE: HOSTILE}),
        parts.card(HOSTILE, HOSTILE, HOSTILE),
        parts.details(HOSTILE, "<p></p>"),
        parts.code_block(HOSTILE),
        parts.filters(HOSTILE, {HOSTILE: (HOSTILE, [HOSTILE])}, search=HOSTILE),
    ]
    for html in written:
        assert "<script" not in html
        assert "</svg>" not in html
        assert not re.search(r"=\"[^\"]*<", html)


def test_numbers_carry_the_value_they_are_sorted_by() -> None:
    html = parts.table(["a", "b"], [["x", parts.number(0.256, PERCENT)], ["y", None]], sortable=True)
    assert '<td class="n" data-value="0.256">25.6 %</td>' in html
    assert '<td class="n" data-value="">–</td>' in html
    assert '<th scope="col" class="n"><button type="button">b</button></th>' in html
    assert parts.content(parts.score(0.85)) == "0.8500"
    assert parts.content(parts.score(None)) == "–"


def test_empty_parts_are_omitted() -> None:
    assert parts.table(["a"], []) == parts.paragraph("") == parts.fact_list({"a": None, "b": ""}) == ""
    assert parts.cards([]) == parts.grid("", "") == parts.details("more", "") == ""


def test_html_passes_unchanged_where_it_is_wanted() -> None:
    assert parts.fact_list({"a": parts.Html("<b>1</b>")}) == '<dl class="facts"><dt>a</dt><dd><b>1</b></dd></dl>'
    assert parts.grid("<figure></figure>", "<p></p>") == '<div class="grid2"><figure></figure><div><p></p></div></div>'
