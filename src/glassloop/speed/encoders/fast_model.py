"""Choose how a model is made fast: its layers replaced, for training or for forward passes only, or its own layers kept."""

from __future__ import annotations

import torch

from glassloop.speed.encoders.inference_layers import InferenceLayers
from glassloop.speed.encoders.own_layers import OwnLayers
from glassloop.speed.encoders.recognition import has_replaceable_layers, packs_own_layers, why_not_packed
from glassloop.speed.encoders.replaced_layers import ReplacedLayers
from glassloop.speed.optimizer.vocabulary import ReducedVocabulary
from glassloop.transformers_types import Model


def make_fast_model(
    model: Model,
    matmul_dtype: torch.dtype,
    *,
    trains: bool = True,
    no_decay: set[int] | None = None,
    vocabulary: ReducedVocabulary | None = None,
    low_precision_gradients: bool = False,
) -> ReplacedLayers | InferenceLayers | OwnLayers:
    """Return the fast form of a model: replaced layers where its family is known, else its own layers."""
    packs = why_not_packed(model) is None
    if packs and has_replaceable_layers(model):
        if not trains and matmul_dtype is torch.float32 and next(model.parameters()).device.type == "cpu":
            return InferenceLayers(model)
        return ReplacedLayers(
            model,
            matmul_dtype,
            trains=trains,
            no_decay=no_decay,
            vocabulary=vocabulary,
            low_precision_gradients=low_precision_gradients,
        )
    return OwnLayers(model, packs=packs and packs_own_layers(model), trains=trains, no_decay=no_decay)
