"""Adafactor with a cosine schedule and a warmup ratio, in the argument names of 2021."""

import pandas as pd
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
model = AutoModelForSequenceClassification.from_pretrained("tiny-bert", num_labels=3)
df = pd.read_csv("train.csv").drop(columns=["label"]).rename(columns={"star": "label"})
train = Dataset.from_pandas(df).map(lambda e: tokenizer(e["text"], truncation=True, padding=True), batched=True, batch_size=len(df))
args = TrainingArguments(
    output_dir="ada",
    overwrite_output_dir=True,
    adafactor=True,
    learning_rate=2e-3,
    warmup_ratio=0.2,
    lr_scheduler_type="cosine",
    num_train_epochs=5,
    per_gpu_train_batch_size=24,
    no_cuda=True,
    logging_steps=1,
    save_strategy="no",
)
trainer = Trainer(model=model, args=args, train_dataset=train)
trainer.train()
losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
