"""A script with a loss of its own, as launchers start it: the losses go to a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from families import tiny_model
from torch.nn import functional

from glassloop import Trainer, TrainingArguments


class Weighted(Trainer):
    """Counts the loss of long words twice."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = 2 * functional.cross_entropy(outputs.logits, labels)
        return (loss, outputs) if return_outputs else loss


rows = [{"input_ids": [2, 5 + row % 40, 6, 3], "attention_mask": [1] * 4, "labels": row % 2} for row in range(21)]
size, accumulate = int(sys.argv[2]), int(sys.argv[3])
args = TrainingArguments(
    sys.argv[1], per_device_train_batch_size=size, gradient_accumulation_steps=accumulate, num_train_epochs=2, logging_steps=1,
    learning_rate=1e-3, save_strategy="no", disable_tqdm=True, device="cpu", precision="fp32", eval_strategy="epoch",
)  # fmt: skip
trainer = Weighted(tiny_model(dropout=0.0), args, train_dataset=rows, eval_dataset=rows[:9])
trainer.train()
if trainer.is_world_process_zero():
    found = [entry.get("loss", entry.get("eval_loss")) for entry in trainer.state.history]
    Path(sys.argv[1], "losses.json").write_text(json.dumps(found), encoding="utf-8")
