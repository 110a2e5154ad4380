"""Glassloop: fine-tune pretrained transformer encoders on texts and pairs of texts, with a training loop you can read."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glassloop.backends.accelerate import AccelerateBackend as AccelerateBackend
    from glassloop.backends.plain import PlainBackend as PlainBackend
    from glassloop.commands.study import Study as Study
    from glassloop.compatibility import EvalPrediction as EvalPrediction
    from glassloop.data.batches import Batch as Batch
    from glassloop.data.batches import Batches as Batches
    from glassloop.data.collator import PaddingCollator as PaddingCollator
    from glassloop.data.encoding import Encoding as Encoding
    from glassloop.data.encoding import encode as encode
    from glassloop.data.examples import Examples as Examples
    from glassloop.data.labels import LabelSet as LabelSet
    from glassloop.data.order import epoch_order as epoch_order
    from glassloop.data.order import padding_waste as padding_waste
    from glassloop.data.sources import load_dataset as load_dataset
    from glassloop.data.sources import load_examples as load_examples
    from glassloop.drop_in.arguments import TrainingArguments as TrainingArguments
    from glassloop.drop_in.trainer import Trainer as Trainer
    from glassloop.engine.callbacks import Callback as Callback
    from glassloop.engine.evaluate import Evaluation as Evaluation
    from glassloop.engine.evaluate import run_over as run_over
    from glassloop.engine.loop import fit as fit
    from glassloop.engine.loop import train_step as train_step
    from glassloop.engine.losses import make_loss as make_loss
    from glassloop.engine.optimizer import AdamW as AdamW
    from glassloop.engine.optimizer import make_optimizer as make_optimizer
    from glassloop.engine.optimizer import make_scheduler as make_scheduler
    from glassloop.engine.state import State as State
    from glassloop.errors import GlassloopError as GlassloopError
    from glassloop.metrics import decide as decide
    from glassloop.metrics import load_metric as load_metric
    from glassloop.metrics import metrics_for as metrics_for
    from glassloop.models.files import quickstart_model as quickstart_model
    from glassloop.models.loading import load_model as load_model
    from glassloop.models.loading import load_tokenizer as load_tokenizer
    from glassloop.predictor import Predictor as Predictor
    from glassloop.run import Run as Run
    from glassloop.run_folder.record import Plan as Plan
    from glassloop.run_folder.seeds_json import SeedRecord as SeedRecord
    from glassloop.run_folder.seeds_json import SeedsRecord as SeedsRecord
    from glassloop.run_folder.study_json import StudyRecord as StudyRecord
    from glassloop.seeding import seed_all as seed_all
    from glassloop.seeds import resume_seeds as resume_seeds
    from glassloop.seeds import train_seeds as train_seeds
    from glassloop.settings import DataSettings as DataSettings
    from glassloop.settings_file import RunSettings as RunSettings

__version__ = "0.1.0"

# The public names and where they live. They are looked up when first used, so that importing glassloop loads no torch.
PUBLIC = {
    "AccelerateBackend": "backends.accelerate",
    "AdamW": "engine.optimizer",
    "Batch": "data.batches",
    "Batches": "data.batches",
    "Callback": "engine.callbacks",
    "DataSettings": "settings",
    "Encoding": "data.encoding",
    "EvalPrediction": "compatibility",
    "Evaluation": "engine.evaluate",
    "Examples": "data.examples",
    "GlassloopError": "errors",
    "LabelSet": "data.labels",
    "PaddingCollator": "data.collator",
    "PlainBackend": "backends.plain",
    "Plan": "run_folder.record",
    "Predictor": "predictor",
    "Run": "run",
    "RunSettings": "settings_file",
    "SeedRecord": "run_folder.seeds_json",
    "SeedsRecord": "run_folder.seeds_json",
    "State": "engine.state",
    "Study": "commands.study",
    "StudyRecord": "run_folder.study_json",
    "Trainer": "drop_in.trainer",
    "TrainingArguments": "drop_in.arguments",
    "decide": "metrics",
    "encode": "data.encoding",
    "epoch_order": "data.order",
    "fit": "engine.loop",
    "load_dataset": "data.sources",
    "load_examples": "data.sources",
    "load_metric": "metrics",
    "load_model": "models.loading",
    "load_tokenizer": "models.loading",
    "make_loss": "engine.losses",
    "make_optimizer": "engine.optimizer",
    "make_scheduler": "engine.optimizer",
    "metrics_for": "metrics",
    "padding_waste": "data.order",
    "quickstart_model": "models.files",
    "resume_seeds": "seeds",
    "run_over": "engine.evaluate",
    "seed_all": "seeding",
    "train_seeds": "seeds",
    "train_step": "engine.loop",
}
__all__ = ["__version__", *PUBLIC]


def __getattr__(name: str) -> object:
    if name not in PUBLIC:
        raise AttributeError(f"module 'glassloop' has no attribute {name!r}")
    return getattr(import_module(f"glassloop.{PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
