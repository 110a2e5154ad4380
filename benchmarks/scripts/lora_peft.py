"""LoRA with peft: adapters on query and value, the head trained too, adapters saved."""

import os

import numpy as np
import torch
from datasets import load_dataset
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("tiny-roberta")
ds = load_dataset("csv", data_files={"train": "train.csv", "validation": "valid.csv"})
ds = ds.map(lambda b: tokenizer(b["text"], truncation=True), batched=True, remove_columns=["text", "text_b", "id", "genre"])
base = AutoModelForSequenceClassification.from_pretrained("tiny-roberta", num_labels=2)
peft_config = LoraConfig(task_type=TaskType.SEQ_CLS, r=4, lora_alpha=16, lora_dropout=0.0, target_modules=["query", "value"])
model = get_peft_model(base, peft_config)
model.print_trainable_parameters()
trainer = Trainer(
    model=model,
    args=TrainingArguments("lora", learning_rate=1e-2, num_train_epochs=3, per_device_train_batch_size=24, logging_steps=1, eval_strategy="epoch",
                           save_strategy="epoch", load_best_model_at_end=True, report_to="none", label_names=["labels"]),
    train_dataset=ds["train"],
    eval_dataset=ds["validation"],
    data_collator=DataCollatorWithPadding(tokenizer=tokenizer),
    compute_metrics=lambda p: {"accuracy": (np.argmax(p.predictions, axis=1) == p.label_ids).mean()},
)
trainer.train()
metrics = trainer.evaluate()
model.save_pretrained("adapter")
files = sorted(os.listdir("adapter"))[:2]
torch.manual_seed(0)
