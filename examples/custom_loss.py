"""Train with a custom loss: focal loss, which gives more weight to the rows that the model gets wrong.

python examples/custom_loss.py [steps]
"""

import sys

import torch
from torch.nn.functional import cross_entropy

from glassloop import Trainer, TrainingArguments, encode, load_examples, load_model, load_tokenizer


def focal_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return one loss per row. Glassloop takes the mean over all rows of a step, over all batches and processes."""
    losses = cross_entropy(logits, labels, reduction="none")
    return (1 - torch.exp(-losses)) ** 2 * losses


examples = load_examples("quickstart")
tokenizer = load_tokenizer("quickstart")
encoded = encode(examples, tokenizer, max_length=128)
trainer = Trainer(
    load_model("quickstart", labels=examples.labels, seed=42),
    TrainingArguments("runs/focal", max_steps=int(sys.argv[1]) if len(sys.argv) > 1 else 300, learning_rate=1e-4),
    train_dataset=encoded["train"].rows,
    eval_dataset=encoded["validation"].rows,
    processing_class=tokenizer,
    loss=focal_loss,
)
trainer.train()
print(trainer.evaluate())
