"""group_by_length with batches of similar length; with max_grad_norm, Adam betas and a linear schedule set by hand."""

import numpy as np
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("tiny-roberta")
ds = load_dataset("csv", data_files={"train": "train.csv", "validation": "valid.csv"})
ds = ds.map(lambda b: tokenizer(b["text"]), batched=True, remove_columns=["text", "text_b", "id", "genre"])
ds = ds.map(lambda r: {"length": len(r["input_ids"])})
args = TrainingArguments(
    output_dir="grouped",
    group_by_length=True,
    per_device_train_batch_size=24,
    per_device_eval_batch_size=4,
    num_train_epochs=3,
    learning_rate=1e-3,
    adam_beta1=0.9,
    adam_beta2=0.98,
    adam_epsilon=1e-6,
    max_grad_norm=0.3,
    logging_steps=1,
    evaluation_strategy="steps",
    eval_steps=1,
    save_strategy="no",
    report_to="none",
)
trainer = Trainer(model=AutoModelForSequenceClassification.from_pretrained("tiny-roberta"), args=args, train_dataset=ds["train"],
                  eval_dataset=ds["validation"], tokenizer=tokenizer)
trainer.train()
predicted = np.argmax(trainer.predict(ds["validation"]).predictions, axis=1)
