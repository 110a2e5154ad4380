"""Models that the fast paths were not written for: custom heads, changed parts, and families of another form."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
import transformers
from families import VOCABULARY, tiny_model
from torch import nn
from transformers.modeling_outputs import SequenceClassifierOutput

STILL = {"dropout": 0.0, "initializer_range": 0.2}


class CustomHead(transformers.BertPreTrainedModel):
    """A BERT encoder under a head of the user's own, as people write them: `pool` makes a vector of each row."""

    joined, features = 1, False

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.bert = transformers.BertModel(config)
        self.score = nn.Linear(config.hidden_size, 1)
        self.classifier = nn.Linear(config.hidden_size * self.joined + 2 * self.features, 2)
        self.post_init()

    def forward(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        position_ids: Any = None,
        labels: Any = None,
    ) -> SequenceClassifierOutput:
        found = self.bert(
            input_ids, attention_mask, token_type_ids=token_type_ids, position_ids=position_ids, output_hidden_states=True
        )
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        pooled = self.pool(found.last_hidden_state, mask[..., None].float(), found.hidden_states)
        if self.features:
            facts = torch.stack([mask.float().mean(1), (input_ids * mask).float().mean(1) / 50], dim=1)
            pooled = torch.cat([pooled, facts], dim=1)
        logits = self.classifier(pooled)
        loss = nn.functional.cross_entropy(logits, labels) if labels is not None else None
        return SequenceClassifierOutput(loss=loss, logits=logits)


def head(pool: Callable[..., torch.Tensor], **attributes: Any) -> type[CustomHead]:
    """A head whose `pool` gets the last states, the mask and all hidden states."""
    return type("OwnHead", (CustomHead,), {"pool": pool, **attributes})


MeanHead = head(lambda self, states, mask, hidden: (states * mask).sum(1) / mask.sum(1))
MaxHead = head(lambda self, states, mask, hidden: states.masked_fill(mask == 0, -1e4).max(1).values)
AttentionHead = head(
    lambda self, states, mask, hidden: (states * self.score(states).masked_fill(mask == 0, -1e4).softmax(1)).sum(1)
)
TwoLayersHead = head(lambda self, states, mask, hidden: torch.cat([hidden[-1][:, 0], hidden[-2][:, 0]], dim=1), joined=2)
FeaturesHead = head(lambda self, states, mask, hidden: states[:, 0], features=True)
UnmaskedMeanHead = head(lambda self, states, mask, hidden: states.mean(1))  # answers depend on how wide a batch is


def custom(kind: type[CustomHead]) -> Any:
    config = bert().config
    torch.manual_seed(11)
    return kind(config)


def bert() -> Any:
    return tiny_model("bert", **STILL)


def other_activation() -> Any:
    return tiny_model("bert", **STILL, hidden_act="relu")


def replaced_activation() -> Any:
    """The config still says gelu."""
    model = bert()
    for layer in model.bert.encoder.layer:
        layer.intermediate.intermediate_act_fn = nn.SiLU()
    return model


def patched_forward() -> Any:
    model = bert()
    usual = model.forward

    def doubled(self: Any, *args: Any, labels: Any = None, **given: Any) -> Any:
        found = usual(*args, **given)
        found.logits = found.logits * 2
        return found

    model.forward = MethodType(doubled, model)
    return model


def patched_inside() -> Any:
    model = bert()
    part = model.bert.encoder.layer[0].output
    usual = part.forward
    part.forward = lambda *args, **given: usual(*args, **given) * 1.5
    return model


def patched_in_training() -> Any:
    """An evaluation cannot tell it from the model as it was."""
    model = bert()
    layer = model.bert.encoder.layer[0]
    usual = layer.feed_forward_chunk
    layer.feed_forward_chunk = lambda states: usual(states) * (1.2 if layer.training else 1)
    return model


def shared_weights() -> Any:
    model = bert()
    first, second = model.bert.encoder.layer
    second.attention.self.query.weight = first.attention.self.query.weight
    return model


def hooked_layer() -> Any:
    model = bert()
    model.bert.encoder.layer[1].register_forward_hook(lambda module, args, output: output * 0.5)
    return model


def hooked_head() -> Any:
    model = bert()
    model.classifier.register_forward_hook(lambda module, args, output: output * 3)
    return model


def subclass() -> Any:
    class Sharpened(transformers.BertForSequenceClassification):
        def forward(self, *args: Any, labels: Any = None, **given: Any) -> Any:
            found = super().forward(*args, **given)
            found.logits = found.logits * 4
            return found

    model = Sharpened(bert().config)
    model.load_state_dict(bert().state_dict())
    return model


def other_classifier() -> Any:
    model = tiny_model("roberta", **STILL)

    class MeanClassifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(32, 2)

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return self.out(features.mean(1))

    torch.manual_seed(3)
    model.classifier = MeanClassifier()
    return model


def other_scale() -> Any:
    model = bert()
    for layer in model.bert.encoder.layer:
        layer.attention.self.scaling *= 2
    return model


def ernie_with_tasks() -> Any:
    return tiny_model("ernie", **STILL, use_task_id=True)


def decoder() -> Any:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 80}
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop", "summary_first_dropout"), 0.0)
    ends = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    torch.manual_seed(11)
    config = transformers.GPT2Config(vocab_size=len(VOCABULARY), num_labels=2, initializer_range=0.2, **sizes, **rates, **ends)
    return transformers.GPT2ForSequenceClassification(config)


HEADS = {"mean head": MeanHead, "max head": MaxHead, "attention head": AttentionHead, "two layers joined": TwoLayersHead,
         "first token and features": FeaturesHead, "unmasked mean head": UnmaskedMeanHead}  # fmt: skip
CHANGED = (other_activation, replaced_activation, patched_forward, patched_inside, patched_in_training, shared_weights,
           hooked_layer, hooked_head, subclass, other_classifier, other_scale, ernie_with_tasks, decoder)  # fmt: skip
STRANGE: dict[str, Callable[[], Any]] = {
    **{name: lambda kind=kind: custom(kind) for name, kind in HEADS.items()},
    **{make.__name__.replace("_", " "): make for make in CHANGED},
    **{family: lambda family=family: tiny_model(family, **STILL) for family in ("convbert", "mpnet", "deberta-v2")},
}
