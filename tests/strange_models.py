"""Models that the fast paths were not written for: custom heads, changed parts, and families of another form."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from families import VOCABULARY, tiny_model
from torch import nn
from transformers import BertConfig, BertModel, BertPreTrainedModel, GPT2Config, GPT2ForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput


class CustomHead(BertPreTrainedModel):
    """A BERT encoder under a head of the user's own, as people write them: `pool` makes a vector of each row."""

    joined = 1

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.bert = BertModel(config)
        self.score = nn.Linear(config.hidden_size, 1)
        self.classifier = nn.Linear(config.hidden_size * self.joined + (2 if self.joined == 1 and self.features else 0), 2)
        self.post_init()

    features = False

    def pool(self, states: torch.Tensor, mask: torch.Tensor, hidden: tuple[torch.Tensor, ...]) -> torch.Tensor:
        raise AttributeError("pool")

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
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


class MeanHead(CustomHead):
    def pool(self, states: torch.Tensor, mask: torch.Tensor, hidden: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return (states * mask).sum(1) / mask.sum(1)


class MaxHead(CustomHead):
    def pool(self, states: torch.Tensor, mask: torch.Tensor, hidden: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return states.masked_fill(mask == 0, -1e4).max(1).values


class AttentionHead(CustomHead):
    def pool(self, states: torch.Tensor, mask: torch.Tensor, hidden: tuple[torch.Tensor, ...]) -> torch.Tensor:
        chances = self.score(states).masked_fill(mask == 0, -1e4).softmax(1)
        return (states * chances).sum(1)


class TwoLayersHead(CustomHead):
    joined = 2

    def pool(self, states: torch.Tensor, mask: torch.Tensor, hidden: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return torch.cat([hidden[-1][:, 0], hidden[-2][:, 0]], dim=1)


class FeaturesHead(CustomHead):
    features = True

    def pool(self, states: torch.Tensor, mask: torch.Tensor, hidden: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return states[:, 0]


class UnmaskedMeanHead(CustomHead):
    """Counts padding in, as some people's heads do: its answers depend on how wide a batch is."""

    def pool(self, states: torch.Tensor, mask: torch.Tensor, hidden: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return states.mean(1)


def custom(kind: type[CustomHead]) -> Any:
    config = tiny_model("bert", dropout=0.0, initializer_range=0.2).config
    torch.manual_seed(11)
    return kind(config)


def bert() -> Any:
    return tiny_model("bert", dropout=0.0, initializer_range=0.2)


def other_activation() -> Any:
    return tiny_model("bert", dropout=0.0, initializer_range=0.2, hidden_act="relu")


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
    from transformers import BertForSequenceClassification

    class Sharpened(BertForSequenceClassification):
        def forward(self, *args: Any, labels: Any = None, **given: Any) -> Any:
            found = super().forward(*args, **given)
            found.logits = found.logits * 4
            return found

    model = Sharpened(bert().config)
    model.load_state_dict(bert().state_dict())
    return model


def other_classifier() -> Any:
    model = tiny_model("roberta", dropout=0.0, initializer_range=0.2)

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
    return tiny_model("ernie", dropout=0.0, initializer_range=0.2, use_task_id=True)


def decoder() -> Any:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 80}
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop", "summary_first_dropout"), 0.0)
    ends = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    torch.manual_seed(11)
    config = GPT2Config(vocab_size=len(VOCABULARY), num_labels=2, initializer_range=0.2, **sizes, **rates, **ends)
    return GPT2ForSequenceClassification(config)


def family(name: str) -> Callable[[], Any]:
    return lambda: tiny_model(name, dropout=0.0, initializer_range=0.2)


STRANGE: dict[str, Callable[[], Any]] = {
    "mean head": lambda: custom(MeanHead),
    "max head": lambda: custom(MaxHead),
    "attention head": lambda: custom(AttentionHead),
    "two layers joined": lambda: custom(TwoLayersHead),
    "first token and features": lambda: custom(FeaturesHead),
    "unmasked mean head": lambda: custom(UnmaskedMeanHead),
    "other activation": other_activation,
    "replaced activation": replaced_activation,
    "patched forward": patched_forward,
    "patched inside": patched_inside,
    "patched in training": patched_in_training,
    "shared weights": shared_weights,
    "hooked layer": hooked_layer,
    "hooked head": hooked_head,
    "subclass": subclass,
    "other classifier": other_classifier,
    "other scale": other_scale,
    "ernie with tasks": ernie_with_tasks,
    "convbert": family("convbert"),
    "mpnet": family("mpnet"),
    "deberta-v2": family("deberta-v2"),
    "decoder": decoder,
}
