"""`glassloop eject`: export a run as one plain PyTorch script without Glassloop that ends with the same weights."""

from __future__ import annotations

import json
import re
from pathlib import Path
from pprint import pformat

from glassloop.base.errors import DataError, ResourceError, SettingsError
from glassloop.base.files import write_text
from glassloop.data.columns import LabelSet
from glassloop.data.sources import load_examples
from glassloop.models.loading import find_model
from glassloop.runs.record import RunRecord, read_run, split_changes

SCRIPT_NAME = "train.py"
Label = int | float | list[int] | list[float]

TEMPLATE = '''"""A fine-tuning run as plain PyTorch, written by glassloop eject. Run it in its folder: python train.py"""
__SAVINGS__
import json

import numpy as np
import torch
from torch.nn import functional
from transformers import AutoModelForSequenceClassification, AutoTokenizer, get_scheduler

MODEL = __MODEL__
LABELS = __LABELS__
TASK = __TASK__
TEXTS = __TEXTS__
SEED, DATA_SEED = __SEED__, __DATA_SEED__
BATCH_SIZE, ACCUMULATE = __BATCH_SIZE__, __ACCUMULATE__
MAX_STEPS, WARMUP_STEPS = __MAX_STEPS__, __WARMUP_STEPS__
LEARNING_RATE, WEIGHT_DECAY, MAX_GRAD_NORM = __LEARNING_RATE__, __WEIGHT_DECAY__, __MAX_GRAD_NORM__
MAX_LENGTH = __MAX_LENGTH__
DEVICE = "cuda" if torch.cuda.is_available() and __ON_CUDA__ else "cpu"

# The data: one JSON object per line. Labels are ids, scores, or lists of 0 and 1.
tokenizer = AutoTokenizer.from_pretrained(MODEL)


def read_rows(path):
    rows = [json.loads(line) for line in open(path, encoding="utf-8")]
    texts = [[row[name] for row in rows] for name in TEXTS]
    encoded = tokenizer(*texts, truncation=True, max_length=MAX_LENGTH)
    return [{key: encoded[key][number] for key in encoded} | {"labels": row["label"]} for number, row in enumerate(rows)]


def epoch_order(rows, epoch):
    """Return the rows of each batch: a pure function of seed and epoch."""
    random = np.random.default_rng((DATA_SEED, epoch))
    order = random.permutation(len(rows))
__PLAN__


def collate(rows):
    """Pad rows to the longest one of the batch."""
    inputs = [{key: value for key, value in row.items() if key != "labels"} for row in rows]
    batch = tokenizer.pad(inputs, return_tensors="pt"__PAD_MULTIPLE__)
    batch["labels"] = torch.tensor([row["labels"] for row in rows]__LABEL_KIND__)
    return {key: value.to(DEVICE) for key, value in batch.items()}


def loss_sum(logits, labels):
    """Return the sum of the rows' losses."""
__LOSS__


# The model: pretrained weights, and a new head initialized from the seed.
torch.manual_seed(SEED)
model = AutoModelForSequenceClassification.from_pretrained(
    MODEL, dtype=torch.float32, problem_type=TASK__HEAD__
).to(DEVICE)

# AdamW without decay for biases and normalization weights.
norms = {f"{name}.weight" for name, module in model.named_modules() if "norm" in type(module).__name__.lower()}
spared = {name for name, _ in model.named_parameters() if name in norms or name.endswith("bias")}
named = list(model.named_parameters())
groups = [
    {"params": [p for name, p in named if name not in spared], "weight_decay": WEIGHT_DECAY},
    {"params": [p for name, p in named if name in spared], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=__BETAS__, eps=__EPSILON__, fused=__FUSED__)
scheduler = get_scheduler(
    __SCHEDULE__, optimizer, WARMUP_STEPS, MAX_STEPS, scheduler_specific_kwargs=__SCHEDULE_OPTIONS__
)

# The loop: one iteration of the inner loop is one step, one update of the weights.
train_rows = read_rows("train.jsonl")
torch.manual_seed(SEED)
model.train()
step = epoch = 0
while step < MAX_STEPS:
    batches = epoch_order(train_rows, epoch)
    for start in range(0, len(batches), ACCUMULATE):
        group = batches[start : start + ACCUMULATE]
        num_examples = sum(len(numbers) for numbers in group)
        step_loss = 0.0
        for numbers in group:
            batch = collate([train_rows[number] for number in numbers])
            labels = batch.pop("labels")
            loss = loss_sum(model(**batch).logits.float(), labels) / num_examples
            loss.backward()
            step_loss = step_loss + loss.detach()
        if MAX_GRAD_NORM > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % __LOG_EVERY__ == 0 or step == MAX_STEPS:
            print(f"step {step}/{MAX_STEPS}  loss {float(step_loss):.4f}  lr {scheduler.get_last_lr()[0]:.2e}", flush=True)
        if step == MAX_STEPS:
            break
    epoch += 1

# The result: a model folder in the usual Hugging Face format.
model.eval()
model.save_pretrained("model")
tokenizer.save_pretrained("model")
print("saved in model/")
'''

SAVINGS_NOTE = """
# The run used these savings: {}.
# They compute the same result in a different order and with different dropout masks. This script is bit-identical to a run with
# --backend plain.
"""

PLAIN_PLAN = """    return [order[start : start + BATCH_SIZE] for start in range(0, __LAST__, BATCH_SIZE)]"""

GROUPED_PLAN = """    lengths, pool = np.array([len(row["input_ids"]) for row in rows]), BATCH_SIZE * 50
    pools = [order[start : start + pool] for start in range(0, len(order), pool)]
    order = np.concatenate([part[np.argsort(-lengths[part], kind="stable")] for part in pools])
    batches = [order[start : start + BATCH_SIZE] for start in range(0, len(order), BATCH_SIZE)]
    short = [batches.pop()] if len(order) % BATCH_SIZE else []
    return [batches[place] for place in random.permutation(len(batches))]__SHORT__"""

LOSSES = {
    "single_label_classification": "    return functional.cross_entropy(\n        logits, labels, weight=__WEIGHTS__, "
    'label_smoothing=__SMOOTHING__, reduction="sum"\n    )',
    "multi_label_classification": "    wanted = labels * (1 - __SMOOTHING__) + __SMOOTHING__ / 2\n"
    "    costs = functional.binary_cross_entropy_with_logits(\n        logits, wanted, weight=__WEIGHTS__, "
    'reduction="sum"\n    )\n    return costs / logits.shape[-1]',
    "regression": '    return functional.mse_loss(logits.squeeze(-1), labels.float(), reduction="sum")',
}


def eject_run(run_dir: Path, target: Path) -> Path:
    """Write the script and the rows it reads to `target`, and return the path of the script."""
    run = read_run(run_dir)
    if run.processes > 1 or run.precision != "fp32":
        what = f"{run.processes} processes" if run.processes > 1 else run.precision
        raise SettingsError(
            f"the run used {what}, but an ejected script trains in one process in fp32",
            "train with --processes 1 --precision fp32 first",
        )
    unsupported = {
        "loaded its best weights at the end": (run.settings.load_best_model_at_end, "train without load_best_model_at_end"),
        "stopped before its last step": (run.stop_reason, "train without early stopping"),
        "replaced the head of its model": (run.model.new_head, "train without --new_head"),
    }
    for what, (found, remedy) in unsupported.items():
        if found:
            raise SettingsError(f"the run {what}, so an ejected script would end with different weights", f"{remedy} first")
    refuse_full(target)
    outputs = LabelSet(run.data.labels) if run.data.labels else None
    examples = load_examples(run.data.source, outputs=outputs, **run.data.given())
    if changed := split_changes(run.data.splits, examples.facts, run.data.splits):
        raise DataError(f"the data has changed since the run: {'; '.join(changed)}", "restore the data of the run")
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(f"{target}: {error.strerror}", "choose a folder that can be written to") from error
    columns = examples.columns
    for split in examples.splits:
        lines = []
        for row in examples.splits[split]:
            texts = {name: row[name] for name in columns.texts}
            lines.append(json.dumps({**texts, "label": label_of(row[columns.label_name], run)}, ensure_ascii=False))
        write_text(target / f"{split}.jsonl", "\n".join(lines) + "\n")
    write_text(target / SCRIPT_NAME, script_of(run))
    return target / SCRIPT_NAME


def refuse_full(target: Path) -> None:
    """Raise if the folder for the script is a file, or contains anything."""
    if target.exists() and not target.is_dir():
        raise SettingsError(f"{target} is a file", "choose a new folder with --out")
    if target.is_dir() and any(target.iterdir()):
        raise SettingsError(f"{target} is not empty", "choose a new folder with --out")


def label_of(cell: Label, run: RunRecord) -> Label:
    """Return a label as the script reads it: an id, a score, or 0 or 1 for each label."""
    if isinstance(cell, list):
        return [1.0 if number in cell else 0.0 for number in range(len(run.data.labels or ()))]
    return cell


def script_of(run: RunRecord) -> str:
    """Return the script of a run. Every value from the record is written as a literal, never as code."""
    settings, plan, data = run.settings, run.plan, run.data
    drop = settings.dataloader_drop_last
    shape = GROUPED_PLAN if settings.group_by_length else PLAIN_PLAN
    head = ", num_labels=1"
    if data.labels:
        head = ",\n    num_labels=len(LABELS),\n    id2label=dict(enumerate(LABELS)),\n"
        head += "    label2id={name: number for number, name in enumerate(LABELS)},"
    weights = None if run.class_weights is None else [*run.class_weights]
    literals = {
        "MODEL": find_model(run.model.name).name,
        "TASK": data.task,
        "TEXTS": [*data.columns.texts],
        "SEED": settings.seed,
        "DATA_SEED": settings.seed if settings.data_seed is None else settings.data_seed,
        "BATCH_SIZE": settings.per_device_train_batch_size,
        "ACCUMULATE": plan.accumulate,
        "MAX_STEPS": plan.max_steps,
        "WARMUP_STEPS": plan.warmup_steps,
        "LEARNING_RATE": settings.learning_rate,
        "WEIGHT_DECAY": settings.weight_decay,
        "MAX_GRAD_NORM": settings.max_grad_norm,
        "MAX_LENGTH": run.max_length,
        "ON_CUDA": run.device.startswith("cuda"),
        "BETAS": (settings.adam_beta1, settings.adam_beta2),
        "EPSILON": settings.adam_epsilon,
        "FUSED": settings.optim == "adamw_torch_fused",
        "SCHEDULE": settings.lr_scheduler_type,
        "SCHEDULE_OPTIONS": json.loads(settings.lr_scheduler_kwargs or "{}"),
        "LOG_EVERY": plan.log_every,
    }
    parts = {
        "SAVINGS": SAVINGS_NOTE.format(", ".join(map(repr, run.savings))) if run.savings else "",
        "LABELS": pformat(data.labels and [*data.labels], width=110, compact=True),
        "PLAN": shape.replace("__LAST__", "len(order) - BATCH_SIZE + 1" if drop else "len(order)").replace(
            "__SHORT__", "" if drop else " + short"
        ),
        "PAD_MULTIPLE": f", pad_to_multiple_of={settings.pad_to_multiple_of!r}" if settings.pad_to_multiple_of else "",
        "LABEL_KIND": ", dtype=torch.float32" if data.task != "single_label_classification" else "",
        "LOSS": LOSSES[data.task]
        .replace("__WEIGHTS__", f"torch.tensor({weights!r}, device=logits.device)" if weights else "None")
        .replace("__SMOOTHING__", repr(settings.label_smoothing_factor)),
        "HEAD": head,
    }
    values = parts | {name: repr(value) for name, value in literals.items()}
    return re.sub("__([A-Z_]+?)__", lambda match: values[match[1]], TEMPLATE)  # in one pass: a label may be called __SEED__
