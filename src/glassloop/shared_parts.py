"""What the runs of one process share: config, tokenizer, examples, token ids, initial weights, comparisons of backends."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from glassloop.arguments import TrainingArguments
from glassloop.backends.packed import PackedBackend
from glassloop.data.encoding import Encoding, encode
from glassloop.data.examples import Examples
from glassloop.data.labels import LabelSet
from glassloop.data.sources import load_examples
from glassloop.engine.identity import weights_fingerprint
from glassloop.engine.interfaces import Backend, Tensors
from glassloop.models.loading import load_config, load_model, load_tokenizer
from glassloop.run_folder.record import Difference
from glassloop.settings_file import GivenSettings
from glassloop.transformers_types import Config, Model, Tokenizer

Part = TypeVar("Part")
# Settings that change neither the rows nor the gradients that a backend is compared on.
NOT_COMPARED = (
    *("output_dir", "run_name", "learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"),
    *("num_train_epochs", "max_steps", "max_grad_norm", "adam_beta1", "adam_beta2", "adam_epsilon"),
)


@dataclass
class InitialModel:
    """A model as its file has it, and for each random seed the weights that are drawn: those of a new head.

    Attributes:
        key: What it was loaded for.
        model: The model with the first seed. It is never trained.
        drawn: The weights of each seed that differ from those of `model`, and the fingerprint of all weights.
    """

    key: Hashable
    model: Model
    drawn: dict[int, tuple[Tensors, str]] = field(default_factory=dict)


class SharedParts:
    """Loads the parts of runs. If it keeps them, later runs with the same data and model do not load them again.

    A run cannot change what others get: its model is a copy, its rows are read-only, and its tokenizer is reset.

    Args:
        keeps: Whether to keep parts for later runs. It takes the memory of one more model.
    """

    def __init__(self, *, keeps: bool = False) -> None:
        self.keeps = keeps
        self.parts: dict[Hashable, object] = {}
        self.initial: InitialModel | None = None

    def kept(self, key: Hashable, load: Callable[[], Part]) -> Part:
        """Return a part, loaded unless it was kept."""
        if not self.keeps:
            return load()
        if key not in self.parts:
            self.parts[key] = load()
        return self.parts[key]  # type: ignore[return-value]  # what `load` returned for this key

    def config(self, name: str) -> Config:
        """Return the config of a model."""
        return self.kept(("config", name), lambda: load_config(name))

    def tokenizer(self, name: str) -> Tokenizer:
        """Return the tokenizer of a model, as it was loaded."""
        tokenizer, settings = self.kept(("tokenizer", name), lambda: with_call_settings(load_tokenizer(name)))
        reset(tokenizer, settings)
        return tokenizer

    def examples(self, given: GivenSettings, outputs: LabelSet | None) -> Examples:
        """Return the data of a run. The files are read once, even if they change later."""
        source, settings = given.source or "quickstart", json.dumps(given.data, sort_keys=True, default=str)
        key = ("examples", source, settings, outputs)
        return self.kept(key, lambda: load_examples(source, outputs=outputs, **given.data))

    def encoded(self, name: str, tokenizer: Tokenizer, examples: Examples, length: int) -> dict[str, Encoding]:
        """Return the splits as token ids of the tokenizer of a model, which stays as it is."""
        settings = with_call_settings(tokenizer)[1]
        key = ("encoded", name, length, examples.task, examples.num_labels, rows_key(examples))
        found = self.kept(key, lambda: encode(examples, tokenizer, length))
        reset(tokenizer, settings)
        return found

    def model(self, name: str, examples: Examples, *, new_head: bool, seed: int) -> tuple[Model, str]:
        """Return a model to train and the fingerprint of its weights. A new head is drawn with the seed, as always."""

        def load() -> Model:
            return load_model(name, labels=examples.labels, task=examples.task, new_head=new_head, seed=seed)

        if not self.keeps:
            network = load()
            return network, weights_fingerprint(network)
        key = (name, examples.labels, examples.task, new_head)
        if self.initial is None or self.initial.key != key:
            self.initial = InitialModel(key, load())  # only the last model: those of a study may be large
        first, drawn = self.initial.model, self.initial.drawn
        if seed not in drawn:
            loaded = load() if drawn else first
            drawn[seed] = different_weights(first, loaded), weights_fingerprint(loaded)
        network = deepcopy(first)
        weights = network.state_dict()
        for part, value in drawn[seed][0].items():
            weights[part].copy_(value)
        return network, drawn[seed][1]

    def known_comparison(self, key: Hashable, backend: Backend, model: Model) -> None:
        """Tell a fast backend how far it was from the plain model when an earlier run compared the same rows and weights."""
        found = self.parts.get(("comparison", key))
        if isinstance(found, Difference) and isinstance(backend, PackedBackend):
            backend.differences[model] = found

    def note_comparison(self, key: Hashable, found: Difference | None) -> None:
        """Keep the comparison of a backend with the plain model."""
        if self.keeps and found is not None:
            self.parts["comparison", key] = found


def rows_key(examples: Examples) -> tuple[tuple[str, str], ...]:
    """Return the name and the fingerprint of each split."""
    return tuple((name, fact.fingerprint) for name, fact in examples.facts.items())


def comparison_key(args: TrainingArguments, backend: Backend, examples: Examples, fingerprint: str) -> Hashable:
    """Return what the comparison of a backend with the plain model depends on: rows, weights and settings."""
    settings = {name: value for name, value in args.to_dict().items() if name not in NOT_COMPARED}
    return backend.name, backend.precision, fingerprint, rows_key(examples), json.dumps(settings, sort_keys=True)


def different_weights(model: Model, other: Model) -> Tensors:
    """Return the weights in which a model differs from the same one with another seed."""
    before = model.state_dict()
    return {name: value for name, value in other.state_dict().items() if not torch.equal(value, before[name])}


CallSettings = tuple[dict[str, object] | None, dict[str, object] | None]  # truncation and padding of the last call


def with_call_settings(tokenizer: Tokenizer) -> tuple[Tokenizer, CallSettings]:
    """Return a tokenizer with the settings that a call changes and that are saved with it."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return tokenizer, (backend.truncation, backend.padding) if backend is not None else (None, None)


def reset(tokenizer: Tokenizer, settings: CallSettings) -> None:
    """Undo what calls have changed in a tokenizer."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or (backend.truncation, backend.padding) == settings:
        return
    truncation, padding = settings
    backend.no_truncation() if truncation is None else backend.enable_truncation(**truncation)
    backend.no_padding() if padding is None else backend.enable_padding(**padding)
