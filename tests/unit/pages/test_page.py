"""Test the skeleton of pages: policy, sections, escaping."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256

from drawn import HOSTILE

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
