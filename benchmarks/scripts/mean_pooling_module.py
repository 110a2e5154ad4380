"""A competition model: nn.Module with self.config, mean pooling over the mask, loss and logits in a dict."""

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import AutoConfig, AutoModel, AutoTokenizer, Trainer, TrainingArguments


class CFG:
    model = "tiny-deberta"
    max_len = 24
    epochs = 3
    lr = 1e-3


class MeanPooling(nn.Module):
    def forward(self, last_hidden_state, attention_mask):
        mask = attention_mask.unsqueeze(-1).expand(last_hidden_state.size()).float()
        return torch.sum(last_hidden_state * mask, 1) / torch.clamp(mask.sum(1), min=1e-9)


class FeedbackModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.config = AutoConfig.from_pretrained(cfg.model, output_hidden_states=True)
        self.model = AutoModel.from_pretrained(cfg.model, config=self.config)
        self.pool = MeanPooling()
        self.fc = nn.Linear(self.config.hidden_size, 2)
        torch.nn.init.normal_(self.fc.weight, std=0.2)

    def forward(self, input_ids, attention_mask, labels=None):
        feature = self.pool(self.model(input_ids=input_ids, attention_mask=attention_mask)[0], attention_mask)
        output = self.fc(feature)
        loss = nn.SmoothL1Loss()(output, labels) if labels is not None else None
        return {"loss": loss, "logits": output}


class FeedbackDataset(Dataset):
    def __init__(self, df):
        self.texts, self.labels = df["text"].values, df[["target", "stdev"]].values

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, item):
        inputs = tokenizer.encode_plus(str(self.texts[item]), max_length=CFG.max_len, padding="max_length", truncation=True)
        return {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"], "labels": torch.tensor(self.labels[item], dtype=torch.float)}


tokenizer = AutoTokenizer.from_pretrained(CFG.model)


def mcrmse(p):
    scores = np.sqrt(((p.predictions - p.label_ids) ** 2).mean(axis=0))
    return {"mcrmse": scores.mean(), "rmse_target": scores[0], "rmse_stdev": scores[1]}


args = TrainingArguments("fb3", num_train_epochs=CFG.epochs, learning_rate=CFG.lr, per_device_train_batch_size=24, per_device_eval_batch_size=24,
                         eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True, metric_for_best_model="mcrmse",
                         greater_is_better=False, logging_steps=1, report_to="none")
trainer = Trainer(FeedbackModel(CFG), args, train_dataset=FeedbackDataset(pd.read_csv("train.csv")), eval_dataset=FeedbackDataset(pd.read_csv("valid.csv")), compute_metrics=mcrmse)
trainer.train()
oof = trainer.predict(FeedbackDataset(pd.read_csv("valid.csv"))).predictions
trainer.save_model("fb3-best")
