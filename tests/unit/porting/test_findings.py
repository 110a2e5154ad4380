"""Findings name their line, and in a notebook their cell."""

from __future__ import annotations

from glassloop.compat.uses import Finding, Ported


def test_a_finding_names_its_place() -> None:
    found = Finding(12, "generate", "not here")
    assert str(found) == "line 12: generate: not here"
    assert str(found.within(3, 10)) == "cell 3, line 3: generate: not here"


def test_a_port_without_a_difference_changed_nothing() -> None:
    assert not Ported("x", before="x", after="x").changed
    assert Ported("y", before="x", after="y").changed
