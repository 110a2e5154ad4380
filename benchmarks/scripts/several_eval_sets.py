"""A dict of evaluation sets, the best model by one of them, settings and data changed after construction, private names."""

from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
ds = load_dataset("csv", data_files={"train": "train.csv", "valid": "valid.csv", "pairs": "pairs.csv"}).map(lambda b: tokenizer(b["text"]), batched=True)
args = TrainingArguments(
    output_dir="several",
    num_train_epochs=10,
    per_device_train_batch_size=32,
    learning_rate=1e-4,
    eval_strategy="epoch",
    save_strategy="epoch",
    save_total_limit=1,
    load_best_model_at_end=True,
    metric_for_best_model="eval_ood_loss",
    logging_steps=1,
    report_to="none",
)
trainer = Trainer(
    model=AutoModelForSequenceClassification.from_pretrained("tiny-bert"),
    args=args,
    train_dataset=ds["train"],
    eval_dataset={"iid": ds["valid"], "ood": ds["pairs"]},
    processing_class=tokenizer,
    compute_metrics=lambda p: {"acc": float((p.predictions.argmax(-1) == p.label_ids).mean())},
)
trainer.args._n_gpu = 1
trainer.args.num_train_epochs = 3
trainer.args.learning_rate = 1e-3
trainer.train_dataset = ds["train"].select(range(20))
trainer.train()
batch_size = trainer._train_batch_size
callbacks = sum("Progress" in type(c).__name__ or "Flow" in type(c).__name__ for c in trainer.callback_handler.callbacks)
scores = trainer.evaluate({"iid": ds["valid"], "all": ds["train"]})
names = sorted(name for name in trainer.evaluate() if name.endswith("acc"))
