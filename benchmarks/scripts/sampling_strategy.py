"""train_sampling_strategy="sequential", the setting of today for rows in their order."""

from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("tiny-distilbert")
ds = load_dataset("csv", data_files="train.csv", split="train").sort("target")
ds = ds.map(lambda b: tokenizer(b["text"], truncation=True, return_token_type_ids=False), batched=True)
args = TrainingArguments(
    output_dir="ordered",
    train_sampling_strategy="sequential",
    per_device_train_batch_size=5,
    num_train_epochs=2,
    learning_rate=5e-4,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
)
trainer = Trainer(AutoModelForSequenceClassification.from_pretrained("tiny-distilbert"), args, DataCollatorWithPadding(tokenizer), ds)
output = trainer.train()
losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
