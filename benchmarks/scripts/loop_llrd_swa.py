"""Layer-wise learning rates and torch's own SWA in a loop of one's own."""

import torch
from datasets import load_dataset
from torch.optim.swa_utils import SWALR, AveragedModel
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
ds = load_dataset("csv", data_files={"train": "train.csv", "valid": "valid.csv"})
ds = ds.map(lambda b: tokenizer(b["text"], padding="max_length", max_length=20, truncation=True), batched=True)
ds = ds.with_format("torch", columns=["input_ids", "attention_mask", "label"])
model = AutoModelForSequenceClassification.from_pretrained("tiny-bert")


def layer_rates(model, lr=1e-3, decay=0.9):
    groups = [{"params": list(model.classifier.parameters()) + list(model.bert.pooler.parameters()), "lr": lr}]
    for layer in reversed(model.bert.encoder.layer):
        lr *= decay
        groups.append({"params": list(layer.parameters()), "lr": lr})
    groups.append({"params": list(model.bert.embeddings.parameters()), "lr": lr * decay})
    return groups


optimizer = torch.optim.AdamW(layer_rates(model), weight_decay=0.01)
swa_model, swa_scheduler = AveragedModel(model), SWALR(optimizer, swa_lr=5e-4, anneal_epochs=1)
train_losses = []
for epoch in range(3):
    model.train()
    for batch in DataLoader(ds["train"], batch_size=12):
        batch["labels"] = batch.pop("label")
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        train_losses.append(loss.item())
    if epoch >= 1:
        swa_model.update_parameters(model)
        swa_scheduler.step()
swa_model.eval()
with torch.no_grad():
    logits = torch.cat([swa_model(input_ids=b["input_ids"], attention_mask=b["attention_mask"]).logits for b in DataLoader(ds["valid"], batch_size=12)])
accuracy = (logits.argmax(-1) == ds["valid"]["label"][:]).float().mean().item()
