"""Load the data and the model of a run, keep what runs share, and build its Trainer and its record before the first step."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from glassloop.backends.packed import PackedBackend
from glassloop.base.errors import SettingsError
from glassloop.base.files import absolute_name
from glassloop.base.stages import LOADING, stage
from glassloop.data.encoding import Encoding, encode, length_facts, notes_on, tokenizer_key
from glassloop.data.examples import Examples
from glassloop.data.interfaces import Config, Model, Tokenizer
from glassloop.data.labels import LabelSet
from glassloop.data.order import padding_waste
from glassloop.data.sources import load_examples
from glassloop.models.interface import carried_labels, encoder_weights, length_limit
from glassloop.models.loading import load_config, load_model, load_tokenizer
from glassloop.runs.record import DataRecord, Difference, ModelRecord, RunRecord, held_out_splits
from glassloop.scores.measures import refuse_unknown_metric
from glassloop.settings.defaults import Chosen, choose_settings, has_own_settings
from glassloop.settings.fields import DataSettings, data_settings
from glassloop.settings.file import GivenSettings
from glassloop.settings.training import TrainingArguments
from glassloop.trainer import Trainer
from glassloop.training.callbacks import refuse_missing
from glassloop.training.identity import weights_fingerprint
from glassloop.training.interfaces import Backend, Tensors
from glassloop.training.parts import TrainingParts, identity_of
from glassloop.training.recorder import started_record

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


@dataclass(frozen=True)
class AssembledRun:
    """A run before its first step: the Trainer with its parts, the data, and the record to write."""

    trainer: Trainer
    parts: TrainingParts
    examples: Examples
    encoded: Mapping[str, Encoding]
    record: RunRecord
    reason: str = ""  # from what the default rule chose settings


def assemble(
    given: GivenSettings, args: TrainingArguments, backend: Backend, shared: SharedParts | None = None
) -> AssembledRun:
    """Load the data and the model of a run, and return everything it needs before its first step.

    Args:
        given: The names of data and model, by default those of the quickstart, and how to read the data.
        args: The training settings. The default rule replaces those that `given` does not have.
        backend: How steps are run.
        shared: Keeps what later runs of this process need too.

    Raises:
        GlassloopError: If data, model and settings cannot be used together.
    """
    refuse_missing(args.trackers)
    shared = shared or SharedParts()
    source, model = absolute_name(given.source or "quickstart"), absolute_name(given.model or "quickstart")
    with stage(LOADING):
        config = shared.config(model)
    with backend.processes.main_first():
        examples = examples_for(given, config, shared)
        with stage("loading the tokenizer"):
            tokenizer = shared.tokenizer(model)
        limit = length_limit(examples, tokenizer, config, args.max_length)
        encoded = shared.encoded(model, tokenizer, examples, limit.max_length)
        examples = replace(examples, notes=[*examples.notes, *notes_on(encoded, limit)])
    if "train" not in encoded:
        raise SettingsError("the data set has no train split", "to score a trained model on it, use glassloop evaluate")
    chosen = chosen_settings(given, args, examples, config, backend.processes.num_processes)
    args = chosen.settings
    with stage(LOADING):
        network, fingerprint = shared.model(model, examples, new_head=given.new_head, seed=args.seed)
    held_out = next(iter(held_out_splits(examples.facts)), None)
    trainer = Trainer(
        network,
        args,
        train_dataset=encoded["train"].rows,
        eval_dataset=encoded[held_out].rows if held_out else None,
        processing_class=tokenizer,
        backend=backend,
        measures=examples.measures,
    )
    refuse_unknown_metric(args.metric_for_best_model, trainer.measures)
    compared = comparison_key(args, trainer.backend, examples, fingerprint)
    shared.known_comparison(compared, trainer.backend, network)
    with stage("checking the model"):
        parts = trainer.training_parts(in_run=True)
    shared.note_comparison(compared, parts.difference)
    number = sum(weight.numel() for weight in network.parameters())
    record = replace(
        started_record(
            parts,
            data_record(source, data_settings(given.data), examples),
            ModelRecord(model, config.model_type, number, given.new_head),
        ),
        settings=args,
        chosen=chosen.names,
        max_length=limit.max_length,
        class_weights=None if parts.class_weights is None else tuple(parts.class_weights),
        padding=padding_waste(encoded["train"].lengths, parts.batches.order(0), args.pad_to_multiple_of or 1),
        lengths={name: facts for name, split in encoded.items() if (facts := length_facts(split.lengths, split.truncation))},
        identity=identity_of(parts) | {"weights": fingerprint, "tokenizer": tokenizer_key(tokenizer)[:16]},
    )
    return AssembledRun(trainer, parts, examples, encoded, record, chosen.reason)


def chosen_settings(
    given: GivenSettings, args: TrainingArguments, examples: Examples, config: Config, processes: int = 1
) -> Chosen:
    """Return the settings of a run with those that the default rule chooses from its data and its model."""
    if has_own_settings(given.source) or "train" not in examples.facts:
        return Chosen(args)
    rows = examples.facts["train"].num_rows
    return choose_settings(args, given.training, rows, examples.num_labels, encoder_weights(config), processes)


def examples_for(given: GivenSettings, config: Config, shared: SharedParts | None = None) -> Examples:
    """Return the data of a run, with the labels of its model if that keeps its head."""
    outputs = kept_labels(config, data_settings(given.data), given.new_head)
    return (shared or SharedParts()).examples(given, outputs)


def kept_labels(config: Config, settings: DataSettings, new_head: bool) -> LabelSet | None:
    """Return the labels of a trained model, unless it gets a new head or the user gives other labels."""
    carried = None if new_head else carried_labels(config)
    return LabelSet(carried) if carried and {*(settings.label_names or carried)} == {*carried} else None


def data_record(source: str, settings: DataSettings, examples: Examples) -> DataRecord:
    """Return the record of the data of a run."""
    return DataRecord(
        source=source,
        settings=settings.with_absolute_paths(),
        task=examples.task,
        columns=examples.columns,
        labels=examples.labels.names if examples.labels else None,
        label_order=examples.labels.order if examples.labels else None,
        splits=dict(examples.facts),
        notes=tuple(examples.notes),
    )
