"""The lines of a model card that load a model: with Glassloop, and with transformers alone."""

from __future__ import annotations

from glassloop.run_folder.calibration_json import Calibration
from glassloop.run_folder.record import RunRecord
from glassloop.settings import CLASSES, SCORE

FOLDER = 'folder = "."  # this folder; from the hub: huggingface_hub.snapshot_download("owner/name")'


def usage(record: RunRecord, calibration: Calibration | None) -> str:
    """Return Markdown with two blocks of Python. They contain no text of the user, so nothing can end them early."""
    pair = record.data.columns.text_pair is not None
    asked = '[("A first text.", "A second text.")]' if pair else '["A text."]'
    own = ["from glassloop import Predictor", "", FOLDER, f"print(Predictor(folder).predict({asked}))"]
    texts = '"A first text.", "A second text."' if pair else '"A text."'
    plain = [
        "import torch",
        "from transformers import AutoModelForSequenceClassification, AutoTokenizer",
        "",
        FOLDER,
        "tokenizer = AutoTokenizer.from_pretrained(folder)",
        "model = AutoModelForSequenceClassification.from_pretrained(folder).eval()",
        f'inputs = tokenizer({texts}, truncation=True, max_length={record.max_length}, return_tensors="pt")',
        "with torch.inference_mode():",
        "    logits = model(**inputs).logits[0]",
        *answer_lines(record, calibration),
    ]
    blocks = [("With Glassloop:", own), ("With transformers:", plain)]
    return "\n\n".join(f"{title}\n\n```python\n{chr(10).join(lines)}\n```" for title, lines in blocks)


def answer_lines(record: RunRecord, calibration: Calibration | None) -> list[str]:
    """Return the lines that turn logits into an answer, as the predictor does."""
    if record.data.task == SCORE:
        return ["print(float(logits[0]))"]
    labels = record.data.labels or ()
    given = calibration.thresholds if calibration else {}
    scaled = "logits.double()"
    if calibration and calibration.temperature != 1.0:
        scaled += f" / {calibration.temperature!r}"
    if record.data.task == CLASSES:
        lines = [f"probabilities = torch.softmax({scaled}, dim=-1)"]
        limited = next((place for place, name in enumerate(labels) if name in given), None)
        if limited is None or len(labels) != 2:
            return [*lines, "print(model.config.id2label[int(probabilities.argmax())], probabilities.tolist())"]
        lines.append(f"answer = {limited} if probabilities[{limited}] >= {given[labels[limited]]!r} else {1 - limited}")
        return [*lines, "print(model.config.id2label[answer], probabilities.tolist())"]
    limits = {place: given[name] for place, name in enumerate(labels) if name in given}
    return [
        f"probabilities = torch.sigmoid({scaled}).tolist()",
        f"thresholds = {limits!r}  # by the number of the label; 0.5 for the others",
        "chosen = [place for place, value in enumerate(probabilities) if value >= thresholds.get(place, 0.5)]",
        "print([model.config.id2label[place] for place in chosen], probabilities)",
    ]
