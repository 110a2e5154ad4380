"""Adversarial training by hand: attack the embeddings, a second backward pass, restore."""

import torch
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import AdamW, AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, get_linear_schedule_with_warmup

tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
ds = load_dataset("csv", data_files="train.csv", split="train")
ds = ds.map(lambda b: tokenizer(b["text"]), batched=True).select_columns(["input_ids", "attention_mask", "token_type_ids", "label"])
loader = DataLoader(ds, batch_size=6, collate_fn=DataCollatorWithPadding(tokenizer))
model = AutoModelForSequenceClassification.from_pretrained("tiny-bert")
no_decay = ["bias", "LayerNorm.weight"]


def get_optimizer_params(model, weight_decay):
    return [
        {"params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)], "weight_decay": weight_decay},
        {"params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)], "weight_decay": 0.0},
    ]


optimizer = AdamW(get_optimizer_params(model, 0.01), lr=5e-4)
scheduler = get_linear_schedule_with_warmup(optimizer, 1, 2 * len(loader))
losses = []
model.train()
for epoch in range(2):
    for batch in loader:
        loss = model(**batch).loss
        loss.backward()
        embedding = model.bert.embeddings.word_embeddings.weight
        backup = embedding.data.clone()
        embedding.data.add_(0.3 * embedding.grad / (embedding.grad.norm() + 1e-8))
        model(**batch).loss.backward()
        embedding.data = backup
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
final = losses[-1]
