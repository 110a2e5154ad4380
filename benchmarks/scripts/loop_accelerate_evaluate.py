"""A loop on Accelerate with metrics of evaluate, gather_for_metrics and a model that is unwrapped and saved."""

import evaluate
import torch
from accelerate import Accelerator
from datasets import load_dataset
from torch.optim import AdamW
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer, get_scheduler

accelerator = Accelerator(cpu=True)
tokenizer = AutoTokenizer.from_pretrained("tiny-roberta")
ds = load_dataset("csv", data_files={"train": "train.csv", "validation": "valid.csv"})
ds = ds.map(lambda b: tokenizer(b["text"], padding="max_length", max_length=20, truncation=True), batched=True)
ds.set_format("torch", columns=["input_ids", "attention_mask", "label"])
train_dl, eval_dl = DataLoader(ds["train"], batch_size=8), DataLoader(ds["validation"], batch_size=12)
model = AutoModelForSequenceClassification.from_pretrained("tiny-roberta")
optimizer = AdamW(model.parameters(), lr=5e-4)
train_dl, eval_dl, model, optimizer = accelerator.prepare(train_dl, eval_dl, model, optimizer)
scheduler = get_scheduler("cosine", optimizer=optimizer, num_warmup_steps=1, num_training_steps=2 * len(train_dl))
metric, f1 = evaluate.load("accuracy"), evaluate.load("f1")
losses, scores = [], []
for epoch in range(2):
    model.train()
    for batch in train_dl:
        out = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["label"])
        accelerator.backward(out.loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(out.loss.item())
    model.eval()
    for batch in eval_dl:
        with torch.no_grad():
            logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        predictions, references = accelerator.gather_for_metrics((logits.argmax(-1), batch["label"]))
        metric.add_batch(predictions=predictions, references=references)
        f1.add_batch(predictions=predictions, references=references)
    scores.append({**metric.compute(), **f1.compute(average="macro")})
accelerator.unwrap_model(model).save_pretrained("unwrapped")
