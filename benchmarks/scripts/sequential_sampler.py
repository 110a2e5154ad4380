"""Curriculum order: rows sorted by length, read in sequence through an overridden _get_train_sampler (2022 signature)."""

import pandas as pd
from datasets import Dataset
from torch.utils.data import SequentialSampler
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
df = pd.read_csv("train.csv")
df = df.assign(n=df.text.str.split().str.len()).sort_values("n", kind="stable")
ds = Dataset.from_pandas(df[["text", "label"]], preserve_index=False).map(lambda b: tokenizer(b["text"]), batched=True)


class CurriculumTrainer(Trainer):
    def _get_train_sampler(self):
        return SequentialSampler(self.train_dataset)


trainer = CurriculumTrainer(
    model=AutoModelForSequenceClassification.from_pretrained("tiny-bert"),
    args=TrainingArguments("curriculum", per_device_train_batch_size=4, num_train_epochs=1, learning_rate=5e-4, logging_steps=1,
                           save_strategy="no", report_to="none"),
    train_dataset=ds,
    tokenizer=tokenizer,
)
trainer.train()
losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
