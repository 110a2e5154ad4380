"""The text of a model card in the format of the Hugging Face hub, with everything that users supply escaped."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from glassloop.errors import printable

MARKUP = re.compile(r"([\\`*_{}\[\]|~$#!])")
ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", "://": "&#58;//", "www.": "www&#46;"}
SEAL = re.compile(r"<!-- written by Glassloop, sha256 ([0-9a-f]{64}): a card that was edited is not overwritten -->\n\Z")
TASK = "text-classification"
LIBRARY = "transformers"


@dataclass(frozen=True)
class Score:
    """A metric of the card, for readers and for the hub.

    Attributes:
        key: The metric as the hub names it.
        title: Its name for a person.
        value: The value.
        split: The split it was computed on.
        interval: Its 95 % interval in words; empty if there is none.
        baseline: The value of always giving the same answer.
    """

    key: str
    title: str
    value: float
    split: str = "validation"
    interval: str = ""
    baseline: float | None = None


@dataclass(frozen=True)
class DataName:
    """The data of a model as the hub names it.

    Attributes:
        name: Its name for a person.
        identifier: Its identifier on the hub, or a short name.
        config: Its configuration on the hub.
        on_hub: Whether it is on the hub.
    """

    name: str
    identifier: str
    config: str | None = None
    on_hub: bool = False


@dataclass(frozen=True)
class Card:
    """A model card.

    Attributes:
        title: The name of the model.
        data: The data that the scores refer to; None if that is not known.
        scores: The scores.
        head: Further entries of the front matter, such as `base_model`.
        sections: Headings with their Markdown.
    """

    title: str
    data: DataName | None
    scores: Sequence[Score] = ()
    head: Mapping[str, str | list[str]] = field(default_factory=dict)
    sections: Sequence[tuple[str, str]] = ()


def plain(value: object) -> str:
    """Return a value as text of a Markdown paragraph or table cell: on one line, without markup, links and mentions."""
    text = MARKUP.sub(r"\\\1", printable(str(value)))
    for sign, entity in ENTITIES.items():
        text = text.replace(sign, entity)
    return text


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table; all cells are escaped. Empty without rows."""
    if not rows:
        return ""
    lines = [head, ["---"] * len(head), *([plain(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def scores_table(scores: Sequence[Score]) -> str:
    """Return the scores as a table."""
    rows = [
        [
            score.title,
            score.split,
            f"{score.value:.4f}",
            score.interval or "–",
            "–" if score.baseline is None else f"{score.baseline:.4f}",
        ]
        for score in scores
    ]
    return markdown_table(["metric", "split", "value", "95 % interval", "baseline"], rows)


def card_text(card: Card) -> str:
    """Return the whole card: front matter, title, sections, and a line by which an edited card is recognized."""
    body = "\n\n".join(f"## {heading}\n\n{text}" for heading, text in card.sections if text)
    text = f"---\n{front_matter(card)}\n---\n\n# {plain(card.title)}\n\n{body}\n\n"
    return f"{text}{seal(text)}"


def front_matter(card: Card) -> str:
    """Return the YAML of a card, written and checked by huggingface_hub."""
    from huggingface_hub import EvalResult, ModelCardData

    data, name = card.data, printable(card.title)
    found = [
        EvalResult(
            task_type=TASK,
            dataset_type=data.identifier,
            dataset_name=printable(data.name),
            dataset_config=data.config,
            dataset_split=score.split,
            metric_type=score.key,
            metric_name=printable(score.title),
            metric_value=round(score.value, 6),
        )
        for score in card.scores
        if data is not None and math.isfinite(score.value)
    ]
    datasets = [data.identifier] if data is not None and data.on_hub else None
    head: dict[str, object] = {"library_name": LIBRARY, "pipeline_tag": TASK, "datasets": datasets, **card.head}
    return ModelCardData(model_name=name if found else None, eval_results=found or None, **head).to_yaml()  # type: ignore[arg-type]


def seal(text: str) -> str:
    """Return the last line of a card: the checksum of the text above it."""
    checksum = hashlib.sha256(text.encode()).hexdigest()
    return f"<!-- written by Glassloop, sha256 {checksum}: a card that was edited is not overwritten -->\n"


def is_untouched(text: str) -> bool:
    """Return whether a card is as Glassloop wrote it."""
    found = SEAL.search(text)
    return found is not None and seal(text[: found.start()]) == found[0]
