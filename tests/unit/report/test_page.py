"""Test the skeleton of pages: policy, sections, escaping."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256

from drawn import HOSTILE
from markupsafe import Markup

from glassloop.report import page as parts
from glassloop.report.charts import PERCENT
from glassloop.report.page import PAGE_JS, Section, page, policy

HTML = page(
    HOSTILE, [Section("a", HOSTILE, "<p>one</p>"), Section("b", "Empty", "")], subtitle="<p>two</p>", script="let more;"
)


def test_only_the_own_style_and_script_are_allowed() -> None:
    (given,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', HTML)
    assert given.startswith("default-src 'none'; ")
    for name in ("style", "script"):
        (text,) = re.findall(rf"<{name}>(.*?)</{name}>", HTML, re.DOTALL)
        assert f"{name}-src 'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" in given
    assert "unsafe" not in given
    assert "connect-src" not in given
    assert "connect-src 'self'" in policy("", "", connect=True)


def test_a_page_loads_nothing_from_elsewhere() -> None:
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:,)""", HTML)
    assert "http://" not in HTML
    assert "https://" not in HTML


def test_names_are_escaped_and_empty_sections_omitted() -> None:
    assert "alert(1)</script>" not in HTML
    assert HTML.count("<section") == 1
    assert 'href="#b"' not in HTML


def test_style_attributes_are_not_used() -> None:
    """The policy would forbid them."""
    assert " style=" not in HTML


def test_the_script_is_small_and_has_no_way_to_run_texts() -> None:
    assert len(PAGE_JS.splitlines()) < 300
    for word in ("innerHTML", "eval(", "document.write", "insertAdjacentHTML", "Function(", "fetch("):
        assert word not in PAGE_JS


# --- Test pieces of pages: everything is escaped, numbers can be sorted.


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
    assert parts.fact_list({"a": Markup("<b>1</b>")}) == '<dl class="facts"><dt>a</dt><dd><b>1</b></dd></dl>'
    assert parts.grid("<figure></figure>", "<p></p>") == '<div class="grid2"><figure></figure><div><p></p></div></div>'
