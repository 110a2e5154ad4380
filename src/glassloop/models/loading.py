"""Models and tokenizers, loaded without running the model's own code."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from logging import LogRecord
from pathlib import Path
from typing import TypedDict, TypeVar

from glassloop.base.errors import (
    ModelError,
    ResourceError,
    SettingsError,
    listed,
    no_memory,
    printable,
    resource_error,
    visible,
)
from glassloop.data.interfaces import Config, Model, Tokenizer
from glassloop.data.labels import LabelSet
from glassloop.models.files import (
    INDEX_SUFFIX,
    KNOWN_MODEL,
    SETTINGS_NAMES,
    Place,
    find_model,
    indexed_files,
    is_layer_count,
    refuse_settings,
    weights_file,
)
from glassloop.models.interface import carried_labels, refuse_other_labels

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

        with loading(place, "model"), offline(place.cache_only):
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
    with offline(place.cache_only):
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
def offline(wanted: bool) -> Iterator[None]:
    """Keep `huggingface_hub` off the network: otherwise it sends a request even while it reads its cache."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = wanted or before
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


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


def refuse_not_finite(model: Model, where: Callable[[str], str]) -> None:
    """Raise with the first weight that contains NaN or infinity. `where` returns the file of a weight."""
    # NaN in a pretrained model otherwise looks like a learning rate that is too high, or like an answer.
    import torch

    kinds = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    for name, weight in model.named_parameters():
        if weight.numel() and weight.dtype in kinds and not torch.isfinite(torch.stack(torch.aminmax(weight.detach()))).all():
            number = int((~torch.isfinite(weight)).sum())
            raise ModelError(
                f"{where(name)}: the weight {name} is not finite ({number:,} of its {weight.numel():,} numbers)",
                "download the model again: its weights are damaged, or its training diverged",
            )
