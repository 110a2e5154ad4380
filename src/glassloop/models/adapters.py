"""Models wrapped by peft: the model inside, and its weights with the adapter merged, so that they load anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING

from glassloop.base.errors import ModelError
from glassloop.data.interfaces import Model

if TYPE_CHECKING:
    import torch

ADAPTER_DIR = "adapter"  # below the folder of the merged model, where transformers does not look for one


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

    own = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    copies = {
        id(tensor): Parameter(copied, requires_grad=False) if isinstance(tensor, Parameter) else copied
        for name, tensor in own
        if name in weights and (copied := weights[name].detach().to("cpu", copy=True)) is not None
    }
    copied = deepcopy(model, copies)  # takes the copies in place of the live weights, which training may be changing
    return copied.merge_and_unload()


def save_whole(model: Model, folder: Path, weights: dict[str, torch.Tensor] | None = None) -> None:
    """Save a model, with other `weights` if given, so that it loads like any model.

    An adapter is merged into the model, and also saved alone in a subfolder.
    """
    if is_adapted(model):
        weights = weights or model.state_dict()
        model.save_pretrained(folder / ADAPTER_DIR, state_dict=weights, save_embedding_layers=False)
        model, weights = merged(model, weights), None
    model.save_pretrained(folder, state_dict=weights, max_shard_size="1000GB")


def refuse_unmergeable(model: Model) -> None:
    """Raise before training if the trained model could not be saved as a whole. Merge once to find out."""
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ModelError(
            "the model contains an adapter that was added with add_adapter",
            "wrap the model instead: model = peft.get_peft_model(model, config)",
        )
    if is_adapted(model):
        try:
            merged(model, model.state_dict())
        except (AttributeError, NotImplementedError, TypeError, ValueError) as error:
            kinds = ", ".join(dict.fromkeys(str(config.peft_type.value) for config in model.peft_config.values()))
            raise ModelError(
                f"the adapter ({kinds}) cannot be merged into its model, so the trained model could not be saved",
                "use an adapter that can be merged, such as LoRA",
            ) from error
