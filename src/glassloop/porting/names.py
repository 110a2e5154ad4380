"""What becomes of names of transformers, datasets and other libraries in a ported script, and why some have no replacement.

`old_names` says what stands for a name that is gone in `glassloop run`. A ported script uses public names only, so that some
names have another replacement here.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from glassloop.data.glue import GLUE_TASKS
from glassloop.errors import SettingsError
from glassloop.metrics import load_metric
from glassloop.porting.old_names import OLD_MODULES, OLD_NAMES, SCRIPTS, OldName, instead_of, module_today

# Packages that were renamed.
PACKAGES = {name: today for name, today in OLD_MODULES.items() if "." not in name and not today.startswith("glassloop")}
# Names that Glassloop replaces wherever a library had them.
REPLACED = {name: f"glassloop.{name}" for name in ("Trainer", "TrainingArguments", "AdamW", "load_metric")}
LIBRARIES = frozenset(module.partition(".")[0] for module in OLD_NAMES)


def place_today(name: str, old: OldName) -> str | None:
    """Return where a name is today, for a script that imports it; None if a port does not replace it."""
    module, _, attribute = old.now.partition(":")
    if name in REPLACED:
        return REPLACED[name]
    if old.always or module.startswith(SCRIPTS):
        return None
    return attribute if module == "builtins" else f"{module}.{attribute}"


# Where a name was imported from -> where it is today. A renamed package has its present name here.
MOVED = {
    **{
        f"{module}.{name}": place
        for module, names in OLD_NAMES.items()
        for name, old in names.items()
        if (place := place_today(name, old)) is not None
    },
    "transformers.trainer.TrainingArguments": "glassloop.TrainingArguments",
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
# Functions that are gone and only reported the use of an example: imports and calls of them are removed.
TELEMETRY = ("transformers.utils.send_example_telemetry",)
# Names that are gone, and what to do instead.
UNCHANGED = "or run the script as it is: glassloop run SCRIPT"
GONE = {
    **dict.fromkeys(("InputExample", "InputFeatures"), f"define a dataclass of this name, {UNCHANGED}"),
    **dict.fromkeys(("SingleSentenceClassificationProcessor", "DataProcessor"), f"read the rows yourself, {UNCHANGED}"),
    "glue_convert_examples_to_features": f"encode the texts with the tokenizer, {UNCHANGED}",
    "glue_compute_metrics": f'use glassloop.load_metric("glue", TASK).compute(predictions=…, references=…), {UNCHANGED}',
    "glue_output_modes": f'it is "regression" for stsb, else "classification", {UNCHANGED}',
    "glue_tasks_num_labels": f"read the labels of the data set, {UNCHANGED}",
    "cached_path": "use huggingface_hub.hf_hub_download",
    "set_caching_enabled": f"use datasets.enable_caching() or datasets.disable_caching(), {UNCHANGED}",
    "is_tf_available": f"it is False: transformers supports PyTorch only, {UNCHANGED}",
    "list_metrics": f"omit it, {UNCHANGED}",
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
        return MOVED[place] if MOVED[place].startswith("glassloop.") or is_gone(place) else place
    if (whole := module_today(place)) is not None and is_gone(place) and not whole.startswith("glassloop"):
        return whole  # a module, such as sklearn.externals.joblib
    module, _, name = place.rpartition(".")
    newer = module_today(module)
    if newer is not None and is_gone(place) and not is_gone(f"{newer}.{name}") and not newer.startswith("glassloop"):
        return f"{newer}.{name}"
    if package in PACKAGES and module.count("."):
        shorter = f"{module.partition('.')[0]}.{name}"  # pytorch_transformers.optimization.AdamW
        return MOVED.get(shorter, shorter)
    if module.startswith("transformers.") and is_gone(place) and not is_gone(f"transformers.{name}"):
        return f"transformers.{name}"
    return place


def remedy_of(name: str) -> str:
    """Return what to do about a name that is gone."""
    return GONE.get(name) or instead_of(name) or "the installed version of transformers does not have it"


def why_untranslated(name: str) -> str | None:
    """Return why Glassloop has no replacement for a name that is imported from transformers; None if it needs none."""
    if name in UNTRANSLATED:
        return UNTRANSLATED[name]
    start, found, kind = name.partition("For")
    is_class = bool(found) and start[:1].isupper() and kind[:1].isupper()
    if is_class and start.startswith(OTHER_FRAMEWORKS):
        return ONLY_TORCH
    return ONLY_CLASSIFIERS if is_class and kind != CLASSIFIER else None


def why_their_trainer(names: Iterable[str]) -> str | None:
    """Return why the Trainer of a script that uses these names stays that of transformers; None if it does not."""
    models = (name for name in sorted({*names}) if not name.startswith("DataCollator"))
    others = {name: why for name in models if (why := why_untranslated(name))}
    if not others or any(name.endswith("ForSequenceClassification") for name in names):
        return None
    name, why = next(iter(others.items()))
    return f"the script uses {name}, and {why}"


@cache
def is_gone(place: str) -> bool:
    """Return whether the installed packages do not have a name, given as module.name, which earlier versions may have had.

    The first call imports the library, which may take a second.
    """
    module, _, name = place.rpartition(".")
    try:
        if find_spec(module) is None:
            return True
        if name in dir(import_module(module)):
            return False
        return not hasattr(import_module(module), name) and find_spec(place) is None
    except (ImportError, AttributeError, ValueError):
        return module.partition(".")[0] in LIBRARIES and find_spec(module.partition(".")[0]) is not None
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
