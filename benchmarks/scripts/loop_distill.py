"""Distillation by hand, with hidden states of teacher and student matched layer by layer."""

import torch
import torch.nn.functional as F
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, get_scheduler

tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
ds = load_dataset("csv", data_files="train.csv", split="train").map(lambda b: tokenizer(b["text"]), batched=True)
ds = ds.remove_columns([c for c in ds.column_names if c not in ("input_ids", "attention_mask", "label")])
loader = DataLoader(ds, batch_size=8, collate_fn=DataCollatorWithPadding(tokenizer, return_tensors="pt"))
teacher = AutoModelForSequenceClassification.from_pretrained("tiny-bert", output_hidden_states=True).eval()
student = AutoModelForSequenceClassification.from_pretrained("tiny-distilbert", output_hidden_states=True)
optimizer = torch.optim.AdamW(student.parameters(), lr=5e-4)
lr_scheduler = get_scheduler(name="linear", optimizer=optimizer, num_warmup_steps=0, num_training_steps=2 * len(loader))
T, alpha, log = 2.0, 0.5, []
for epoch in range(2):
    student.train()
    for batch in loader:
        with torch.no_grad():
            t = teacher(**{k: v for k, v in batch.items() if k != "labels"})
        s = student(**batch)
        soft = F.kl_div(F.log_softmax(s.logits / T, -1), F.softmax(t.logits / T, -1), reduction="batchmean") * T * T
        hidden = sum(F.mse_loss(a, b) for a, b in zip(s.hidden_states, t.hidden_states)) / len(s.hidden_states)
        loss = alpha * s.loss + (1 - alpha) * soft + 0.01 * hidden
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lr_scheduler.step()
        log.append([loss.item(), soft.item(), hidden.item()])
