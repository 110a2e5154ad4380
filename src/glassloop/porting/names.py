"""Names of transformers, datasets and evaluate since 2019: which ones Glassloop replaces, and where the others are today.

`glassloop port` rewrites scripts by these tables, and `glassloop run` serves the same names to scripts that stay as they are.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from glassloop.data.glue import GLUE_TASKS
from glassloop.errors import SettingsError
from glassloop.metrics import load_metric

# Packages that were renamed.
PACKAGES = {"nlp": "datasets", "pytorch_transformers": "transformers", "pytorch_pretrained_bert": "transformers"}
TRANSFORMERS, DATASETS = ("transformers",), ("datasets",)
# Where a name was imported from -> where it is today. A renamed package has its present name here.
MOVED = {
    "transformers.Trainer": "glassloop.Trainer",
    "transformers.trainer.Trainer": "glassloop.Trainer",
    "transformers.TrainingArguments": "glassloop.TrainingArguments",
    "transformers.trainer.TrainingArguments": "glassloop.TrainingArguments",
    "transformers.training_args.TrainingArguments": "glassloop.TrainingArguments",
    "transformers.AdamW": "glassloop.AdamW",
    "transformers.optimization.AdamW": "glassloop.AdamW",
    "datasets.load_metric": "glassloop.load_metric",
    "datasets.load.load_metric": "glassloop.load_metric",
    "transformers.EvaluationStrategy": "transformers.IntervalStrategy",
    "transformers.trainer_utils.EvaluationStrategy": "transformers.IntervalStrategy",
    "transformers.is_torch_tpu_available": "transformers.utils.is_torch_xla_available",
    "transformers.file_utils.is_torch_tpu_available": "transformers.utils.is_torch_xla_available",
    "transformers.utils.is_torch_tpu_available": "transformers.utils.is_torch_xla_available",
    "transformers.utils.is_offline_mode": "huggingface_hub.is_offline_mode",
    "transformers.file_utils.is_offline_mode": "huggingface_hub.is_offline_mode",
    "transformers.ConstantLRSchedule": "transformers.get_constant_schedule",
    "transformers.WarmupConstantSchedule": "transformers.get_constant_schedule_with_warmup",
    "transformers.WarmupLinearSchedule": "transformers.get_linear_schedule_with_warmup",
    "transformers.WarmupCosineSchedule": "transformers.get_cosine_schedule_with_warmup",
}
# The same, for functions that are only replaced where Glassloop can do what a call asks for.
MOVED_BY_CALL = {
    "datasets.load_dataset": "glassloop.load_dataset",
    "datasets.load.load_dataset": "glassloop.load_dataset",
    "evaluate.load": "glassloop.load_metric",
}
# Modules of transformers before 4.0, such as transformers.modeling_bert.
OLD_MODULE = re.compile(r"transformers\.(modeling|tokenization|configuration)_(\w+?)(_fast)?")
OF_TRAINER = ("glassloop.Trainer", "glassloop.TrainingArguments")
CLASSIFIER = "SequenceClassification"
ONLY_CLASSIFIERS = "Glassloop trains models for sequence classification only"
ONLY_TORCH = "Glassloop trains PyTorch models only"
# Names of transformers without a replacement.
UNTRANSLATED = {
    "Seq2SeqTrainer": ONLY_CLASSIFIERS,
    "Seq2SeqTrainingArguments": ONLY_CLASSIFIERS,
    "TFTrainer": ONLY_TORCH,
    "TFTrainingArguments": ONLY_TORCH,
}
LOAD_GLUE = 'read the rows with glassloop.load_dataset("glue", TASK) and encode them with the tokenizer'
# Functions that are gone and only reported the use of an example: imports and calls of them are removed.
TELEMETRY = ("transformers.utils.send_example_telemetry",)
# Names that are gone, and what to do instead.
GONE = {
    **dict.fromkeys(
        ("GlueDataset", "GlueDataTrainingArguments", "glue_convert_examples_to_features", "glue_processors"), LOAD_GLUE
    ),
    **dict.fromkeys(("SingleSentenceClassificationProcessor", "DataProcessor"), "encode the texts with the tokenizer"),
    **dict.fromkeys(("InputExample", "InputFeatures"), "define a dataclass of this name, or use dicts"),
    "glue_compute_metrics": 'use glassloop.load_metric("glue", TASK).compute(predictions=…, references=…)',
    "glue_output_modes": 'it is "regression" for stsb, else "classification"',
    "glue_tasks_num_labels": "read the labels of the data set",
    "BertAdam": "use glassloop.AdamW, and transformers.get_linear_schedule_with_warmup for warm-up",
    "cached_path": "use huggingface_hub.hf_hub_download",
    "set_caching_enabled": "use datasets.enable_caching() or datasets.disable_caching()",
    "is_tf_available": "it is False: transformers supports PyTorch only",
    "list_metrics": "omit it",
    "list_datasets": "use huggingface_hub.list_datasets()",
}
OTHER_FRAMEWORKS = ("TF", "Flax")
# Arguments that have another name today: what is called -> the old name -> the present one.
RENAMED_ARGUMENTS = {
    **{
        f"transformers.{name}": {
            "warmup_steps": "num_warmup_steps",
            "t_total": "num_training_steps",
            "cycles": "num_cycles",
        }
        for name in ("WarmupConstantSchedule", "WarmupLinearSchedule", "WarmupCosineSchedule", "ConstantLRSchedule")
    },
}
# Arguments that are gone -> their present name, and what it is for True and for False.
REPLACED_ARGUMENTS = {
    "fp16": ("mixed_precision", '"fp16"', '"no"'),  # of Accelerator
    "pad_to_max_length": ("padding", '"max_length"', "False"),  # of tokenizers, which silently ignore it
}
# Arguments of datasets.load_metric and evaluate.load about downloads and processes, which a local metric does not need.
ABOUT_DOWNLOADS = (
    "cache_dir",
    "download_config",
    "download_mode",
    "experiment_id",
    "keep_in_memory",
    "num_process",
    "process_id",
    "revision",
    "script_version",
    "trust_remote_code",
)
# Arguments of transformers' Trainer that are gone, and what to do instead.
GONE_OF_TRAINER = {
    "prediction_loss_only": "set prediction_loss_only in TrainingArguments",
    "tb_writer": "set report_to='tensorboard' in TrainingArguments",
}
# Methods and attributes that have another name today, by the kind of object.
RENAMED_ATTRIBUTES = {
    "trainer": {
        "is_world_master": "is_world_process_zero",
        "is_local_master": "is_local_process_zero",
        "tokenizer": "processing_class",
    },
    "tokenizer": {"max_len": "model_max_length"},
}
# Methods of datasets that changed a data set in place -> those that return the changed one.
NO_LONGER_IN_PLACE = {f"{name}_": name for name in ("rename_column", "remove_columns", "cast", "flatten")}
# Methods of tokenizers that are gone: the tokenizer itself is called instead.
CALLED_INSTEAD = ("encode_plus", "batch_encode_plus")


def present_place(place: str) -> str:
    """Return where a name, given as package.module.name, is today; the place itself if nothing is known about it."""
    package, dot, rest = place.partition(".")
    place = PACKAGES.get(package, package) + dot + rest
    if place in MOVED:
        return MOVED[place]
    module, _, name = place.rpartition(".")
    if (old := OLD_MODULE.fullmatch(module)) is not None:
        kind, family, fast = old.groups()
        newer = f"transformers.models.{family}.{kind}_{family}"
        if not fast and f"{newer}.{name}" and not is_gone(f"{newer}.{name}"):
            return f"{newer}.{name}"
    if package in PACKAGES and module.count("."):
        shorter = f"{module.partition('.')[0]}.{name}"  # pytorch_transformers.optimization.AdamW
        return MOVED.get(shorter, shorter)
    if module.count(".") and module.startswith("transformers.") and is_gone(place) and not is_gone(f"transformers.{name}"):
        return f"transformers.{name}"
    return place


def why_untranslated(name: str) -> str | None:
    """Return why Glassloop has no replacement for a name that is imported from transformers; None if it needs none."""
    if name in UNTRANSLATED:
        return UNTRANSLATED[name]
    start, found, kind = name.partition("For")
    is_class = bool(found) and start[:1].isupper() and kind[:1].isupper()
    if is_class and start.startswith(OTHER_FRAMEWORKS):
        return ONLY_TORCH
    return ONLY_CLASSIFIERS if is_class and kind != CLASSIFIER else None


@cache
def is_gone(place: str) -> bool:
    """Return whether the installed packages do not have a name, given as module.name, which earlier versions may have had.

    The first call imports transformers, which takes a second.
    """
    module, _, name = place.rpartition(".")
    try:
        if find_spec(module) is None:
            return True
        if f"{module}.{name}" == place and name in dir(import_module(module)):
            return False
        return not hasattr(import_module(module), name) and find_spec(place) is None
    except (ImportError, AttributeError, ValueError):
        return module.partition(".")[0] in (*TRANSFORMERS, *DATASETS) and find_spec(module.partition(".")[0]) is not None
    except Exception:  # a module that fails for another reason, such as a missing library, is there
        return False


def is_portable(name: str, arguments: list[object], named: dict[str, object]) -> bool:
    """Return whether Glassloop can do what a call of a replaced function asks for. Arguments that are no literals are `...`."""
    if name == "glassloop.load_metric":
        named = {key: value for key, value in named.items() if key not in ABOUT_DOWNLOADS}
        if "path" in named:
            arguments, named = [named["path"], *arguments], {key: value for key, value in named.items() if key != "path"}
        config = arguments[1] if len(arguments) == 2 else named.get("config_name", named.get("name"))
        if not arguments or len(arguments) > 2 or ... in arguments[:1] or not {*named} <= {"config_name", "name"}:
            return False
        if config is ...:
            return arguments[0] == "glue"
        try:
            load_metric(str(arguments[0]), None if config is None else str(config))
        except SettingsError:
            return False
        return "name" not in named
    path, *rest = [*arguments, *([named["path"]] if "path" in named else [])] or [None]
    task = rest[0] if rest else named.get("name")
    plain_split = str(named.get("split", "train")).isidentifier()
    known = task is ... or task in GLUE_TASKS
    return path == "glue" and known and len(rest) < 2 and plain_split and {*named} <= {"path", "name", "split"}
