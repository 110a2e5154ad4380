"""Which names of transformers, datasets and evaluate Glassloop replaces, and which ones it has no replacement for."""

from __future__ import annotations

from functools import cache

from glassloop.data.glue import GLUE_TASKS
from glassloop.errors import SettingsError
from glassloop.metrics import load_metric

# Where a name is imported from -> the name of Glassloop that replaces it.
MOVED = {
    "transformers.Trainer": "Trainer",
    "transformers.trainer.Trainer": "Trainer",
    "transformers.TrainingArguments": "TrainingArguments",
    "transformers.training_args.TrainingArguments": "TrainingArguments",
    "transformers.AdamW": "AdamW",
    "transformers.optimization.AdamW": "AdamW",
    "datasets.load_metric": "load_metric",
    "datasets.load.load_metric": "load_metric",
}
# The same, for functions that are only replaced where Glassloop can do what a call asks for.
MOVED_BY_CALL = {
    "datasets.load_dataset": "load_dataset",
    "datasets.load.load_dataset": "load_dataset",
    "evaluate.load": "load_metric",
}
OF_TRAINER = ("Trainer", "TrainingArguments")
CLASSIFIER = "SequenceClassification"
ONLY_CLASSIFIERS = "Glassloop trains models for sequence classification only"
# Names of transformers without a replacement.
UNTRANSLATED = {
    "Seq2SeqTrainer": ONLY_CLASSIFIERS,
    "Seq2SeqTrainingArguments": ONLY_CLASSIFIERS,
    "TFTrainer": "Glassloop trains PyTorch models only",
    "TFTrainingArguments": "Glassloop trains PyTorch models only",
}
OTHER_FRAMEWORKS = ("TF", "Flax")
# Arguments that are gone -> their present name, and what it is for True and for False.
REPLACED_ARGUMENTS = {
    "fp16": ("mixed_precision", '"fp16"', '"no"'),  # of Accelerator
    "pad_to_max_length": ("padding", '"max_length"', "False"),  # of tokenizers, which silently ignore it
}
# Methods of tokenizers that are gone: the tokenizer itself is called instead.
CALLED_INSTEAD = ("encode_plus", "batch_encode_plus")


def why_untranslated(name: str) -> str | None:
    """Return why Glassloop has no replacement for a name that is imported from transformers; None if it needs none."""
    if name in UNTRANSLATED:
        return UNTRANSLATED[name]
    start, found, kind = name.partition("For")
    is_class = bool(found) and start[:1].isupper() and kind[:1].isupper()
    if is_class and start.startswith(OTHER_FRAMEWORKS):
        return "Glassloop trains PyTorch models only"
    return ONLY_CLASSIFIERS if is_class and kind != CLASSIFIER else None


def is_gone(name: str) -> bool:
    """Return whether the installed transformers does not have a name, which an earlier version may have had."""
    return name not in names_of_transformers()


@cache
def names_of_transformers() -> frozenset[str]:
    """Return the names of the installed transformers, which takes a second."""
    import transformers

    return frozenset(dir(transformers))


def is_portable(name: str, arguments: list[object], named: dict[str, object]) -> bool:
    """Return whether Glassloop can do what a call of a replaced function asks for. The arguments are literals."""
    if name == "load_metric":
        try:
            load_metric(*map(str, arguments), **{key: str(value) for key, value in named.items() if key == "config_name"})
        except (SettingsError, TypeError):
            return False
        return {*named} <= {"config_name"}
    path, *rest = [*arguments, *([named["path"]] if "path" in named else [])] or [None]
    task = rest[0] if rest else named.get("name")
    plain_split = str(named.get("split", "train")).isidentifier()
    return path == "glue" and task in GLUE_TASKS and len(rest) < 2 and plain_split and {*named} <= {"path", "name", "split"}
