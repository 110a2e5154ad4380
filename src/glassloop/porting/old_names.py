"""Names that libraries have removed, renamed or moved since 2020, and what `glassloop run` serves in their place."""

from __future__ import annotations

import re
from dataclasses import dataclass

SCRIPTS = "glassloop.scripts"
METRICS = f"{SCRIPTS}.metric_loading"
FORMER_GLUE = f"{SCRIPTS}.glue_functions"
NO_NOTEBOOK = "there is no notebook to draw it in"


@dataclass(frozen=True)
class OldName:
    """What stands for a name that a library no longer has.

    Args:
        now: The module and the attribute that serve it, as `module:attribute`.
        reason: Why the name of the library is not used.
        always: Whether it replaces a name that the library still has.
        by_call: Whether only some calls of the function are served; these record themselves.
        shown: What the list of substitutions calls it. Default: `now`.
    """

    now: str
    reason: str
    always: bool = False
    by_call: bool = False
    shown: str = ""

    def __str__(self) -> str:
        return self.shown or self.now.replace(":", ".")


def gone(version: str, **names: str) -> dict[str, OldName]:
    """Return names that were removed in a version, with what serves each of them."""
    return {name: OldName(now, f"removed in {version}") for name, now in names.items()}


def by_call(now: str, reason: str = "takes former arguments") -> OldName:
    """Return a function that the library still has, and that is served because some calls of it need it."""
    return OldName(now, reason, always=True, by_call=True)


OURS = "Glassloop's Trainer, which takes the same arguments"
TRAINER = {
    "Trainer": OldName(f"{SCRIPTS}.former_trainer:Trainer", OURS, always=True, shown="glassloop.Trainer"),
    "TrainingArguments": OldName(
        "glassloop.drop_in.arguments:TrainingArguments",
        "the settings of Glassloop's Trainer",
        always=True,
        shown="glassloop.TrainingArguments",
    ),
}
THEIRS = "takes former arguments"
# The Trainers of transformers, for models that Glassloop does not train.
THEIR_TRAINER = {
    name: OldName(f"{SCRIPTS}.their_trainer:{name}", THEIRS, always=True, shown=f"transformers.{name} with former arguments")
    for name in ("Trainer", "TrainingArguments")
}
SEQ2SEQ = {
    name: OldName(f"{SCRIPTS}.their_trainer:{name}", THEIRS, always=True, by_call=True)
    for name in ("Seq2SeqTrainer", "Seq2SeqTrainingArguments")
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
        (
            *(
                "overwrite_output_dir",
                "logging_dir",
                "fp16_backend",
                "half_precision_backend",
                "fp16_opt_level",
                "use_mps_device",
            ),
            *("save_safetensors", "jit_mode_eval", "use_ipex", "past_index", "ray_scope", "use_legacy_prediction_loop"),
            *("dispatch_batches", "split_batches", "include_tokens_per_second", "tpu_metrics_debug"),
        )
    ),
}
ADAMW = {
    "AdamW": OldName(
        f"{SCRIPTS}.former_adamw:AdamW", "removed in transformers 5", shown="Glassloop's AdamW with the former defaults"
    )
}
STRATEGY = gone("transformers 5", EvaluationStrategy="transformers.trainer_utils:IntervalStrategy")
BACKENDS = gone(
    "transformers 5",
    is_torch_tpu_available="transformers.utils:is_torch_xla_available",
    is_tf_available=f"{SCRIPTS}.former_functions:is_never_available",
    is_flax_available=f"{SCRIPTS}.former_functions:is_never_available",
    is_apex_available=f"{SCRIPTS}.former_functions:is_never_available",
    is_offline_mode=f"{SCRIPTS}.former_functions:is_offline_mode",
    send_example_telemetry=f"{SCRIPTS}.former_functions:send_example_telemetry",
    TRANSFORMERS_CACHE="huggingface_hub.constants:HF_HUB_CACHE",
    PYTORCH_PRETRAINED_BERT_CACHE="huggingface_hub.constants:HF_HUB_CACHE",
    PYTORCH_TRANSFORMERS_CACHE="huggingface_hub.constants:HF_HUB_CACHE",
)
GLUE_NAMES = ("InputExample", "InputFeatures", "DataProcessor", "glue_convert_examples_to_features", "glue_compute_metrics")
GLUE_TABLES = ("glue_tasks_num_labels", "glue_output_modes")
GLUE = gone("transformers 5", **{name: f"{FORMER_GLUE}:{name}" for name in (*GLUE_NAMES, *GLUE_TABLES)})
SCHEDULES = gone(
    "transformers 2.3",
    WarmupLinearSchedule=f"{SCRIPTS}.former_functions:warmup_linear_schedule",
    WarmupConstantSchedule=f"{SCRIPTS}.former_functions:warmup_constant_schedule",
)
LOAD_METRIC = gone(
    "datasets 3",
    load_metric=f"{METRICS}:load_metric",
    list_metrics=f"{METRICS}:list_evaluation_modules",
    Metric=f"{METRICS}:Metric",
)
LOAD_DATASET = {"load_dataset": by_call(f"{SCRIPTS}.data_loading:load_dataset", "reads the files of GLASSLOOP_DATA")}
CACHING = gone(
    "datasets 3",
    set_caching_enabled=f"{SCRIPTS}.data_loading:set_caching_enabled",
    set_progress_bar_enabled=f"{SCRIPTS}.data_loading:set_progress_bar_enabled",
)
BUILTIN_TYPES = {
    name: OldName(f"builtins:{kind}", "removed in NumPy 1.24: it was only another name for Python's type")
    for name, kind in {
        **{name: name for name in ("int", "float", "bool", "object", "str", "complex")},
        "unicode": "str",
    }.items()
}
NUMPY = {
    **BUILTIN_TYPES,
    **gone(
        "NumPy 2.0",
        float_="numpy:float64",
        complex_="numpy:complex128",
        unicode_="numpy:str_",
        string_="numpy:bytes_",
        NaN="numpy:nan",
        NAN="numpy:nan",
        Inf="numpy:inf",
        Infinity="numpy:inf",
        infty="numpy:inf",
        PINF="numpy:inf",
        product="numpy:prod",
        cumproduct="numpy:cumprod",
        alltrue="numpy:all",
        sometrue="numpy:any",
        row_stack="numpy:vstack",
        in1d="numpy:isin",
        trapz="numpy:trapezoid",
    ),
}
ABSTRACT = (
    "Mapping",
    "MutableMapping",
    "Iterable",
    "Iterator",
    "Sequence",
    "MutableSequence",
    "Callable",
    "Hashable",
    "Set",
    "Sized",
)
# By module: what stands for a name that scripts import from there.
OLD_NAMES: dict[str, dict[str, OldName]] = {
    "transformers": {**TRAINER, **SEQ2SEQ, **ADAMW, **STRATEGY, **BACKENDS, **GLUE, **SCHEDULES},
    "transformers.trainer": TRAINER,
    "transformers.training_args": TRAINER,
    "transformers.optimization": {**ADAMW, **SCHEDULES},
    "transformers.trainer_utils": STRATEGY,
    "transformers.utils": BACKENDS,
    "transformers.utils.import_utils": BACKENDS,
    "transformers.file_utils": BACKENDS,
    "datasets": {**LOAD_DATASET, **LOAD_METRIC, **CACHING},
    "datasets.load": {**LOAD_DATASET, **LOAD_METRIC},
    "evaluate": {
        "load": by_call(f"{METRICS}:load", "computes the metric without a download"),
        "combine": by_call(f"{METRICS}:combine", "computes the metrics without a download"),
    },
    "numpy": NUMPY,
    "collections": gone("Python 3.10", **{name: f"collections.abc:{name}" for name in ABSTRACT}),
    "time": gone("Python 3.8", clock="time:perf_counter"),
    "sklearn.metrics": {
        **gone(
            "scikit-learn 1.2",
            plot_confusion_matrix=f"{SCRIPTS}.sklearn_functions:plot_confusion_matrix",
            jaccard_similarity_score="sklearn.metrics:accuracy_score",
        ),
        "mean_squared_error": by_call(f"{SCRIPTS}.sklearn_functions:mean_squared_error"),
    },
    "sklearn.utils.class_weight": {"compute_class_weight": by_call(f"{SCRIPTS}.sklearn_functions:compute_class_weight")},
    "IPython": {
        name: OldName(f"{SCRIPTS}.notebook_display:{name}", NO_NOTEBOOK) for name in ("get_ipython", "display", "version_info")
    },
    "tqdm": {"tqdm_notebook": OldName("tqdm:tqdm", NO_NOTEBOOK, always=True)},
    "tqdm.notebook": {
        "tqdm": OldName("tqdm:tqdm", NO_NOTEBOOK, always=True),
        "trange": OldName("tqdm:trange", NO_NOTEBOOK, always=True),
    },
}
# Modules that do not exist today -> those that have their content.
OLD_MODULES = {
    "evaluate": f"{METRICS}",
    "nlp": "datasets",
    "pytorch_transformers": "transformers",
    "IPython.display": f"{SCRIPTS}.notebook_display",
    "torch._six": f"{SCRIPTS}.former_functions",
    "keras.preprocessing.sequence": f"{SCRIPTS}.former_functions",
    "transformers.deepspeed": "transformers.integrations.deepspeed",
    "transformers.generation_utils": "transformers.generation.utils",
    "transformers.file_utils": "transformers.utils",
    "transformers.data.metrics": FORMER_GLUE,
    "transformers.data.processors": FORMER_GLUE,
    "transformers.data.processors.glue": FORMER_GLUE,
    "transformers.data.processors.utils": FORMER_GLUE,
    "transformers.modeling_auto": "transformers.models.auto.modeling_auto",
    "transformers.tokenization_auto": "transformers.models.auto.tokenization_auto",
    "transformers.configuration_auto": "transformers.models.auto.configuration_auto",
    "sklearn.externals.joblib": "joblib",
    "sklearn.cross_validation": "sklearn.model_selection",
    "sklearn.grid_search": "sklearn.model_selection",
    "sklearn.metrics.classification": "sklearn.metrics",
    "sklearn.metrics.ranking": "sklearn.metrics",
    "sklearn.preprocessing.label": "sklearn.preprocessing",
}
# Packages that are made of nothing but such modules.
OLD_PACKAGES = ("IPython", "keras", "keras.preprocessing", "sklearn.externals")
MODEL_MODULE = re.compile(r"transformers\.(modeling|tokenization|configuration)_(?!utils|outputs|auto)(\w+?)(_fast)?")
FAST_TOKENIZER = re.compile(r"(transformers\.models\.\w+\.tokenization_\w+)_fast")
# Names that nothing stands for -> what to do.
INSTEAD = {
    **dict.fromkeys(
        ("glue_processors", "GlueDataset", "GlueDataTrainingArguments"),
        'load the data with datasets.load_dataset("glue", task)',
    ),
    "LineByLineTextDataset": 'load the lines with datasets.load_dataset("text", data_files=...)',
    "TextDataset": 'load the lines with datasets.load_dataset("text", data_files=...)',
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
    if name.startswith(("TF", "Flax")) and ("For" in name or name.endswith("Model")):
        return "use the PyTorch class: transformers no longer has TensorFlow and Flax models"
    return INSTEAD.get(name)
