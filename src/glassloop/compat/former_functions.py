"""What libraries no longer have: of GLUE, scikit-learn, IPython, AdamW, and former arguments of transformers' Trainers."""

from __future__ import annotations

import collections.abc
import csv
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.optim.optimizer import ParamsT

from glassloop.base.errors import SettingsError
from glassloop.compat.names import FORMER_SETTINGS
from glassloop.compat.substitution import LEDGER
from glassloop.data.glue import GLUE_TASKS
from glassloop.scores.metrics import Array, Numbers, load_metric

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR

    from glassloop.data.interfaces import Tokenizer

# Of torch._six.
string_classes = (str, bytes)
int_classes = int
container_abcs = collections.abc
inf, nan = math.inf, math.nan
PY3, PY37 = True, True


def is_never_available() -> bool:
    """Return False: transformers no longer works with this library."""
    return False


def send_example_telemetry(*arguments: object, **named: object) -> None:
    """Do nothing. The former function sent the name of an example script to the hub."""


def warmup_linear_schedule(optimizer: Optimizer, warmup_steps: int, t_total: int, last_epoch: int = -1) -> LambdaLR:
    from transformers import get_linear_schedule_with_warmup

    schedule: LambdaLR = get_linear_schedule_with_warmup(optimizer, warmup_steps, t_total, last_epoch)
    return schedule


def warmup_constant_schedule(optimizer: Optimizer, warmup_steps: int, last_epoch: int = -1) -> LambdaLR:
    from transformers import get_constant_schedule_with_warmup

    schedule: LambdaLR = get_constant_schedule_with_warmup(optimizer, warmup_steps, last_epoch)
    return schedule


def pad_sequences(
    sequences: Sequence[Sequence[float]],
    maxlen: int | None = None,
    dtype: str = "int32",
    padding: str = "pre",
    truncating: str = "pre",
    value: float = 0.0,
) -> Array:
    """Return rows of different lengths as one array, as keras did."""
    length = max(map(len, sequences), default=0) if maxlen is None else maxlen
    padded = np.full((len(sequences), length), value, dtype=dtype)
    for row, numbers in zip(padded, sequences, strict=True):
        left = numbers[:length] if truncating == "post" else numbers[max(len(numbers) - length, 0) :]
        if len(left):
            row[slice(None, len(left)) if padding == "post" else slice(length - len(left), None)] = left
    return padded


# --- the Trainers of transformers
GONE = "removed in transformers 5"
THEIR_CLASSES = ("Trainer", "TrainingArguments", "Seq2SeqTrainer", "Seq2SeqTrainingArguments")


def __getattr__(name: str) -> type:
    """Return a class of transformers that also takes former arguments, made when a script first asks for it."""
    if name not in THEIR_CLASSES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    import transformers

    kind: type = getattr(transformers, name)

    def initialize(self: object, *arguments: object, **named: object) -> None:
        today = settings_today(kind, named) if name.endswith("Arguments") else trainer_arguments(named)
        kind.__init__(self, *arguments, **today)  # type: ignore[misc]

    made = type(name, (kind,), {"__init__": initialize, "__module__": __name__, "__doc__": kind.__doc__})
    globals()[name] = made
    return made


def settings_today(kind: type, named: Mapping[str, object]) -> dict[str, object]:
    known = {entry.name for entry in fields(kind)}
    settings = dict(named)
    former = {name: today for name, today in FORMER_SETTINGS.items() if name not in known}
    LEDGER.rename("TrainingArguments", settings, former, GONE)
    for name, today in {"group_by_length": "train_sampling_strategy", "adafactor": "optim"}.items():
        if name in settings and name not in known:  # the name is the value of today
            LEDGER.note(f"TrainingArguments({name}=)", f'{today}="{name}"', GONE)
            settings |= {today: name} if settings.pop(name) else {}
    return settings


def trainer_arguments(named: dict[str, object]) -> dict[str, object]:
    LEDGER.rename("Trainer", named, {"tokenizer": "processing_class"}, GONE)
    LEDGER.rename("Trainer", named, {"tb_writer": None}, "removed in transformers 4")
    return named


# --- GLUE
NAMES = {"sst-2": "sst2", "sts-b": "stsb", "mnli-mm": "mnli_mismatched"}  # how transformers wrote the tasks
TASKS = {old: GLUE_TASKS[new] for old, new in {**{name: name for name in GLUE_TASKS if name != "ax"}, **NAMES}.items()}
glue_tasks_num_labels = {name: len(task.label_names or ("score",)) for name, task in TASKS.items()}
glue_output_modes = {name: "classification" if task.label_names else "regression" for name, task in TASKS.items()}


@dataclass
class InputExample:
    guid: str
    text_a: str
    text_b: str | None = None
    label: str | None = None


@dataclass(eq=False)
class InputFeatures(Mapping[str, object]):
    input_ids: list[int]
    attention_mask: list[int] | None = None
    token_type_ids: list[int] | None = None
    label: int | float | None = None

    def __getitem__(self, name: str) -> object:
        if vars(self).get(name) is None:
            raise KeyError(name)
        return vars(self)[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, value in vars(self).items() if value is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)  # a list of itself would ask for its length


class DataProcessor:
    def get_train_examples(self, data_dir: str) -> list[InputExample]:
        raise NotImplementedError

    get_dev_examples = get_train_examples

    def get_labels(self) -> list[str]:
        raise NotImplementedError

    @classmethod
    def _read_tsv(cls, input_file: str, quotechar: str | None = None) -> list[list[str]]:
        with Path(input_file).open(encoding="utf-8-sig", newline="") as lines:
            if quotechar is None:
                return [*csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)]
            return [*csv.reader(lines, delimiter="\t", quotechar=quotechar)]


def glue_convert_examples_to_features(
    examples: Sequence[InputExample],
    tokenizer: Tokenizer,
    max_length: int | None = None,
    task: str | None = None,
    label_list: Sequence[str] | None = None,
    output_mode: str | None = None,
    **padding: object,
) -> list[InputFeatures]:
    known = TASKS.get(task or "")
    names = [*(label_list or (known.label_names if known else None) or ())]
    mode = output_mode or glue_output_modes.get(task or "", "classification")
    if mode == "classification" and not names:
        raise SettingsError("glue_convert_examples_to_features has no label names", "pass label_list=, or task=")
    encode: Callable[..., Any] = tokenizer
    rows = []
    for one in examples:
        row = encode(one.text_a, one.text_b, max_length=max_length, padding="max_length", truncation=True)
        label: int | float | None = None
        if one.label is not None:
            label = names.index(one.label) if mode == "classification" else float(one.label)
        rows.append(InputFeatures(row["input_ids"], row["attention_mask"], row.get("token_type_ids"), label))
    return rows


def glue_compute_metrics(task_name: str, preds: Numbers, labels: Numbers) -> dict[str, float]:
    """Return the metrics of a task under the names that transformers used."""
    task = NAMES.get(task_name, task_name)
    scores = load_metric("glue", task).compute(predictions=preds, references=labels)
    short = {"matthews_correlation": "mcc", "accuracy": "mnli/acc" if task.startswith("mnli") else "acc"}
    named = {short.get(name, name): value for name, value in scores.items()}
    for mean, parts in {"acc_and_f1": ("acc", "f1"), "corr": ("pearson", "spearmanr")}.items():
        if {*parts} <= {*named}:
            named[mean] = sum(named[part] for part in parts) / 2
    return named


def simple_accuracy(preds: Numbers, labels: Numbers) -> float:
    return load_metric("accuracy").compute(predictions=preds, references=labels)["accuracy"]


# --- scikit-learn
def compute_class_weight(class_weight: object, *positional: object, **named: object) -> Array:
    from sklearn.utils.class_weight import compute_class_weight as today

    if positional:
        LEDGER.note("compute_class_weight(weight, classes, y)", "classes=, y=", "by name only since scikit-learn 1.0")
        named |= dict(zip(("classes", "y"), positional, strict=False))
    return np.asarray(today(class_weight, **named))


def mean_squared_error(true: object, predicted: object, *, squared: bool = True, **named: object) -> float | Array:
    from sklearn import metrics

    if not squared:
        LEDGER.note("mean_squared_error(squared=False)", "root_mean_squared_error", "removed in scikit-learn 1.6")
    function = metrics.mean_squared_error if squared else metrics.root_mean_squared_error
    error: float | Array = function(true, predicted, **named)
    return error


def plot_confusion_matrix(estimator: object, rows: object, true: object, **named: object) -> object:
    from sklearn.metrics import ConfusionMatrixDisplay

    return ConfusionMatrixDisplay.from_estimator(estimator, rows, true, **named)


# --- IPython
version_info = (0, 0, 0)


def display(*values: object, **options: object) -> None:
    for value in values:
        sys.stdout.write(f"{value}\n" if isinstance(value, Printed) else f"{value!r}\n")


def clear_output(wait: bool = False) -> None:
    """Do nothing: output that was printed stays."""


def get_ipython() -> None:
    """Return None, as outside of a notebook."""


class Printed:
    """Content that a notebook would draw; its text is printed."""

    def __init__(self, data: object = "", **options: object) -> None:
        self.data = data

    def __str__(self) -> str:
        return str(self.data)


HTML = Markdown = Image = Javascript = Printed


class AdamW(torch.optim.Optimizer):
    """Adam with weight decay that is applied after the update, as transformers computed it.

    The bias of the running averages is corrected in the step size, so that `eps` is not; BERT's original code did not.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        correct_bias: bool = True,
        no_deprecation_warning: bool = False,
    ) -> None:
        fits = {"lr": lr >= 0, "betas": all(0 <= beta < 1 for beta in betas), "eps": eps >= 0}
        if wrong := [name for name, is_right in fits.items() if not is_right]:
            raise ValueError(f"{wrong[0]} is out of range: lr={lr}, betas={betas}, eps={eps}")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "correct_bias": correct_bias}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            by_step: dict[int, list[torch.Tensor]] = {}  # parameters that have been updated equally often
            for one in group["params"]:
                if one.grad is None:
                    continue
                state = self.state[one]
                if not state:
                    state |= {"step": 0, "exp_avg": torch.zeros_like(one), "exp_avg_sq": torch.zeros_like(one)}
                state["step"] += 1
                by_step.setdefault(state["step"], []).append(one)
            for number, parameters in by_step.items():
                beta1, beta2 = group["betas"]
                gradients = [one.grad for one in parameters if one.grad is not None]
                means = [self.state[one]["exp_avg"] for one in parameters]
                squares = [self.state[one]["exp_avg_sq"] for one in parameters]
                torch._foreach_mul_(means, beta1)
                torch._foreach_add_(means, gradients, alpha=1 - beta1)
                torch._foreach_mul_(squares, beta2)
                torch._foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)
                scale = group["lr"]
                if group["correct_bias"]:
                    scale = scale * math.sqrt(1 - beta2**number) / (1 - beta1**number)
                denominators = torch._foreach_sqrt(squares)
                torch._foreach_add_(denominators, group["eps"])
                torch._foreach_addcdiv_(parameters, means, denominators, value=-scale)
                if group["weight_decay"] > 0:
                    torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        return loss
