"""`glassloop data`: show the splits, labels, lengths and padding of a data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from glassloop.arguments import TrainingArguments
from glassloop.command_result import CommandResult
from glassloop.data.sources import load_examples
from glassloop.models.inputs import length_limit
from glassloop.models.loading import load_config, load_tokenizer
from glassloop.settings import data_settings
from glassloop.show.contents import data_content
from glassloop.show.data_overview import show_data
from glassloop.stages import stage


def describe_data(data: str, model: str, max_length: int | None, batch_size: int, given: Mapping[str, object]) -> CommandResult:
    """Print splits, labels, lengths and padding of a data set, and one row token by token."""
    examples = load_examples(data, **asdict(data_settings(given)))
    with stage("loading the tokenizer"):
        tokenizer = load_tokenizer(model)
        limit = length_limit(examples, tokenizer, load_config(model), max_length)
    encoded = show_data(examples, tokenizer, limit, batch_size, TrainingArguments.seed, (data, model))
    return CommandResult(data_content(examples, encoded, data, model, limit))
