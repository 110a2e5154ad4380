"""The loop of the course in 2021: load_metric from datasets, add_batch, get_scheduler."""

import torch
from datasets import load_dataset
from datasets import load_metric
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import AdamW, AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, get_scheduler

checkpoint = "tiny-bert"
tokenizer = AutoTokenizer.from_pretrained(checkpoint)
raw = load_dataset("csv", data_files={"train": "train.csv", "validation": "valid.csv"})
tokenized = raw.map(lambda e: tokenizer(e["text"], e["text_b"], truncation=True), batched=True)
tokenized = tokenized.rename_column("label", "labels")
keep = ["input_ids", "token_type_ids", "attention_mask", "labels"]
tokenized.set_format("torch", columns=keep)
collator = DataCollatorWithPadding(tokenizer=tokenizer)
train_loader = DataLoader(tokenized["train"], batch_size=8, collate_fn=collator)
eval_loader = DataLoader(tokenized["validation"], batch_size=8, collate_fn=collator)
model = AutoModelForSequenceClassification.from_pretrained(checkpoint, num_labels=2)
optimizer = AdamW(model.parameters(), lr=5e-4)
num_epochs = 2
num_steps = num_epochs * len(train_loader)
lr_scheduler = get_scheduler("linear", optimizer=optimizer, num_warmup_steps=0, num_training_steps=num_steps)
bar = tqdm(range(num_steps))
model.train()
for epoch in range(num_epochs):
    for batch in train_loader:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        bar.update(1)
last_loss = loss.item()
metric = load_metric("glue", "mrpc")
model.eval()
for batch in eval_loader:
    with torch.no_grad():
        outputs = model(**batch)
    metric.add_batch(predictions=torch.argmax(outputs.logits, dim=-1), references=batch["labels"])
scores = metric.compute()
print(scores)
