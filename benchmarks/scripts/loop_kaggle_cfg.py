"""The competition loop: CFG, seed_everything, AverageMeter, train_fn and valid_fn, autocast and a GradScaler that are off."""

import os
import random

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset
from transformers import AutoConfig, AutoModel, AutoTokenizer, get_cosine_schedule_with_warmup


class CFG:
    model, max_len, batch_size, epochs = "tiny-deberta", 24, 8, 2
    encoder_lr, decoder_lr, apex, max_grad_norm, seed = 3e-4, 1e-3, False, 1000, 42


def seed_everything(seed=42):
    random.seed(seed)
    os.environ["PYTHONHASHSEED"] = str(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class AverageMeter:
    def __init__(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val, self.sum, self.count = val, self.sum + val * n, self.count + n
        self.avg = self.sum / self.count


class TrainDataset(Dataset):
    def __init__(self, df):
        self.texts, self.labels = df["text"].values, df["target"].values

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, item):
        enc = tokenizer(self.texts[item], max_length=CFG.max_len, padding="max_length", truncation=True)
        return {k: torch.tensor(v, dtype=torch.long) for k, v in enc.items()}, torch.tensor(self.labels[item], dtype=torch.float)


class CustomModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.config = AutoConfig.from_pretrained(cfg.model, output_hidden_states=True)
        self.model, self.fc = AutoModel.from_pretrained(cfg.model, config=self.config), nn.Linear(32, 1)

    def forward(self, inputs):
        return self.fc(self.model(**inputs)[0][:, 0])


seed_everything(CFG.seed)
tokenizer = AutoTokenizer.from_pretrained(CFG.model)
train_loader = DataLoader(TrainDataset(pd.read_csv("train.csv")), batch_size=CFG.batch_size, shuffle=True, drop_last=True)
valid_loader = DataLoader(TrainDataset(pd.read_csv("valid.csv")), batch_size=CFG.batch_size * 2, shuffle=False)
model = CustomModel(CFG)
optimizer = torch.optim.AdamW([{"params": model.model.parameters(), "lr": CFG.encoder_lr}, {"params": model.fc.parameters(), "lr": CFG.decoder_lr}])
scheduler = get_cosine_schedule_with_warmup(optimizer, 0, CFG.epochs * len(train_loader), num_cycles=0.5)
scaler, criterion, history = torch.amp.GradScaler("cuda", enabled=CFG.apex), nn.SmoothL1Loss(), []
for epoch in range(CFG.epochs):
    meter = AverageMeter()
    model.train()
    for inputs, labels in train_loader:
        with torch.autocast("cpu", enabled=CFG.apex):
            loss = criterion(model(inputs).view(-1), labels)
        meter.update(loss.item(), len(labels))
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CFG.max_grad_norm)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scheduler.step()
    model.eval()
    with torch.no_grad():
        preds = np.concatenate([model(inputs).view(-1).numpy() for inputs, _ in valid_loader])
    history.append((meter.avg, float(np.corrcoef(preds, pd.read_csv("valid.csv").target)[0, 1])))
