"""A stream from load_dataset(streaming=True), tokenized on the way, trained for max_steps."""

from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
stream = load_dataset("csv", data_files={"train": "train.csv", "validation": "valid.csv"}, streaming=True)
stream = stream.map(lambda b: tokenizer(b["text"], truncation=True), batched=True, remove_columns=["id", "text", "text_b", "genre", "group", "star", "toxic", "insult", "threat", "target", "stdev"])
args = TrainingArguments(
    output_dir="stream",
    max_steps=6,
    per_device_train_batch_size=8,
    learning_rate=5e-4,
    logging_steps=1,
    eval_strategy="steps",
    eval_steps=3,
    save_strategy="no",
    report_to="none",
)
trainer = Trainer(
    model=AutoModelForSequenceClassification.from_pretrained("tiny-bert"),
    args=args,
    train_dataset=stream["train"],
    eval_dataset=stream["validation"],
    data_collator=DataCollatorWithPadding(tokenizer=tokenizer),
    compute_metrics=lambda p: {"accuracy": (p.predictions.argmax(-1) == p.label_ids).mean()},
)
trainer.train()
