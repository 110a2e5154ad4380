"""Glassloop: fine-tune pretrained transformer encoders on texts and pairs of texts, with a training loop you can read."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glassloop.backends.accelerate import AccelerateBackend as AccelerateBackend
    from glassloop.backends.plain import PlainBackend as PlainBackend
    from glassloop.base.errors import GlassloopError as GlassloopError
    from glassloop.cli.python import Run as Run
    from glassloop.cli.python import train as train
    from glassloop.compat.arguments import TrainingArguments as TrainingArguments
    from glassloop.compat.trainer import Trainer as Trainer
    from glassloop.data.batches import Batch as Batch
    from glassloop.data.batches import Batches as Batches
    from glassloop.data.batches import PaddingCollator as PaddingCollator
    from glassloop.data.batches import epoch_order as epoch_order
    from glassloop.data.batches import padding_waste as padding_waste
    from glassloop.data.batches import seed_all as seed_all
    from glassloop.data.columns import LabelSet as LabelSet
    from glassloop.data.encoding import Encoding as Encoding
    from glassloop.data.encoding import encode as encode
    from glassloop.data.examples import Examples as Examples
    from glassloop.data.sources import load_dataset as load_dataset
    from glassloop.data.sources import load_examples as load_examples
    from glassloop.models.loading import load_model as load_model
    from glassloop.models.loading import load_tokenizer as load_tokenizer
    from glassloop.models.loading import quickstart_model as quickstart_model
    from glassloop.predictor import Predictor as Predictor
    from glassloop.runs.record import Plan as Plan
    from glassloop.runs.study import SeedRecord as SeedRecord
    from glassloop.runs.study import SeedsRecord as SeedsRecord
    from glassloop.runs.study import StudyRecord as StudyRecord
    from glassloop.scores.metrics import decide as decide
    from glassloop.scores.metrics import load_metric as load_metric
    from glassloop.scores.metrics import metrics_for as metrics_for
    from glassloop.settings.file import RunSettings as RunSettings
    from glassloop.settings.training import DataSettings as DataSettings
    from glassloop.study.seeds import resume_seeds as resume_seeds
    from glassloop.study.seeds import train_seeds as train_seeds
    from glassloop.study.study import Study as Study
    from glassloop.trainer import EvalPrediction as EvalPrediction
    from glassloop.training.callbacks import Callback as Callback
    from glassloop.training.callbacks import State as State
    from glassloop.training.evaluate import Evaluation as Evaluation
    from glassloop.training.evaluate import run_over as run_over
    from glassloop.training.loop import fit as fit
    from glassloop.training.loop import train_step as train_step
    from glassloop.training.losses import make_loss as make_loss
    from glassloop.training.optimizer import AdamW as AdamW
    from glassloop.training.optimizer import make_optimizer as make_optimizer
    from glassloop.training.optimizer import make_scheduler as make_scheduler

__version__ = "0.1.0"

# The public names and where they live. They are looked up when first used, so that importing glassloop loads no torch.
PUBLIC = {
    name: module
    for module, names in {
        "backends.accelerate": "AccelerateBackend",
        "backends.plain": "PlainBackend",
        "base.errors": "GlassloopError",
        "cli.python": "Run train",
        "compat.arguments": "TrainingArguments",
        "compat.trainer": "Trainer",
        "data.batches": "Batch Batches PaddingCollator epoch_order padding_waste seed_all",
        "data.columns": "LabelSet",
        "data.encoding": "Encoding encode",
        "data.examples": "Examples",
        "data.sources": "load_dataset load_examples",
        "models.loading": "load_model load_tokenizer quickstart_model",
        "predictor": "Predictor",
        "runs.record": "Plan",
        "runs.study": "SeedRecord SeedsRecord StudyRecord",
        "scores.metrics": "decide load_metric metrics_for",
        "settings.file": "RunSettings",
        "settings.training": "DataSettings",
        "study.seeds": "resume_seeds train_seeds",
        "study.study": "Study",
        "trainer": "EvalPrediction",
        "training.callbacks": "Callback State",
        "training.evaluate": "Evaluation run_over",
        "training.loop": "fit train_step",
        "training.losses": "make_loss",
        "training.optimizer": "AdamW make_optimizer make_scheduler",
    }.items()
    for name in names.split()
}
__all__ = ["__version__", *PUBLIC]


def __getattr__(name: str) -> object:
    if name not in PUBLIC:
        raise AttributeError(f"module 'glassloop' has no attribute {name!r}")
    return getattr(import_module(f"glassloop.{PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
