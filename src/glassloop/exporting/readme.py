"""The README of an exported folder: what it holds, how it compares with the run, and lines that use it without Glassloop."""

from __future__ import annotations

from glassloop.comparing.results import measures_of
from glassloop.run_folder.export_json import (
    EXPORT_NAME,
    MODEL_FILES,
    REFERENCE_NAME,
    TORCH,
    ExportCheck,
    ExportRecord,
)
from glassloop.run_folder.layout import CALIBRATION_NAME
from glassloop.settings import CLASSES, SCORE

ONNX_LINES = """import json
import numpy as np
import onnxruntime
from transformers import AutoTokenizer

record = json.load(open("export.json", encoding="utf-8"))
session, tokenizer = onnxruntime.InferenceSession("model.onnx"), AutoTokenizer.from_pretrained(".")
batch = tokenizer(__TEXTS__, truncation=True, max_length=record["max_length"], padding=True, return_attention_mask=True)
logits = session.run(None, {name: np.array(batch[name], dtype=np.int64) for name in record["inputs"]})[0]
"""
TORCH_LINES = """import json
import numpy as np
import torch
from transformers import AutoTokenizer

record = json.load(open("export.json", encoding="utf-8"))
model, tokenizer = torch.export.load("model.pt2").module(), AutoTokenizer.from_pretrained(".")
batch = tokenizer(__TEXTS__, truncation=True, max_length=record["max_length"], padding=True, return_attention_mask=True)
logits = model(*(torch.tensor(batch[name]) for name in record["inputs"])).detach().numpy()
"""
CALIBRATED_LINES = """logits, thresholds = logits / calibration.get("temperature", 1), calibration.get("thresholds", {})
"""
ONE_RECORD = 'record = json.load(open("export.json", encoding="utf-8"))'
TWO_RECORDS = 'record, calibration = (json.load(open(name, encoding="utf-8")) for name in ("export.json", "calibration.json"))'
CLASS_LINES = """shares = np.exp(logits - logits.max(1, keepdims=True))
for row in shares / shares.sum(1, keepdims=True):
    scores = dict(zip(record["labels"], row.tolist()))
"""
MOST_LIKELY = """    print(json.dumps({"label": max(scores, key=scores.get), "scores": scores}))
"""
BY_THRESHOLD = """    reached = [name for name in scores if scores[name] >= thresholds.get(name, 2)]
    print(json.dumps({"label": max(reached or {*scores} - {*thresholds} or scores, key=scores.get), "scores": scores}))
"""
LABEL_LINES = """for row in 1 / (1 + np.exp(-logits)):
    scores = dict(zip(record["labels"], row.tolist()))
    print(json.dumps({"label": [name for name in scores if scores[name] >= __LIMIT__], "scores": scores}))
"""
SCORE_LINES = """print(json.dumps({"scores": logits[:, 0].tolist()}))
"""
AOT_TEXT = """
For C++, compile the program with AOTInductor on the machine that will run it. That needs a C++ compiler.

```python
import json
import torch

program, record = torch.export.load("model.pt2"), json.load(open("export.json", encoding="utf-8"))
program.example_inputs = (tuple(torch.zeros(2, 8, dtype=torch.int64) for name in record["inputs"]), {})
torch._inductor.aoti_compile_and_package(program, package_path="compiled.pt2")
```

Then load the package. It takes the inputs in the order of `inputs` in `export.json`.

```cpp
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

torch::inductor::AOTIModelPackageLoader loader("compiled.pt2");
at::Tensor logits = loader.run(inputs)[0];
```
"""
TITLES = {"exported": "this model", "glassloop": "Glassloop", "transformers": "transformers, sorted and padded"}


def example_code(record: ExportRecord, *, calibrated: bool) -> str:
    """Return the lines of Python that predict a text or a pair without Glassloop."""
    texts = '["a text"], ["a second text"]' if record.run.data.columns.text_pair else '["a text"]'
    start = (TORCH_LINES if record.kind == TORCH else ONNX_LINES).replace("__TEXTS__", texts)
    if record.task == SCORE:
        return start + SCORE_LINES
    start = start.replace(ONE_RECORD, TWO_RECORDS) if calibrated else start
    middle = CALIBRATED_LINES if calibrated else ""
    if record.task == CLASSES:
        return start + middle + CLASS_LINES + (BY_THRESHOLD if calibrated else MOST_LIKELY)
    return start + middle + LABEL_LINES.replace("__LIMIT__", "thresholds.get(name, 0.5)" if calibrated else "0.5")


def readme_text(record: ExportRecord, check: ExportCheck, *, calibrated: bool, has_reference: bool) -> str:
    """Return the README of an exported folder. It contains no texts of the data."""
    title = measures_of(record.run).title
    rows = [
        f"| {title(key)} | {one.run:.4f} | {one.exported:.4f} | {one.difference:+.4f} | {one.low:+.4f} to {one.high:+.4f} |"
        for key, one in check.metrics.items()
    ]
    speeds = [f"- {TITLES[name]}: {value:,.0f} rows per second" for name, value in check.rows_per_second.items()]
    files = {
        MODEL_FILES[record.kind]: "the model",
        "tokenizer.json, tokenizer_config.json, config.json": "the tokenizer and the settings of the model",
        EXPORT_NAME: "inputs, labels, maximum length, origin, checksums, and how the model compares with the run",
    }
    if calibrated:
        files[CALIBRATION_NAME] = "temperature and thresholds"
    if has_reference:
        files[REFERENCE_NAME] = "validation rows with their texts and the logits of this model"
    packages = "torch transformers" if record.kind == TORCH else "numpy onnxruntime transformers"
    flipped = "" if record.task == SCORE else f" {len(check.flipped):,} of {check.rows:,} answers changed."
    parts = [
        f"# {record.name}, exported as {record.kind}\n",
        f"`pip install {packages}`, then in this folder:\n",
        f"```python\n{example_code(record, calibrated=calibrated)}```",
        *([AOT_TEXT] if record.kind == TORCH else [""]),
        f"## Compared with the run on {check.rows:,} rows of {check.split}\n",
        "| Metric | Run | This model | Difference | 95 % interval |\n|---|---|---|---|---|",
        *rows,
        f"\nThe largest difference of logits is {check.largest_difference:.2g}.{flipped}\n",
        f"Speed on the machine that exported it, with {check.threads} threads:\n",
        *speeds,
        "\n## Files\n",
        *(f"- `{name}`: {what}" for name, what in files.items()),
    ]
    return "\n".join(parts) + "\n"
