"""Train on a single batch of two texts and print the loss before and after.

python examples/one_batch.py
"""

import torch

from glassloop import AdamW, LabelSet, load_model, load_tokenizer

tokenizer = load_tokenizer("quickstart")
model = load_model("quickstart", labels=LabelSet(("negative", "positive")), seed=0)
texts = ["I have been waiting for this my whole life.", "This is amazing!"]
batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
batch["labels"] = torch.tensor([1, 1])

optimizer = AdamW(model.parameters(), lr=1e-4)
before = model(**batch).loss
before.backward()
optimizer.step()
optimizer.zero_grad()
with torch.no_grad():
    after = model(**batch).loss
print(f"loss before {before.item():.4f}, after one step {after.item():.4f}")
