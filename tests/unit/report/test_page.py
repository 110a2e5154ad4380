"""Pages: only their own style and script can run, every text is escaped, and numbers can be sorted."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256

from drawn import HOSTILE
from markupsafe import Markup

from glassloop.markup.templates import piece, policy
from glassloop.report.page import PAGE_JS, PARTS, Number, Section, page, score

HTML = page(
    HOSTILE, [Section("a", HOSTILE, "<p>one</p>"), Section("b", "Empty", "")], subtitle="<p>two</p>", script="let more;"
)


def part(macro: str, *values: object, **named: object) -> str:
    return piece(PARTS, macro, *values, **named)


def test_only_the_own_style_and_script_are_allowed_and_nothing_is_loaded_from_elsewhere() -> None:
    (allowed,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', HTML)
    assert allowed.startswith("default-src 'none'; ")
    for name in ("style", "script"):
        (text,) = re.findall(rf"<{name}>(.*?)</{name}>", HTML, re.DOTALL)
        assert f"{name}-src 'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" in allowed
    assert "unsafe" not in allowed
    assert "connect-src" not in allowed
    assert "connect-src 'self'" in policy("", "", connect=True)
    assert " style=" not in HTML, "the policy would forbid style attributes"
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:,)""", HTML)
    assert "http://" not in HTML
    assert "https://" not in HTML
    assert "alert(1)</script>" not in HTML
    assert HTML.count("<section") == 1
    assert 'href="#b"' not in HTML
    assert len(PAGE_JS.splitlines()) < 300
    for word in ("innerHTML", "eval(", "document.write", "insertAdjacentHTML", "Function(", "fetch("):
        assert word not in PAGE_JS


def test_every_part_escapes_its_texts() -> None:
    written = [
        part("paragraph", HOSTILE, HOSTILE),
        part("tag", HOSTILE, HOSTILE),
        part("table", [HOSTILE], [[HOSTILE]], sortable=True, name=HOSTILE),
        part("facts", {HOSTILE: HOSTILE}),
        part("card", HOSTILE, HOSTILE, HOSTILE),
        part("details", HOSTILE, HOSTILE),
        part("code_block", HOSTILE),
        part("filters", HOSTILE, {HOSTILE: (HOSTILE, [HOSTILE])}, search=HOSTILE),
        part("grid", [HOSTILE]),
    ]
    for html in written:
        assert "alert(1)" in html
        assert "<script" not in html
        assert "</svg>" not in html
        assert not re.search(r"=\"[^\"]*<", html)
    assert part("facts", {"a": Markup("<b>1</b>")}) == '<dl class="facts"><dt>a</dt><dd><b>1</b></dd></dl>', "HTML stays HTML"


def test_numbers_carry_the_value_they_are_sorted_by_and_empty_parts_are_omitted() -> None:
    html = part("table", ["a", "b"], [["x", Number(0.256, "25.6%")], ["y", None]], sortable=True)
    assert '<td class="n" data-value="0.256">25.6%</td>' in html
    assert '<td class="n" data-value="">–</td>' in html
    assert '<th scope="col" class="n"><button type="button">b</button></th>' in html
    assert (score(0.85).shown, score(None).shown) == ("0.8500", "–")
    assert part("table", ["a"], []) == part("paragraph", "") == part("facts", {"a": None, "b": ""}) == ""
    assert part("grid", []) == part("details", "more", "") == ""
