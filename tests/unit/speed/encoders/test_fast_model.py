"""Which fast form a model gets."""

from __future__ import annotations

import torch
from families import tiny_model

from glassloop.backends.fast.inference_model import make_fast_model
from glassloop.backends.fast.training_model import OwnLayers, ReplacedLayers


def test_each_model_gets_the_fast_form_of_its_family() -> None:
    for family, kind in (("bert", ReplacedLayers), ("modernbert", OwnLayers), ("deberta-v2", OwnLayers)):
        fast = make_fast_model(tiny_model(family), torch.float32)
        assert type(fast) is kind
        assert fast.packs == (family != "deberta-v2")
        fast.remove()
