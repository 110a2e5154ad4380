"""Names of transformers, datasets and evaluate since 2019: which ones Glassloop replaces, and where the others are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

LOADING = "glassloop.compat.loading"
FORMER = "glassloop.compat.former_functions"
NO_NOTEBOOK = "there is no notebook to draw it in"
FORMER_ARGUMENTS = "takes former arguments"


@dataclass(frozen=True)
class OldName:
    """What stands for a name that a library no longer has."""

    now: str  # the module and the attribute that serve it, as `module:attribute`
    reason: str  # why the name of the library is not used
    always: bool = False  # it replaces a name that the library still has
    by_call: bool = False  # only some calls of the function are served; these record themselves
    title: str = ""  # what the list of substitutions calls it

    def __str__(self) -> str:
        return self.title or self.now.replace(":", ".")


def gone(version: str, **names: str) -> dict[str, OldName]:
    return {name: OldName(now, f"removed in {version}") for name, now in names.items()}


def by_call(now: str, reason: str = FORMER_ARGUMENTS) -> OldName:
    """Return a function that the library still has, and that is served because some calls of it need it."""
    return OldName(now, reason, always=True, by_call=True)


def in_notebook(**names: str) -> dict[str, OldName]:
    return {name: OldName(now, NO_NOTEBOOK, always=now.startswith("tqdm")) for name, now in names.items()}


TRAINER = {
    name: OldName(f"glassloop.compat.{module}:{name}", reason, always=True, title=f"glassloop.{name}")
    for name, module, reason in (
        ("Trainer", "trainer", "Glassloop's Trainer, which takes the same arguments"),
        ("TrainingArguments", "arguments", "the settings of Glassloop's Trainer"),
    )
}

# The Trainers of transformers, for models that Glassloop does not train.
THEIR_TRAINER = {
    name: OldName(f"{FORMER}:{name}", FORMER_ARGUMENTS, always=True, title=f"transformers.{name} with former arguments")
    for name in TRAINER
}

# Settings of transformers' TrainingArguments that are gone -> their present names; None for those without an effect.
FORMER_SETTINGS: dict[str, str | None] = {
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "warmup_ratio": "warmup_steps",
    "push_to_hub_model_id": "hub_model_id",
    "push_to_hub_token": "hub_token",
    **dict.fromkeys(
        """overwrite_output_dir logging_dir fp16_backend half_precision_backend fp16_opt_level use_mps_device save_safetensors
        jit_mode_eval use_ipex past_index ray_scope use_legacy_prediction_loop dispatch_batches split_batches
        include_tokens_per_second tpu_metrics_debug""".split()
    ),
}

ADAMW = {"AdamW": OldName(f"{FORMER}:AdamW", "removed in transformers 5", title="Glassloop's AdamW with the former defaults")}
STRATEGY = gone("transformers 5", EvaluationStrategy="transformers.trainer_utils:IntervalStrategy")
BACKENDS = gone(
    "transformers 5",
    is_torch_tpu_available="transformers.utils:is_torch_xla_available",
    **dict.fromkeys(("is_tf_available", "is_flax_available", "is_apex_available"), f"{FORMER}:is_never_available"),
    is_offline_mode="huggingface_hub:is_offline_mode",
    send_example_telemetry=f"{FORMER}:send_example_telemetry",
    **dict.fromkeys(
        ("TRANSFORMERS_CACHE", "PYTORCH_PRETRAINED_BERT_CACHE", "PYTORCH_TRANSFORMERS_CACHE"),
        "huggingface_hub.constants:HF_HUB_CACHE",
    ),
)
OF_GLUE = """InputExample InputFeatures DataProcessor glue_convert_examples_to_features glue_compute_metrics
    glue_tasks_num_labels glue_output_modes"""
SCHEDULES = gone(
    "transformers 2.3",
    WarmupLinearSchedule=f"{FORMER}:warmup_linear_schedule",
    WarmupConstantSchedule=f"{FORMER}:warmup_constant_schedule",
)
OF_DATASETS = {
    "load_dataset": by_call(f"{LOADING}:load_dataset", "reads the files of GLASSLOOP_DATA"),
    **gone(
        "datasets 3",
        load_metric=f"{LOADING}:load_metric",
        list_metrics=f"{LOADING}:list_evaluation_modules",
        Metric=f"{LOADING}:Metric",
    ),
}
BUILTIN_TYPES = {name: name for name in ("int", "float", "bool", "object", "str", "complex")} | {"unicode": "str"}
NUMPY = {
    "float_": "float64", "complex_": "complex128", "unicode_": "str_", "string_": "bytes_", "NaN": "nan", "NAN": "nan",
    "Inf": "inf", "Infinity": "inf", "infty": "inf", "PINF": "inf", "product": "prod", "cumproduct": "cumprod",
    "alltrue": "all", "sometrue": "any", "row_stack": "vstack", "in1d": "isin", "trapz": "trapezoid",
}  # fmt: skip
ABSTRACT = "Mapping MutableMapping Iterable Iterator Sequence MutableSequence Callable Hashable Set Sized"

# By module: what stands for a name that scripts import from there.
OLD_NAMES: dict[str, dict[str, OldName]] = {
    "transformers": {
        **TRAINER,
        **{name: by_call(f"{FORMER}:{name}") for name in ("Seq2SeqTrainer", "Seq2SeqTrainingArguments")},
        **ADAMW,
        **STRATEGY,
        **BACKENDS,
        **gone("transformers 5", **{name: f"{FORMER}:{name}" for name in OF_GLUE.split()}),
        **SCHEDULES,
    },
    "transformers.trainer": TRAINER,
    "transformers.training_args": TRAINER,
    "transformers.optimization": {**ADAMW, **SCHEDULES},
    "transformers.trainer_utils": STRATEGY,
    "transformers.utils": BACKENDS,
    "transformers.utils.import_utils": BACKENDS,
    "transformers.file_utils": BACKENDS,
    "datasets": {
        **OF_DATASETS,
        **gone("datasets 3", **{name: f"{LOADING}:{name}" for name in ("set_caching_enabled", "set_progress_bar_enabled")}),
    },
    "datasets.load": OF_DATASETS,
    "evaluate": {
        "load": by_call(f"{LOADING}:load", "computes the metric without a download"),
        "combine": by_call(f"{LOADING}:combine", "computes the metrics without a download"),
    },
    "numpy": {
        **{
            name: OldName(f"builtins:{kind}", "removed in NumPy 1.24: it was only another name for Python's type")
            for name, kind in BUILTIN_TYPES.items()
        },
        **gone("NumPy 2.0", **{name: f"numpy:{today}" for name, today in NUMPY.items()}),
    },
    "collections": gone("Python 3.10", **{name: f"collections.abc:{name}" for name in ABSTRACT.split()}),
    "time": gone("Python 3.8", clock="time:perf_counter"),
    "sklearn.metrics": {
        **gone(
            "scikit-learn 1.2",
            plot_confusion_matrix=f"{FORMER}:plot_confusion_matrix",
            jaccard_similarity_score="sklearn.metrics:accuracy_score",
        ),
        "mean_squared_error": by_call(f"{FORMER}:mean_squared_error"),
    },
    "sklearn.utils.class_weight": {"compute_class_weight": by_call(f"{FORMER}:compute_class_weight")},
    "IPython": in_notebook(**{name: f"{FORMER}:{name}" for name in ("get_ipython", "display", "version_info")}),
    "tqdm": in_notebook(tqdm_notebook="tqdm:tqdm"),
    "tqdm.notebook": in_notebook(tqdm="tqdm:tqdm", trange="tqdm:trange"),
}

# Modules that do not exist today -> those that have their content.
OLD_MODULES = {
    "evaluate": LOADING,
    "nlp": "datasets",
    "pytorch_transformers": "transformers",
    **dict.fromkeys(("IPython.display", "torch._six", "keras.preprocessing.sequence"), FORMER),
    "transformers.deepspeed": "transformers.integrations.deepspeed",
    "transformers.generation_utils": "transformers.generation.utils",
    "transformers.file_utils": "transformers.utils",
    **{f"transformers.data.{name}": FORMER for name in ("metrics", "processors", "processors.glue", "processors.utils")},
    **{f"transformers.{n}_auto": f"transformers.models.auto.{n}_auto" for n in ("modeling", "tokenization", "configuration")},
    "sklearn.externals.joblib": "joblib",
    "sklearn.cross_validation": "sklearn.model_selection",
    "sklearn.grid_search": "sklearn.model_selection",
    "sklearn.metrics.classification": "sklearn.metrics",
    "sklearn.metrics.ranking": "sklearn.metrics",
    "sklearn.preprocessing.label": "sklearn.preprocessing",
}
OLD_PACKAGES = ("IPython", "keras", "keras.preprocessing", "sklearn.externals")  # made of nothing but such modules
MODEL_MODULE = re.compile(r"transformers\.(modeling|tokenization|configuration)_(?!utils|outputs|auto)(\w+?)(_fast)?")
FAST_TOKENIZER = re.compile(r"(transformers\.models\.\w+\.tokenization_\w+)_fast")

# Names that nothing stands for -> what to do.
INSTEAD = {
    **dict.fromkeys(
        ("glue_processors", "GlueDataset", "GlueDataTrainingArguments"),
        'load the data with datasets.load_dataset("glue", task)',
    ),
    **dict.fromkeys(
        ("LineByLineTextDataset", "TextDataset"), 'load the lines with datasets.load_dataset("text", data_files=...)'
    ),
    "AutoModelWithLMHead": "use AutoModelForCausalLM or AutoModelForMaskedLM",
    "TFTrainer": "use the Trainer: transformers no longer has TensorFlow models",
    "apex": "use fp16=True, which needs no apex",
    "pytorch_pretrained_bert": "use transformers: BertAdam is AdamW with a schedule there",
    "tensorflow": "use PyTorch: transformers no longer has TensorFlow models",
    "google.colab": "remove the lines that mount a drive or upload files: this is not Colab",
}


def module_today(name: str) -> str | None:
    """Return the module that has the content of one that was moved; None if the name was never that of a moved module."""
    if name in OLD_MODULES:
        return OLD_MODULES[name]
    if found := MODEL_MODULE.fullmatch(name):
        return f"transformers.models.{found[2]}.{found[1]}_{found[2]}"
    return found[1] if (found := FAST_TOKENIZER.fullmatch(name)) else None


def instead_of(name: str) -> str | None:
    """Return what to do about a name that nothing stands for; None if it is not known."""
    if name.startswith(OTHER_FRAMEWORKS) and ("For" in name or name.endswith("Model")):
        return "use the PyTorch class: transformers no longer has TensorFlow and Flax models"
    return INSTEAD.get(name)


OTHER_FRAMEWORKS = ("TF", "Flax")
ONLY_CLASSIFIERS = "Glassloop trains models for sequence classification only"
ONLY_TORCH = "Glassloop trains PyTorch models only"
UNTRANSLATED = {
    **dict.fromkeys(("Seq2SeqTrainer", "Seq2SeqTrainingArguments"), ONLY_CLASSIFIERS),
    **dict.fromkeys(("TFTrainer", "TFTrainingArguments"), ONLY_TORCH),
}

# Arguments of transformers' Trainer that are gone, and what to do instead.
GONE_OF_TRAINER = {
    "prediction_loss_only": "set prediction_loss_only in TrainingArguments",
    "tb_writer": "set report_to='tensorboard' in TrainingArguments",
}

# Methods of datasets that changed a data set in place -> those that return the changed one.
NO_LONGER_IN_PLACE = {f"{name}_": name for name in ("rename_column", "remove_columns", "cast", "flatten")}

# Methods of tokenizers that are gone: the tokenizer itself is called instead.
CALLED_INSTEAD = ("encode_plus", "batch_encode_plus")


def why_untranslated(name: str) -> str | None:
    """Return why Glassloop has no replacement for a name that is imported from transformers; None if it needs none."""
    if name in UNTRANSLATED:
        return UNTRANSLATED[name]
    start, _, kind = name.partition("For")
    if not (start[:1].isupper() and kind[:1].isupper()):
        return None
    if start.startswith(OTHER_FRAMEWORKS):
        return ONLY_TORCH
    return None if kind == "SequenceClassification" else ONLY_CLASSIFIERS


def why_their_trainer(names: Iterable[str]) -> str | None:
    """Return why the Trainer of a script that uses these names stays that of transformers; None if it does not."""
    models = (name for name in sorted({*names}) if not name.startswith("DataCollator"))
    others = {name: why for name in models if (why := why_untranslated(name))}
    if not others or any(name.endswith("ForSequenceClassification") for name in names):
        return None
    name, why = next(iter(others.items()))
    return f"the script uses {name}, and {why}"
