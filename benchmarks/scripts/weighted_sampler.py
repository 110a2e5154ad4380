"""A WeightedRandomSampler for rare classes in an overridden get_train_dataloader."""

import numpy as np
import pandas as pd
import torch
from datasets import Dataset
from torch.utils.data import DataLoader, WeightedRandomSampler
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
df = pd.read_csv("train.csv").iloc[:20]
df.loc[df.index[:6], "label"] = 0
counts = np.bincount(df.label)
sample_weights = (1.0 / counts)[df.label.values]
train_ds = Dataset.from_pandas(df[["text", "label"]]).map(lambda b: tokenizer(b["text"], padding="max_length", max_length=20), batched=True)
train_ds = train_ds.rename_column("label", "labels").with_format("torch", columns=["input_ids", "attention_mask", "labels"])


class BalancedTrainer(Trainer):
    def get_train_dataloader(self):
        generator = torch.Generator()
        generator.manual_seed(7)
        sampler = WeightedRandomSampler(torch.as_tensor(sample_weights), num_samples=len(sample_weights), replacement=True, generator=generator)
        return DataLoader(self.train_dataset, batch_size=self.args.train_batch_size, sampler=sampler, collate_fn=self.data_collator,
                          drop_last=self.args.dataloader_drop_last, num_workers=self.args.dataloader_num_workers)


args = TrainingArguments("balanced", per_device_train_batch_size=8, num_train_epochs=2, learning_rate=5e-4, logging_steps=1, save_strategy="no", report_to="none")
trainer = BalancedTrainer(AutoModelForSequenceClassification.from_pretrained("tiny-bert"), args, train_dataset=train_ds)
trainer.train()
losses = [e["loss"] for e in trainer.state.log_history if "loss" in e]
