"""What a model takes and what its outputs mean: inputs by name, tokens, task and labels; also inside a wrapper of peft."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING

from glassloop.base.errors import ModelError, counted, listed, visible
from glassloop.data.interfaces import Config, Model, Tokenizer
from glassloop.models.families import FAMILIES
from glassloop.settings.training import CLASSES, SCORE, repeated

if TYPE_CHECKING:
    import torch

    from glassloop.data.encoding import LengthLimit
    from glassloop.data.examples import Examples

GENERIC_LABEL = re.compile(r"LABEL_\d+")
STAND_IN = "_config_of_outputs"  # the attribute of a plain torch module with what Glassloop reads of a config
DEFAULT_LENGTH = 512
NO_LIMIT = 100_000  # tokenizers that know no limit say 10**30
ADAPTER_DIR = "adapter"  # below the folder of the merged model, where transformers does not look for one


def config_of(model: Model) -> Config:
    """Return the config of a model; for a plain torch module, whose config may be anything, what stands for one."""
    return getattr(model, STAND_IN, None) or model.config


def task_of(config: Config) -> str:
    """Return the task of a model: what its config says, else regression for one output and classes for more."""
    return str(config.problem_type or (SCORE if config.num_labels == 1 else CLASSES))


def refuse_config(config: Config) -> None:
    """Raise if a model with this config returns no named outputs, or could not be saved after it was trained."""
    if getattr(config, "return_dict", True) is False:
        raise ModelError("the model returns tuples (return_dict in its config is False)", "set model.config.return_dict = True")
    try:
        getattr(config, "validate", lambda: None)()  # as transformers does when it saves a config
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"the config of the model cannot be saved: {reason}", "correct model.config") from error


def label_names(config: Config) -> tuple[str, ...]:
    """Return the names of a model's outputs in the order of their numbers."""
    names = tuple(str(config.id2label[number]) for number in sorted(config.id2label))
    if twice := repeated(names):
        problem = f"the model has two outputs with the label {visible(twice[0])}"
        raise ModelError(problem, "give each its own name in id2label and label2id of its config.json")
    return names


def carried_labels(config: Config) -> tuple[str, ...] | None:
    """Return the label names a model carries; None if they are only LABEL_0, LABEL_1, …"""
    names = label_names(config)
    return None if all(GENERIC_LABEL.fullmatch(name) for name in names) else names


def refuse_other_labels(name: str, carried: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    """Raise if a model's own labels are not those of the data, in the same order."""
    if carried == wanted:
        return
    if {*carried} == {*wanted}:
        problem = f"the order of the model's labels is {listed(carried)}; that of the data is {listed(wanted)}"
        raise ModelError(f"{name}: {problem}", f"use the order of the model: --labels {','.join(carried)}")
    problem = f"{name}: the model was trained for the labels {listed(carried)}; the data has {listed(wanted)}"
    raise ModelError(problem, "use --new_head to train a new head for the labels of the data, or rename them with --labels")


def longest_input(tokenizer: Tokenizer, config: Config | None = None) -> int:
    """Return how many tokens a model takes at most; 512 if neither tokenizer nor config says."""
    limits = [tokenizer.model_max_length]
    if config is not None and (positions := getattr(config, "max_position_embeddings", None)):
        family = FAMILIES.get(config.model_type)
        padding = getattr(config, "pad_token_id", None) or 0
        limits.append(positions - padding - 1 if family and family.positions_after_padding else positions)
    return int(min((limit for limit in limits if limit and limit < NO_LIMIT), default=DEFAULT_LENGTH))


def length_limit(examples: Examples, tokenizer: Tokenizer, config: Config, max_length: int | None) -> LengthLimit:
    """Return how long the rows of `examples` may be: `max_length` tokens, by default as many as the model takes."""
    most = longest_input(tokenizer, config)
    pairs = examples.columns.text_pair is not None
    from glassloop.data.encoding import LengthLimit  # which those who ask what a model takes need not load

    return LengthLimit(most if max_length is None else max_length, most, tokenizer.truncation_side, pairs)


def encoder_weights(config: Config) -> int | None:
    """Return about how many weights the layers of an encoder have, from its config alone; None if it does not say."""
    # From the config, so that seeds share one choice before any model is loaded. Word vectors do not count: they are
    # half of MiniLM and say nothing about the learning rate.
    width, layers = (getattr(config, name, None) for name in ("hidden_size", "num_hidden_layers"))
    return 12 * layers * width**2 if isinstance(width, int) and isinstance(layers, int) and width * layers > 0 else None


def accepted_inputs(kind: type) -> set[str]:
    """Return the inputs that the forward method of a model class takes by name."""
    names, named = {"input_ids"}, (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for parent in kind.__mro__:
        if forward := vars(parent).get("forward"):
            _model, *parameters = inspect.signature(forward).parameters.values()
            names |= {entry.name for entry in parameters if entry.kind in named}
            # If it names none and passes them on (`**kwargs`), those of its parent class count too.
            passes_on = any(entry.kind is inspect.Parameter.VAR_KEYWORD for entry in parameters)
            if not passes_on or any(entry.name == "input_ids" for entry in parameters):
                break
    return names


def refuse_unknown_tokens(tokenizer: Tokenizer | None, model: Model) -> None:
    """Raise if the tokenizer has tokens for which the model's embedding has no row."""
    # Whether or not a text contains such a token: on a GPU, the first one would end the process.
    if tokenizer is None or not hasattr(tokenizer, "get_vocab") or not hasattr(model, "get_input_embeddings"):
        return  # not from transformers: it may look up tokens in any way
    rows = int(model.get_input_embeddings().weight.shape[0])
    if unknown := sorted(token for token, number in tokenizer.get_vocab().items() if number >= rows):
        tokens = f"{counted(len(unknown), 'token', 'tokens')} beyond the {rows:,} rows of the model's embedding"
        remedy = "use the model's own tokenizer, or call model.resize_token_embeddings(len(tokenizer)) and save both"
        raise ModelError(f"the tokenizer has {tokens} ({listed(unknown, 5)})", remedy)


def refuse_not_finite(model: Model, where: Callable[[str], str]) -> None:
    """Raise with the first weight that contains NaN or infinity. `where` returns the file of a weight."""
    # NaN in a pretrained model otherwise looks like a learning rate that is too high, or like an answer.
    import torch

    kinds = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    for name, weight in model.named_parameters():
        if weight.numel() and weight.dtype in kinds and not torch.isfinite(torch.stack(torch.aminmax(weight.detach()))).all():
            numbers = f"{int((~torch.isfinite(weight)).sum()):,} of its {weight.numel():,} numbers"
            problem = f"{where(name)}: the weight {name} is not finite ({numbers})"
            raise ModelError(problem, "download the model again: its weights are damaged, or its training diverged")


def is_adapted(model: Model) -> bool:
    """Return whether peft wraps the model. Recognize it by its methods, so that peft need not be installed."""
    return hasattr(model, "peft_config") and hasattr(model, "get_base_model")


def base_of(model: Model) -> Model:
    """Return the model inside an adapted one, and any other model as it is."""
    return model.get_base_model() if is_adapted(model) else model


def merged(model: Model, weights: Mapping[str, torch.Tensor]) -> Model:
    """Return a copy of an adapted model with these `weights`, its adapter merged into the layers it adapts."""
    # Saved merged, with the adapter next to it: the model then loads in every program without peft. The adapter alone
    # would need the base model, under a name that may be a path on another machine.
    from torch.nn import Parameter

    copies: dict[int, object] = {}
    for name, tensor in (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)):
        if name in weights:
            copied = weights[name].detach().to("cpu", copy=True)
            copies[id(tensor)] = Parameter(copied, requires_grad=False) if isinstance(tensor, Parameter) else copied
    # What a fast backend has put in place refers to gradients and moments: it is shared and then removed.
    for part in model.modules():
        in_place = (vars(part).get("forward"), *part._forward_hooks.values(), *part._forward_pre_hooks.values())
        copies |= {id(value): value for value in in_place if value is not None}
    # deepcopy takes the copies in place of the live weights, which training may be changing.
    copy = deepcopy(model, copies)
    for part in copy.modules():
        vars(part).pop("forward", None)
    return copy.merge_and_unload()


def save_whole(model: Model, folder: Path, weights: dict[str, torch.Tensor] | None = None) -> None:
    """Save a model, with other `weights` if given, so that it loads like any model. An adapter is also saved alone."""
    if is_adapted(model):
        weights = weights or model.state_dict()
        model.save_pretrained(folder / ADAPTER_DIR, state_dict=weights, save_embedding_layers=False)
        model, weights = merged(model, weights), None
    model.save_pretrained(folder, state_dict=weights, max_shard_size="1000GB")


def refuse_unmergeable(model: Model) -> None:
    """Raise before training if the trained model could not be saved as a whole. Merge once to find out."""
    if getattr(model, "_hf_peft_config_loaded", False):
        remedy = "wrap the model instead: model = peft.get_peft_model(model, config)"
        raise ModelError("the model contains an adapter that was added with add_adapter", remedy)
    if is_adapted(model):
        try:
            merged(model, model.state_dict())
        except (AttributeError, NotImplementedError, TypeError, ValueError) as error:
            kinds = ", ".join(dict.fromkeys(str(config.peft_type.value) for config in model.peft_config.values()))
            problem = f"the adapter ({kinds}) cannot be merged into its model, so the trained model could not be saved"
            raise ModelError(problem, "use an adapter that can be merged, such as LoRA") from error
