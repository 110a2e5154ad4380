"""Models that are plain torch modules: they have no config of transformers, and are saved as weights alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel
from transformers.utils import find_labels

from glassloop.engine.evaluate import Nested
from glassloop.engine.interfaces import Tensors
from glassloop.models.adapters import base_of
from glassloop.models.outputs import STAND_IN
from glassloop.transformers_types import Model


@dataclass
class BareConfig:
    """What Glassloop reads of a model's config, for a module that has none. The module computes its own loss."""

    num_labels: int = 2
    problem_type: str | None = None
    model_type: str = "module"
    id2label: dict[int, str] = field(default_factory=lambda: {0: "LABEL_0", 1: "LABEL_1"})

    def to_dict(self) -> dict[str, object]:
        """Return the values by name."""
        return {"num_labels": self.num_labels}


def with_config(model: Model) -> Model:
    """Return the model; a plain torch module gets what stands for a config, with as many labels as its last layer has outputs.

    A config that the module has is a script's own: it may be of any kind, and that of an encoder inside says nothing about
    the outputs of the module.
    """
    if isinstance(model, torch.nn.Module) and not isinstance(base_of(model), PreTrainedModel) and not is_bare(model):
        widths = [part.out_features for part in model.modules() if isinstance(part, torch.nn.Linear)]
        number = widths[-1] if widths else 2
        config = BareConfig(number, id2label={place: f"LABEL_{place}" for place in range(number)})
        object.__setattr__(model, STAND_IN, config)  # not a part of the module
        if getattr(model, "config", None) is None:
            object.__setattr__(model, "config", config)
    return model


def is_bare(model: object) -> bool:
    """Return whether a model is a plain torch module."""
    return hasattr(model, STAND_IN)


def is_own(model: object) -> bool:
    """Return whether the class of a model is a script's own, so that its loss and its labels may be of any kind."""
    kinds = type(base_of(model)).__mro__
    return not any(kind.__module__.startswith("transformers.models.") for kind in kinds)


def flattens_scores(model: object) -> bool:
    """Return whether a model of transformers returns scores without their dimension of size 1 if it gets labels."""
    base = base_of(model)
    config = base.config
    return (
        type(base).__name__.startswith("Deberta")
        and not is_own(base)
        and config.num_labels == 1
        and config.problem_type is None
    )


def flattened(predictions: Nested) -> Nested:
    """Return predictions whose scores have no dimension of size 1."""
    if isinstance(predictions, np.ndarray):
        return predictions.reshape(-1)
    return (flattened(predictions[0]), *predictions[1:]) if isinstance(predictions, tuple) else predictions


def labels_of(model: object) -> list[str]:
    """Return the inputs of a model that are labels: those with the word in their name, as in transformers."""
    if not isinstance(model, torch.nn.Module):
        return ["labels"]
    return find_labels(type(base_of(model))) or ["labels"]


def fits_classes(labels: torch.Tensor | np.ndarray | None, logits: np.ndarray | None = None) -> bool:
    """Return whether labels and logits are those of a classifier: class numbers, or a number for each class."""
    if labels is None or (logits is not None and logits.ndim != 2):
        return False
    return labels.ndim == 2 or "float" not in str(labels.dtype)


def save_bare(model: torch.nn.Module, folder: Path, weights: Tensors | None) -> None:
    """Write the weights of a plain torch module, under the name that transformers uses."""
    folder.mkdir(parents=True, exist_ok=True)
    found = weights or model.state_dict()
    save_file({name: value.detach().cpu().clone() for name, value in found.items()}, folder / "model.safetensors")
