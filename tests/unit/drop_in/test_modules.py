"""Plain torch modules get a config, which is no part of them, and are saved as weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from families import tiny_model
from safetensors.torch import load_file

from glassloop.compat.hooks import fits_classes, is_bare, is_own, save_bare, with_config
from glassloop.models.interface import config_of


def test_a_plain_module_gets_a_config_with_its_number_of_labels() -> None:
    module = with_config(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)))
    assert is_bare(module)
    assert (module.config.num_labels, module.config.id2label[2]) == (3, "LABEL_2")
    assert module.config.to_dict() == {"num_labels": 3}


def test_a_config_of_a_plain_module_may_be_of_any_kind() -> None:
    for config in ({"width": 8}, tiny_model().config, "small"):
        module = torch.nn.Linear(4, 3)
        module.config = config
        assert is_bare(with_config(module))
        assert module.config is config
        assert config_of(module).num_labels == 3


def test_a_model_of_transformers_keeps_its_config() -> None:
    model = tiny_model()
    assert with_config(model) is model
    assert not is_bare(model)


def test_its_weights_are_saved(tmp_path: Path) -> None:
    module = with_config(torch.nn.Linear(2, 2))
    save_bare(module, tmp_path / "new", None)
    assert torch.equal(load_file(tmp_path / "new" / "model.safetensors")["weight"], module.weight)
    save_bare(module, tmp_path, {"weight": torch.zeros(2)})
    assert load_file(tmp_path / "model.safetensors")["weight"].tolist() == [0, 0]


def test_a_class_of_a_script_has_its_own_loss_and_labels() -> None:
    assert is_own(with_config(torch.nn.Linear(2, 2)))
    assert not is_own(tiny_model())
    assert not is_own(type("Mine", (type(tiny_model()),), {})(tiny_model().config))


def test_which_labels_are_those_of_a_classifier() -> None:
    assert fits_classes(torch.tensor([0, 1]))
    assert fits_classes(torch.ones(2, 3))
    assert not fits_classes(torch.tensor([0.5, 1.0]))
    assert not fits_classes(None)
    assert not fits_classes(torch.tensor([0, 1]), np.zeros(2))
