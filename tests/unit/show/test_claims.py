"""The table of `glassloop verify`: one row per claim, and whether it holds."""

from __future__ import annotations

import math

import pytest

from glassloop.study.verification import Claim, show_claims


def test_one_row_per_claim(capsys: pytest.CaptureFixture[str]) -> None:
    show_claims([Claim("equal", 0.0, 0.0), Claim("close", 2e-6, 1e-4), Claim("far", math.inf, 0.0)])
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["claim", "largest", "difference", "allowed"],
        ["✓", "equal", "none", "none"],
        ["✓", "close", "2.0e-06", "1e-04"],
        ["✗", "far", "inf", "none"],
    ]


def test_a_claim_holds_up_to_the_allowed_difference() -> None:
    assert not Claim("x", 0.1, 0.0).holds
    assert Claim("x", 0.0, 0.0).holds
    assert not Claim("x", math.nan, 1.0).holds
