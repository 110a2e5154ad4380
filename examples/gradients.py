"""Change gradients before clipping: add noise, and record the gradient norm of each layer.

python examples/gradients.py [steps]
"""

import sys
from collections import Counter

import torch

from glassloop import Trainer, TrainingArguments, encode, load_examples, load_model, load_tokenizer

norms: Counter[str] = Counter()


def noisy(model: torch.nn.Module) -> None:
    """Add noise. Glassloop calls this once per step, after all backward passes and before clipping."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            parameter.grad.add_(torch.randn_like(parameter.grad), alpha=1e-6)
            layer = next((part for part in name.split(".") if part.isdigit()), "other")
            norms[layer] += float(parameter.grad.norm())


examples = load_examples("quickstart")
tokenizer = load_tokenizer("quickstart")
encoded = encode(examples, tokenizer, max_length=128)
trainer = Trainer(
    load_model("quickstart", labels=examples.labels, seed=42),
    TrainingArguments("runs/noisy", max_steps=int(sys.argv[1]) if len(sys.argv) > 1 else 300, gradient_accumulation_steps=2),
    train_dataset=encoded["train"].rows,
    processing_class=tokenizer,
    on_gradients=noisy,
)
trainer.train()
for layer, norm in sorted(norms.items()):
    print(f"layer {layer}: {norm / trainer.state.step:.4f}")
