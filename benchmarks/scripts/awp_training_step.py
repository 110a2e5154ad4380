"""Adversarial weight perturbation that starts at the second epoch, through self.accelerator.backward."""

import torch
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments


class AWPTrainer(Trainer):
    awp_lr, awp_eps, awp_start = 0.1, 0.05, 1

    def perturb(self, model):
        saved = {}
        for name, param in model.named_parameters():
            if param.requires_grad and param.grad is not None and name.endswith("weight") and "LayerNorm" not in name:
                saved[name] = param.data.clone()
                step = self.awp_lr * param.grad / (param.grad.norm() + 1e-6) * param.data.norm()
                limit = self.awp_eps * param.data.abs()
                param.data = torch.min(torch.max(param.data + step, saved[name] - limit), saved[name] + limit)
        return saved

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs)
        self.accelerator.backward(loss)
        if self.state.epoch is not None and self.state.epoch >= self.awp_start:
            saved = self.perturb(model)
            with self.compute_loss_context_manager():
                self.accelerator.backward(self.compute_loss(model, inputs))
            for name, param in model.named_parameters():
                if name in saved:
                    param.data = saved[name]
        return loss.detach()


tok = AutoTokenizer.from_pretrained("tiny-deberta")
data = load_dataset("csv", data_files="train.csv")["train"].map(lambda b: tok(b["text"]), batched=True)
args = TrainingArguments(output_dir="awp", num_train_epochs=3, per_device_train_batch_size=24, learning_rate=5e-4, logging_steps=1,
                         save_strategy="no", report_to="none")
trainer = AWPTrainer(model=AutoModelForSequenceClassification.from_pretrained("tiny-deberta"), args=args, train_dataset=data, processing_class=tok)
trainer.train()
loss_after = trainer.evaluate(data)["eval_loss"]
