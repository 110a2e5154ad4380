"""Gradient accumulation, gradient checkpointing and torch_compile in one go, to save memory and time."""

from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
ds = load_dataset("csv", data_files={"train": "train.csv", "validation": "valid.csv"})
ds = ds.map(lambda b: tokenizer(b["text"], padding="max_length", max_length=16, truncation=True), batched=True)
args = TrainingArguments(
    output_dir="saving",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=3,
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": False},
    torch_compile=True,
    torch_compile_backend="eager",
    num_train_epochs=3,
    learning_rate=1e-3,
    logging_steps=1,
    eval_strategy="epoch",
    save_strategy="no",
    report_to="none",
)
trainer = Trainer(AutoModelForSequenceClassification.from_pretrained("tiny-bert"), args, train_dataset=ds["train"], eval_dataset=ds["validation"])
train_output = trainer.train()
print(train_output)
