"""Load the data and the model of a run, and build its Trainer and its record before the first step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from glassloop.arguments import TrainingArguments
from glassloop.backends.admission import known_difference
from glassloop.data.encoding import Encoding, encode, length_facts, notes_on, tokenizer_key
from glassloop.data.examples import Examples
from glassloop.data.labels import LabelSet
from glassloop.data.order import padding_waste
from glassloop.data.sources import load_examples
from glassloop.defaults import Chosen, choose_settings, has_own_settings
from glassloop.engine.identity import weights_fingerprint
from glassloop.engine.interfaces import Backend
from glassloop.engine.trackers import refuse_missing
from glassloop.engine.versions import versions
from glassloop.errors import SettingsError
from glassloop.files import absolute_name
from glassloop.machine import machine_name
from glassloop.measures import refuse_unknown_metric
from glassloop.models.inputs import encoder_weights, length_limit
from glassloop.models.loading import load_config, load_model, load_tokenizer
from glassloop.models.outputs import carried_labels
from glassloop.outcomes import validation_names
from glassloop.run_folder.record import RUNNING, DataRecord, ModelRecord, RunRecord
from glassloop.settings import DataSettings, data_settings
from glassloop.settings_file import GivenSettings
from glassloop.stages import LOADING, stage
from glassloop.trainer import Trainer
from glassloop.training.parts import TrainingParts
from glassloop.training.resuming import identity_of
from glassloop.transformers_types import Config


@dataclass(frozen=True)
class AssembledRun:
    """A run before its first step: the Trainer with its parts, the data, and the record to write."""

    trainer: Trainer
    parts: TrainingParts
    examples: Examples
    encoded: Mapping[str, Encoding]
    record: RunRecord
    reason: str = ""  # from what the default rule chose settings


def assemble(given: GivenSettings, args: TrainingArguments, backend: Backend) -> AssembledRun:
    """Load the data and the model of a run, and return everything it needs before its first step.

    Args:
        given: The names of data and model, by default those of the quickstart, and how to read the data.
        args: The training settings. The default rule replaces those that `given` does not have.
        backend: How steps are run.

    Raises:
        GlassloopError: If data, model and settings cannot be used together.
    """
    refuse_missing(args.trackers)
    source, model = absolute_name(given.source or "quickstart"), absolute_name(given.model or "quickstart")
    with stage(LOADING):
        config = load_config(model)
    with backend.processes.main_first():
        examples = examples_for(given, config)
        with stage("loading the tokenizer"):
            tokenizer = load_tokenizer(model)
        limit = length_limit(examples, tokenizer, config, args.max_length)
        encoded = encode(examples, tokenizer, limit.max_length)
        examples = replace(examples, notes=[*examples.notes, *notes_on(encoded, limit)])
    if "train" not in encoded:
        raise SettingsError("the data set has no train split", "to score a trained model on it, use glassloop evaluate")
    chosen = chosen_settings(given, args, examples, config, backend.processes.num_processes)
    args = chosen.settings
    with stage(LOADING):
        network = load_model(model, labels=examples.labels, task=examples.task, new_head=given.new_head, seed=args.seed)
        fingerprint = weights_fingerprint(network) if backend.processes.is_main else ""
    held_out = next(iter(validation_names(examples)), None)
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
    trainer._in_run = True
    with stage("checking the model"):
        parts = trainer._parts()
    record = RunRecord(
        status=RUNNING,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        data=data_record(source, data_settings(given.data), examples),
        model=ModelRecord(model, config.model_type, sum(weight.numel() for weight in network.parameters()), given.new_head),
        settings=args,
        chosen=chosen.names,
        max_length=limit.max_length,
        class_weights=None if (weights := trainer._class_weights()) is None else tuple(weights),
        plan=parts.plan,
        padding=padding_waste(encoded["train"].lengths, parts.batches.order(0), args.pad_to_multiple_of or 1),
        lengths={name: facts for name, split in encoded.items() if (facts := length_facts(split.lengths, split.truncation))},
        device=str(backend.device),
        machine=machine_name(str(backend.device)),
        precision=backend.precision,
        backend=parts.backend.name,
        savings=tuple(parts.backend.describe_savings(network, parts.use)),
        difference=known_difference(parts.backend, network),
        processes=backend.processes.num_processes,
        metrics=trainer.measures.keys,
        positive_label=trainer.measures.positive,
        versions=versions(),
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


def examples_for(given: GivenSettings, config: Config) -> Examples:
    """Return the data of a run, with the labels of its model if that keeps its head."""
    outputs = kept_labels(config, data_settings(given.data), given.new_head)
    return load_examples(given.source or "quickstart", outputs=outputs, **given.data)


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
