"""What a port cannot translate is reported with its line and its reason."""

from __future__ import annotations

import pytest

from glassloop.compat.port import rewritten
from glassloop.compat.uses import DIFFERS, NOT_TRANSLATED

START = "from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments\n"
REPORTED = {
    "from transformers import Seq2SeqTrainer": (1, "Seq2SeqTrainer", "sequence classification only"),
    "import transformers\nm = transformers.AutoModelForCausalLM": (2, "AutoModelForCausalLM", "sequence classification only"),
    START + "model.generate(**inputs)": (2, "generate", "generated with transformers"),
    START + "args = TrainingArguments('x', deepspeed='c.json')": (2, "deepspeed='c.json'", "--processes"),
    START + "args = TrainingArguments('x', deepspeed=config)": (2, "deepspeed is refused, unless", "--processes"),
    START + "args = TrainingArguments('x', learning_rat=1)": (2, 'unknown setting "learning_rat"', "lists all settings"),
    START + "args = TrainingArguments('x', learning_rat=y)": (2, "learning_rat is not a setting", "remove it"),
    START + "args = TrainingArguments('x', learning_rate=-1)": (2, "learning_rate is -1", ""),
    START + "args = TrainingArguments('x', True)": (2, "more than one argument without a name", "name all"),
    START + "class Mine(Trainer):\n    def _clip_grad_norm(self, model):\n        pass": (
        3,
        "Mine overrides _clip_grad_norm",
        "loss=",
    ),
    START + "class A(Trainer):\n    pass\nclass B(A):\n    def evaluation_loop(self): pass": (
        5,
        "B overrides",
        "compute_metrics",
    ),
    START + "class A(Trainer):\n    def log(self, x): self._save(1)": (3, "Trainer has no _save", "write_model"),
    START + "t = Trainer()\nt._inner_training_loop()": (3, "Trainer has no _inner_training_loop", "plain_loop"),
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
        START
        + "args = TrainingArguments('x', evaluation_strategy='epoch', fp16=False, dataloader_num_workers=4, deepspeed=None)",
        START
        + "args = TrainingArguments('x', torch_compile=True, remove_unused_columns=False, label_names=['labels', 'star'])",
        START
        + "args = TrainingArguments('x', train_sampling_strategy='sequential', warmup_steps=3, warmup_ratio=0.1, bf16=True)",
        START + "class Mine(Trainer):\n    def _get_train_sampler(self, rows=None): return None",
        START + "class Mine(Trainer):\n    def training_step(self, model, inputs, *rest): return self._prepare_inputs(inputs)",
        START + "t = Trainer()\nprint(t._train_batch_size, t.args.train_batch_size, t.state.best_metric, t.label_names)",
        START + "args = TrainingArguments('x', logging_steps=steps, **others)",
        START + "class Mine(Trainer):\n    def compute_loss(self, model, inputs): pass",
        START + "class Other:\n    def training_step(self): self._save()",
        START + "t = Trainer()\nt.train()\nt.log_metrics('a', {})",
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
    (found,) = rewritten(START + code)[1]
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
    (found,) = rewritten(START + code)[1]
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
    assert rewritten(START + code)[1] == []


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
    (found,) = rewritten(START + code)[1]
    assert problem in found.problem
    assert found.kind == NOT_TRANSLATED
