"""An optimizer and a cosine schedule made by hand and passed as optimizers=."""

import torch
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments, get_cosine_schedule_with_warmup

checkpoint = "tiny-bert"
tokenizer = AutoTokenizer.from_pretrained(checkpoint)
ds = load_dataset("csv", data_files={"train": "train.csv", "test": "valid.csv"}).map(lambda x: tokenizer(x["text"], truncation=True), batched=True)
model = AutoModelForSequenceClassification.from_pretrained(checkpoint)
EPOCHS, BATCH = 5, 24
head = [p for n, p in model.named_parameters() if n.startswith("classifier")]
body = [p for n, p in model.named_parameters() if not n.startswith("classifier")]
optimizer = torch.optim.AdamW([{"params": body, "lr": 5e-4}, {"params": head, "lr": 5e-3}], weight_decay=0.01)
total = EPOCHS * (len(ds["train"]) // BATCH)
scheduler = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=1, num_training_steps=total)
trainer = Trainer(
    model=model,
    args=TrainingArguments("opt", num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH, logging_steps=1, save_strategy="no", report_to="none"),
    train_dataset=ds["train"],
    eval_dataset=ds["test"],
    processing_class=tokenizer,
    optimizers=(optimizer, scheduler),
)
trainer.train()
last_rates = scheduler.get_last_lr()
loss = trainer.evaluate()["eval_loss"]
