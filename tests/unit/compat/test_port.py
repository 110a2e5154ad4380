"""The diff of a port agrees with that of the standard library."""

from __future__ import annotations

import cProfile
import difflib
import json
from typing import Any

import pytest

from glassloop.base.errors import DataError
from glassloop.compat.port import difference, ported_notebook, rewritten

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


@pytest.mark.parametrize("name", CASES)
def test_it_is_a_unified_diff(name: str) -> None:
    before, after = CASES[name]
    wanted = difflib.unified_diff(before, after, "n", "n (ported)", lineterm="")
    assert difference("\n".join(before), "\n".join(after), "n").splitlines() == [*wanted]


# --- Notebooks: cells are rewritten, magics and outputs are not, and the file keeps its style.


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


@pytest.mark.parametrize(
    "style",
    [{"indent": 1, "ensure_ascii": False}, {"indent": 2}, {}, {"separators": (",", ":"), "ensure_ascii": False}],
)
def test_only_the_code_of_cells_changes(style: dict[str, Any]) -> None:
    text = notebook(**style)
    found = ported_notebook(text, "n")
    wanted = list(CELLS)
    wanted[1] = "%%time\n%matplotlib inline\nimport glassloop\nfrom transformers import set_seed\nfrom glassloop import Trainer"
    wanted[3] = "def f():\n    return glassloop.TrainingArguments(\n        'é',\n        deepspeed='x',\n    )"
    assert found.text == notebook(wanted, **style)
    assert found.changed
    assert ported_notebook(found.text, "n").text == found.text


def test_what_a_person_should_know_names_cell_and_line() -> None:
    found = [str(one) for one in ported_notebook(notebook(), "n").findings]
    assert found[0].startswith("cell 2, line 1: !pip install -q transformers datasets: install glassloop, too")
    assert found[1].startswith("cell 5, line 4: deepspeed='x': ")
    assert found[2] == "cell 6, line 1: the cell is not Python: it stays as it is"
    assert len(found) == 3


def test_a_notebook_that_needs_no_change_stays_byte_for_byte() -> None:
    text = notebook(["x = 1"]).replace('{"cells"', '{ "cells"')
    found = ported_notebook(text, "n")
    assert (found.text, found.changed, found.findings) == (text, False, [])


def test_a_source_that_is_one_text_stays_one() -> None:
    text = json.dumps({"cells": [{"cell_type": "code", "source": "from transformers import Trainer"}]})
    assert json.loads(ported_notebook(text, "n").text)["cells"][0]["source"] == "from glassloop import Trainer"


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"cells": 1}', '{"cells": [{"source": ""}]}', "x = 1"])
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(DataError, match="n is not a notebook"):
        ported_notebook(text, "n")


# --- Imports, names and arguments are rewritten; comments and layout stay; a second run changes nothing.


# What the script has -> what it has afterwards.
CASES_REWRITE = {
    "one name": ("from transformers import Trainer\n", "from glassloop import Trainer\n"),
    "split": (
        "from transformers import AdamW, AutoTokenizer, Trainer\n",
        "from transformers import AutoTokenizer\nfrom glassloop import AdamW, Trainer\n",
    ),
    "several lines": (
        "from transformers import (\n    AdamW,  # old\n    AutoTokenizer,  # words\n    Trainer,\n)  # end\n",
        "from transformers import (\n    AutoTokenizer,  # words\n)  # end\nfrom glassloop import AdamW, Trainer  # old\n",
    ),
    "all of several lines": (
        "from transformers import (\n    Trainer,  # loop\n    TrainingArguments,\n)\n",
        "from glassloop import (\n    Trainer,  # loop\n    TrainingArguments,\n)\n",
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
    "in a try": (
        "try:\n    from transformers import AdamW\nexcept ImportError:\n    from torch.optim import AdamW\n",
        "try:\n    from glassloop import AdamW\nexcept ImportError:\n    from torch.optim import AdamW\n",
    ),
    "on one line": (
        "import os; from transformers import Trainer, set_seed\n",
        "import os; from transformers import set_seed; from glassloop import Trainer\n",
    ),
    "after a colon": ("if True: from transformers import Trainer\n", "if True: from glassloop import Trainer\n"),
    "package": (
        "import transformers\nt = transformers.Trainer(transformers.AutoModel)\n",
        "import transformers\nimport glassloop\nt = glassloop.Trainer(transformers.AutoModel)\n",
    ),
    "package alone": ("import transformers\nt = transformers.Trainer()\n", "import glassloop\nt = glassloop.Trainer()\n"),
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
    "data": (
        "from datasets import load_dataset\nd = load_dataset('glue', 'mrpc')\n",
        "from glassloop import load_dataset\nd = load_dataset('glue', 'mrpc')\n",
    ),
    "some data": (
        "from datasets import load_dataset\na = load_dataset('glue', 'mrpc')\nb = load_dataset('x')\n",
        "from datasets import load_dataset\nimport glassloop\n"
        "a = glassloop.load_dataset('glue', 'mrpc')\nb = load_dataset('x')\n",
    ),
    "arguments": (
        "from transformers import TrainingArguments as A\n"
        "a = A(\n    'o',  # out\n    fp16=True,  # half\n    torch_compile=True,\n)\n",
        "from glassloop import TrainingArguments as A\n"
        "a = A(\n    'o',  # out\n    fp16=True,  # half\n    torch_compile=True,\n)\n",
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
    "another name for the class": (
        "import transformers\nBase = transformers.Trainer\nclass Mine(Base):\n    pass\n",
        "import glassloop\nBase = glassloop.Trainer\nclass Mine(Base):\n    pass\n",
    ),
    "letters beyond ASCII": (
        "import transformers\né = 'ü'; t = f(é, transformers.Trainer('ß', fp16=True), 'é')\n",
        "import glassloop\né = 'ü'; t = f(é, glassloop.Trainer('ß', fp16=True), 'é')\n",
    ),
    "line ends of Windows": (
        "from transformers import Trainer, set_seed\r\nset_seed(1)\r\n",
        "from transformers import set_seed\r\nfrom glassloop import Trainer\r\nset_seed(1)\r\n",
    ),
}

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


@pytest.mark.parametrize("name", CASES_REWRITE)
def test_a_script_is_rewritten(name: str) -> None:
    before, after = CASES_REWRITE[name]
    assert rewritten(before)[0] == after


@pytest.mark.parametrize("name", CASES_REWRITE)
def test_a_second_run_changes_nothing(name: str) -> None:
    after = CASES_REWRITE[name][1]
    assert rewritten(after)[0] == after


@pytest.mark.parametrize("code", UNCHANGED)
def test_everything_else_stays(code: str) -> None:
    assert rewritten(code)[0] == code


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
