"""Stochastic weight averaging over the last epochs, collected in a callback and loaded afterwards."""

import torch
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments

tok = AutoTokenizer.from_pretrained("tiny-distilbert")
ds = load_dataset("csv", data_files={"train": "train.csv", "val": "valid.csv"})
ds = ds.map(lambda x: tok(x["text"], truncation=True, return_token_type_ids=False), batched=True)


class SWACallback(TrainerCallback):
    def __init__(self, start_epoch=2):
        self.start_epoch = start_epoch
        self.count = 0
        self.mean = None

    def on_epoch_end(self, args, state, control, **kwargs):
        if round(state.epoch) < self.start_epoch:
            return
        weights = {k: v.detach().cpu().clone() for k, v in kwargs["model"].state_dict().items()}
        self.count += 1
        if self.mean is None:
            self.mean = weights
        else:
            for k, v in weights.items():
                self.mean[k] += (v - self.mean[k]) / self.count


swa = SWACallback()
args = TrainingArguments("swa", num_train_epochs=4, per_device_train_batch_size=24, learning_rate=2e-3, lr_scheduler_type="constant",
                         eval_strategy="epoch", logging_steps=1, save_strategy="no", report_to="none")
model = AutoModelForSequenceClassification.from_pretrained("tiny-distilbert")
trainer = Trainer(model, args, train_dataset=ds["train"], eval_dataset=ds["val"], processing_class=tok, callbacks=[swa])
trainer.train()
before = trainer.evaluate()["eval_loss"]
model.load_state_dict(swa.mean)
after = trainer.evaluate()["eval_loss"]
averaged = swa.count
swa.mean = None
torch.manual_seed(0)
