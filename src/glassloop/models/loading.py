"""Models and tokenizers, loaded without running foreign code, labels honoured by name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from glassloop.data.labels import LabelSet
from glassloop.errors import ModelError, ResourceError, SettingsError, counted, listed, no_memory, resource_error, visible
from glassloop.models.families import FAMILIES
from glassloop.models.files import KNOWN_MODEL, SETTINGS_NAMES, Place, find_model, refuse_settings, weights_file
from glassloop.settings import CLASSES, SCORE, repeated

GENERIC_LABEL = re.compile(r"LABEL_\d+")


@contextmanager
def loading(place: Place, what: str) -> Iterator[None]:
    """Turns what a library raises while it loads into one clear error."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        if no_memory(error):
            told = f" ({error})" if str(error) else ""
            raise ResourceError(
                f"{place.name}: not enough memory to load the {what}{told}", "free some memory, or use a smaller model"
            ) from error
        if resources := resource_error(error):
            raise resources from error
        detail = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        if place.cache_only:
            raise ModelError(
                f"{place.name}: the hub cannot be reached ({place.reason}) and its cache holds no {what} of that name",
                "work offline with --model quickstart or the folder of a saved model",
            ) from error
        if "trust_remote_code" in str(error) or "custom code" in str(error):
            raise ModelError(f"{place.name}: the model wants to run code of its own", KNOWN_MODEL) from error
        raise ModelError(
            f"{place.name}: the {what} cannot be loaded: {detail}", "check the name, or get the model again"
        ) from error


def from_pretrained(loader: Callable[..., Any], place: Place, **options: Any) -> Any:
    with offline(place.cache_only):
        return loader(place.name, local_files_only=place.cache_only, trust_remote_code=False, **options)


@contextmanager
def offline(wanted: bool) -> Iterator[None]:
    """Keeps `huggingface_hub` from the network altogether: without this it still sends a request while it reads its cache."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = wanted or before
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def checked_place(name: str | Path) -> Place:
    """Where a model is loaded from. The settings of a hub model are fetched and checked first, as those of a folder are."""
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


def load_tokenizer(name: str | Path = "quickstart") -> Any:
    """The tokenizer of a model. It must have words and a padding token."""
    place = checked_place(name)
    from transformers import AutoTokenizer

    with loading(place, "tokenizer"):
        tokenizer = from_pretrained(AutoTokenizer.from_pretrained, place)
    if {*tokenizer.get_vocab().values()} <= {*tokenizer.all_special_ids}:  # what transformers makes where there are no files
        raise ModelError(
            f"{name}: there are no files of a tokenizer",
            "save the tokenizer into the model's folder: tokenizer.save_pretrained(folder)",
        )
    if tokenizer.pad_token_id is None:
        raise ModelError(
            f"{name}: the tokenizer has no padding token",
            "set one: tokenizer.pad_token = tokenizer.eos_token, and save it",
        )
    longest = tokenizer.model_max_length
    if not isinstance(longest, int | float) or isinstance(longest, bool) or not longest >= 1:
        raise ModelError(
            f"{name}: model_max_length of the tokenizer is {longest!r}, not a number of 1 or more",
            "correct model_max_length in tokenizer_config.json, or get the model again",
        )
    return tokenizer


def refuse_unknown_tokens(tokenizer: Any, model: Any) -> None:
    """Raise where the tokenizer has tokens for which the model's embedding has no row."""
    if not hasattr(model, "get_input_embeddings") or not hasattr(tokenizer, "get_vocab"):
        return  # something of the user's own, which may look up tokens in any way
    rows = int(model.get_input_embeddings().weight.shape[0])
    if unknown := [token for token, number in tokenizer.get_vocab().items() if number >= rows]:
        raise ModelError(
            f"the tokenizer has {counted(len(unknown), 'token', 'tokens')} beyond the {rows:,} rows of the model's embedding "
            f"({listed(sorted(unknown), 5)})",
            "use the model's own tokenizer, or call model.resize_token_embeddings(len(tokenizer)) and save both",
        )


def refuse_not_finite(model: Any, where: Callable[[str], str]) -> None:
    """Raise with the first weight that holds NaN or infinity; `where` says where the weight of a name comes from."""
    import torch

    kinds = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    for name, weight in model.named_parameters():
        if weight.numel() and weight.dtype in kinds and not torch.isfinite(torch.stack(torch.aminmax(weight.detach()))).all():
            strange = int((~torch.isfinite(weight)).sum())
            raise ModelError(
                f"{where(name)}: the weight {name} is not finite ({strange:,} of its {weight.numel():,} numbers)",
                "the weights are damaged or their training diverged: get the model again",
            )


def load_config(name: str | Path = "quickstart") -> Any:
    """The settings of a model, without its weights."""
    place = checked_place(name)
    from transformers import AutoConfig

    with loading(place, "model"):
        config = from_pretrained(AutoConfig.from_pretrained, place)
    if getattr(config, "auto_map", None):
        raise ModelError(f"{name}: the model wants to run code of its own (auto_map)", "use a model that transformers knows")
    return config


def task_of(config: Any) -> str:
    """What a model learns."""
    return str(config.problem_type or (SCORE if config.num_labels == 1 else CLASSES))


def label_names(config: Any) -> tuple[str, ...]:
    """The names of a model's outputs in their order. Raises `ModelError` where two have one name."""
    names = tuple(str(config.id2label[number]) for number in sorted(config.id2label))
    if twice := repeated(names):
        raise ModelError(
            f"the model has two outputs with the label {visible(twice[0])}",
            "give each its own name in id2label and label2id of its config.json",
        )
    return names


def carried_labels(config: Any) -> tuple[str, ...] | None:
    """The label names a model carries in the order of their numbers; None where they are only LABEL_0, LABEL_1, …"""
    names = label_names(config)
    return None if all(GENERIC_LABEL.fullmatch(name) for name in names) else names


def load_model(
    name: str | Path = "quickstart",
    *,
    labels: LabelSet | None = None,
    task: str = "single_label_classification",
    new_head: bool = False,
    seed: int | None = None,
    **options: Any,
) -> Any:
    """A model with a classification head in fp32, its config carrying the label names. `labels` None: as the model is.

    Labels that the model carries are honoured by name: the same names in another order are an error, as are other names
    unless `new_head` asks for a fresh head. `seed` fixes the random start of a fresh head. `options` go to the config.
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
        raise SettingsError(
            f"the model has no setting {visible(unknown[0])}", f"leave it away, or choose another model than {name}"
        )
    place = checked_place(name)
    with loading(place, "model"), torch.random.fork_rng(devices=[], enabled=seed is not None), quiet_transformers():
        if seed is not None:
            torch.manual_seed(seed)
        model, report = from_pretrained(
            AutoModelForSequenceClassification.from_pretrained,
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
    refuse_not_finite(model, lambda weight: weights_file(place, weight.removeprefix(f"{model.base_model_prefix}."), weight))
    return model


def refuse_unfit(name: str, encoder: str, report: dict[str, Any], new_head: bool) -> None:
    """Raise where weights are missing or of another size; the parts outside `encoder` and a pooler may be fresh."""
    missing = [key for key in report["missing_keys"] if key.startswith(encoder) and "pooler" not in key.split(".")]
    if missing:
        raise ModelError(
            f"{name}: {len(missing):,} weights of the encoder are missing ({listed(sorted(missing), 3)})",
            "the folder holds another model than its config.json says: get the model again",
        )
    if unfit := sorted(key for key, *_ in report["mismatched_keys"] if key.startswith(encoder) or not new_head):
        raise ModelError(
            f"{name}: {len(unfit):,} weights have another size than its config and the labels ask for ({listed(unfit, 3)})",
            "for other labels ask for a fresh head with --new_head; else get the model again",
        )


def refuse_other_labels(name: str, carried: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    """Raise where a model's own labels are not those of the data, in the same order."""
    if set(carried) == set(wanted) and carried != wanted:
        raise ModelError(
            f"{name}: the model numbers its labels {listed(carried)}; the data {listed(wanted)}",
            f"give the data the model's order: --labels {','.join(carried)}",
        )
    if carried != wanted:
        raise ModelError(
            f"{name}: the model was trained for the labels {listed(carried)}; the data have {listed(wanted)}",
            "name the data's labels alike with --labels, or ask for a fresh head with --new_head",
        )


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No loading report on the console: a fresh head is what is asked for here."""
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


def longest_input(tokenizer: Any, config: Any = None) -> int:
    """How many tokens a model takes at most; 512 where neither tokenizer nor config says."""
    limits = [tokenizer.model_max_length]
    positions = getattr(config, "max_position_embeddings", None)
    if positions:
        family = FAMILIES.get(config.model_type)
        padding = getattr(config, "pad_token_id", None) or 0
        offset = padding + 1 if family and family.positions_after_padding else 0
        limits.append(positions - offset)
    known = [limit for limit in limits if limit and limit < 100_000]
    return int(min(known, default=512))


def accepted_inputs(kind: type) -> set[str]:
    """The inputs that a model's forward takes by name; where it passes any others on, those that its parent class takes."""
    names, named = {"input_ids"}, (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for parent in kind.__mro__:
        if forward := vars(parent).get("forward"):
            parameters = [*inspect.signature(forward).parameters.values()][1:]  # the first is the model itself
            names |= {entry.name for entry in parameters if entry.kind in named}
            if all(entry.kind is not inspect.Parameter.VAR_KEYWORD for entry in parameters):
                break
    return names
