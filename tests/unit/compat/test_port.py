"""A port: rewritten imports, names and arguments, what is reported with its line, suggestions, notebooks and the diff."""

from __future__ import annotations

import cProfile
import difflib
import json
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

import glassloop
from glassloop.base.errors import DataError
from glassloop.compat.port import DIFFERS, NOT_TRANSLATED, SUGGESTED, Finding, Ported, difference, ported_notebook, rewritten
from glassloop.training.losses import make_loss

# --- imports, names and arguments are rewritten; comments and layout stay; a second run changes nothing
# What the script has -> what it has afterwards.
REWRITTEN = {
    "split": (
        "from transformers import AdamW, AutoTokenizer, Trainer\n",
        "from transformers import AutoTokenizer\nfrom glassloop import AdamW, Trainer\n",
    ),
    "several lines": (
        "from transformers import (\n    AdamW,  # old\n    AutoTokenizer,  # words\n    Trainer,\n)  # end\n",
        "from transformers import (\n    AutoTokenizer,  # words\n)  # end\nfrom glassloop import AdamW, Trainer  # old\n",
    ),
    "own names": (
        "from transformers import Trainer as T, pipeline as p\n",
        "from transformers import pipeline as p\nfrom glassloop import Trainer as T\n",
    ),
    "submodules": (
        "from transformers.trainer import Trainer\nfrom transformers.training_args import TrainingArguments\n",
        "from glassloop import Trainer\nfrom glassloop import TrainingArguments\n",
    ),
    "in a function": (
        "def f():\n    from transformers import Trainer, set_seed\n    return Trainer\n",
        "def f():\n    from transformers import set_seed\n    from glassloop import Trainer\n    return Trainer\n",
    ),
    "on one line": (
        "import os; from transformers import Trainer, set_seed\n",
        "import os; from transformers import set_seed; from glassloop import Trainer\n",
    ),
    "package": (
        "import transformers\nt = transformers.Trainer(transformers.AutoModel)\n",
        "import transformers\nimport glassloop\nt = glassloop.Trainer(transformers.AutoModel)\n",
    ),
    "package with a name": (
        "import os, transformers as tf\nclass A(tf.trainer.Trainer): pass\n",
        "import os\nimport glassloop\nclass A(glassloop.Trainer): pass\n",
    ),
    "module": (
        "from transformers import trainer\nt = trainer.Trainer()\n",
        "from transformers import trainer\nimport glassloop\nt = glassloop.Trainer()\n",
    ),
    "two packages": (
        "import transformers\nimport evaluate\nt = transformers.Trainer(transformers.x)\nm = evaluate.load('accuracy')\n",
        "import transformers\nimport glassloop\nt = glassloop.Trainer(transformers.x)\nm = glassloop.load_metric('accuracy')\n",
    ),
    "metric of datasets": (
        "from datasets import Dataset, load_metric\nm = load_metric('glue', 'mrpc')\n",
        "from datasets import Dataset\nfrom glassloop import load_metric\nm = load_metric('glue', 'mrpc')\n",
    ),
    "metric of evaluate": (
        "from evaluate import load\nm = load('glue', 'mrpc')\n",
        "from glassloop import load_metric as load\nm = load('glue', 'mrpc')\n",
    ),
    "metric with our name": (
        "from evaluate import load as load_metric\nm = load_metric('f1')\n",
        "from glassloop import load_metric\nm = load_metric('f1')\n",
    ),
    "some metrics": (
        "import evaluate\na = evaluate.load('f1')\nb = evaluate.load('bleu')\n",
        "import evaluate\nimport glassloop\na = glassloop.load_metric('f1')\nb = evaluate.load('bleu')\n",
    ),
    "some data": (
        "from datasets import load_dataset\na = load_dataset('glue', 'mrpc')\nb = load_dataset('x')\n",
        "from datasets import load_dataset\nimport glassloop\n"
        "a = glassloop.load_dataset('glue', 'mrpc')\nb = load_dataset('x')\n",
    ),
    "an argument on its own line": (
        "from datasets import load_metric\nm = load_metric(\n    'f1',  # score\n    cache_dir='x',  # gone\n)\n",
        "from glassloop import load_metric\nm = load_metric(\n    'f1',  # score\n)\n",
    ),
    "accelerator": (
        "from accelerate import Accelerator\na = Accelerator(fp16=True, cpu=True)\nb = Accelerator(cpu=True, fp16=False)\n",
        'from accelerate import Accelerator\na = Accelerator(mixed_precision="fp16", cpu=True)\nb = Accelerator(cpu=True)\n',
    ),
    "accelerator with a variable": (
        "import accelerate\na = accelerate.Accelerator(fp16=args.half)\n",
        'import accelerate\na = accelerate.Accelerator(mixed_precision="fp16" if args.half else "no")\n',
    ),
    "old tokenizers": (
        "from transformers import AutoTokenizer\na = t.encode_plus('x', pad_to_max_length=True)\n"
        "b = t.batch_encode_plus(x, pad_to_max_length=p, max_length=8)\nc = t(x, pad_to_max_length=False)\n",
        "from transformers import AutoTokenizer\na = t('x', padding=\"max_length\")\n"
        'b = t(x, padding="max_length" if p else False, max_length=8)\nc = t(x)\n',
    ),
    "removed with its comment": (
        "import transformers\nt = transformers.Trainer()\n\n# scores\nimport evaluate\nm = evaluate.load('f1')\n",
        "import glassloop\nt = glassloop.Trainer()\n\n# scores\nimport glassloop\nm = glassloop.load_metric('f1')\n",
    ),
    "in two functions": (
        "def f():\n    import evaluate\n    return evaluate.load('f1')\n"
        "def g():\n    import evaluate\n    evaluate.load('f1')\n",
        "def f():\n    import glassloop\n    return glassloop.load_metric('f1')\n"
        "def g():\n    import glassloop\n    glassloop.load_metric('f1')\n",
    ),
    "a star": (
        "from transformers import *\nt = Trainer(args=TrainingArguments('x'))\n",
        "from transformers import *\nfrom glassloop import Trainer, TrainingArguments\n"
        "t = Trainer(args=TrainingArguments('x'))\n",
    ),
    "the library nlp": (
        "import nlp\nfrom nlp import load_dataset, load_metric\n"
        "d = load_dataset('imdb')\nm = load_metric('f1', cache_dir='x')\n",
        "import datasets as nlp\nfrom datasets import load_dataset\nfrom glassloop import load_metric\n"
        "d = load_dataset('imdb')\nm = load_metric('f1')\n",
    ),
    "a variable task of GLUE": (
        "from datasets import load_dataset\nimport evaluate\nd = load_dataset('glue', task)\nm = evaluate.load('glue', task)\n",
        "from glassloop import load_dataset\nimport glassloop\nd = load_dataset('glue', task)\n"
        "m = glassloop.load_metric('glue', task)\n",
    ),
    "the year 2019": (
        "from pytorch_transformers import AdamW, BertTokenizer, WarmupLinearSchedule\n"
        "s = WarmupLinearSchedule(o, warmup_steps=1, t_total=9)\n",
        "from glassloop import AdamW\nfrom transformers import BertTokenizer, "
        "get_linear_schedule_with_warmup as WarmupLinearSchedule\n"
        "s = WarmupLinearSchedule(o, num_warmup_steps=1, num_training_steps=9)\n",
    ),
    "modules of 2020": (
        "from transformers.modeling_bert import BertPreTrainedModel\n"
        "from transformers.tokenization_bert_fast import BertTokenizerFast\n"
        "from transformers.trainer_utils import EvaluationStrategy, set_seed\n",
        "from transformers.models.bert.modeling_bert import BertPreTrainedModel\n"
        "from transformers.models.bert.tokenization_bert import BertTokenizerFast\n"
        "from transformers.trainer_utils import IntervalStrategy as EvaluationStrategy, set_seed\n",
    ),
    "other libraries": (
        "import numpy as np\nfrom sklearn.externals import joblib\nfrom sklearn.cross_validation import KFold\n"
        "from collections import Mapping, OrderedDict\nimport time\nx = np.zeros(3, dtype=np.int) + np.float_(time.clock())\n",
        "import numpy as np\nimport joblib\nfrom sklearn.model_selection import KFold\n"
        "from collections import OrderedDict\nfrom collections.abc import Mapping\nimport time\n"
        "x = np.zeros(3, dtype=int) + np.float64(time.perf_counter())\n",
    ),
    "tuples of models": (
        "from transformers import BertForSequenceClassification as B\nm = B.from_pretrained('x').to(d)\n"
        "loss, logits = m(**batch)\na, b = m(x, return_dict=False)\nc, d = other(x)\n",
        "from transformers import BertForSequenceClassification as B\nm = B.from_pretrained('x').to(d)\n"
        "loss, logits = m(**batch)[:2]\na, b = m(x, return_dict=False)\nc, d = other(x)\n",
    ),
    "former names of attributes": (
        "from transformers import AutoTokenizer, Trainer\nt = Trainer(tokenizer=AutoTokenizer.from_pretrained('x'))\n"
        "if t.is_world_master(): n = AutoTokenizer.from_pretrained('x').max_len\n",
        "from transformers import AutoTokenizer\nfrom glassloop import Trainer\n"
        "t = Trainer(tokenizer=AutoTokenizer.from_pretrained('x'))\n"
        "if t.is_world_process_zero(): n = AutoTokenizer.from_pretrained('x').model_max_length\n",
    ),
    "data sets changed in place": (
        "from datasets import load_dataset\nimport transformers\nd = load_dataset('x')\nd.rename_column_('a', 'b')\n",
        "from datasets import load_dataset\nimport transformers\nd = load_dataset('x')\nd = d.rename_column('a', 'b')\n",
    ),
    "telemetry of examples": (
        "from transformers.utils import check_min_version, send_example_telemetry\n\n"
        "def main():\n    send_example_telemetry('run', args)\n    check_min_version('4')\n",
        "from transformers.utils import check_min_version\n\ndef main():\n    check_min_version('4')\n",
    ),
    "telemetry alone in its block": (
        "from transformers.utils import send_example_telemetry\nif online:\n    send_example_telemetry('run', args)\n",
        "if online:\n    pass\n",
    ),
    "a model to continue with": (
        "from transformers import Trainer\nt = Trainer()\nt.train(model_path=path)\n",
        "from glassloop import Trainer\nt = Trainer()\nt.train(resume_from_checkpoint=path)\n",
    ),
    "line ends of Windows": (
        "from transformers import Trainer, set_seed\r\nset_seed(1)\r\n",
        "from transformers import set_seed\r\nfrom glassloop import Trainer\r\nset_seed(1)\r\n",
    ),
}

# Here only the name of the library changes.
RENAMED = [
    "from transformers import Trainer\n",
    "from transformers import (\n    Trainer,  # loop\n    TrainingArguments,\n)\n",
    "try:\n    from transformers import AdamW\nexcept ImportError:\n    from torch.optim import AdamW\n",
    "if True: from transformers import Trainer\n",
    "import transformers\nt = transformers.Trainer()\n",
    "from datasets import load_dataset\nd = load_dataset('glue', 'mrpc')\n",
    "from transformers import TrainingArguments as A\na = A(\n    'o',  # out\n    fp16=True,  # half\n    seed=2,\n)\n",
    "import transformers\nBase = transformers.Trainer\nclass Mine(Base):\n    pass\n",
    "import transformers\né = 'ü'; t = f(é, transformers.Trainer('ß', fp16=True), 'é')\n",
]
REWRITTEN |= {code: (code, re.sub(r"\b(transformers|datasets)\b", "glassloop", code)) for code in RENAMED}
UNCHANGED = [
    "x  =  1   # odd   layout\n\n\n\nif x :\n\ty = (1,\n  2)",
    "from transformers import EarlyStoppingCallback, TrainerCallback, set_seed\n",
    "from glassloop import Trainer\n",
    "from .transformers import Trainer\n",
    "from mine import Trainer\nTrainer()\n",
    "from datasets import load_dataset\nd = load_dataset('imdb')\n",
    "from datasets import load_dataset\nd = load_dataset(name)\n",
    "transformers = 1\ntransformers.Trainer\n",
    "def f(transformers):\n    return transformers.Trainer\n",
    "from transformers import AutoModelForTokenClassification, Trainer\n",
    "text = 'from transformers import Trainer'\n",
    "import evaluate\nm = evaluate.load('bleu')\n",
    "codec.encode_plus(pad_to_max_length=True)\n",
]


@pytest.mark.parametrize(("before", "after"), REWRITTEN.values(), ids=REWRITTEN)
def test_a_script_is_rewritten(before: str, after: str) -> None:
    assert rewritten(before)[0] == after
    assert rewritten(after)[0] == after, "a second run changes nothing"


def test_everything_else_stays() -> None:
    assert [code for code in UNCHANGED if rewritten(code)[0] != code] == []


# --- what a port cannot translate, and what runs differently, is reported with its line
START = "from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments\n"

# What follows these imports -> the line, a part of the problem, and a part of the remedy.
OF_TRAINER = {
    "model.generate(**inputs)": (2, "generate", "generated with transformers"),
    "args = TrainingArguments('x', deepspeed='c.json')": (2, "deepspeed='c.json'", "--processes"),
    "args = TrainingArguments('x', deepspeed=config)": (2, "deepspeed is refused, unless", "--processes"),
    "given = {'deepspeed': 'x.json'}\nargs = TrainingArguments('x', **given)": (2, "deepspeed='x.json'", ""),
    "args = TrainingArguments('x', **dict(deepspeed='x.json'))": (2, "deepspeed='x.json'", ""),
    "args = TrainingArguments('x')\nargs.deepspeed = 'x.json'": (3, "deepspeed='x.json'", ""),
    "args = TrainingArguments('x', learning_rat=1)": (2, 'unknown setting "learning_rat"', "lists all settings"),
    "args = TrainingArguments('x', learning_rat=y)": (2, "learning_rat is not a setting", "remove it"),
    "args = TrainingArguments('x', learning_rate=-1)": (2, "learning_rate is -1", ""),
    "args = TrainingArguments('x', True)": (2, "more than one argument without a name", "name all"),
    "class Mine(Trainer):\n    def _clip_grad_norm(self, model):\n        pass": (3, "Mine overrides _clip_grad_norm", "loss="),
    "class A(Trainer):\n    pass\nclass B(A):\n    def evaluation_loop(self): pass": (5, "B overrides", "compute_metrics"),
    "class A(Trainer):\n    def log(self, x): self._save(1)": (3, "Trainer has no _save", "write_model"),
    "t = Trainer()\nt._inner_training_loop()": (3, "Trainer has no _inner_training_loop", "glassloop.fit"),
    "def f(trainer: Trainer):\n    return trainer._inner_training_loop()": (3, "Trainer has no _inner_training_loop", ""),
    "t = Trainer()\nt._globalstep_last_logged": (3, "Glassloop's Trainer has no _globalstep_last_logged", ""),
    "t = Trainer(tb_writer=w)": (2, "Trainer has no argument tb_writer", ""),
    "from transformers import AdamW\no = AdamW(p, correct_bias=False)": (3, "correct_bias=False", ""),
}
REPORTED = {START + code: found for code, found in OF_TRAINER.items()} | {
    "from transformers import Seq2SeqTrainer": (1, "Seq2SeqTrainer", "sequence classification only"),
    "import transformers\nm = transformers.AutoModelForCausalLM": (2, "AutoModelForCausalLM", "sequence classification only"),
    "from datasets import load_metric\nm = load_metric('bleu')": (2, "load_metric('bleu')", "no such metric"),
    "from transformers import glue_compute_metrics": (1, "glue_compute_metrics", "load_metric"),
    "import transformers\nfrom apex import amp": (2, "apex.amp", "fp16=True"),
    "from pytorch_pretrained_bert import BertAdam": (1, "pytorch_pretrained_bert.BertAdam", "use transformers"),
    "from transformers.data import xnli_compute_metrics": (1, "xnli_compute_metrics", "installed version of transformers does"),
}


@pytest.mark.parametrize("code", REPORTED)
def test_what_is_not_translated_is_reported_with_its_line(code: str) -> None:
    line, problem, remedy = REPORTED[code]
    (found,) = rewritten(code)[1]
    assert (found.line, found.kind) == (line, NOT_TRANSLATED)
    assert problem in found.problem
    assert remedy in found.remedy


NOT_REPORTED = [
    "args = TrainingArguments('x', evaluation_strategy='epoch', fp16=False, dataloader_num_workers=4, deepspeed=None)",
    "args = TrainingArguments('x', torch_compile=True, remove_unused_columns=False, label_names=['labels', 'star'])",
    "args = TrainingArguments('x', train_sampling_strategy='sequential', warmup_steps=3, warmup_ratio=0.1, bf16=True)",
    "class Mine(Trainer):\n    def _get_train_sampler(self, rows=None): return None",
    "class Mine(Trainer):\n    def training_step(self, model, inputs, *rest): return self._prepare_inputs(inputs)",
    "t = Trainer()\nprint(t._train_batch_size, t.args.train_batch_size, t.state.best_metric, t.label_names)",
    "args = TrainingArguments('x', logging_steps=steps, **others)",
    "class Mine(Trainer):\n    def compute_loss(self, model, inputs): pass",
    "class Other:\n    def training_step(self): self._save()",
    "t = Trainer()\nt.train()\nt.log_metrics('a', {})",
    "t = Trainer(args=TrainingArguments('x', group_by_length=False))\np = t.predict(rows)",
    "t = Trainer(args=TrainingArguments('x', group_by_length=True))\nt.evaluate()",
    "t = Trainer()\nt.train(resume_from_checkpoint=True)",
    "t = Trainer()\nloss = t.train(resume_from_checkpoint=None).training_loss",
    "for _ in range(3):\n    t = Trainer()\n    t.train()",
    "t = Trainer()\nif again:\n    t.train(resume_from_checkpoint=True)\nelse:\n    t.train()",
    "t = Trainer()\nt.train()\nt = Trainer()\nt.train()",
    "def f():\n    t = Trainer()\n    t.train()\ndef g():\n    t = Trainer()\n    t.train()",
]
OF_OTHERS = [
    "model.generate()",
    "from transformers import BertTokenizer, BertTokenizerFast, trainer_utils, logging",
    "from transformers.data import DataCollatorWithPadding\nfrom transformers import *\nfrom mine import *\nx = dict(a=f(y))",
    "from .transformers import Seq2SeqTrainer",
    "import transformers\ntry:\n    from apex import amp\n    from transformers import cached_path\n"
    "except ImportError:\n    amp = None",
    "from tqdm import tqdm_notebook\nfrom tqdm.notebook import tqdm\nimport numpy as np\nnp.float64(np.array(1))",
]


def test_what_works_is_not_reported() -> None:
    assert [code for code in [*(START + code for code in NOT_REPORTED), *OF_OTHERS] if rewritten(code)[1]] == []


def test_what_runs_differently_is_reported_if_a_script_reads_it() -> None:
    for code, line, remedy in (
        ("t = Trainer()\nt.train()\nt.train()", 4, "new optimizer"),
        ("t = Trainer()\nfor _ in range(3):\n    t.train()", 4, "new optimizer"),
        ("t = Trainer()\nt.train()\nif more:\n    t.train()", 5, "new optimizer"),
        ("t = Trainer(args=TrainingArguments('x', group_by_length=True))\np = t.predict(rows)", 3, "order of the rows"),
        ("t = Trainer()\nloss = t.train(resume_from_checkpoint=True).training_loss", 3, "mean over all steps"),
        ("t = Trainer()\nm = t.train('checkpoint-5').metrics\nprint(m['train_loss'])", 3, "mean over all steps"),
    ):
        (found,) = rewritten(START + code)[1]
        assert (found.line, found.kind) == (line, DIFFERS)
        assert remedy in found.remedy


# --- a Trainer that overrides `compute_loss` only for a usual loss gets a suggestion whose code computes the same
IMPORTS = """
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

SMOOTHED = "loss = nn.CrossEntropyLoss(label_smoothing=0.1)(outputs.logits, labels)"
# The class, the statements of its loss, and a line of the suggestion.
SUGGESTIONS = {
    "weights of a list": (
        PLAIN,
        "f = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0], device=model.device))\nloss = f(outputs.logits, labels)",
        "class_weights=[1.0, 3.0]",
    ),
    "weights of a variable": (
        "weights = torch.tensor(balanced())\n" + PLAIN,
        "logits = outputs.get('logits').view(-1, self.model.config.num_labels)\n"
        "loss = F.cross_entropy(logits, labels.view(-1), weight=weights)",
        "class_weights=[*map(float, weights)]",
    ),
    "weights of an argument": (
        WITH_WEIGHTS,
        "loss = nn.CrossEntropyLoss(weight=self.class_weights)(outputs.logits, labels)",
        "class_weights=[1.0, 3.0]",
    ),
    "weights that may be missing": (
        WITH_WEIGHTS,
        "if self.class_weights is not None:\n"
        "    loss = F.cross_entropy(outputs.logits, labels, weight=self.class_weights)\n"
        "else:\n    loss = F.cross_entropy(outputs.logits, labels)",
        "class_weights=[1.0, 3.0]",
    ),
    "smoothing": (PLAIN, SMOOTHED, "label_smoothing_factor=0.1"),
    "the usual loss": (PLAIN, "loss = F.cross_entropy(outputs.logits, labels)", "use Trainer itself"),
    "several labels": (PLAIN, "loss = nn.BCEWithLogitsLoss()(outputs.logits, labels.float())", "multi_label_classification"),
}

# The same, and the loss as a function of logits and labels.
EACH = "ce = F.cross_entropy(outputs.logits, labels, reduction='none')\n"
FUNCTIONS = {
    "focal": (PLAIN, EACH + "loss = ((1 - torch.exp(-ce)) ** 1.5 * ce).mean()"),
    "focal loss of the script": (FOCAL_CLASS + PLAIN, "loss = FocalLoss(gamma=1.5)(outputs.logits, labels)"),
}
UNKNOWN = {
    "a second model": "loss = F.cross_entropy(outputs.logits, labels) + distance(teacher(**inputs), outputs)",
    "a sum": "loss = F.cross_entropy(outputs.logits, labels) + 0.1 * F.cross_entropy(outputs.logits, labels, weight=w)",
    "a column": "loss = (F.cross_entropy(outputs.logits, labels, reduction='none') * inputs['weight']).mean()",
    "a scaled focal loss": EACH + "loss = (alpha * (1 - torch.exp(-ce)) ** 2 * ce).mean()",
    "a part of the logits": "loss = F.cross_entropy(outputs.logits[:, :2], labels)",
    "a step of its own": "loss = F.cross_entropy(outputs.logits, labels)\nself.log({'loss': loss.item()})",
    "ignored labels": "loss = F.cross_entropy(outputs.logits, labels, ignore_index=0)",
}


def suggestions(code: str, loss: str) -> list[str]:
    script = IMPORTS + code.replace("LOSS", loss.replace("\n", "\n        "))
    compile(script, "script.py", "exec")
    return [one.remedy for one in rewritten(script)[1] if one.kind == SUGGESTED]


@pytest.mark.parametrize(("code", "loss", "wanted"), SUGGESTIONS.values(), ids=SUGGESTIONS)
def test_settings_are_suggested(code: str, loss: str, wanted: str) -> None:
    (found,) = suggestions(code, loss)
    assert wanted in found


def test_nothing_is_suggested_for_what_is_not_recognized() -> None:
    assert [name for name, loss in UNKNOWN.items() if suggestions(PLAIN, loss)] == []
    assert suggestions(PLAIN + "\n    def log(self, logs):\n        pass", SMOOTHED) == []


@pytest.mark.parametrize(("code", "loss"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_suggested_function_returns_one_loss_per_row_with_the_same_mean(code: str, loss: str) -> None:
    (found,) = suggestions(code, loss)
    lines = found.splitlines()[1:]
    known: dict[str, Any] = {}
    exec(IMPORTS + (FOCAL_CLASS if "FocalLoss" in code else ""), known)
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


# --- notebooks: cells are rewritten, magics and outputs are not, and the file keeps its style
CELLS = [
    "!pip install -q transformers datasets",
    "%%time\n%matplotlib inline\nimport transformers\nfrom transformers import Trainer, set_seed",
    "%%bash\nfrom transformers import Trainer",
    "def f():\n    return transformers.TrainingArguments(\n        'é',\n        deepspeed='x',\n    )",
    "x = !ls\ny = = 1",
    "x = !ls",
    "rest = (7\n% 4)",
    "Trainer?",
]


def notebook(cells: list[str] = CELLS, **style: Any) -> str:
    made = [{"cell_type": "markdown", "metadata": {}, "source": ["# é from transformers import Trainer"]}]
    for code in cells:
        outputs = [{"output_type": "stream", "name": "stdout", "text": ["from transformers import Trainer\n"]}]
        made.append({"cell_type": "code", "metadata": {"z": 1, "a": 2}, "outputs": outputs, "source": code.splitlines(True)})
    return json.dumps({"cells": made, "nbformat": 4, "metadata": {}, "nbformat_minor": 5}, **style) + "\n"


def test_only_the_code_of_cells_changes() -> None:
    wanted = list(CELLS)
    wanted[1] = "%%time\n%matplotlib inline\nimport glassloop\nfrom transformers import set_seed\nfrom glassloop import Trainer"
    wanted[3] = "def f():\n    return glassloop.TrainingArguments(\n        'é',\n        deepspeed='x',\n    )"
    for style in ({"indent": 1, "ensure_ascii": False}, {"indent": 2}, {}, {"separators": (",", ":"), "ensure_ascii": False}):
        found = ported_notebook(notebook(**style), "n")
        assert found.text == notebook(wanted, **style)
        assert found.changed
        assert ported_notebook(found.text, "n").text == found.text


def test_what_a_person_should_know_names_cell_and_line() -> None:
    finding = Finding(12, "generate", "not here")
    assert str(finding) == "line 12: generate: not here"
    assert str(replace(finding, cell=3)) == "cell 3, line 12: generate: not here"
    found = [str(one) for one in ported_notebook(notebook(), "n").findings]
    assert found[0].startswith("cell 2, line 1: !pip install -q transformers datasets: install glassloop, too")
    assert found[1].startswith("cell 5, line 4: deepspeed='x': ")
    assert found[2] == "cell 6, line 1: the cell is not Python: it stays as it is"
    assert len(found) == 3


def test_a_notebook_that_needs_no_change_stays_byte_for_byte_a_source_of_one_text_one_and_other_files_are_refused() -> None:
    text = notebook(["x = 1"]).replace('{"cells"', '{ "cells"')
    found = ported_notebook(text, "n")
    assert (found.text, found.changed, found.findings) == (text, False, [])
    text = json.dumps({"cells": [{"cell_type": "code", "source": "from transformers import Trainer"}]})
    assert json.loads(ported_notebook(text, "n").text)["cells"][0]["source"] == "from glassloop import Trainer"
    for text in ("", "{}", "[1]", '{"cells": 1}', '{"cells": [{"source": ""}]}', "x = 1"):
        with pytest.raises(DataError, match="n is not a notebook"):
            ported_notebook(text, "n")


# --- the diff, and the work for a long script
LINES = [f"line {number}" for number in range(30)]

CASES = {
    "nothing": (LINES, LINES),
    "one line": (LINES, [*LINES[:5], "new", *LINES[6:]]),
    "two places": (LINES, [*LINES[:5], *LINES[6:20], "new", "newer", *LINES[20:]]),
    "two close places": (LINES, ["new", *LINES[1:5], *LINES[6:]]),
    "the end": (LINES, [*LINES[:-1], "new"]),
    "added at the end": (LINES, [*LINES, "new"]),
    "one line alone": (["a"], ["b"]),
    "all removed": (["a", "b"], []),
}


@pytest.mark.parametrize(("before", "after"), CASES.values(), ids=CASES)
def test_it_is_a_unified_diff(before: list[str], after: list[str]) -> None:
    wanted = difflib.unified_diff(before, after, "n", "n (ported)", lineterm="")
    assert difference("\n".join(before), "\n".join(after), "n").splitlines() == [*wanted]
    assert Ported("", before="\n".join(before), after="\n".join(after)).changed == (before != after)


def calls_for(lines: int) -> int:
    """Return how many functions are called to rewrite a script of so many lines, in which each name has many values."""
    block = (
        "args = TrainingArguments('out', learning_rate=1e-5, torch_compile=True)\nmetric = load_metric('f1')\n"
        "trainer = transformers.Trainer(model, args)\nencoded = tokenizer.encode_plus('x', pad_to_max_length=True)\n"
        "for value in values:\n    total = total + value\nloss, logits = model(**encoded)\nprint(total, trainer.args, loss)\n"
    )
    start = "import transformers\nfrom transformers import TrainingArguments\nfrom datasets import load_metric\n"
    code = start + block * (lines // 8)
    profile = cProfile.Profile()
    after, _ = profile.runcall(rewritten, code)
    profile.runcall(difference, code, after, "name")
    return sum(entry.callcount for entry in profile.getstats())


def test_the_work_grows_linearly_with_the_length() -> None:
    calls_for(80)  # imports and caches
    few, many = calls_for(400), calls_for(1600)
    assert many < 4.2 * few
