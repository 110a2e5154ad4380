"""Numbered findings about the rows of a data set, from the survey of all rows and the sample with embeddings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from glassloop.base.errors import SettingsError, counted, did_you_mean, listed, visible
from glassloop.base.output import stage
from glassloop.data.examples import Examples
from glassloop.diagnosis import duplicates, texts
from glassloop.diagnosis.codes import CODES, SEVERITIES, Code
from glassloop.diagnosis.duplicates import Grouped
from glassloop.diagnosis.embeddings import neighbors_of, sampled
from glassloop.diagnosis.labels import (
    LEAST_OF_CLASS,
    HeldOut,
    NoiseShare,
    Suspects,
    held_out_by_regression,
    noise_shares,
    suspects_of,
    with_neighbors,
)
from glassloop.diagnosis.rows import (
    GARBLED,
    WORDLESS,
    Neighbors,
    Sample,
    Survey,
    surveyed,
)
from glassloop.scores.metrics import Array
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

MOST_EXAMPLES, MOST_SUSPECTS = 20, 100
SHOWN_NEIGHBORS = 5
SHOWN_WORDS = 10
EXACT = {"GL101", "GL202", "GL203", "GL204", "GL205", "GL206", "GL401"}  # found in all rows, without embeddings
FOUND_STATUS = 8  # exit status of a command that was asked to fail on what was found

Label = str | float | list[str] | None
MakeHeldOut = Callable[[Sample, Array], HeldOut]  # takes the places of the rows with labels


@dataclass(frozen=True)
class Row:
    """A row as an example of a finding."""

    row: int  # its number in the file, from 1
    split: str
    texts: list[str]
    label: Label
    note: str = ""
    suggested: Label = None
    probability: float | None = None  # of the suggested label
    neighbors: list[Row] = field(default_factory=list)


@dataclass(frozen=True)
class Finding:
    """What was found in the rows of one split."""

    code: str
    split: str
    rows: list[int]  # their numbers in the file, from 1: all of them, in the order of the finding
    examples: list[Row]
    told: str = ""
    drop: list[int] = field(default_factory=list)  # the rows that cleaning removes

    @property
    def about(self) -> Code:
        return CODES[self.code]

    def content(self) -> dict[str, object]:
        """Return the finding as `--json` prints it."""
        about = self.about
        facts = {"code": self.code, "title": about.title, "severity": about.severity, "split": self.split}
        rows = {"count": len(self.rows), "rows": self.rows, "drop": self.drop, "examples": self.examples}
        return {**facts, **rows, "detail": self.told, "why": about.why, "remedy": about.remedy}


@dataclass(frozen=True)
class Diagnosis:
    """Everything that was found in a data set."""

    findings: list[Finding]
    suspects: list[Row]  # every suspected label error of all splits, the most suspicious one first
    noise: list[NoiseShare]
    num_rows: int
    num_read: int  # rows of the sample
    model: str
    method: str
    score: float | None  # how right the held-out model is on average
    seconds: float

    @property
    def is_sample(self) -> bool:
        return self.num_read < self.num_rows

    def content(self) -> dict[str, object]:
        """Return the diagnosis as `--json` prints it."""
        facts = {"rows": self.num_rows, "read": self.num_read, "model": self.model, "method": self.method}
        facts |= {"score": self.score, "noise": self.noise, "seconds": round(self.seconds, 2)}
        return {"findings": [finding.content() for finding in self.findings], "diagnosis": facts}


def wanted_codes(fail_on: Iterable[str]) -> set[str]:
    """Return the codes in a list of codes and severities; a severity means itself and all that are more serious."""
    wanted: set[str] = set()
    for name in (part.strip() for text in fail_on for part in text.split(",") if part.strip()):
        if name.lower() in SEVERITIES:
            enough = SEVERITIES[: SEVERITIES.index(name.lower()) + 1]
            wanted |= {code.code for code in CODES.values() if code.severity in enough}
        elif name.upper() in CODES:
            wanted.add(name.upper())
        else:
            known = [*SEVERITIES, *CODES]
            raise SettingsError(
                f"there is no finding {visible(name)}{did_you_mean(name, known)}", f"use one of {listed(known, 30)}"
            )
    return wanted


class Finder:
    """Collects findings: numbers the rows of each split, and adds examples."""

    def __init__(self, survey: Survey) -> None:
        self.survey = survey
        self.findings: list[Finding] = []

    def row(self, row: int, note: str = "") -> Row:
        """Return a row of the survey as an example."""
        survey = self.survey
        columns = survey.texts(np.array([row]))
        split = survey.names[int(survey.splits[row])]
        return Row(int(survey.numbers[row]), split, [column[0] for column in columns], survey.label_name(row), note)

    def add(
        self, code: str, rows: Array, told: str | Callable[[int], str] = "", drop: Array | None = None,
        notes: dict[int, str] | None = None, examples: Array | None = None,
    ) -> None:  # fmt: skip
        """Add a finding for each split that has some of the rows, in their order.

        Args:
            code: The code of the finding.
            rows: The rows of the survey that it is about.
            told: A sentence about all of them, or a function of their number in the split.
            drop: The rows that cleaning removes.
            notes: What to say about single rows.
            examples: The rows to show first. Default: the first ones.
        """
        survey = self.survey
        for place, split in enumerate(survey.names):
            inside = rows[survey.splits[rows] == place]
            if not len(inside):
                continue
            removed = np.zeros(0, dtype=np.int64) if drop is None else drop[survey.splits[drop] == place]
            shown = inside if examples is None else examples[survey.splits[examples] == place]
            each = [self.row(int(row), (notes or {}).get(int(row), "")) for row in shown[:MOST_EXAMPLES]]
            sentence = told if isinstance(told, str) else told(len(inside))
            numbers = survey.numbers[inside].tolist()
            self.findings.append(Finding(code, split, numbers, each, sentence, sorted(survey.numbers[removed].tolist())))

    def add_groups(self, code: str, grouped: Grouped, drop: Array | None = None, told: str = "") -> None:
        """Add rows that belong together. Each example says which others it belongs to."""
        notes, survey = dict[int, str](), self.survey
        for group in islice(grouped.each(), MOST_EXAMPLES):
            members = group[: MOST_EXAMPLES + 1].tolist()
            for row in members:
                others = [
                    f"{survey.names[int(survey.splits[one])]} {int(survey.numbers[one]):,}" for one in members if one != row
                ]
                notes[row] = f"with {listed(others, 3)}"
        self.add(code, grouped.rows, told, drop, notes)


def find_duplicates(finder: Finder) -> Array:
    """Add what the keys of all rows say about equal texts. Return the rows that are in several splits."""
    survey = finder.survey
    equal, contradicts = duplicates.equal_rows(survey), duplicates.contradicts(survey)
    leaked = duplicates.rows_in_several_splits(survey, equal)
    finder.add_groups("GL101", leaked, leaked.rows)
    if survey.is_pairs:
        shared = duplicates.rows_with_shared_text(survey, leaked.rows) if len(survey.names) > 1 else leaked.rows[:0]
        finder.add("GL103", shared)
    contrary = equal.where(contradicts)
    agreeing = Grouped(*(part[~np.isin(equal.rows, contrary.rows)] for part in (equal.rows, equal.groups)))
    within = [equal_in_split(survey, agreeing, place) for place in range(len(survey.names))]
    for grouped in within:
        finder.add_groups("GL202", grouped, grouped.repeats)
    finder.add_groups("GL204", contrary, contrary.rows)
    if survey.is_pairs:
        swapped = duplicates.swapped_rows(survey)
        against = swapped.where(contradicts)
        along = Grouped(*(part[~np.isin(swapped.rows, against.rows)] for part in (swapped.rows, swapped.groups)))
        finder.add_groups("GL203", along, along.repeats)
        finder.add_groups("GL205", against, against.rows)
        same = np.flatnonzero(survey.keys[:, 0] == survey.keys[:, 1])
        finder.add("GL206", same, drop=same)
    return leaked.rows


def equal_in_split(survey: Survey, grouped: Grouped, place: int) -> Grouped:
    inside = survey.splits[grouped.rows] == place
    one = Grouped(grouped.rows[inside], grouped.groups[inside])
    return one.where(lambda rows: len(rows) > 1)


def find_near(finder: Finder, sample: Sample, neighbors: Neighbors) -> None:
    """Add rows that are almost the same: across splits, with other labels, and all others."""
    survey, near = finder.survey, duplicates.near_pairs(sample, neighbors)
    first, second = sample.rows[near.first], sample.rows[near.second]
    across = survey.splits[first] != survey.splits[second]
    contradicts = duplicates.contradicts(survey)
    differ = np.array([contradicts(np.array(rows)) for rows in zip(first, second, strict=True)], dtype=bool)
    for code, chosen in (("GL102", across), ("GL207", differ & ~across), ("GL201", ~differ & ~across)):
        grouped = near.some(chosen).grouped(len(sample))
        of_survey = Grouped(sample.rows[grouped.rows], grouped.groups)
        drop = None if code == "GL207" else of_survey.rows if code == "GL102" else of_survey.repeats
        finder.add_groups(code, of_survey, drop)


def find_broken(finder: Finder) -> None:
    """Add texts without words, in a wrong encoding, and in another script than all others."""
    survey = finder.survey
    wordless = np.flatnonzero(survey.flags & WORDLESS)
    finder.add("GL401", wordless, drop=wordless)
    finder.add("GL402", np.flatnonzero(survey.flags & GARBLED))
    strange = texts.in_another_script(survey)
    notes = {int(row): survey.script_names[int(survey.scripts[row])].lower() for row in strange[: 10 * MOST_EXAMPLES]}
    finder.add("GL405", strange, notes=notes)
    if survey.examples.task != CLASSES or not survey.examples.labels:
        return
    counts = np.bincount(survey.labels[survey.labelled], minlength=survey.examples.num_labels)
    rare = np.flatnonzero((counts < LEAST_OF_CLASS) & (counts > 0))
    names = [survey.examples.labels.names[place] for place in rare]
    finder.add("GL302", np.flatnonzero(survey.labelled & np.isin(survey.labels, rare)), f"labels: {listed(names)}")


def find_unusual(finder: Finder, sample: Sample, neighbors: Neighbors) -> None:
    """Add truncated rows and outliers."""
    cut = np.flatnonzero(sample.cut)
    cut = cut[np.argsort(-sample.cut[cut], kind="stable")]
    lost = {int(sample.rows[row]): f"{int(sample.cut[row]):,} tokens are cut" for row in cut[: 10 * MOST_EXAMPLES]}
    finder.add("GL403", sample.rows[cut], f"cut to {sample.max_length:,} tokens", notes=lost)
    if neighbors.rows.shape[1] >= texts.NEAREST_OF_OUTLIER:
        far, distances = texts.outliers(neighbors)
        notes = {int(sample.rows[row]): f"distance {distances[row]:.2f}" for row in far[: 10 * MOST_EXAMPLES]}
        finder.add("GL404", sample.rows[far], f"median distance {float(np.median(distances)):.2f}", notes=notes)


def find_shortcuts(finder: Finder, sample: Sample, held: HeldOut) -> None:
    """Add what predicts labels without the meaning, and parts of the rows with a lower score."""
    num_labels = finder.survey.examples.num_labels
    names = finder.survey.examples.labels.names if finder.survey.examples.labels else ()
    every = sample.rows[held.rows]
    skills = texts.skills_of(sample, held, num_labels)
    if skills.length >= texts.LENGTH_SKILL:
        told = f"lengths alone save {skills.length:.0%} of the loss of the class frequencies, embeddings {skills.both:.0%}"
        finder.add("GL501", every, told)
    for side, skill in zip(sample.survey.examples.columns.texts, skills.sides, strict=False):
        if skill >= texts.SIDE_SKILL and skill >= texts.SIDE_SHARE * skills.both:
            told = f"{visible(side)} alone saves {skill:.0%} of the loss of the class frequencies, both texts {skills.both:.0%}"
            finder.add("GL502", every, told)
    words = texts.sure_words(sample, held, names)
    if words:
        shown = [
            f"{visible(word.word)} ({word.share:.0%} of {len(word.rows):,} rows: {word.label})" for word in words[:SHOWN_WORDS]
        ]
        rows = np.unique(np.concatenate([word.rows for word in words]))
        notes = {int(every[row]): f"word {visible(word.word)}" for word in reversed(words) for row in word.rows[:MOST_EXAMPLES]}
        first = every[np.concatenate([word.rows[:2] for word in words[:SHOWN_WORDS]])]
        finder.add("GL503", every[rows], listed(shown, SHOWN_WORDS), notes=notes, examples=first)
    for group in texts.weak_groups(sample, held):
        told = f"{group.name}: {group.score:.3f}, other rows {group.others:.3f}"
        worst = group.rows[np.argsort(held.right[group.rows], kind="stable")]
        finder.add("GL504", every[group.rows], told, examples=every[worst])


def suspect_rows(finder: Finder, sample: Sample, neighbors: Neighbors, held: HeldOut, found: Suspects) -> list[Row]:
    """Return the suspected rows with the suggested label; the first ones also with their nearest rows."""
    rows = []
    labels = finder.survey.examples.labels
    for rank, (place, suggested, given, likely) in enumerate(
        zip(found.rows, found.suggested, found.given_probability, found.probability, strict=True)
    ):
        at = int(held.rows[place])
        one = finder.row(int(sample.rows[at]))
        if held.task == SCORE:
            name: Label = round(float(suggested), 4)
            note = f"{given:.1f} standard deviations from its prediction"
        else:
            names = labels.names if labels else ()
            chosen = [names[number] for number in np.flatnonzero(suggested)] if held.task == SEVERAL else names[int(suggested)]
            name, note = chosen, f"probability of the given label {given:.3f}"
        near = neighbors.rows[at][:SHOWN_NEIGHBORS] if rank < MOST_SUSPECTS else ()
        beside = [
            finder.row(int(sample.rows[other]), f"cosine {cosine:.2f}")
            for other, cosine in zip(near, neighbors.cosines[at], strict=False)
        ]
        probability = None if held.task == SCORE else round(float(likely), 4)
        rows.append(Row(one.row, one.split, one.texts, one.label, note, name, probability, beside))
    return rows


def find_label_errors(finder: Finder, suspects: Sequence[Row], held: HeldOut, read: Callable[[str], int]) -> None:
    # Of a model that is often wrong, most suspects are rows that it does not understand: the reader must know.
    sure = "" if held.task == SCORE else f"; the model is right about {float(held.right.mean()):.0%} of all rows"
    for split in finder.survey.names:
        inside = [row for row in suspects if row.split == split]
        if inside:
            told = f"{len(inside) / max(read(split), 1):.1%} of the rows that were read{sure}"
            finder.findings.append(Finding("GL301", split, [row.row for row in inside], inside[:MOST_SUSPECTS], told))


def diagnose(
    examples: Examples, model: str, *, max_length: int | None = None, device: str = "auto", most_rows: int | None = None,
    held_out: MakeHeldOut | None = None, method: str = "frozen",
) -> Diagnosis:  # fmt: skip
    """Find what is wrong in the rows of a data set.

    Args:
        examples: The data.
        model: The pretrained model whose embeddings are compared.
        max_length: Number of tokens after which a row is cut. Default: as many as the model takes.
        device: The device to embed on.
        most_rows: Rows to embed at most; a sample is drawn of more. Default: as many as take minutes.
        held_out: Gives what models expect of rows that they did not see. Default: regressions on the embeddings.
        method: What `held_out` is called.
    """
    began = time.perf_counter()
    survey = surveyed(examples)
    finder = Finder(survey)
    with stage("looking for equal rows"):
        find_duplicates(finder)
        find_broken(finder)
    sample = sampled(survey, model, max_length, device, most_rows)
    with stage("comparing rows", len(sample)):
        neighbors = neighbors_of(sample.vectors)
        find_near(finder, sample, neighbors)
        find_unusual(finder, sample, neighbors)
    rows = np.flatnonzero(sample.labelled)
    suspects, noise, score = list[Row](), list[NoiseShare](), None
    if len(rows) and varied(sample, rows):
        with stage("looking for label errors"):
            held = (held_out or held_out_of(examples.num_labels))(sample, rows)
            likely = held if held_out else with_neighbors(held, neighbors, sample.groups)
            suspects = suspect_rows(finder, sample, neighbors, likely, suspects_of(likely))
            names = examples.labels.names if examples.labels else ()
            noise, score = noise_shares(likely, tuple(names)), float(held.right.mean())
            find_label_errors(
                finder, suspects, held, lambda split: int((sample.splits[rows] == survey.names.index(split)).sum())
            )
            find_shortcuts(finder, sample, held)
    findings = sorted(finder.findings, key=lambda finding: (finding.code, survey.names.index(finding.split)))
    seconds = time.perf_counter() - began
    return Diagnosis(findings, suspects, noise, len(survey), len(sample), model, method, score, seconds)


def some_findings(examples: Examples, codes: Sequence[str], model: str, *, device: str = "auto") -> list[Finding]:
    """Return at least the findings of some codes. Those of equal rows need no embeddings."""
    if not {*codes} <= EXACT:
        return diagnose(examples, model, device=device).findings
    finder = Finder(surveyed(examples))
    find_duplicates(finder)
    find_broken(finder)
    return finder.findings


def varied(sample: Sample, rows: Array) -> bool:
    """Return whether there is something to learn: several labels, and several texts."""
    targets = sample.targets[rows]
    return len(np.unique(targets, axis=0)) > 1 and len(np.unique(sample.groups[rows])) > 1


def held_out_of(num_labels: int) -> MakeHeldOut:
    def make(sample: Sample, rows: Array) -> HeldOut:
        return held_out_by_regression(
            sample.features[rows], sample.targets[rows], sample.task, num_labels, sample.groups[rows], rows
        )

    return make


def summary(diagnosis: Diagnosis) -> str:
    """Return one sentence on how much was read and found."""
    kinds = counted(len({finding.code for finding in diagnosis.findings}), "finding", "findings")
    sample = f" (a random sample of {diagnosis.num_rows:,})" if diagnosis.is_sample else ""
    return f"{kinds} in {counted(diagnosis.num_read, 'row', 'rows')}{sample}"
