"""Fine-tune with a plain `for` loop over batches.

python examples/plain_loop.py [rows]
"""

import sys

import torch

from glassloop import (
    AdamW,
    Batches,
    PaddingCollator,
    encode,
    load_examples,
    load_metric,
    load_model,
    load_tokenizer,
    make_scheduler,
)

# Data: from texts to token ids to batches
examples = load_examples("quickstart", rows=int(sys.argv[1]) if len(sys.argv) > 1 else 2400)
tokenizer = load_tokenizer("quickstart")
encoded = encode(examples, tokenizer, max_length=128)
train = Batches(encoded["train"].rows, PaddingCollator(tokenizer), batch_size=16, seed=42)
validation = Batches(encoded["validation"].rows, PaddingCollator(tokenizer), batch_size=32)

# Model, optimizer, schedule
num_epochs = 3
model = load_model("quickstart", labels=examples.labels, seed=42)
optimizer = AdamW(model.parameters(), lr=1e-4)
scheduler = make_scheduler("linear", optimizer, warmup_steps=0, max_steps=num_epochs * len(train))

# The loop
torch.manual_seed(42)
model.train()
for epoch in range(num_epochs):
    for number, batch in enumerate(train.epoch(epoch)):
        loss = model(**batch.inputs, labels=batch.labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if number % 10 == 0:
            print(f"epoch {epoch + 1}, batch {number}/{len(train)}: loss {loss.item():.4f}", flush=True)

# Evaluation: every row counts once
metric = load_metric("glue", "mrpc")
model.eval()
for batch in validation.epoch():
    with torch.no_grad():
        logits = model(**batch.inputs).logits
    metric.add_batch(predictions=logits.argmax(dim=-1), references=batch.labels)
print(metric.compute())
