"""The rows to diagnose: keys and flags of every row, and texts, tokens and embeddings of a sample of bounded size."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import torch

from glassloop.base.output import advance, stage
from glassloop.data.examples import Examples, text_keys
from glassloop.models.pooled import Pooling
from glassloop.scores.metrics import Array
from glassloop.settings.training import SCORE, SEVERAL
from glassloop.training.evaluate import labels_of

ROWS_AT_ONCE = 10_000
WORDLESS, GARBLED = 1, 2  # flags of a row
WORD = re.compile(r"\w")
# A replacement character, or a control character other than tab and line ends: bytes that were read in a wrong encoding.
NOT_WRITTEN = re.compile("[\ufffd\x00-\x08\x0b\x0c\x0e-\x1f\x80-\x9f]")
LEFT_OF_UTF8 = re.compile("[\u00c2-\u00f4][\u0080-\u00bf\u0152-\u0192\u02c6-\u02dc\u2013-\u203a\u20ac\u2122]")
NO_SCRIPT = "none"


@dataclass(frozen=True)
class Survey:
    """What one pass over the texts notes about every row: 50 bytes each, so that a million rows fit."""

    examples: Examples
    names: tuple[str, ...]  # of the splits
    splits: Array  # the place of the split of each row in `names`
    places: Array  # the number of each row in its split, from 0
    numbers: Array  # the number of each row in its file, from 1
    keys: Array  # rows x texts: equal for texts that are equal but for case and spaces
    labels: Array  # a number for each label or set of labels; a score
    labelled: Array  # whether each row has a label
    flags: Array
    scripts: Array  # the place of the most frequent script of each row in `script_names`
    script_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.splits)

    @property
    def is_pairs(self) -> bool:
        return bool(self.keys.shape[1] == 2)

    @cached_property
    def row_keys(self) -> Array:
        """One number for all texts of a row."""
        with np.errstate(over="ignore"):
            factors = np.array([1, 0x9E3779B97F4A7C15][: self.keys.shape[1]], dtype=np.uint64)
            return np.asarray((self.keys * factors).sum(axis=1, dtype=np.uint64))

    def texts(self, rows: Array) -> list[list[str]]:
        """Return the texts of some rows: one column, or two of pairs."""
        columns: list[list[str]] = [[""] * len(rows) for _ in self.examples.columns.texts]
        for place, name in enumerate(self.names):
            inside = np.flatnonzero(self.splits[rows] == place)
            if len(inside):
                chosen = self.examples.rows[name].select(self.places[rows[inside]])
                for column, cells in zip(self.examples.columns.texts, columns, strict=True):
                    for row, text in zip(inside.tolist(), chosen[column], strict=True):
                        cells[row] = text or ""
        return columns

    def cells(self, column: str, rows: Array) -> list[object]:
        """Return the cells of any column of some rows; None for the rows of a split without it."""
        found: list[object] = [None] * len(rows)
        for place, name in enumerate(self.names):
            inside = np.flatnonzero(self.splits[rows] == place)
            if len(inside) and column in self.examples.rows[name].column_names:
                chosen = self.examples.rows[name].select(self.places[rows[inside]])
                for row, cell in zip(inside.tolist(), chosen[column], strict=True):
                    found[row] = cell
        return found

    def label_name(self, row: int) -> str | float | list[str] | None:
        """Return the label of a row as a person writes it."""
        if not self.labelled[row]:
            return None
        if self.examples.task == SCORE:
            return round(float(self.labels[row]), 6)
        name = self.names[int(self.splits[row])]
        value = self.examples.rows[name][int(self.places[row])][self.examples.columns.label_name]
        names = self.examples.labels.names if self.examples.labels else ()
        return [names[number] for number in value] if isinstance(value, list) else names[value]


def surveyed(examples: Examples) -> Survey:
    """Read every row once, and note what finds duplicates and broken texts among all of them."""
    names = tuple(examples.rows)
    parts: dict[str, list[Array]] = {name: [] for name in ("splits", "places", "numbers", "keys", "labels", "flags", "scripts")}
    labelled, scripts, label_sets = [], {"LATIN": 0, NO_SCRIPT: 1}, dict[tuple[int, ...], int]()
    for place, name in enumerate(names):
        rows, fact, start = examples.rows[name], examples.facts[name], 0
        numbers = examples.numbers.get(name, np.arange(1, len(rows) + 1))
        with stage(f"reading {name}", len(rows), "reading the data"):
            for table in rows.with_format("arrow").iter(ROWS_AT_ONCE):
                texts = [[text or "" for text in table[column].to_pylist()] for column in examples.columns.texts]
                end = start + len(texts[0])
                cells = table[examples.columns.label_name].to_pylist()
                if examples.task == SEVERAL:
                    cells = [label_sets.setdefault(tuple(sorted(cell or ())), len(label_sets)) for cell in cells]
                parts["splits"].append(np.full(end - start, place, dtype=np.int8))
                parts["places"].append(np.arange(start, end))
                parts["numbers"].append(np.asarray(numbers[start:end]))
                parts["keys"].append(np.stack([text_keys([[*map(normalized, column)]]) for column in texts], axis=1))
                kind = np.float64 if examples.task == SCORE else np.int64
                parts["labels"].append(np.array([0 if cell is None else cell for cell in cells], dtype=kind))
                each = [*zip(*texts, strict=True)]
                parts["flags"].append(np.array([flags_of(row) for row in each], dtype=np.uint8))
                found = [scripts.setdefault(script_of(" ".join(row)), len(scripts)) for row in each]
                parts["scripts"].append(np.array(found, dtype=np.int16))
                advance(end - start)
                start = end
        labelled.append(np.full(start, not fact.unlabelled))
    columns = {name: np.concatenate(part) for name, part in parts.items()}
    return Survey(examples, names, labelled=np.concatenate(labelled), script_names=tuple(scripts), **columns)


def normalized(text: str) -> str:
    """Return a text in one form for all ways to write it: without differences of case, spaces and Unicode."""
    text = text if text.isascii() else unicodedata.normalize("NFKC", text)
    return " ".join(text.casefold().split())


def flags_of(texts: Sequence[str]) -> int:
    wordless = any(not WORD.search(text) for text in texts)
    return WORDLESS * wordless + GARBLED * any(is_garbled(text) for text in texts)


def is_garbled(text: str) -> bool:
    """Return whether a text was read in a wrong encoding: UTF-8 as a Western one, or with characters that were lost."""
    if text.isascii() and text.isprintable():
        return False
    if NOT_WRITTEN.search(text):
        return True
    for found in LEFT_OF_UTF8.finditer(text):
        for encoding in ("cp1252", "latin-1"):
            with suppress(UnicodeError):
                if len(text[found.start() :][:2].encode(encoding).decode("utf-8")) < 2:
                    return True
    return any(sign in text for sign in ("â€", "ðŸ", "ï¿½", "Ã\xa0"))


@lru_cache(maxsize=10_000)
def letter_script(letter: str) -> str:
    return unicodedata.name(letter, "").partition(" ")[0] or NO_SCRIPT


def script_of(text: str) -> str:
    """Return the script of most letters of a text, such as LATIN; "none" without letters."""
    if text.isascii():
        return "LATIN" if any(map(str.isalpha, text)) else NO_SCRIPT
    counts: dict[str, int] = {}
    for letter in text[:2000]:
        if letter.isalpha():
            script = "LATIN" if letter.isascii() else letter_script(letter)
            counts[script] = counts.get(script, 0) + 1
    return max(counts, key=lambda script: counts[script], default=NO_SCRIPT)


# --- the sample -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Sample:
    """Rows with their texts, tokens and embeddings."""

    survey: Survey
    rows: Array  # which rows of the survey these are
    texts: list[list[str]]  # one column, or two of pairs
    lengths: Array  # in tokens
    cut: Array  # tokens that the model does not read
    max_length: int
    vectors: Array  # rows x texts x width, of length 1
    pooling: Pooling
    model: str

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def task(self) -> str:
        return self.survey.examples.task

    @cached_property
    def targets(self) -> Array:
        """Class numbers, rows of 0 and 1, or scores."""
        survey = self.survey
        if self.task != SEVERAL:
            return np.asarray(survey.labels[self.rows])
        found = np.zeros((len(self), survey.examples.num_labels), dtype=np.int64)
        for place, name in enumerate(survey.names):
            inside = survey.splits[self.rows] == place
            if inside.any():
                chosen = replace(
                    survey.examples, rows={name: survey.examples.rows[name].select(survey.places[self.rows[inside]])}
                )
                found[inside] = labels_of(chosen, name)
        return found

    @property
    def labelled(self) -> Array:
        return np.asarray(self.survey.labelled[self.rows])

    @property
    def splits(self) -> Array:
        return np.asarray(self.survey.splits[self.rows])

    @cached_property
    def features(self) -> Array:
        """What a linear model reads of each row."""
        vectors = torch.from_numpy(self.vectors).flatten(0, 1)
        return np.asarray(self.pooling.features(vectors).numpy())

    @cached_property
    def groups(self) -> Array:
        """A number for each row, equal for rows with the same texts, in whichever order: they are held out together."""
        return np.unique(np.sort(self.survey.keys[self.rows], axis=1), axis=0, return_inverse=True)[1].reshape(-1)


@dataclass(frozen=True)
class Neighbors:
    """The nearest rows of each row of a sample."""

    rows: Array  # rows x neighbors: places in the sample, the nearest one first
    cosines: Array
    swapped: Array  # whether a neighbor is near with its two texts in the other order
