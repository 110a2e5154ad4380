"""Flags of another machine: fp16 if there is a GPU, bf16 off, dataloader workers, both warmup settings."""

import torch
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

device = "cuda" if torch.cuda.is_available() else "cpu"
tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
ds = load_dataset("csv", data_files="train.csv", split="train").map(lambda b: tokenizer(b["text"]), batched=True)
args = TrainingArguments(
    output_dir="flags",
    overwrite_output_dir=True,
    fp16=device == "cuda",
    fp16_opt_level="O1",
    bf16=False,
    dataloader_pin_memory=False,
    warmup_steps=2,
    warmup_ratio=0.5,
    save_safetensors=True,
    max_steps=5,
    per_device_train_batch_size=24,
    learning_rate=1e-3,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
    optim="adamw_torch",
    disable_tqdm=True,
)
model = AutoModelForSequenceClassification.from_pretrained("tiny-bert").to(device)
trainer = Trainer(model=model, args=args, train_dataset=ds, tokenizer=tokenizer)
trainer.train()
rates = [log["learning_rate"] for log in trainer.state.log_history if "learning_rate" in log]
