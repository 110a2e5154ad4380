"""Readability scores with their standard errors: an attention head on an encoder, own RMSE loss, weights from stdev."""

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from torch.utils.data import Dataset
from transformers import AutoConfig, AutoModel, AutoTokenizer, Trainer, TrainingArguments

MAX_LEN = 24
tokenizer = AutoTokenizer.from_pretrained("tiny-roberta")


class LitDataset(Dataset):
    def __init__(self, df, inference_only=False):
        self.text = df.text.tolist()
        self.target = torch.tensor(df.target.values, dtype=torch.float32)
        self.stdev = torch.tensor(df.stdev.values, dtype=torch.float32)
        self.encoded = tokenizer(self.text, padding="max_length", max_length=MAX_LEN, truncation=True)

    def __len__(self):
        return len(self.text)

    def __getitem__(self, index):
        return {
            "input_ids": torch.tensor(self.encoded["input_ids"][index]),
            "attention_mask": torch.tensor(self.encoded["attention_mask"][index]),
            "labels": self.target[index],
            "stdev": self.stdev[index],
        }


class LitModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = AutoConfig.from_pretrained("tiny-roberta")
        self.roberta = AutoModel.from_pretrained("tiny-roberta")
        self.attention = nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1), nn.Softmax(dim=1))
        self.regressor = nn.Linear(32, 1)

    def forward(self, input_ids, attention_mask, labels=None):
        states = self.roberta(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        context = torch.sum(self.attention(states) * states, dim=1)
        return (self.regressor(context).squeeze(-1),)


class LitTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        target, stdev = inputs.pop("labels"), inputs.pop("stdev")
        out = model(**inputs)
        loss = torch.sqrt((((out[0] - target) / (0.5 + stdev)) ** 2).mean())
        return (loss, {"loss": loss, "preds": out[0]}) if return_outputs else loss


def rmse(p):
    return {"rmse": float(np.sqrt(np.mean((np.squeeze(p.predictions) - p.label_ids) ** 2)))}


args = TrainingArguments("clrp", remove_unused_columns=False, per_device_train_batch_size=24, num_train_epochs=4, learning_rate=1e-3,
                         eval_strategy="epoch", save_strategy="epoch", save_total_limit=1, load_best_model_at_end=True,
                         metric_for_best_model="rmse", greater_is_better=False, logging_steps=1, report_to="none")
trainer = LitTrainer(LitModel(), args, train_dataset=LitDataset(pd.read_csv("train.csv")), eval_dataset=LitDataset(pd.read_csv("valid.csv")), compute_metrics=rmse)
trainer.train()
score = trainer.evaluate()["eval_rmse"]
