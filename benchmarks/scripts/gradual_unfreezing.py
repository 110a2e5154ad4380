"""Gradual unfreezing: the head alone first, one more layer with each epoch, from a callback."""

from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
data = load_dataset("csv", data_files={"train": "train.csv", "valid": "valid.csv"})
data = data.map(lambda b: tokenizer(b["text"], truncation=True), batched=True)
model = AutoModelForSequenceClassification.from_pretrained("tiny-bert")


class Unfreeze(TrainerCallback):
    def __init__(self):
        self.trainable = []

    def on_train_begin(self, args, state, control, model, **kwargs):
        for param in model.base_model.parameters():
            param.requires_grad = False

    def on_epoch_begin(self, args, state, control, model, **kwargs):
        epoch = int(state.epoch)
        if epoch > 0:
            for param in model.base_model.encoder.layer[-epoch].parameters():
                param.requires_grad = True
        self.trainable.append(sum(p.numel() for p in model.parameters() if p.requires_grad))


unfreeze = Unfreeze()
trainer = Trainer(
    model=model,
    args=TrainingArguments("ulmfit", num_train_epochs=3, per_device_train_batch_size=24, learning_rate=5e-3, logging_steps=1,
                           eval_strategy="epoch", save_strategy="no", report_to="none"),
    train_dataset=data["train"],
    eval_dataset=data["valid"],
    processing_class=tokenizer,
    callbacks=[unfreeze],
)
trainer.train()
losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
