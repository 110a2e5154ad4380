"""Check that code and documents use American spelling, as the libraries of the field do."""

from __future__ import annotations

import re
from pathlib import Path

from house import ROOT

BRITISH = re.compile(
    r"\b(?:recogni|normali|initiali|summari|optimi|seriali|generali|organi)s(?:e|es|ed|ing|ation)\b|\b(?:neighbour|colour|behaviour)",
    re.IGNORECASE,
)


def texts() -> list[Path]:
    """Return the files that people read: guides, documents, templates, examples and the sources with their messages."""
    guides = [*ROOT.glob("*.md"), ROOT / "Makefile", *(ROOT / ".github").rglob("*.md"), *(ROOT / ".github").rglob("*.yml")]
    return [*guides, *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py"), *(ROOT / "src").rglob("*.py")]


def test_spelling_is_american() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {word[0]}"
        for path in texts()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for word in BRITISH.finditer(line)
    ]
    assert not found, "\n".join(found)
    texts_of_both = ("The model is recognised.", "neighbouring", "optimized")
    assert [bool(BRITISH.search(text)) for text in texts_of_both] == [True, True, False]
