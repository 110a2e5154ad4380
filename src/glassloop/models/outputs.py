"""What the outputs of a model mean: its task, and its labels by name."""

from __future__ import annotations

import re

from glassloop.errors import ModelError, listed, visible
from glassloop.settings import CLASSES, SCORE, repeated
from glassloop.transformers_types import Config, Model

GENERIC_LABEL = re.compile(r"LABEL_\d+")


STAND_IN = "_config_of_outputs"  # the attribute of a plain torch module with what Glassloop reads of a config


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
    """Return the names of a model's outputs in their order. Raise `ModelError` if two have the same name."""
    names = tuple(str(config.id2label[number]) for number in sorted(config.id2label))
    if twice := repeated(names):
        raise ModelError(
            f"the model has two outputs with the label {visible(twice[0])}",
            "give each its own name in id2label and label2id of its config.json",
        )
    return names


def carried_labels(config: Config) -> tuple[str, ...] | None:
    """Return the label names a model carries in the order of their numbers; None if they are only LABEL_0, LABEL_1, …"""
    names = label_names(config)
    return None if all(GENERIC_LABEL.fullmatch(name) for name in names) else names


def refuse_other_labels(name: str, carried: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    """Raise if a model's own labels are not those of the data, in the same order."""
    if set(carried) == set(wanted) and carried != wanted:
        raise ModelError(
            f"{name}: the order of the model's labels is {listed(carried)}; that of the data is {listed(wanted)}",
            f"use the order of the model: --labels {','.join(carried)}",
        )
    if carried != wanted:
        raise ModelError(
            f"{name}: the model was trained for the labels {listed(carried)}; the data has {listed(wanted)}",
            "use --new_head to train a new head for the labels of the data, or rename them with --labels",
        )
