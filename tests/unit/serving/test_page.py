"""The page allows its own script only. tests/web uses it in a browser."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode

from glassloop.serve.app import PAGE, POLICY


def test_the_policy_allows_the_script_and_the_style_of_the_page_only() -> None:
    for tag in ("script", "style"):
        (code,) = re.findall(rf"<{tag}>(.*?)</{tag}>", PAGE, re.DOTALL)
        assert f"{tag}-src 'sha256-{b64encode(hashlib.sha256(code.encode()).digest()).decode()}'" in POLICY
    assert "unsafe" not in POLICY
    assert "http" not in PAGE
    assert "innerHTML" not in PAGE
