"""FGM on the word embeddings inside an overridden training_step, as in many Chinese and Kaggle solutions."""

import torch
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments


class FGM:
    def __init__(self, model):
        self.model, self.backup = model, {}

    def attack(self, epsilon=0.5, emb_name="word_embeddings"):
        for name, param in self.model.named_parameters():
            if param.requires_grad and emb_name in name:
                self.backup[name] = param.data.clone()
                norm = torch.norm(param.grad)
                if norm != 0:
                    param.data.add_(epsilon * param.grad / norm)

    def restore(self):
        for name, param in self.model.named_parameters():
            if name in self.backup:
                param.data = self.backup[name]
        self.backup = {}


class FGMTrainer(Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        loss = self.compute_loss(model, inputs)
        loss.backward()
        fgm = FGM(model)
        fgm.attack()
        self.compute_loss(model, inputs).backward()
        fgm.restore()
        return loss.detach()


tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
data = load_dataset("csv", data_files={"train": "train.csv", "validation": "valid.csv"}).map(lambda b: tokenizer(b["text"]), batched=True)
args = TrainingArguments("fgm", per_device_train_batch_size=24, num_train_epochs=3, learning_rate=1e-3, logging_steps=1, save_strategy="no",
                         eval_strategy="epoch", report_to="none")
trainer = FGMTrainer(AutoModelForSequenceClassification.from_pretrained("tiny-bert"), args, train_dataset=data["train"],
                     eval_dataset=data["validation"], processing_class=tokenizer)
trainer.train()
