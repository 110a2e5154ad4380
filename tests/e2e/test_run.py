"""Scripts and notebooks of several years run unchanged with `glassloop run`, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import environment, run_command, run_forked, write_notebook
from trials import Servers

TEXTS = """
TEXTS = ["a very good film", "i love this movie", "a dull story", "terrible acting"] * 6
LABELS = [1, 1, 0, 0] * 6
"""

# 2020: keras pads, a loop over a TensorDataset, AdamW of transformers, outputs[0].
TENSOR_DATASETS = """
import torch
from keras.preprocessing.sequence import pad_sequences
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from transformers import BertForSequenceClassification, BertTokenizer, get_linear_schedule_with_warmup
from texts import LABELS, TEXTS

tokenizer = BertTokenizer.from_pretrained("bert-base-uncased", do_lower_case=True)
ids = [tokenizer.encode(text, add_special_tokens=True) for text in TEXTS]
ids = pad_sequences(ids, maxlen=16, dtype="long", value=0, truncating="post", padding="post")
masks = [[int(number > 0) for number in row] for row in ids]
data = TensorDataset(torch.tensor(ids), torch.tensor(masks), torch.tensor(LABELS))
loader = DataLoader(data, sampler=RandomSampler(data), batch_size=8)
model = BertForSequenceClassification.from_pretrained("bert-base-uncased", num_labels=2, output_attentions=False)
from transformers import AdamW  # after the model was loaded

optimizer = AdamW(model.parameters(), lr=2e-5, eps=1e-8)
scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=0, num_training_steps=len(loader))
for b_ids, b_mask, b_labels in loader:
    model.zero_grad()
    loss = model(b_ids, token_type_ids=None, attention_mask=b_mask, labels=b_labels)[0]
    loss.backward()
    optimizer.step()
    scheduler.step()
model.eval()
with torch.no_grad():
    logits = model(b_ids, attention_mask=b_mask)[0]
print("rows", len(data), len(logits), "steps", scheduler.last_epoch)
"""

# 2020: a module around BertModel that unpacks its outputs, encode_plus, correct_bias=False.
OWN_MODULE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import AdamW, BertModel, BertTokenizer
from texts import LABELS, TEXTS

NAME = "bert-base-uncased"
tokenizer = BertTokenizer.from_pretrained(NAME)


class Reviews(Dataset):
    def __len__(self):
        return len(TEXTS)

    def __getitem__(self, item):
        encoding = tokenizer.encode_plus(
            TEXTS[item], add_special_tokens=True, max_length=4, return_token_type_ids=False, pad_to_max_length=True,
            return_attention_mask=True, return_tensors="pt",
        )
        return encoding["input_ids"].flatten(), encoding["attention_mask"].flatten(), torch.tensor(LABELS[item])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.bert = BertModel.from_pretrained(NAME)
        self.out = nn.Linear(self.bert.config.hidden_size, 2)

    def forward(self, ids, mask):
        _, pooled = self.bert(input_ids=ids, attention_mask=mask)
        return self.out(pooled)


model = Classifier()
optimizer = AdamW(model.parameters(), lr=2e-5, correct_bias=False)
loader = DataLoader(Reviews(), batch_size=8)
for ids, mask, labels in loader:
    assert ids.shape == (8, 4), ids.shape
    nn.functional.cross_entropy(model(ids, mask), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
print("steps", len(loader))
"""

# 2020: loss, logits = model(...); the library nlp; columns that are tensors; NumPy, pandas and scikit-learn of that time.
TUPLES = """
import nlp
import numpy as np
import pandas as pd
import torch
from sklearn.metrics import mean_squared_error
from sklearn.utils.class_weight import compute_class_weight
from texts import LABELS, TEXTS
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.modeling_bert import BertModel
from transformers.optimization import AdamW

tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
weights = compute_class_weight("balanced", np.unique(LABELS), LABELS)
assert [*weights] == [1, 1] and mean_squared_error([1, 2], [1, 4], squared=False) == 2 ** 0.5
frame = pd.DataFrame({"text": TEXTS[:2]}).append({"text": "x"}, ignore_index=True)
assert len(frame) == np.int(3)
batch = tokenizer.batch_encode_plus(TEXTS, pad_to_max_length=True, max_length=12, return_tensors="pt")
pairs = tokenizer.batch_encode_plus([("a film", "a movie"), ("good", "bad")], pad_to_max_length=True, max_length=12)
assert sum(pairs["token_type_ids"][0]) == 3 and len(pairs["input_ids"][1]) == 12
tokens = tokenizer.encode_plus(tokenizer.tokenize("a wonderful film"), max_length=10, pad_to_max_length=True)
assert len(tokens["input_ids"]) == 10 and tokenizer.max_len == 512
model = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased", num_labels=2)
optimizer = AdamW(model.parameters(), lr=5e-5)
loss, logits = model(batch["input_ids"], attention_mask=batch["attention_mask"], labels=torch.tensor(LABELS))
loss.backward()
optimizer.step()
assert isinstance(model.bert, BertModel)
raw = nlp.Dataset.from_dict({"text": TEXTS, "label": LABELS})
assert len(tokenizer(raw["text"])["input_ids"]) == len(raw["text"] + ["more"]) - 1
raw.set_format("torch", columns=["label"])
print(torch.bincount(raw["label"]).tolist(), {**model(**batch)}.keys())
"""

# 2020: rows for GLUE as transformers made them, options of that time, and the Trainer.
GLUE_ROWS = """
import numpy as np
from texts import LABELS, TEXTS
from torch.utils.data import Dataset
from transformers import (
    BertForSequenceClassification, BertTokenizer, EvalPrediction, HfArgumentParser, InputExample, Trainer, TrainingArguments,
    glue_compute_metrics, glue_convert_examples_to_features, glue_tasks_num_labels, is_torch_tpu_available,
)

tokenizer = BertTokenizer.from_pretrained("bert-base-uncased")
examples = [InputExample(str(row), text, None, str(label)) for row, (text, label) in enumerate(zip(TEXTS, LABELS))]
features = glue_convert_examples_to_features(examples, tokenizer, label_list=["0", "1"], max_length=16)
options = ["--output_dir", "out", "--do_train", "--num_train_epochs", "1", "--per_gpu_train_batch_size", "8"]
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(options + ["--evaluate_during_training"])


class Rows(Dataset):
    def __len__(self):
        return len(features)

    def __getitem__(self, row):
        return features[row]


def compute_metrics(p: EvalPrediction):
    return glue_compute_metrics("mrpc", np.argmax(p.predictions, axis=1), p.label_ids)


model = BertForSequenceClassification.from_pretrained("bert-base-uncased", num_labels=glue_tasks_num_labels["mrpc"])
sets = {"train_dataset": Rows(), "eval_dataset": Rows()}
trainer = Trainer(model=model, args=args, compute_metrics=compute_metrics, tb_writer=None, **sets)
trainer.train()
print("backend", trainer.backend.name, "eval_acc_and_f1" in trainer.evaluate(), is_torch_tpu_available())
"""

# 2021 to 2023: Accelerate with its former arguments, evaluate, a bar for notebooks.
ACCELERATE = """
import evaluate
from accelerate import Accelerator
from datasets import Dataset, load_metric
from torch.utils.data import DataLoader
from tqdm.notebook import tqdm
from transformers import AdamW, AutoModelForSequenceClassification, AutoTokenizer, get_scheduler
from texts import LABELS, TEXTS

accelerator = Accelerator(fp16=False, dispatch_batches=None, cpu=True)
tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased", use_fast=True)
rows = Dataset.from_dict({**tokenizer(TEXTS, padding="max_length", max_length=9), "labels": LABELS})
rows.set_format("torch")
model = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased", num_labels=2)
optimizer = AdamW(params=model.parameters(), lr=5e-5, no_deprecation_warning=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(rows, shuffle=True, batch_size=8))
schedule = get_scheduler(name="linear", optimizer=optimizer, num_warmup_steps=0, num_training_steps=len(loader))
metric, single = evaluate.combine(["accuracy", "f1"]), load_metric("accuracy")
for batch in tqdm(loader):
    outputs = model(**batch)
    accelerator.backward(outputs.loss)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    found = accelerator.gather(outputs.logits.argmax(-1))
    metric.add_batch(predictions=found, references=batch["labels"])
    single.add_batch(predictions=found, references=batch["labels"])
assert metric.compute()["accuracy"] == single.compute()["accuracy"]
accelerator.print("done", schedule.last_epoch)
"""
# 2022: a model that Glassloop does not train, with former arguments of the Trainer.
TOKENS = """
from transformers import AutoModelForTokenClassification, AutoTokenizer, DataCollatorForTokenClassification
from transformers import Trainer, TrainingArguments
from texts import TEXTS

tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
model = AutoModelForTokenClassification.from_pretrained("bert-base-uncased", num_labels=3)
rows = [dict(tokenizer(text)) for text in TEXTS]
for row in rows:
    row["labels"] = [-100] + [1] * (len(row["input_ids"]) - 2) + [-100]
args = TrainingArguments("out", evaluation_strategy="epoch", num_train_epochs=1, overwrite_output_dir=True, report_to="none")
collator = DataCollatorForTokenClassification(tokenizer)
trainer = Trainer(model, args, train_dataset=rows, eval_dataset=rows, tokenizer=tokenizer, data_collator=collator)
trainer.train()
print("predicted", trainer.predict(rows).predictions.shape[::2])
"""
SCRIPTS = {
    "tokens": (TOKENS, "predicted (24, 3)", ["AutoModelForTokenClassification", "TrainingArguments(evaluation_strategy=)"]),
    "tensor_datasets": (TENSOR_DATASETS, "rows 24 8 steps 3", ["keras.preprocessing.sequence", "transformers.AdamW"]),
    "own_module": (OWN_MODULE, "steps 3",
                   ["tokenizer.encode_plus", "tokenizer(pad_to_max_length=)", "loss, logits = model(...)"]),
    "tuples": (TUPLES, "[12, 12] dict_keys(['logits'])",
               ["nlp", "numpy.int", "DataFrame.append", "transformers.modeling_bert"]),
    "glue_rows": (GLUE_ROWS, "backend packed True False",
                  ["transformers.Trainer", "Trainer(tb_writer=)", "transformers.InputExample"]),
    "accelerate": (ACCELERATE, "done 3", ["Accelerator(fp16=)", 'evaluate.load("f1")', "tqdm.notebook.tqdm"]),
}  # fmt: skip


def written(folder: Path, code: str, name: str = "train.py") -> str:
    (folder / "texts.py").write_text(TEXTS)
    (folder / name).write_text(code)
    return name


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_of_another_year_runs_unchanged(name: str, english_bert: Path, tmp_path: Path) -> None:
    code, said, substituted = SCRIPTS[name]
    script = written(tmp_path, code)
    done = run_command("run", "--model_map", f"bert-base-uncased={english_bert}", script, folder=tmp_path, HF_HUB_OFFLINE="1")
    assert done.code == 0, done.err
    assert said in done.out
    for one in [*substituted, 'model "bert-base-uncased"']:
        assert any(one in line and "train.py:" in line for line in done.err.splitlines()), f"{one}\n{done.err}"
    assert not [name for name in substituted if f"{name} ->" in done.out], "the list belongs on standard error"


# --- as Python runs it -------------------------------------------------------------------------------------------
def test_a_script_sees_its_own_arguments_name_and_folder(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    script = tmp_path / "inner" / "script.py"
    script.write_text("import sys, helper\nprint(sys.argv, __name__, __file__, sys.path[0])\nprint(input())\nsys.exit(7)\n")
    (tmp_path / "inner" / "helper.py").write_text("")
    arguments = ["inner/script.py", "--json", "--resume", "--debug", "-h", "--", "x"]
    command = [sys.executable, "-m", "glassloop", "run", *arguments]
    how = {"cwd": tmp_path, "env": environment(), "input": "typed\n"}
    done = subprocess.run(command, **how, capture_output=True, text=True, check=False)
    assert done.stdout == f"{arguments} __main__ inner/script.py {script.parent}\ntyped\n"
    assert done.returncode == 7
    assert "nothing was substituted" in done.stderr


def test_a_traceback_shows_the_lines_of_the_script_and_what_was_substituted(servers: Servers, tmp_path: Path) -> None:
    code = "import numpy as np\n\n\ndef broken():\n    return np.float('x')\n\n\nbroken()\n"
    (done,) = run_forked(servers, ["run", written(tmp_path, code)], folder=tmp_path)
    assert done.code == 1
    assert "    return np.float('x')" in done.err
    assert 'File "train.py", line 5, in broken' in done.err
    assert "glassloop/compat" not in done.err.partition("ValueError")[0]
    assert "numpy.float -> builtins.float (train.py:5)" in done.err


def test_other_processes_and_libraries_are_not_changed(tmp_path: Path) -> None:
    code = """
import json, os, subprocess, sys
import transformers
from transformers import AdamW, Trainer
from transformers.trainer_seq2seq import Seq2SeqTrainer
assert "glassloop" in Trainer.__module__
assert [kind.__module__ for kind in Seq2SeqTrainer.__mro__][1] == "transformers.trainer"
import numpy
numpy.int
child = subprocess.run([sys.executable, "-c", "import numpy; numpy.int"], capture_output=True, text=True)
print("has no attribute 'int'" in child.stderr, [name for name in os.environ if "GLASSLOOP" in name])
"""
    clean = {name: "" for name in os.environ if name.startswith("GLASSLOOP")}
    done = run_command("run", written(tmp_path, code), folder=tmp_path, **clean)
    assert done.code == 0, done.err
    assert done.out.startswith("True ")


# --- notebooks ---------------------------------------------------------------------------------------------------
def test_the_cells_of_a_notebook_run_in_order_without_magics(servers: Servers, tmp_path: Path) -> None:
    first = "!pip install transformers\n%matplotlib inline\nx = 3"
    shown = "from IPython.display import display\ndisplay(x)"
    write_notebook(tmp_path / "lesson.ipynb", [first, "%%bash\nls", shown, "x + 1", "x;", "1 / 0", "print('after')"])
    done, again = run_forked(
        servers, ["run", "lesson.ipynb"], ["run", "--allow_errors", "--json", "lesson.ipynb"], folder=tmp_path
    )
    assert (done.code, done.out) == (1, "3\n4\n")
    assert 'File "lesson.ipynb, cell 6", line 1' in done.err
    assert "1 / 0" in done.err
    assert "lesson.ipynb, cell 1, line 1: !pip install transformers" in done.err
    assert "lesson.ipynb, cell 2, line 1: %%bash and the rest of the cell" in done.err
    assert again.code == 1
    assert json.loads(again.out)["failed"] == ["lesson.ipynb, cell 6"]
    assert "after" in again.err
    assert "6 of 7 cells ran" in again.err


def test_what_cannot_be_served_says_what_to_do(tmp_path: Path) -> None:
    """A name without a successor, a model and data that are not here: errors with advice, and nothing in their place."""
    cells = [
        "from transformers import GlueDataset",
        "from transformers import AutoTokenizer\nAutoTokenizer.from_pretrained('bert-base-uncased')",
        "from datasets import load_dataset\nload_dataset('glue', 'mrpc')",
    ]
    write_notebook(tmp_path / "missing.ipynb", cells)
    place = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "empty")}
    done = run_command("run", "--allow_errors", "missing.ipynb", folder=tmp_path, **place)
    assert done.code == 1
    assert "0 of 3 cells ran" in done.err
    assert "ImportError: cannot import name 'GlueDataset'" in done.err
    assert 'load the data with datasets.load_dataset("glue", task)' in done.err
    assert "--model_map bert-base-uncased=FOLDER" in done.err
    assert "set GLASSLOOP_DATA to the folder that contains glue/MRPC/" in done.err
