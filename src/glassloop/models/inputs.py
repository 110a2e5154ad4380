"""What a model takes: its inputs by name, how many tokens, and which tokens."""

from __future__ import annotations

import inspect

from glassloop.data.examples import Examples
from glassloop.data.truncation import LengthLimit
from glassloop.errors import ModelError, counted, listed
from glassloop.models.families import FAMILIES
from glassloop.transformers_types import Config, Model, Tokenizer

DEFAULT_LENGTH = 512
NO_LIMIT = 100_000  # tokenizers that know no limit say 10**30


def longest_input(tokenizer: Tokenizer, config: Config | None = None) -> int:
    """Return how many tokens a model takes at most; 512 if neither tokenizer nor config says."""
    limits = [tokenizer.model_max_length]
    positions = getattr(config, "max_position_embeddings", None)
    if config is not None and positions:
        family = FAMILIES.get(config.model_type)
        padding = getattr(config, "pad_token_id", None) or 0
        offset = padding + 1 if family and family.positions_after_padding else 0
        limits.append(positions - offset)
    known = [limit for limit in limits if limit and limit < NO_LIMIT]
    return int(min(known, default=DEFAULT_LENGTH))


def length_limit(examples: Examples, tokenizer: Tokenizer, config: Config, max_length: int | None) -> LengthLimit:
    """Return how long the rows of `examples` may be: `max_length` tokens, by default as many as the model takes."""
    most = longest_input(tokenizer, config)
    pairs = examples.columns.text_pair is not None
    return LengthLimit(most if max_length is None else max_length, most, tokenizer.truncation_side, pairs)


def encoder_weights(config: Config) -> int | None:
    """Return about how many weights the layers of an encoder have, from its config alone; None if it does not say."""
    width, layers = (getattr(config, name, None) for name in ("hidden_size", "num_hidden_layers"))
    return 12 * layers * width**2 if isinstance(width, int) and isinstance(layers, int) and width * layers > 0 else None


def accepted_inputs(kind: type) -> set[str]:
    """Return the inputs that the forward method of a model class takes by name.

    If it names none and passes them on (`**kwargs`), those of its parent class count too.
    """
    names, named = {"input_ids"}, (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for parent in kind.__mro__:
        if forward := vars(parent).get("forward"):
            parameters = [*inspect.signature(forward).parameters.values()][1:]  # the first is the model itself
            names |= {entry.name for entry in parameters if entry.kind in named}
            passes_on = any(entry.kind is inspect.Parameter.VAR_KEYWORD for entry in parameters)
            if not passes_on or any(entry.name == "input_ids" for entry in parameters):
                break
    return names


def refuse_unknown_tokens(tokenizer: Tokenizer | None, model: Model) -> None:
    """Raise if the tokenizer has tokens for which the model's embedding has no row."""
    if tokenizer is None or not hasattr(tokenizer, "get_vocab") or not hasattr(model, "get_input_embeddings"):
        return  # not from transformers: it may look up tokens in any way
    rows = int(model.get_input_embeddings().weight.shape[0])
    if unknown := [token for token, number in tokenizer.get_vocab().items() if number >= rows]:
        raise ModelError(
            f"the tokenizer has {counted(len(unknown), 'token', 'tokens')} beyond the {rows:,} rows of the model's embedding "
            f"({listed(sorted(unknown), 5)})",
            "use the model's own tokenizer, or call model.resize_token_embeddings(len(tokenizer)) and save both",
        )
