"""A PreTrainedModel subclass that joins the [CLS] states of several layers, with its own from_pretrained."""

import pandas as pd
import torch
from datasets import Dataset
from torch import nn
from transformers import AutoTokenizer, BertConfig, BertModel, BertPreTrainedModel, Trainer, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput


class BertConcatLayers(BertPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.bert = BertModel(config, add_pooling_layer=False)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size * 2, config.num_labels)
        self.post_init()

    def forward(self, input_ids=None, attention_mask=None, token_type_ids=None, labels=None, **kwargs):
        outputs = self.bert(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids, output_hidden_states=True)
        cls = torch.cat([outputs.hidden_states[-i][:, 0] for i in (1, 2)], dim=-1)
        logits = self.classifier(self.dropout(cls))
        loss = nn.CrossEntropyLoss()(logits.view(-1, self.num_labels), labels.view(-1)) if labels is not None else None
        return SequenceClassifierOutput(loss=loss, logits=logits)


tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
config = BertConfig.from_pretrained("tiny-bert", num_labels=2)
model = BertConcatLayers.from_pretrained("tiny-bert", config=config)


def dataset(path):
    return Dataset.from_pandas(pd.read_csv(path)[["text", "text_b", "label"]]).map(lambda b: tokenizer(b["text"], b["text_b"], truncation="only_second", max_length=30), batched=True)


args = TrainingArguments("concat", per_device_train_batch_size=24, num_train_epochs=3, learning_rate=1e-3, eval_strategy="epoch", logging_steps=1,
                         save_strategy="no", report_to="none")
trainer = Trainer(model, args, train_dataset=dataset("train.csv"), eval_dataset=dataset("valid.csv"), processing_class=tokenizer)
trainer.train()
trainer.save_model("concat-model")
again = BertConcatLayers.from_pretrained("concat-model").eval()
with torch.no_grad():
    logits = again(**tokenizer("this film was good", return_tensors="pt")).logits
