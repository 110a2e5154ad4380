"""Check that code and documents use plain English: phrases with a standard term do not occur."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from house import ROOT

# A phrase, as a regular expression, and what to write instead.
PHRASES = {
    r"\b(?:go|goes|going|went|gone) on (?:with|after|from|under|at)\b": "resume, continue",
    r"\bleav(?:e|es|ing) (?:it|them|[-`'\w]+) away\b": "omit",
    r"\b(?:is|are|was|were|be) told\b": "say who reports what: Glassloop reports",
    r"\bpassed over\b": "skip",
    r"\bto the last bit\b": "bit-identical",
    r"\bso (?:often|many times)\b": "give the number",
    r"\b(?:rows|batches|steps|texts|tokens) of so many\b": "give the number",
    r"\b(?:which|what) (?:it|they|a|an|no|the [a-z]+|a [a-z]+|an [a-z]+) (?:has|have|takes|tells) not\b": "does not have",
    r"\bwhich no [a-z]+(?: of [A-Za-z]+)? (?:tells|has|knows|takes)\b": "which is not",
    r"\b(?:a|one) (?:loss|score|number|logit|label|line) a (?:row|step|text|example|batch|class)\b": "one loss per row",
    r"\b(?:rows|batches|steps|bytes|tokens) an? (?:row|step|epoch|text|batch|second)\b": "rows per step",
    r"\bthere is no room\b": "does not fit, out of memory",
    r"\bof ours\b": "of Glassloop",
    r"\b(?:started|called) with other words\b": "with different arguments",
    r"\bis called nothing\b": "has no effect",
    r"\blooks? first\b": "checks before",
    r"\bwants (?:a|an|the) \w+, (?:which|but)\b": "needs",
    r"\bhas not\b(?! (?:been|\w+ed\b|yet|changed|begun|written|seen|read))": "does not have",
    r"\bcome(?:s)? to nothing\b": "fails",
    r"(?<!there )\bis no (?:multiple|number|folder|file|label|name)\b": "is not a",
    r"\bby far more than\b": "much more than",
    r"\bin its place stands?\b": "is replaced by",
    r"\bknows? nothing (?:of|about)\b": "does not use, does not depend on",
    r"\bhas its say\b": "applies",
    r"\bas (?:it|they) (?:was|were|is|are) given\b": "unchanged",
    r"(?<!in the )(?<!in )(?<!and )(?<!or )\bdata (?:are|have|were)\b": "data is, data has",
    r"\bas the model will see (?:it|them)\b": "say what is shown",
    r"\b(?:was|were|is|are) ended by\b": "killed by, stopped by",
    r"\bend(?:s|ed)? in (?:the same|other|different) weights\b": "end with",
    r"\b(?:recogni|normali|initiali|summari|optimi|seriali)s(?:e|es|ed|ing|ation)\b": "American spelling: -ize",
    r"\bneighbour": "neighbor, adjacent",
    r"\bmaths\b": "computation, mathematics",
}


def texts() -> list[Path]:
    """Return the files that people read: guides, documents, templates, examples and the sources with their messages."""
    guides = [*ROOT.glob("*.md"), ROOT / "Makefile", *(ROOT / ".github").rglob("*.md"), *(ROOT / ".github").rglob("*.yml")]
    return [*guides, *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py"), *(ROOT / "src").rglob("*.py")]


def faults_in(text: str) -> list[tuple[int, str, str]]:
    """Return the line, the phrase and the advice for each phrase to avoid, also where a line break divides it."""
    joined = re.sub(r"\s", " ", text)
    return [
        (text.count("\n", 0, found.start()) + 1, found.group(), advice)
        for phrase, advice in PHRASES.items()
        for found in re.finditer(phrase, joined, re.IGNORECASE)
    ]


def test_no_text_uses_a_phrase_that_readers_stumble_over() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {phrase!r}: {advice}"
        for path in texts()
        for line, phrase, advice in faults_in(path.read_text(encoding="utf-8"))
    ]
    assert not found, f"{len(found)} phrases:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "Go on with a stopped run.",
        "leave --model away",
        "which one is told once",
        "equal to the last\nbit",
        "a metric, which a step has not",
        "which no run of Glassloop tells",
        "started with other words",
        "Train so often",
        "a loss a row",
        "the file was passed over",
        "The data have changed.",
        "The model is recognised.",
    ],
)
def test_phrases_are_found(text: str) -> None:
    assert faults_in(text)


@pytest.mark.parametrize(
    "text",
    ["Resume this run.", "The run has not been stopped.", "omit --model", "one loss per row", "words in the data are counted"],
)
def test_plain_english_passes(text: str) -> None:
    assert not faults_in(text)
