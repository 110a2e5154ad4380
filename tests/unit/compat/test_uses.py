"""Findings name their line, and in a notebook their cell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import glassloop
from glassloop.compat.port import DIFFERS, NOT_TRANSLATED, SUGGESTED, Finding, Ported, rewritten
from glassloop.training.losses import make_loss


def test_a_finding_names_its_place() -> None:
    found = Finding(12, "generate", "not here")
    assert str(found) == "line 12: generate: not here"
    assert str(replace(found, cell=3, line=3)) == "cell 3, line 3: generate: not here"


def test_a_port_without_a_difference_changed_nothing() -> None:
    assert not Ported("x", before="x", after="x").changed
    assert Ported("y", before="x", after="y").changed


# --- A Trainer that overrides `compute_loss` only for a usual loss gets a suggestion whose code computes the same.


START = """
import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import Trainer, TrainingArguments
"""

METHOD = """
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        LOSS
        return (loss, outputs) if return_outputs else loss
"""

PLAIN = "class Mine(Trainer):" + METHOD

WITH_WEIGHTS = """
class Mine(Trainer):
    def __init__(self, *args, class_weights=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.class_weights = torch.tensor(class_weights, dtype=torch.float).to(self.args.device)
METHOD
trainer = Mine(model=model, class_weights=[1.0, 3.0])
""".replace("METHOD", METHOD)

FOCAL_CLASS = """
class FocalLoss(nn.Module):
    def __init__(self, gamma=2.0, reduction="mean"):
        super().__init__()
        self.gamma, self.reduction = gamma, reduction

    def forward(self, logits, labels):
        losses = F.cross_entropy(logits, labels, reduction="none")
        losses = (1 - torch.exp(-losses)) ** self.gamma * losses
        return losses.mean() if self.reduction == "mean" else losses
"""

# The class, the statements of its loss, and a line of the suggestion.
SUGGESTIONS = {
    "weights of a list": (
        PLAIN,
        ["f = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0], device=model.device))", "loss = f(outputs.logits, labels)"],
        "class_weights=[1.0, 3.0]",
    ),
    "weights of a variable": (
        "weights = torch.tensor(balanced())\n" + PLAIN,
        [
            "logits = outputs.get('logits').view(-1, self.model.config.num_labels)",
            "loss = F.cross_entropy(logits, labels.view(-1), weight=weights)",
        ],
        "class_weights=[*map(float, weights)]",
    ),
    "weights of an argument": (
        WITH_WEIGHTS,
        ["loss = nn.CrossEntropyLoss(weight=self.class_weights)(outputs.logits, labels)"],
        "class_weights=[1.0, 3.0]",
    ),
    "weights that may be missing": (
        WITH_WEIGHTS,
        [
            "if self.class_weights is not None:",
            "    loss = F.cross_entropy(outputs.logits, labels, weight=self.class_weights)",
            "else:",
            "    loss = F.cross_entropy(outputs.logits, labels)",
        ],
        "class_weights=[1.0, 3.0]",
    ),
    "smoothing": (
        PLAIN,
        ["loss = nn.CrossEntropyLoss(label_smoothing=0.1)(outputs.logits, labels)"],
        "label_smoothing_factor=0.1",
    ),
    "the usual loss": (PLAIN, ["loss = F.cross_entropy(outputs.logits, labels)"], "use Trainer itself"),
    "several labels": (PLAIN, ["loss = nn.BCEWithLogitsLoss()(outputs.logits, labels.float())"], "multi_label_classification"),
}

# The same, and the loss as a function of logits and labels.
FUNCTIONS = {
    "focal": (
        PLAIN,
        ["ce = F.cross_entropy(outputs.logits, labels, reduction='none')", "loss = ((1 - torch.exp(-ce)) ** 1.5 * ce).mean()"],
    ),
    "focal loss of the script": (FOCAL_CLASS + PLAIN, ["loss = FocalLoss(gamma=1.5)(outputs.logits, labels)"]),
}

UNKNOWN = {
    "a second model": ["loss = F.cross_entropy(outputs.logits, labels) + distance(teacher(**inputs), outputs)"],
    "a sum": ["loss = F.cross_entropy(outputs.logits, labels) + 0.1 * F.cross_entropy(outputs.logits, labels, weight=w)"],
    "a column": ["loss = (F.cross_entropy(outputs.logits, labels, reduction='none') * inputs['weight']).mean()"],
    "a scaled focal loss": [
        "ce = F.cross_entropy(outputs.logits, labels, reduction='none')",
        "loss = (alpha * (1 - torch.exp(-ce)) ** 2 * ce).mean()",
    ],
    "a part of the logits": ["loss = F.cross_entropy(outputs.logits[:, :2], labels)"],
    "a step of its own": ["loss = F.cross_entropy(outputs.logits, labels)", "self.log({'loss': loss.item()})"],
    "ignored labels": ["loss = F.cross_entropy(outputs.logits, labels, ignore_index=0)"],
}


def suggestions(code: str, loss: list[str]) -> list[str]:
    script = START + code.replace("LOSS", "\n        ".join(loss))
    compile(script, "script.py", "exec")
    return [one.remedy for one in rewritten(script)[1] if one.kind == SUGGESTED]


@pytest.mark.parametrize("name", SUGGESTIONS)
def test_settings_are_suggested(name: str) -> None:
    code, loss, wanted = SUGGESTIONS[name]
    (found,) = suggestions(code, loss)
    assert wanted in found


@pytest.mark.parametrize("name", UNKNOWN)
def test_nothing_is_suggested_for_what_is_not_recognized(name: str) -> None:
    assert suggestions(PLAIN, UNKNOWN[name]) == []
    assert suggestions(PLAIN + "\n    def log(self, logs):\n        pass", SUGGESTIONS["smoothing"][1]) == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_suggested_function_returns_one_loss_per_row_with_the_same_mean(name: str) -> None:
    code, loss = FUNCTIONS[name]
    (found,) = suggestions(code, loss)
    lines = found.splitlines()[1:]
    known: dict[str, Any] = {}
    exec(START + (FOCAL_CLASS if "FocalLoss" in code else ""), known)
    passed: dict[str, Any] = {}
    exec("\n".join(lines).replace("trainer = Trainer(…, ", "made = dict("), known, passed)
    logits, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 0])
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    wanted = (1 - torch.exp(-losses)) ** 1.5 * losses
    torch.testing.assert_close(passed["made"]["loss"](logits, labels), wanted)


def test_settings_compute_the_loss_of_the_script_up_to_the_divisor_of_weights() -> None:
    logits, labels = torch.randn(5, 2), torch.tensor([0, 1, 1, 1, 0])
    weights = torch.tensor([1.0, 3.0])
    theirs = torch.nn.CrossEntropyLoss(weight=weights, label_smoothing=0.0)(logits, labels)
    ours = make_loss("single_label_classification", class_weights=weights)(logits, labels)
    torch.testing.assert_close(ours / weights[labels].sum(), theirs)
    assert glassloop.TrainingArguments("out", class_weights=[1.0, 3.0]).class_weights == "1.0,3.0"
    theirs = torch.nn.CrossEntropyLoss(label_smoothing=0.1)(logits, labels)
    torch.testing.assert_close(make_loss("single_label_classification", label_smoothing=0.1)(logits, labels) / 5, theirs)


# --- What a port cannot translate is reported with its line and its reason.


START_USES = "from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments\n"

REPORTED = {
    "from transformers import Seq2SeqTrainer": (1, "Seq2SeqTrainer", "sequence classification only"),
    "import transformers\nm = transformers.AutoModelForCausalLM": (2, "AutoModelForCausalLM", "sequence classification only"),
    START_USES + "model.generate(**inputs)": (2, "generate", "generated with transformers"),
    START_USES + "args = TrainingArguments('x', deepspeed='c.json')": (2, "deepspeed='c.json'", "--processes"),
    START_USES + "args = TrainingArguments('x', deepspeed=config)": (2, "deepspeed is refused, unless", "--processes"),
    START_USES + "args = TrainingArguments('x', learning_rat=1)": (2, 'unknown setting "learning_rat"', "lists all settings"),
    START_USES + "args = TrainingArguments('x', learning_rat=y)": (2, "learning_rat is not a setting", "remove it"),
    START_USES + "args = TrainingArguments('x', learning_rate=-1)": (2, "learning_rate is -1", ""),
    START_USES + "args = TrainingArguments('x', True)": (2, "more than one argument without a name", "name all"),
    START_USES + "class Mine(Trainer):\n    def _clip_grad_norm(self, model):\n        pass": (
        3,
        "Mine overrides _clip_grad_norm",
        "loss=",
    ),
    START_USES + "class A(Trainer):\n    pass\nclass B(A):\n    def evaluation_loop(self): pass": (
        5,
        "B overrides",
        "compute_metrics",
    ),
    START_USES + "class A(Trainer):\n    def log(self, x): self._save(1)": (3, "Trainer has no _save", "write_model"),
    START_USES + "t = Trainer()\nt._inner_training_loop()": (3, "Trainer has no _inner_training_loop", "plain_loop"),
    "from datasets import load_metric\nm = load_metric('bleu')": (2, "load_metric('bleu')", "no such metric"),
    "from transformers import glue_compute_metrics": (1, "glue_compute_metrics", "load_metric"),
    "import transformers\nfrom apex import amp": (2, "apex.amp", "fp16=True"),
    "from pytorch_pretrained_bert import BertAdam": (1, "pytorch_pretrained_bert.BertAdam", "use transformers"),
    "from transformers.data import xnli_compute_metrics": (
        1,
        "xnli_compute_metrics",
        "installed version of transformers does not",
    ),
}


@pytest.mark.parametrize("code", REPORTED)
def test_what_is_not_translated_is_reported_with_its_line(code: str) -> None:
    line, problem, remedy = REPORTED[code]
    (found,) = rewritten(code)[1]
    assert (found.line, found.kind) == (line, NOT_TRANSLATED)
    assert problem in found.problem
    assert remedy in found.remedy


@pytest.mark.parametrize(
    "code",
    [
        START_USES
        + "args = TrainingArguments('x', evaluation_strategy='epoch', fp16=False, dataloader_num_workers=4, deepspeed=None)",
        START_USES
        + "args = TrainingArguments('x', torch_compile=True, remove_unused_columns=False, label_names=['labels', 'star'])",
        START_USES
        + "args = TrainingArguments('x', train_sampling_strategy='sequential', warmup_steps=3, warmup_ratio=0.1, bf16=True)",
        START_USES + "class Mine(Trainer):\n    def _get_train_sampler(self, rows=None): return None",
        START_USES
        + "class Mine(Trainer):\n    def training_step(self, model, inputs, *rest): return self._prepare_inputs(inputs)",
        START_USES + "t = Trainer()\nprint(t._train_batch_size, t.args.train_batch_size, t.state.best_metric, t.label_names)",
        START_USES + "args = TrainingArguments('x', logging_steps=steps, **others)",
        START_USES + "class Mine(Trainer):\n    def compute_loss(self, model, inputs): pass",
        START_USES + "class Other:\n    def training_step(self): self._save()",
        START_USES + "t = Trainer()\nt.train()\nt.log_metrics('a', {})",
        "model.generate()",
        "from transformers import BertTokenizer, BertTokenizerFast, trainer_utils, logging",
        "from transformers.data import DataCollatorWithPadding\nfrom transformers import *\nfrom mine import *\n"
        "x = dict(a=print(y))",
        "from .transformers import Seq2SeqTrainer",
        "import transformers\ntry:\n    from apex import amp\n    from transformers import cached_path\n"
        "except ImportError:\n    amp = None",
        "from tqdm import tqdm_notebook\nfrom tqdm.notebook import tqdm\nimport numpy as np\nnp.float64(np.array(1))",
    ],
)
def test_what_works_is_not_reported(code: str) -> None:
    assert rewritten(code)[1] == []


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("t = Trainer()\nt.train()\nt.train()", 4),
        ("t = Trainer()\nfor _ in range(3):\n    t.train()", 4),
        ("t = Trainer()\nt.train()\nif more:\n    t.train()", 5),
    ],
)
def test_a_second_training_runs_differently(code: str, line: int) -> None:
    (found,) = rewritten(START_USES + code)[1]
    assert (found.line, found.kind) == (line, DIFFERS)
    assert "new optimizer" in found.remedy


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("t = Trainer(args=TrainingArguments('x', group_by_length=True))\np = t.predict(rows)", "order of the rows"),
        ("t = Trainer()\nloss = t.train(resume_from_checkpoint=True).training_loss", "mean over all steps"),
        ("t = Trainer()\nm = t.train('checkpoint-5').metrics\nprint(m['train_loss'])", "mean over all steps"),
    ],
)
def test_results_that_differ_are_reported_if_a_script_reads_them(code: str, remedy: str) -> None:
    (found,) = rewritten(START_USES + code)[1]
    assert (found.line, found.kind) == (3, DIFFERS)
    assert remedy in found.remedy


@pytest.mark.parametrize(
    "code",
    [
        "t = Trainer(args=TrainingArguments('x', group_by_length=False))\np = t.predict(rows)",
        "t = Trainer(args=TrainingArguments('x', group_by_length=True))\nt.evaluate()",
        "t = Trainer()\nt.train(resume_from_checkpoint=True)",
        "t = Trainer()\nloss = t.train(resume_from_checkpoint=None).training_loss",
        "for _ in range(3):\n    t = Trainer()\n    t.train()",
        "t = Trainer()\nif again:\n    t.train(resume_from_checkpoint=True)\nelse:\n    t.train()",
        "t = Trainer()\nt.train()\nt = Trainer()\nt.train()",
        "def f():\n    t = Trainer()\n    t.train()\ndef g():\n    t = Trainer()\n    t.train()",
    ],
)
def test_what_gives_equal_results_is_not_reported(code: str) -> None:
    assert rewritten(START_USES + code)[1] == []


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("given = {'deepspeed': 'x.json'}\nargs = TrainingArguments('x', **given)", "deepspeed='x.json'"),
        ("args = TrainingArguments('x', **dict(deepspeed='x.json'))", "deepspeed='x.json'"),
        ("args = TrainingArguments('x')\nargs.deepspeed = 'x.json'", "deepspeed='x.json'"),
        ("t = Trainer(tb_writer=w)", "Trainer has no argument tb_writer"),
        ("t = Trainer()\nt._globalstep_last_logged", "Glassloop's Trainer has no _globalstep_last_logged"),
        ("def f(trainer: Trainer):\n    return trainer._inner_training_loop()", "Trainer has no _inner_training_loop"),
        ("from transformers import AdamW\no = AdamW(p, correct_bias=False)", "correct_bias=False"),
    ],
)
def test_what_an_object_is_decides_what_is_reported(code: str, problem: str) -> None:
    (found,) = rewritten(START_USES + code)[1]
    assert problem in found.problem
    assert found.kind == NOT_TRANSLATED
