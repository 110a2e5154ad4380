"""The loop of 2020: TensorDataset, AdamW from transformers, a linear schedule, flat_accuracy, clipping."""

import numpy as np
import pandas as pd
import torch
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset
from transformers import AdamW, BertForSequenceClassification, BertTokenizer, get_linear_schedule_with_warmup

df = pd.read_csv("train.csv")
tokenizer = BertTokenizer.from_pretrained("tiny-bert", do_lower_case=True)
input_ids, attention_masks = [], []
for sent in df.text.values:
    encoded = tokenizer.encode_plus(sent, add_special_tokens=True, max_length=20, padding="max_length", truncation=True, return_attention_mask=True, return_tensors="pt")
    input_ids.append(encoded["input_ids"])
    attention_masks.append(encoded["attention_mask"])
dataset = TensorDataset(torch.cat(input_ids), torch.cat(attention_masks), torch.tensor(df.label.values))
loader = DataLoader(dataset, sampler=SequentialSampler(dataset), batch_size=8)
model = BertForSequenceClassification.from_pretrained("tiny-bert", num_labels=2, output_attentions=False, output_hidden_states=False)
optimizer = AdamW(model.parameters(), lr=5e-4, eps=1e-8)
epochs = 2
scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=0, num_training_steps=len(loader) * epochs)


def flat_accuracy(preds, labels):
    return np.sum(np.argmax(preds, axis=1).flatten() == labels.flatten()) / len(labels)


stats = []
for epoch in range(epochs):
    total, model_mode = 0, model.train()
    for step, batch in enumerate(loader):
        model.zero_grad()
        loss = model(batch[0], token_type_ids=None, attention_mask=batch[1], labels=batch[2])[0]
        total += loss.item()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    model.eval()
    with torch.no_grad():
        accuracy = np.mean([flat_accuracy(model(b[0], attention_mask=b[1])[0].numpy(), b[2].numpy()) for b in loader])
    stats.append((total / len(loader), accuracy))
