"""A dataclass that extends TrainingArguments with max_len and freeze, filled from a dict; the encoder stays frozen."""

from dataclasses import dataclass, field

import pandas as pd
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments


@dataclass
class MyArguments(TrainingArguments):
    max_len: int = field(default=32, metadata={"help": "maximum length in tokens"})
    freeze: bool = True
    experiment: str = "exp001"


config = dict(
    output_dir="exp001",
    num_train_epochs=5,
    per_device_train_batch_size=24,
    learning_rate=2e-2,
    logging_steps=1,
    eval_strategy="epoch",
    save_strategy="no",
    report_to="none",
    max_len=18,
)
args = MyArguments(**config)
tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
model = AutoModelForSequenceClassification.from_pretrained("tiny-bert")
if args.freeze:
    for param in model.bert.parameters():
        param.requires_grad = False


def make(path):
    ds = Dataset.from_pandas(pd.read_csv(path)[["text", "label"]])
    return ds.map(lambda b: tokenizer(b["text"], truncation=True, max_length=args.max_len, padding="max_length"), batched=True)


trainer = Trainer(model=model, args=args, train_dataset=make("train.csv"), eval_dataset=make("valid.csv"))
trainer.train()
trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
length, experiment, as_dict = args.max_len, args.experiment, {k: v for k, v in args.to_dict().items() if k in ("max_len", "learning_rate", "freeze")}
