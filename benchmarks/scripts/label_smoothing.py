"""label_smoothing_factor, weight decay, no evaluation while training."""

import numpy as np
import pandas as pd
from datasets import Dataset
from transformers import BertForSequenceClassification, BertTokenizerFast, Trainer, TrainingArguments

train, valid = pd.read_csv("train.csv"), pd.read_csv("valid.csv")
tokenizer = BertTokenizerFast.from_pretrained("tiny-bert")
model = BertForSequenceClassification.from_pretrained("tiny-bert")


def prepare(df):
    ds = Dataset.from_pandas(df, preserve_index=False)
    return ds.map(lambda b: tokenizer(b["text"], truncation=True), batched=True)


training_args = TrainingArguments(
    output_dir="smooth",
    label_smoothing_factor=0.1,
    weight_decay=0.01,
    num_train_epochs=6,
    per_device_train_batch_size=64,
    learning_rate=5e-4,
    logging_steps=2,
    save_strategy="no",
    report_to="none",
)
trainer = Trainer(model=model, args=training_args, train_dataset=prepare(train), processing_class=tokenizer)
result = trainer.train()
logits, labels, metrics = trainer.predict(prepare(valid))
accuracy = (np.argmax(logits, -1) == labels).mean()
print(f"accuracy {accuracy:.3f}, {metrics}")
