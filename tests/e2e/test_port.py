"""Ported scripts and notebooks run: old ones in the habits of several years, and the code of the course notes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from commands import run_command

import glassloop
from glassloop.compat.port import REMOVED, SUGGESTED, ported_notebook, rewritten

NOTES = Path(__file__).parents[2].parent / "shared" / "course-notes"

# A course of 2021: GLUE, a metric of datasets, tokenized with datasets, and the Trainer.
COURSE = """
import numpy as np
from datasets import load_dataset, load_metric
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,  # pads each batch
    Trainer,
    TrainingArguments,
)

raw_datasets = load_dataset("glue", "mrpc")
tokenizer = AutoTokenizer.from_pretrained(MODEL)
tokenized = raw_datasets.map(lambda rows: tokenizer(rows["sentence1"], rows["sentence2"], truncation=True), batched=True)


def compute_metrics(eval_preds):
    metric = load_metric("glue", "mrpc")
    logits, labels = eval_preds
    return metric.compute(predictions=np.argmax(logits, axis=-1), references=labels)


training_args = TrainingArguments(
    "out",
    evaluation_strategy="epoch",
    num_train_epochs=2,
    no_cuda=True,
    torch_compile=True,  # faster
)
trainer = Trainer(
    AutoModelForSequenceClassification.from_pretrained(MODEL, num_labels=2),
    training_args,
    train_dataset=tokenized["train"],
    eval_dataset=tokenized["validation"],
    data_collator=DataCollatorWithPadding(tokenizer=tokenizer),
    tokenizer=tokenizer,
    compute_metrics=compute_metrics,
)
trainer.train()
found = trainer.evaluate()["eval_f1"]
"""

# A repository: the whole package, a torch data set padded to one length, a subclass, imports inside functions.
PACKAGE = """
import torch
import transformers as tf
import evaluate


class Rows(torch.utils.data.Dataset):
    def __init__(self, tokenizer, texts, labels):
        self.encodings, self.labels = tokenizer(texts, padding="max_length", max_length=16, truncation=True), labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, idx):
        item = {key: torch.tensor(val[idx]) for key, val in self.encodings.items()}
        item["labels"] = torch.tensor(self.labels[idx])
        return item


class Weighted(tf.Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = torch.nn.functional.cross_entropy(outputs.logits, labels, weight=torch.tensor([1.0, 2.0]))
        return (loss, outputs) if return_outputs else loss


def main():
    from transformers.training_args import TrainingArguments as TA
    accuracy = evaluate.load("accuracy")
    tok = tf.AutoTokenizer.from_pretrained(MODEL)
    rows = Rows(tok, ["a good film", "a bad film", "the story was very bad"] * 4, [1, 0, 0] * 4)
    model = tf.AutoModelForSequenceClassification.from_pretrained(MODEL, num_labels=2)
    args = TA(output_dir="out", max_steps=3, torch_compile=True, no_cuda=True, save_strategy="no", report_to="none")
    trainer = Weighted(model=model, args=args, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    output = trainer.predict(rows)
    return accuracy.compute(predictions=output.predictions.argmax(-1), references=output.label_ids)["accuracy"]


found = main()
"""

# A loop of its own with the former AdamW, and half precision as Accelerate had it.
LOOP = """
import torch
from accelerate import Accelerator
try:
    from transformers import AdamW, AutoModelForSequenceClassification, AutoTokenizer, get_scheduler
except ImportError:
    raise

accelerator = Accelerator(fp16=False, cpu=True)
tokenizer = AutoTokenizer.from_pretrained(MODEL)
model = AutoModelForSequenceClassification.from_pretrained(MODEL, num_labels=2)
optimizer = AdamW(model.parameters(), lr=3e-5)
schedule = get_scheduler("linear", optimizer=optimizer, num_warmup_steps=0, num_training_steps=2)
model, optimizer = accelerator.prepare(model, optimizer)
batch = tokenizer(["a good film", "a bad film"], padding=True, return_tensors="pt")
for _ in range(2):
    loss = model(**batch, labels=torch.tensor([1, 0])).loss
    accelerator.backward(loss)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
found = loss.item()
"""
# A loop of 2019: the packages of that time, models that return tuples, a schedule of its own class.
FIRST_YEARS = """
import collections
import numpy as np
import torch
from nlp import load_metric
from pytorch_transformers import AdamW, AutoTokenizer, BertForSequenceClassification, WarmupLinearSchedule
from sklearn.cross_validation import train_test_split
from transformers.modeling_bert import BertPreTrainedModel

tokenizer = AutoTokenizer.from_pretrained(MODEL)
model = BertForSequenceClassification.from_pretrained(MODEL, num_labels=2)
optimizer = AdamW(model.parameters(), lr=3e-5, no_deprecation_warning=True)
scheduler = WarmupLinearSchedule(optimizer, warmup_steps=1, t_total=4)
texts, others = train_test_split(["a good film", "a bad film", "a story", "good"] * 2, test_size=2, random_state=0)
metric = load_metric("accuracy", keep_in_memory=True)
for text in texts[:4]:
    encoded = tokenizer.encode_plus(text, max_length=min(8, tokenizer.max_len), pad_to_max_length=True, truncation=True)
    assert len(encoded["input_ids"]) == 8 and isinstance(encoded, collections.Mapping)
    batch = {name: torch.tensor([value]) for name, value in encoded.items()}
    loss, logits = model(**batch, labels=torch.tensor([1]))
    loss.backward()
    optimizer.step()
    scheduler.step()
    metric.add_batch(predictions=logits.argmax(-1), references=torch.tensor([1]))
found = metric.compute()["accuracy"] + np.float(0) + isinstance(model, BertPreTrainedModel)
"""

# A script of 2020: everything imported with a star, settings in a dict, names of that year.
STAR = """
from transformers import *
from transformers.trainer_utils import EvaluationStrategy

SETTINGS = dict(evaluation_strategy=EvaluationStrategy.EPOCH, per_gpu_train_batch_size=4, no_cuda=True, save_steps=50)
tok = AutoTokenizer.from_pretrained(MODEL)
rows = [{**tok(text), "labels": label} for text, label in [("a good film", 1), ("a bad film", 0)] * 6]
trainer = Trainer(
    AutoModelForSequenceClassification.from_pretrained(MODEL, num_labels=2),
    TrainingArguments("out", num_train_epochs=1, **SETTINGS),
    train_dataset=rows,
    eval_dataset=rows,
    tokenizer=tok,
)
trainer.train(model_path=None)
if trainer.is_world_master():
    trainer.tokenizer.save_pretrained("out")
found = trainer.evaluate()["eval_loss"]
"""
SCRIPTS = {"first years": FIRST_YEARS, "star": STAR, "course": COURSE, "package": PACKAGE, "loop": LOOP}
SENTENCES = ["the film is good", "the story was bad", "it is a very good story", "this one is not good"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to run in, with a small MRPC."""
    folder = tmp_path / "data" / "glue" / "MRPC"
    folder.mkdir(parents=True)
    for name, number in (("train", 24), ("dev", 8), ("test", 8)):
        lines = [f"{'index' if name == 'test' else 'Quality'}\t#1 ID\t#2 ID\t#1 String\t#2 String"]
        for row in range(number):
            first, second = SENTENCES[row % 4], SENTENCES[(row + row % 2) % 4]
            lines.append(f"{row if name == 'test' else row % 2}\t{row}\t{row + 100}\t{first} {name} {row}\t{second} {row}")
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    monkeypatch.setenv("GLASSLOOP_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_ported_script_runs(name: str, here: Path, tiny_model_dir: Path) -> None:
    text, findings = rewritten(SCRIPTS[name])
    assert {finding.kind for finding in findings} <= {REMOVED, SUGGESTED}
    known: dict[str, Any] = {"MODEL": str(tiny_model_dir), "__name__": "__main__"}
    exec(compile(text, f"{name}.py", "exec"), known)
    assert known["found"] >= 0
    if "trainer" in known:
        assert isinstance(known["trainer"], glassloop.Trainer)
        assert known["trainer"].backend.name == "packed"
    assert rewritten(text)[0] == text


def test_a_ported_notebook_runs(here: Path, tiny_model_dir: Path) -> None:
    codes = [*re.split(r"\n\n+(?=\S)", COURSE.strip())]
    cells = [{"cell_type": "code", "metadata": {}, "outputs": [], "source": code.splitlines(True)} for code in codes]
    found = ported_notebook(json.dumps({"cells": cells, "nbformat": 4}), "n")
    known: dict[str, Any] = {"MODEL": str(tiny_model_dir)}
    for cell in json.loads(found.text)["cells"]:
        exec("".join(cell["source"]), known)
    assert known["found"] >= 0
    assert isinstance(known["trainer"], glassloop.Trainer)


def test_the_command_writes_a_script_and_a_document(here: Path) -> None:
    (here / "old.py").write_text(COURSE, encoding="utf-8")
    found = run_command("port", "old.py", "--out", "new.py", "--json", folder=here)
    document = json.loads(found.out)
    assert found.code == 0
    assert document["changed"]
    assert document["removed"] == document["not_translated"] == document["differs"] == document["suggestions"] == []
    assert (here / "new.py").read_text(encoding="utf-8") == rewritten(COURSE)[0]


@pytest.mark.skipif(not NOTES.is_dir(), reason="the course notes are not here: they lie beside the project, not in it")
@pytest.mark.parametrize("number", range(5))
def test_the_course_notes_are_ported(number: int) -> None:
    """Every block that is Python loses the imports that no longer work."""
    text = sorted(NOTES.glob("*.txt"))[number].read_text(encoding="utf-8")
    blocks = [block.partition("\n---")[0] for block in re.findall(r"```[ \w]*\n(.*?)```", text, flags=re.DOTALL)]
    cells = [{"cell_type": "code", "source": block} for block in blocks]
    after = [cell["source"] for cell in json.loads(ported_notebook(json.dumps({"cells": cells}), "n").text)["cells"]]
    lines = [line for block in after for line in block.splitlines()]
    gone = ("AdamW", "load_metric", "Trainer", "TrainingArguments", "evaluate")
    for line in lines:
        words = line.replace(",", " ").split()
        if words[:2] in (["from", "transformers"], ["from", "datasets"], ["import", "evaluate"]):
            assert not {*words} & {*gone}, line
