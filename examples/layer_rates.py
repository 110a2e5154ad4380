"""Use a different learning rate for each layer, with the bare loop: `fit` and the parts around it.

python examples/layer_rates.py [steps]
"""

import sys
from functools import partial

from glassloop import (
    AdamW,
    Batches,
    PaddingCollator,
    PlainBackend,
    Plan,
    State,
    encode,
    fit,
    load_examples,
    load_model,
    load_tokenizer,
    make_loss,
    make_scheduler,
    run_over,
    seed_all,
    train_step,
)

RATE, DECAY = 2e-4, 0.8
max_steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
examples = load_examples("quickstart")
tokenizer = load_tokenizer("quickstart")
encoded = encode(examples, tokenizer, max_length=128)
train = Batches(encoded["train"].rows, PaddingCollator(tokenizer), batch_size=16, seed=42)
validation = Batches(encoded["validation"].rows, PaddingCollator(tokenizer), batch_size=64)
model = load_model("quickstart", labels=examples.labels, seed=42)

top = model.config.num_hidden_layers
groups = []
for name, parameter in model.named_parameters():
    layer = next((int(part) for part in name.split(".") if part.isdigit()), -1 if "embeddings" in name else top)
    groups.append({"params": [parameter], "lr": RATE * DECAY ** (top - layer)})
optimizer = AdamW(groups)
scheduler = make_scheduler("linear", optimizer, warmup_steps=max_steps // 10, max_steps=max_steps)

backend, loss = PlainBackend("cpu"), make_loss("single_label_classification")
step = partial(train_step, model, loss_sum=loss, optimizer=optimizer, scheduler=scheduler, backend=backend, max_norm=1.0)
plan = Plan(max_steps, len(train), len(train), accumulate=1, warmup_steps=0, log_every=10, eval_every=0, save_every=0)
model.train()
seed_all(42)
state = fit(step, train, plan, State())
found = run_over(model, validation, backend, loss)
accuracy = (found.logits.argmax(axis=-1) == found.labels).mean()
print(f"{state.step} steps, mean loss {state.mean_loss:.4f}; validation loss {found.loss:.4f}, accuracy {accuracy:.4f}")
