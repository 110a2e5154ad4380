"""One run as the command trains it: its data and model, folder, banner, training, evaluation, record, report and card."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TypeVar, cast

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from glassloop.backends.choose import choose_backend, choose_device
from glassloop.backends.machine import memory_need
from glassloop.backends.packed import PackedBackend
from glassloop.backends.plain import PlainBackend
from glassloop.base.cache import open_if_built, open_or_build
from glassloop.base.errors import LockedError, ModelError, SettingsError, listed, printable
from glassloop.base.files import absolute_name, locked, near_name, replacing, share_files
from glassloop.base.output import LOADING, Clock, note, say, stage, timed
from glassloop.base.records import collection_paused, decoded, package_version
from glassloop.data.batches import PaddingCollator, padding_waste
from glassloop.data.columns import LabelSet
from glassloop.data.encoding import Encoding, encode, notes_on, tokenizer_key
from glassloop.data.examples import Examples, length_facts
from glassloop.data.interfaces import Config, Model, Tokenizer
from glassloop.data.sources import load_examples
from glassloop.markup.terminal import show_timing
from glassloop.models.adapters import with_lora
from glassloop.models.described import KnownModel, describe, is_described, known_model, with_new_head
from glassloop.models.interface import base_of, carried_labels, encoder_weights, length_limit, refuse_unknown_tokens
from glassloop.models.loading import declared_by, load_config, load_model, load_tokenizer
from glassloop.models.pooled import PooledClassifier, Pooling, can_be_pooled, frozen_copy, pooling_of, reads_tokens
from glassloop.models.words import WordsRegression
from glassloop.predict.baselines import (
    FittedHead,
    FrozenClassifier,
    FrozenEncoder,
    baseline_pooling,
    embedding_backend,
    fitted_baselines,
    fitted_head,
    split_rows,
    words_regression,
)
from glassloop.report.build import write_report
from glassloop.report.card import update_card
from glassloop.runs import record as records
from glassloop.runs import status
from glassloop.runs.history import read_moments, trained_seconds
from glassloop.scores.calibration import USUAL_TEMPERATURE, expected_temperature
from glassloop.scores.metrics import refuse_unknown_metric
from glassloop.scores.result import FROZEN_ENCODER, OTHER_FROZEN, Baselines, Result, facts_of, method_of, write_baselines
from glassloop.settings.defaults import Chosen, Facts, choose_settings, has_own_settings, head_share
from glassloop.settings.file import GivenSettings, RunSettings
from glassloop.settings.training import (
    AUTO,
    FAMILY_HEAD,
    FROZEN,
    LORA,
    OF_STEPS,
    ONE_SEQUENCE,
    SCORE,
    SEVERAL,
    TWO_TOWERS,
    TrainingArguments,
    data_settings,
    training_arguments,
)
from glassloop.trainer import Trainer
from glassloop.training import session
from glassloop.training.callbacks import Callback, refuse_missing
from glassloop.training.checkpoints import fingerprint_of, tensor_digests
from glassloop.training.evaluate import (
    Interrupted,
    baseline_record,
    baselines_table,
    length_entries,
    prefixes,
    result_of,
    scored,
    show_result,
    store_temperature,
    write_predictions,
)
from glassloop.training.interfaces import Backend, Tensors
from glassloop.training.losses import class_weights_of
from glassloop.training.progress import show_lines

Part = TypeVar("Part")
CallSettings = tuple[dict[str, object] | None, dict[str, object] | None]  # truncation and padding of the last call
# Settings that change neither the rows nor the gradients that a backend is compared on.
NOT_COMPARED = (
    *("output_dir", "run_name", "learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"),
    *("num_train_epochs", "max_steps", "max_grad_norm", "adam_beta1", "adam_beta2", "adam_epsilon"),
    *("seed", "baselines", "report_to", "disable_tqdm", "logging_steps", "logging_strategy", "logging_first_step"),
)

COMPARISONS, COMPARISON_NAME = "comparisons", "difference.json"  # in the cache

# With fewer rows, fine-tuning does not find what a regression on the embeddings does not see at all: its training loss goes to
# 0, and its answers for other rows are worse than the most frequent label (docs/log.md, "Nothing to learn").
LEAST_SKILL, MANY_ROWS = 0.01, 2_000
LEFT_FROZEN = (
    "the encoder stays frozen: on training rows that it was not fitted to, the regression on its embeddings is no better than "
    "the class frequencies, and fine-tuning would learn so few rows by heart; --method fine_tune trains anyway"
)


# --- what runs of one process share --------------------------------------------------------------------------------------
class SharedParts:
    """Loads the parts of runs. If it keeps them, later runs with the same data and model do not load them again."""

    # A run cannot change what others get: its model is a copy, its rows are read-only, and its tokenizer is reset. Keeping them
    # takes the memory of one more model.
    def __init__(self, *, keeps: bool = False) -> None:
        self.keeps = keeps
        self.parts: dict[Hashable, object] = {}
        self.backend: Backend | None = None  # of the last run: the next one replays the steps that it has captured
        self.initial: tuple[Hashable, Model] | None = None  # the last model, never trained, and what it was loaded for
        self.known: dict[str, KnownModel | None] = {}  # models that can be loaded without transformers, by name
        # By random seed: the weights that differ from those of `initial`, such as a new head, and the digests of all.
        self.drawn: dict[int, tuple[Tensors, Mapping[str, str]]] = {}

    def kept(self, key: Hashable, load: Callable[[], Part]) -> Part:
        if not self.keeps:
            return load()
        if key not in self.parts:
            self.parts[key] = load()
        return self.parts[key]  # type: ignore[return-value]  # what `load` returned for this key

    def look_up(self, name: str) -> None:
        """Load a model without transformers from now on, if that is known to give the same."""
        if name not in self.known:
            self.known[name] = known_model(name)

    def config(self, name: str) -> Config:
        known = self.known.get(name)
        return self.kept(("config", name), lambda: known.config if known else load_config(name))

    def tokenizer(self, name: str) -> Tokenizer:
        """Return the tokenizer of a model, as it was loaded."""
        known = self.known.get(name)
        tokenizer = self.kept(("tokenizer", name), lambda: known.tokenizer if known else load_tokenizer(name))
        reset(tokenizer, self.kept(("call settings", name), lambda: call_settings(tokenizer)))
        return tokenizer

    def declared(self, name: str) -> Pooling | None:
        """Return the pooling that a model declares for sentence embeddings, and report what of it is not used."""
        pooling, unused = self.kept(("declared", name), lambda: declared_by(name))
        if unused and pooling_of(self.config(name)) is None:  # the module of our own models is their head, which is read
            note(f"{name}: {unused}")
        return pooling

    def encoded(
        self, name: str, tokenizer: Tokenizer, examples: Examples, length: int, *, towers: bool = False
    ) -> dict[str, Encoding]:
        """Return the splits as token ids of the tokenizer of a model, which stays as it is."""
        settings = call_settings(tokenizer)
        key = ("encoded", name, length, towers, examples.task, examples.num_labels, rows_key(examples))
        encoded = self.kept(key, lambda: encode(examples, tokenizer, length, towers=towers))
        reset(tokenizer, settings)
        return encoded

    def model(
        self, name: str, examples: Examples, *, new_head: bool, seed: int, pooling: Pooling | None = None, adapted: bool = False
    ) -> tuple[Model, Mapping[str, str]]:
        """Return a model to train and the digests of its weights. A new head is drawn with the seed, as always.

        One that is to be `adapted` has modules of transformers, which peft wraps: a described model reads weights without them.
        """

        def load() -> Model:
            labels, task, known = examples.labels, examples.task, self.known.get(name)
            first = self.initial[1] if self.drawn and self.initial else None
            if first and is_described(first) and (new_head or pooling != pooling_of(self.config(name))):
                return cast(Model, with_new_head(first.config, first.base_model, seed))  # only the head depends on the seed
            if known and pooling and not adapted and (found := known.load(labels, task, pooling, new_head=new_head, seed=seed)):
                return cast(Model, found)
            return load_model(name, labels=labels, task=task, new_head=new_head, seed=seed, pooling=pooling)

        if not self.keeps:
            network = load()
            return network, tensor_digests(network.state_dict())
        key = (name, examples.labels, examples.task, new_head, pooling, adapted)
        if self.initial is None or self.initial[0] != key:
            self.initial = (key, load())  # only the last model: those of a study may be large
            self.drawn = {}
        first = self.initial[1]
        if seed not in self.drawn:
            loaded, before = load() if self.drawn else first, first.state_dict()
            different = {part: value for part, value in loaded.state_dict().items() if not torch.equal(value, before[part])}
            others = next(iter(self.drawn.values()))[1] if self.drawn else {}
            self.drawn[seed] = (different, {**others, **tensor_digests(different if others else before)})
        different, digests = self.drawn[seed]
        network = deepcopy(first)
        weights = network.state_dict()
        for part, value in different.items():
            weights[part].copy_(value)
        return network, digests

    def head(
        self, inputs: RunInputs, frozen: FrozenEncoder, rows: Mapping[str, Encoding], weights: Sequence[float] | None = None, *,
        whole: bool,
    ) -> FittedHead:  # fmt: skip
        """Return a head of the frozen encoder, which reads the tokens in `rows`. The weights are those of the classes."""
        examples = inputs.examples
        parts = (split_rows(examples, "train", rows["train"]), examples.task, examples.num_labels, weights)
        key = inputs.key("head", frozen.model.pooling, whole, tuple(weights or ()))
        return self.kept(key, lambda: fitted_head(frozen, *parts, whole=whole))


def call_settings(tokenizer: Tokenizer) -> CallSettings:
    """Return the settings that a call of a tokenizer changes, and that are saved with it."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return (backend.truncation, backend.padding) if backend is not None else (None, None)


def reset(tokenizer: Tokenizer, settings: CallSettings) -> None:
    if call_settings(tokenizer) == settings:
        return
    backend, (truncation, padding) = tokenizer.backend_tokenizer, settings
    backend.no_truncation() if truncation is None else backend.enable_truncation(**truncation)
    backend.no_padding() if padding is None else backend.enable_padding(**padding)


def rows_key(examples: Examples) -> tuple[tuple[str, str], ...]:
    return tuple((name, fact.fingerprint) for name, fact in examples.facts.items())


# --- what a run reads ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class RunInputs:
    """What a run reads: its data as texts and as tokens, and its settings, some of them chosen from data and model."""

    given: GivenSettings
    model: str  # its name
    config: Config
    tokenizer: Tokenizer
    declared: Pooling | None  # the pooling that the model declares for sentence embeddings
    chosen: Chosen
    pooling: Pooling | None  # of the head; None for a head of the model's family
    max_length: int
    examples: Examples
    encoded: Mapping[str, Encoding]

    @property
    def args(self) -> TrainingArguments:
        return self.chosen.settings

    @property
    def held_out(self) -> list[str]:
        """The splits that the run is evaluated on."""
        return records.held_out_splits(self.examples.facts)

    @property
    def baseline_pooling(self) -> Pooling:
        return baseline_pooling(self.declared, pairs=self.examples.columns.text_pair is not None)

    @property
    def frozen_name(self) -> str:
        """What the frozen encoder is called as a baseline."""
        # A run is not compared with itself, but with the frozen encoder as it is pooled by default.
        is_other = self.args.method == FROZEN and self.baseline_pooling != self.pooling
        return OTHER_FROZEN if is_other else FROZEN_ENCODER

    @property
    def baselines_key(self) -> Hashable:
        return self.key("baselines", self.baseline_pooling, self.args.method, self.frozen_name)

    @property
    def head_is_new(self) -> bool:
        """Whether a pooled head starts from a regression; else it is the trained one of the model."""
        return self.args.method == FROZEN or self.pooling != kept_pooling(self.config, self.given)

    @property
    def may_stay_frozen(self) -> bool:
        """Whether the method is still to be chosen by what the regression on the embeddings reaches."""
        given, rows = self.given.training, self.examples.facts["train"].num_rows
        return given.get("method", AUTO) == AUTO and not {*given} & {*OF_STEPS} and rows < MANY_ROWS

    def left_frozen(self, args: TrainingArguments, processes: int) -> RunInputs:
        """Return the inputs of a run that trains nothing but the regression; `args` are its settings as they were given."""
        args = replace(args, method=FROZEN)
        chosen = chosen_settings(self.given, args, self.examples, self.config, processes, self.declared)
        chosen = replace(chosen, names=("method", *chosen.names), reason=f"method, {chosen.reason}")
        return replace(self, chosen=chosen).with_notes([LEFT_FROZEN])

    def key(self, kind: str, *others: Hashable) -> Hashable:
        """Return what a part that is fitted to these rows is kept under."""
        return (kind, self.model, self.max_length, self.examples.task, rows_key(self.examples), *others)

    def with_notes(self, notes: Iterable[str]) -> RunInputs:
        return replace(self, examples=replace(self.examples, notes=[*self.examples.notes, *notes]))


def read_inputs(given: GivenSettings, args: TrainingArguments, backend: Backend, shared: SharedParts) -> RunInputs:
    """Read the data of a run, choose the settings that `given` does not have, and turn the texts into tokens."""
    model = absolute_name(given.model or "quickstart")
    with stage(LOADING):
        # The reference of all backends is what transformers computes, and processes need its interface.
        if isinstance(backend, PackedBackend) and backend.precision != "fp16" and not args.gradient_checkpointing:
            shared.look_up(model)
        config = shared.config(model)
    with backend.processes.main_first():
        examples = examples_for(given, config, shared)
        with stage("loading the tokenizer", counts_as=LOADING):
            tokenizer = shared.tokenizer(model)
        declared = shared.declared(model)
        chosen = chosen_settings(given, args, examples, config, backend.processes.num_processes, declared)
        pooling = pooling_for(chosen.settings, declared, examples, given, config)
        limit = length_limit(examples, tokenizer, config, chosen.settings.max_length)
        towers = pooling is not None and pooling.towers
        encoded = shared.encoded(model, tokenizer, examples, limit.max_length, towers=towers)
    if "train" not in encoded:
        raise SettingsError("the data set has no train split", "to score a trained model on it, use glassloop evaluate")
    inputs = RunInputs(given, model, config, tokenizer, declared, chosen, pooling, limit.max_length, examples, encoded)
    return inputs.with_notes(notes_on(encoded, limit))


def examples_for(given: GivenSettings, config: Config, shared: SharedParts | None = None) -> Examples:
    """Return the data of a run, with the labels of its model if that keeps its head. Files are read once."""
    # The user may give the labels of the model in another order, but other labels need a new head.
    carried = None if given.new_head else carried_labels(config)
    wanted = data_settings(given.data).with_absolute_paths()
    outputs = LabelSet(carried) if carried and {*(wanted.label_names or carried)} == {*carried} else None
    source = given.source or "quickstart"
    key = ("examples", absolute_name(source), json.dumps(asdict(wanted), sort_keys=True, default=str), outputs)
    return (shared or SharedParts()).kept(key, lambda: load_examples(source, outputs=outputs, **given.data))


def chosen_settings(
    given: GivenSettings, args: TrainingArguments, examples: Examples, config: Config, processes: int = 1,
    declared: Pooling | None = None,
) -> Chosen:  # fmt: skip
    """Return the settings of a run with those that the default rule chooses from its data and its model."""
    return choose_settings(args, given.training, facts_for(given, examples, config, processes, declared))


def facts_for(
    given: GivenSettings, examples: Examples, config: Config, processes: int = 1, declared: Pooling | None = None
) -> Facts:
    rows = examples.facts["train"].num_rows if "train" in examples.facts else 0
    kept = kept_pooling(config, given)
    return Facts(
        rows,
        examples.num_labels,
        encoder_weights(config),
        pairs=examples.columns.text_pair is not None,
        declared=declared.mode if declared else None,
        has_head=has_own_settings(given.source) or has_head(config, given),
        kept=kept.mode if kept else None,
        kept_form=TWO_TOWERS if kept and kept.towers else ONE_SEQUENCE,
        several=examples.task == SEVERAL,
        can_be_pooled=can_be_pooled(config),
        processes=processes,
        own_settings=has_own_settings(given.source),
    )


def has_head(config: Config, given: GivenSettings) -> bool:
    """Return whether a model was trained as a classifier, and keeps its head."""
    trained = carried_labels(config) is not None or any("Classification" in name for name in config.architectures or ())
    return (trained or pooling_of(config) is not None) and not given.new_head


def kept_pooling(config: Config, given: GivenSettings) -> Pooling | None:
    """Return how the pooled head of a model pools that a run may keep; None if the run needs another head."""
    return None if given.new_head else pooling_of(config)


def pooling_for(
    args: TrainingArguments, declared: Pooling | None, examples: Examples, given: GivenSettings, config: Config
) -> Pooling | None:
    """Return how the head of a run pools tokens; None for a head of the model's family."""
    towers, kept = args.pair_form == TWO_TOWERS, kept_pooling(config, given)
    if towers and examples.columns.text_pair is None:
        if kept and kept.towers:
            problem = f"{given.model}: the model reads pairs of texts, but the rows have one text"
            raise ModelError(problem, "name the column of the second text with --text_pair, or use --new_head")
        raise SettingsError("pair_form is two_towers, but the rows have one text", "omit pair_form, or name text_pair")
    if args.pooling == FAMILY_HEAD and pooling_of(config) is not None:
        problem = "pooling is head, but the model was trained with a pooled head"
        raise SettingsError(problem, "omit pooling, or start from the model that it was trained from")
    if args.pooling != FAMILY_HEAD and not can_be_pooled(config):
        what = "method is frozen" if args.method == FROZEN else f"pooling is {args.pooling}"
        problem = f"{what}, but a {config.model_type} encoder does not give one vector for each token"
        raise SettingsError(problem, "use method fine_tune with pooling head, or another model")
    if args.pooling == FAMILY_HEAD:
        if towers or args.method == FROZEN:
            name = "pair_form two_towers" if towers else "method frozen"
            raise SettingsError(f"{name} needs a pooled head, but pooling is head", "omit pooling, or use pooling mean")
        return None
    if kept and (kept.mode, kept.towers) == (args.pooling, towers):
        return kept
    return Pooling(args.pooling, bool(declared and declared.normalize), towers)


# --- the head that a run starts from, and its baselines ------------------------------------------------------------------
def frozen_encoder(inputs: RunInputs, network: PooledClassifier, backend: Backend) -> FrozenEncoder:
    collate = PaddingCollator(inputs.tokenizer, inputs.args.pad_to_multiple_of)
    return FrozenEncoder(network, collate, embedding_backend(backend))


def fitted_start(inputs: RunInputs, network: PooledClassifier, backend: Backend, shared: SharedParts) -> FrozenClassifier:
    """Fit the head that a run starts from."""
    args, examples, train = inputs.args, inputs.examples, inputs.encoded["train"]
    weights = None
    if examples.task != SCORE:  # for which the Trainer refuses them
        weights = class_weights_of(args.class_weights, examples.num_labels, train.rows)
    encoder = frozen_encoder(inputs, network, backend)
    head = shared.head(inputs, encoder, inputs.encoded, weights, whole=args.method == FROZEN)
    if args.method == FROZEN and len(head.numbers) < (number := len(train.lengths)):
        note(f"the head is fitted to {len(head.numbers):,} of {number:,} training rows")
    return FrozenClassifier(encoder, head)


def load_start(inputs: RunInputs, network: PooledClassifier, start: FrozenClassifier) -> FrozenClassifier:
    """Give the model of a run its head: of a training a share of the regression, of a resumed run the stored head."""
    args, examples = inputs.args, inputs.examples
    if args.method != FROZEN:
        pairs, several = examples.columns.text_pair is not None, examples.task == SEVERAL
        share = head_share(examples.num_labels, pairs=pairs, several=several)
        start = replace(start, head=replace(start.head, share=share))
    tensors, stored = start.head.tensors, Path(args.output_dir or "") / records.START_HEAD_NAME
    network.head.load_state_dict(stored_head(stored, tensors) if args.output_dir and stored.is_file() else tensors)
    return start


def stored_head(path: Path, like: Tensors) -> Tensors:
    """Return the head that a run started from. Raise `ModelError` if its file does not hold one of the same shapes."""
    try:
        found = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} cannot be read: {error}", records.RESTORE) from error
    if {name: part.shape for name, part in found.items()} != {name: part.shape for name, part in like.items()}:
        raise ModelError(f"{path} is not the head of this run", records.RESTORE)
    return found


def usual_temperature(inputs: RunInputs, head: FittedHead | None, record: records.RunRecord) -> float:
    """Return near which temperature that of a run stays if it has few validation rows; `head` is what it starts from."""
    examples = inputs.examples
    if inputs.args.method == FROZEN:
        return record.usual_temperature
    if head is None or examples.task == SCORE:
        return USUAL_TEMPERATURE
    facts = facts_of(record, (), encoder_weights(inputs.config))
    trained = facts.steps / max(1, facts.usual_steps)
    towers, share = facts.start.towers, head.share
    return expected_temperature(head.skill, examples.task, towers=towers, trained=trained, share=share)


def compared_encoder(
    inputs: RunInputs, network: Model, start: FrozenClassifier | None, backend: Backend, shared: SharedParts
) -> tuple[FrozenClassifier | None, Mapping[str, Encoding]]:
    """Return the frozen encoder that a run is compared with, and the tokens as it reads them; None if there can be none."""
    wanted, rows = inputs.baseline_pooling, inputs.encoded
    if not isinstance(network, PooledClassifier) and not reads_tokens(network.base_model):
        return None, rows
    if start is None or start.encoder.model.pooling != wanted:
        encoder = frozen_encoder(inputs, frozen_copy(network, wanted), backend)
        rows = shared.encoded(inputs.model, inputs.tokenizer, inputs.examples, inputs.max_length, towers=wanted.towers)
        return FrozenClassifier(encoder, shared.head(inputs, encoder, rows, whole=False)), rows
    if start.head.class_weights:  # a baseline has none
        return replace(start, head=shared.head(inputs, start.encoder, rows, whole=inputs.args.method == FROZEN)), rows
    return start, rows


def words_beside(inputs: RunInputs, shared: SharedParts, *, wanted: bool) -> AbstractContextManager[WordsRegression | None]:
    """Return a block in which the regression on words is fitted in a process beside this one, if that pays."""
    if not wanted or inputs.baselines_key in shared.parts:
        return nullcontext()
    examples = inputs.examples
    return words_regression(split_rows(examples, "train", inputs.encoded["train"]), examples.task, examples.num_labels)


def run_baselines(
    inputs: RunInputs, frozen: FrozenClassifier | None, rows: Mapping[str, Encoding], shared: SharedParts,
    words: WordsRegression | None = None,
) -> Mapping[str, Baselines]:  # fmt: skip
    """Return what simple methods predict for the splits that a run is evaluated on, whose tokens are `rows`."""
    examples = inputs.examples

    def fit() -> dict[str, Baselines]:
        train, *others = (split_rows(examples, split, rows[split]) for split in ("train", *inputs.held_out))
        held_out = dict(zip(inputs.held_out, others, strict=True))
        names = examples.labels.names if examples.labels else ()
        return fitted_baselines(train, held_out, examples.task, names, frozen, inputs.frozen_name, words)

    return shared.kept(inputs.baselines_key, fit)


# --- before the first step -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PreparedRun:
    """A run before its first step: the Trainer with its parts, the data, and the record to write."""

    trainer: Trainer
    parts: session.TrainingParts
    examples: Examples
    encoded: Mapping[str, Encoding]
    record: records.RunRecord
    baselines: Mapping[str, Baselines] = field(default_factory=dict)  # by split; empty if they are not wanted
    head: FittedHead | None = None  # that a pooled model starts from
    reason: str = ""  # from what the default rule chose settings


def assemble(
    given: GivenSettings, args: TrainingArguments, backend: Backend, shared: SharedParts | None = None, *,
    fits: bool = True,
) -> PreparedRun:  # fmt: skip
    """Load the data and the model of a run, and return everything it needs before its first step.

    Without `fits`, neither the head nor the baselines are fitted, which takes most of the time.
    """
    refuse_missing(args.trackers)
    shared = shared or SharedParts()
    if shared.keeps:
        shared.backend = backend
    inputs = read_inputs(given, args, backend, shared)
    compares = fits and inputs.args.baselines and bool(inputs.held_out) and backend.processes.is_main
    with words_beside(inputs, shared, wanted=compares) as words:
        return prepared(inputs, args, backend, shared, words, fits=fits, compares=compares)


def prepared(
    inputs: RunInputs, args: TrainingArguments, backend: Backend, shared: SharedParts, words: WordsRegression | None, *,
    fits: bool, compares: bool,
) -> PreparedRun:  # fmt: skip
    """Load the model of a run, fit what it starts from and what it is compared with, and check it."""
    with stage(LOADING):
        network, digests = shared.model(
            inputs.model, inputs.examples, new_head=inputs.given.new_head, seed=inputs.args.seed, pooling=inputs.pooling,
            adapted=inputs.args.adapter == LORA,
        )  # fmt: skip
    start: FrozenClassifier | None = None
    with backend.processes.main_first():
        network.to(backend.device)
        refuse_unknown_tokens(inputs.tokenizer, network)
        if isinstance(network, PooledClassifier) and backend.processes.is_main and shared.known.get(inputs.model, ...) is None:
            shared.kept(
                ("described", inputs.model),
                lambda: describe(inputs.model, inputs.config, inputs.tokenizer, network.base_model),
            )
        if fits and isinstance(network, PooledClassifier) and inputs.head_is_new:
            start = fitted_start(inputs, network, backend, shared)
    if start and inputs.may_stay_frozen and backend.processes.gather_objects([start.head.skill])[0] < LEAST_SKILL:
        inputs = inputs.left_frozen(args, backend.processes.num_processes)
    if start and isinstance(network, PooledClassifier):
        start = load_start(inputs, network, start)
    baselines: Mapping[str, Baselines] = {}
    if compares:
        frozen, rows = compared_encoder(inputs, network, start, backend, shared)
        if frozen is None:
            reason = f"a {inputs.config.model_type} encoder does not give one vector for each token"
            inputs = inputs.with_notes([f"the frozen encoder is not compared: {reason}"])
        baselines = run_baselines(inputs, frozen, rows, shared, words)
    held_out, args = next(iter(inputs.held_out), None), inputs.args
    if args.adapter == LORA:
        network = with_lora(network, args.lora_r, args.lora_alpha, args.lora_dropout, args.lora_target_modules, args.seed)
    trainer = Trainer(
        network,
        inputs.args,
        train_dataset=inputs.encoded["train"].rows,
        eval_dataset=inputs.encoded[held_out].rows if held_out else None,
        processing_class=inputs.tokenizer,
        backend=backend,
        measures=inputs.examples.measures,
    )
    refuse_unknown_metric(inputs.args.metric_for_best_model, trainer.measures)
    parts = checked_parts(trainer, inputs, shared, digests)
    head, judged = start.head if start else None, baselines[inputs.held_out[0]].each if baselines else ()
    record = first_record(inputs, parts, fingerprint_of(digests))
    record = replace(
        record,
        baselines=tuple(baseline_record(one, trainer.measures) for one in judged),
        usual_temperature=usual_temperature(inputs, head, record),
    )
    return PreparedRun(trainer, parts, inputs.examples, inputs.encoded, record, baselines, head, inputs.chosen.reason)


def checked_parts(
    trainer: Trainer, inputs: RunInputs, shared: SharedParts, digests: Mapping[str, str]
) -> session.TrainingParts:  # fmt: skip
    """Return the parts of a training, whose fast backend was compared with plain. `digests` are those of the weights."""
    backend = trainer.backend
    if not isinstance(backend, PackedBackend):
        with stage("checking the model"):
            return trainer.training_parts(in_run=True)
    # A comparison need not repeat what another one found out about the same weights and code on this machine: other rows
    # would change its figures, but not whether the backend computes the model. It takes as long as the first steps.
    key = comparison_key(trainer, inputs, backend, digests)
    known = shared.kept(("comparison", key), lambda: open_if_built(COMPARISONS, key, read_difference))
    if known is not None:
        backend.differences[trainer.model] = known
    with stage("checking the model"):
        parts = trainer.training_parts(in_run=True)
    found = parts.difference
    if known is None and found is not None and found.holds and found.gradients is not None:

        def build(folder: Path) -> None:
            (folder / COMPARISON_NAME).write_text(json.dumps(asdict(replace(found, earlier=True))), encoding="utf-8")

        kept = open_or_build(COMPARISONS, key, build, read_difference)
        if shared.keeps:
            shared.parts["comparison", key] = kept
    return parts


def read_difference(folder: Path) -> records.Difference:
    return decoded(records.Difference, json.loads((folder / COMPARISON_NAME).read_text(encoding="utf-8")))


def comparison_key(trainer: Trainer, inputs: RunInputs, backend: PackedBackend, digests: Mapping[str, str]) -> str:
    """Return a checksum of what decides whether a backend computes a model as plain does."""
    settings = {name: value for name, value in inputs.args.to_dict().items() if name not in NOT_COMPARED}
    config = json.loads(trainer.model.config.to_json_string(use_diff=False))
    known = {
        "code": package_sources(),
        "libraries": [package_version(name) for name in ("torch", "transformers", "triton", "peft")],
        "machine": session.machine_name(str(backend.device)),
        "backend": [backend.name, backend.precision],
        "weights": fingerprint_of(digests, f"{getattr(trainer.model, 'base_model_prefix', '')}."),  # of the encoder
        "config": {name: value for name, value in config.items() if name not in session.ORIGIN},
        "settings": settings,
        "max_length": inputs.max_length,
        "outputs": inputs.examples.num_labels,
    }
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:32]


@cache
def package_sources() -> str:
    """Return a checksum of the code that runs models."""
    root = Path(__file__).parents[1]
    paths = sorted(path for room in ("backends", "models") for path in (root / room).rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def first_record(inputs: RunInputs, parts: session.TrainingParts, fingerprint: str) -> records.RunRecord:
    """Return the record of a run before its first step; `fingerprint` is that of the weights that were loaded."""
    examples, network = inputs.examples, base_of(parts.model)
    data = records.DataRecord(
        source=absolute_name(inputs.given.source or "quickstart"),
        settings=data_settings(inputs.given.data).with_absolute_paths(),
        task=examples.task,
        columns=examples.columns,
        labels=examples.labels.names if examples.labels else None,
        label_order=examples.labels.order if examples.labels else None,
        splits=dict(examples.facts),
        notes=tuple(examples.notes),
    )
    number = sum(weight.numel() for weight in network.parameters())
    pooling = asdict(network.pooling) if isinstance(network, PooledClassifier) else None
    model = records.ModelRecord(inputs.model, inputs.config.model_type, number, inputs.given.new_head, pooling)
    train = inputs.encoded["train"]
    return replace(
        session.started_record(parts, data, model),
        settings=inputs.args,
        chosen=inputs.chosen.names,
        max_length=inputs.max_length,
        class_weights=None if parts.class_weights is None else tuple(parts.class_weights),
        padding=padding_waste(train.lengths, parts.batches.order(0), inputs.args.pad_to_multiple_of or 1),
        lengths={
            name: facts
            for name, split in inputs.encoded.items()
            if (facts := length_facts(split.lengths, split.truncation.num_rows, split.truncation.longest))
        },
        identity=session.identity_of(parts) | {"weights": fingerprint, "tokenizer": tokenizer_key(inputs.tokenizer)[:16]},
    )


def check_run(settings: RunSettings, seed: int, shared: SharedParts | None = None) -> tuple[float, int]:
    """Check settings, model and data once and cache the tokens. Return the GPU memory a run may need, and its steps."""
    args = replace(settings.training, seed=seed)
    # Of several GPUs, those with enough free memory are chosen only afterwards: until then none of them is used.
    several = choose_device(args.device) == "cuda" and torch.cuda.device_count() > 1
    backend = PlainBackend("cpu", "fp32") if several else choose_backend(args)
    run = assemble(settings.given(), args, backend, shared, fits=not several)
    rows = max(args.per_device_train_batch_size, args.per_device_eval_batch_size / 4)  # evaluation keeps no activations
    tokens = rows * int(run.encoded["train"].lengths.max())
    return memory_need(run.record.model.parameters, tokens), run.parts.plan.max_steps


# --- from the first step to the report -----------------------------------------------------------------------------------
def train_run(
    given: GivenSettings, resume: str | None = None, *, restart: bool = False, shared: SharedParts | None = None,
    with_report: bool = True, clock: Clock | None = None, timing: bool = False,
) -> Path:  # fmt: skip
    """Train a run, or resume that of a folder, of a checkpoint, or the "newest" of `output_dir`, and return its folder.

    `clock` measures the stages, by default from now on; with `timing`, they are printed at the end.
    """
    clock = clock or Clock()
    checkpoint: bool | Path | None = None
    stored: records.RunRecord | None = None
    if restart and resume is None:
        raise SettingsError("--restart needs a run to restart", "glassloop train --resume RUN --restart")
    if resume is not None:
        given, folder, checkpoint, stored = find_resumed(given, resume, restart=restart)
        if stored and stored.finished:  # perhaps killed before card and report were complete
            say(f"{folder} is already complete")
            if not (folder / records.MODEL_NAME / records.CARD_NAME).exists():
                update_card(folder)
            if records.leftovers(folder):  # of the report; or it is writing it right now and holds the lock
                with suppress(LockedError), locked(folder, say):
                    records.remove_leftovers(folder)
                    if with_report:
                        write_report(folder)
            if timing:
                show_timing(stored.stages, resumed=stored.resumed)
            return folder
    args = training_arguments(given.training)
    if args.disable_tqdm:
        show_lines()
    backend = choose_backend(args)
    is_main = backend.processes.is_main
    with ExitStack() as held:
        if stored is None:
            free = str(status.free_folder(args.output_dir, overwrite=args.overwrite_output_dir)) if is_main else ""
            folder = Path(backend.processes.gather_objects([free])[0])  # the main process decides
            if not args.output_dir or not folder.exists():
                held.callback(status.remove_if_empty, *status.new_folders(folder))
            args = replace(args, output_dir=str(folder), overwrite_output_dir=False)
        with collection_paused():  # transformers is imported
            run = assemble(given, args, backend, shared)
        if is_main:
            held.enter_context(locked(folder, run.parts.say))
            status.refuse_changed(folder, stored)  # by a run that held the lock until now
            if stored is None:
                held.enter_context(status.cleared_unless_started(folder, lambda: run.parts.state.step > 0))
                records.write_run(folder, run.record)
            else:
                session.refuse_other_run(stored, run.record, from_start=restart or not records.has_checkpoint(folder))
                kept = replace(run.record.data, notes=stored.data.notes)  # with the note on a method that was chosen
                run = replace(run, record=replace(run.record, chosen=stored.chosen, data=kept))
            if run.head is not None and not (folder / records.START_HEAD_NAME).exists():
                named = session.resume_named(folder, records.START_HEAD_NAME, "the initial classification head")
                with named, replacing(folder / records.START_HEAD_NAME) as writing:
                    writing.write_bytes(save(run.head.tensors))  # save_file has an error of its own for a full disk
                share_files(folder, records.START_HEAD_NAME)
        run_to_end(run, checkpoint, clock, restart=restart)
        if is_main:
            with timed("writing report and model card"):
                if with_report and (path := write_report(folder)):
                    note(f"  report: {path}")
                update_card(folder)
            if timing:
                show_timing(clock.stages(), resumed=bool(checkpoint))
    return folder


def find_resumed(
    given: GivenSettings, resume: str, *, restart: bool
) -> tuple[GivenSettings, Path, bool | Path, records.RunRecord | None]:
    output_dir = given.training.get("output_dir")
    folder, checkpoint = status.resumed_folder(resume, str(output_dir) if output_dir else None)
    given = replace(given, training={**given.training, "output_dir": str(folder)})
    if given.source is not None and not records.is_run(folder):
        return given, folder, checkpoint, None  # it ended before it wrote a record, and starts again
    stored = records.read_run(folder)
    if stored.finished and restart:
        raise SettingsError(f"{folder} is finished and will not be overwritten", "train again with another --output_dir")
    if stored.finished:
        session.refuse_other_request(folder, stored, given)
    session.refuse_other_model(given.model, stored.model.name)
    started = GivenSettings(stored.data.source, stored.model.name, stored.settings.to_dict(), stored.data.given())
    given = replace(started.overridden_by(given), new_head=stored.model.new_head)
    return given, folder, checkpoint, stored


def run_to_end(
    run: PreparedRun, checkpoint: bool | Path | None, clock: Clock, *, restart: bool = False,
    callbacks: Sequence[Callback] = (),
) -> None:  # fmt: skip
    """Train, save the model, evaluate it and write the record. A signal stops this anywhere without losing a step."""
    trainer, examples, record = run.trainer, run.examples, run.record
    folder, processes = run.parts.folder, trainer.backend.processes
    console = Console(stderr=True, quiet=not processes.is_main)
    console.print(banner(record, examples, folder, run.reason))
    for line in examples.notes:
        console.print(Text(f"• {printable(line)}", style="dim"))
    if run.baselines:  # of the first split, which run.json has, too
        console.print(baselines_table(record.baselines, trainer.measures, f"{next(iter(run.baselines))}, before training"))
    with session.trained(run.parts, checkpoint, restart=restart, callbacks=callbacks) as metrics:
        record = replace(record, result=metrics, stop_reason=trainer.state.stop_reason)
        seconds = trained_seconds(read_moments(folder), metrics.get("train_runtime", 0.0))
        fit = run.head.seconds if run.head else 0.0
        record = replace(record, training_seconds=None if seconds is None else seconds + fit)
        with timed("final evaluation"):
            results = evaluated(run, record)
            if results:
                record = replace(scored(record, results), best_step=trainer.state.best_step)
            for result in results:
                show_result(console, result, result.split)
                if processes.is_main:
                    lengths, tokenizer, model = run.encoded[result.split].lengths, trainer.processing_class, record.model
                    more = length_entries(examples, result.split, lengths, tokenizer, record.max_length, towers=model.towers)
                    with session.resume_named(folder):
                        write_predictions(folder / records.predictions_name(result.split), examples, result, more)
                        if result is not results[0]:  # the first split is the one that the run is judged on
                            continue
                        if result.split in run.baselines:
                            write_baselines(folder, run.baselines[result.split])
                        if result.probabilities is not None:
                            store_temperature(folder, record, result.split, result.probabilities)
        session.stop_if_asked(trainer.state, processes, run.parts.say)
        stages, resumed = clock.stages(), bool(checkpoint)
        record = replace(record, status=records.FINISHED, seconds=sum(stages.values()), stages=stages, resumed=resumed)
        if processes.is_main:
            with session.resume_named(folder):
                records.write_run(folder, record)
            for name in (records.TRAINED_NAME, records.TRAINED_WEIGHTS_NAME):  # which only an unfinished run needs
                (folder / name).unlink(missing_ok=True)
        processes.wait()
    console.print(Text(f"✓ {record.seconds or 0:.0f} s, {trainer.state.step:,} steps → {printable(str(folder))}"))


def evaluated(run: PreparedRun, record: records.RunRecord) -> list[Result]:
    """Return the result of each split that the run is evaluated on; its `record` says how long it trained."""
    trainer, splits, results = run.trainer, records.held_out_splits(run.examples.facts), []
    facts = facts_of(record, trainer.state.history, encoder_weights(trainer.model.config))
    try:
        for split, prefix in zip(splits, prefixes(splits), strict=True):
            evaluation = trainer.evaluation(run.encoded[split].rows, prefix, interruptible=True)
            result = result_of(
                run.examples,
                split,
                evaluation,
                trainer.measures,
                prefix,
                facts=facts,
                baselines=run.baselines.get(split),
                method=method_of(record),
            )
            results.append(result)
    except Interrupted:  # by a signal: the model is saved, and a resumed run evaluates it
        session.stop_if_asked(trainer.state, trainer.backend.processes, run.parts.say)
        raise
    return results


def head_words(record: records.RunRecord) -> str:
    """Return what the head of a run reads, and of pairs also how."""
    head = record.model.pooling
    words = "head of the model family" if head is None else f"{head['mode']} pooling"
    if record.data.columns.text_pair is None:
        return words
    return f"{words}, {'two towers' if record.model.towers else 'one sequence'}"


def banner(record: records.RunRecord, examples: Examples, folder: Path, chosen: str = "") -> Table:
    """Return what a run is about to do; `chosen` says which settings the default rule chose, and from what."""
    args, plan, model = record.settings, record.plan, record.model
    size = f"{args.per_device_train_batch_size} rows"
    size += f" × {record.processes} processes" if record.processes > 1 else ""
    size += f" × {plan.accumulate} batches" if plan.accumulate > 1 else ""
    padding = "no padding" if "packed batches" in record.savings else f"{record.padding:.0%} padding"
    splits = ", ".join(f"{fact.num_rows:,} {name}" for name, fact in examples.facts.items())
    takes_steps = args.method != FROZEN
    rows = [
        ("data", f"{near_name(record.data.source)}: {splits}"),
        ("task", examples.task.replace("_", " ") + (f": {listed(examples.labels.names, 8)}" if examples.labels else "")),
        ("model", f"{near_name(model.name)} ({model.type}, {model.parameters / 1e6:.1f} M parameters)"),
        (
            "method",
            f"{args.method}{f' with {LORA} of rank {args.lora_r}' if args.adapter == LORA else ''}, {head_words(record)}",
        ),
    ]
    if takes_steps:
        rate = f"{args.learning_rate:g}, {args.lr_scheduler_type} schedule, {plan.warmup_steps:,} warm-up steps"
        steps = f"{plan.max_steps:,} ({plan.steps_per_epoch:,} per epoch), {size} per step, {padding}"
        rows += [("steps", steps), ("learning rate", rate)]
    rows += [("chosen", chosen)] if chosen else []
    rows.append(("device", f"{record.device}, {record.precision}, backend {record.backend}"))
    rows += [("optimizations", ", ".join(record.savings))] if record.savings and takes_steps else []
    if record.difference is not None and takes_steps:  # the check of a fast backend: logits, and below them gradients
        *first, last = record.difference.in_words
        lines = (*first, f"{last}, {record.difference.rows} rows{' of an earlier run' if record.difference.earlier else ''}")
        rows += zip(("check", "")[: len(lines)], lines, strict=True)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    for name, value in (*rows, ("folder", str(folder))):
        table.add_row(name, Text(printable(value)))
    return table
