"""Glassloop: fine-tune pretrained transformer encoders on texts and pairs of texts, with one loop you can see through."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassloop.config import DataSettings as DataSettings
    from glassloop.data.batches import Batch as Batch
    from glassloop.data.batches import Batches as Batches
    from glassloop.data.batches import PaddingCollator as PaddingCollator
    from glassloop.data.batches import padding_waste as padding_waste
    from glassloop.data.batches import plan_epoch as plan_epoch
    from glassloop.data.encoding import Encoding as Encoding
    from glassloop.data.encoding import encode as encode
    from glassloop.data.examples import Examples as Examples
    from glassloop.data.labels import LabelSet as LabelSet
    from glassloop.data.sources import load_dataset as load_dataset
    from glassloop.data.sources import load_examples as load_examples
    from glassloop.errors import GlassloopError as GlassloopError
    from glassloop.metrics import load_metric as load_metric
    from glassloop.modeling import load_model as load_model
    from glassloop.modeling import load_tokenizer as load_tokenizer

__version__ = "0.1.0"

# The public names and where they live. They are looked up when first used, so that importing glassloop loads no torch.
PUBLIC = {
    "Batch": "data.batches",
    "Batches": "data.batches",
    "DataSettings": "config",
    "Encoding": "data.encoding",
    "Examples": "data.examples",
    "GlassloopError": "errors",
    "LabelSet": "data.labels",
    "PaddingCollator": "data.batches",
    "encode": "data.encoding",
    "load_dataset": "data.sources",
    "load_examples": "data.sources",
    "load_metric": "metrics",
    "load_model": "modeling",
    "load_tokenizer": "modeling",
    "padding_waste": "data.batches",
    "plan_epoch": "data.batches",
}
__all__ = ["__version__", *PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module 'glassloop' has no attribute {name!r}")
    return getattr(import_module(f"glassloop.{PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
