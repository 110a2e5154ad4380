"""Tokenize without transformers: the `tokenizers` library reads the tokenizer of a run, if it is the one of the training.

transformers rebuilds a tokenizer from the settings of its class, so that its file alone does not say how texts are split. A run
records a checksum of the tokenizer it trained with: only a tokenizer with the same checksum is used here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from glassloop.data.encoding import backend_state, key_of
from glassloop.models.files import read_json_file
from glassloop.records import Json

if TYPE_CHECKING:
    from tokenizers import AddedToken
    from tokenizers import Encoding as Encoded
    from tokenizers import Tokenizer as Backend

TOKENIZER_NAME, SETTINGS_NAME = "tokenizer.json", "tokenizer_config.json"
# What tokenizers return: the checksum of the run says which of these it is.
INPUT_NAMES = (["input_ids", "token_type_ids", "attention_mask"], ["input_ids", "attention_mask"])
SIDES = ("left", "right")
UNLIMITED = int(1e30)  # as in transformers
Ids = list[list[int]]


class LightEncoding(dict[str, Ids]):
    """The inputs of some rows by name, and what is known about them, as in transformers' `BatchEncoding`."""

    is_fast = True

    def __init__(self, inputs: dict[str, Ids], rows: Sequence[Encoded]) -> None:
        super().__init__(inputs)
        self.rows = rows

    def sequence_ids(self, row: int) -> list[int | None]:
        """Return for each token of a row whether it belongs to the first or the second text; None for special tokens."""
        return list(self.rows[row].sequence_ids)


class LightTokenizer:
    """A tokenizer with the part of transformers' interface that predictions use.

    Args:
        backend: The tokenizer of the `tokenizers` library.
        settings: The content of tokenizer_config.json.
        input_names: The names of the inputs it returns.
    """

    def __init__(self, backend: Backend, settings: Mapping[str, Json], input_names: list[str]) -> None:
        self.backend, self.model_input_names = backend, input_names
        self.truncation_side = str(settings.get("truncation_side", "right"))
        self.padding_side = settings.get("padding_side", "right")
        self.pad_token_id: int | None = backend.token_to_id(str(settings.get("pad_token")))
        self.pad_token_type_id = settings.get("pad_token_type_id", 0)
        self.model_max_length = settings.get("model_max_length", UNLIMITED)
        self.added_tokens_decoder: dict[int, AddedToken] = backend.get_added_tokens_decoder()
        special = {number: str(token) for number, token in self.added_tokens_decoder.items() if token.special}
        self.all_special_ids, self.all_special_tokens = [*special], [*special.values()]

    def __call__(
        self,
        texts: str | list[str],
        pairs: str | list[str] | None = None,
        *,
        truncation: bool = False,
        max_length: int = UNLIMITED,
        add_special_tokens: bool = True,
        return_attention_mask: bool = False,
        verbose: bool = True,
    ) -> LightEncoding | dict[str, list[int]]:
        """Return the inputs for a list of texts or pairs of texts, or only the ids of one text."""
        if truncation:
            self.backend.enable_truncation(max_length, stride=0, strategy="longest_first", direction=self.truncation_side)
        else:
            self.backend.no_truncation()
        if isinstance(texts, str):
            return {"input_ids": self.backend.encode(texts, pairs, add_special_tokens=add_special_tokens).ids}
        columns = texts if pairs is None else [*zip(texts, pairs, strict=True)]
        rows = self.backend.encode_batch(columns, add_special_tokens=add_special_tokens)
        encoded = {"input_ids": [row.ids for row in rows]}
        if "token_type_ids" in self.model_input_names:
            encoded["token_type_ids"] = [row.type_ids for row in rows]
        return LightEncoding(encoded, rows)

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """Return how many special tokens are added to a text, or to a pair of texts."""
        number: int = self.backend.num_special_tokens_to_add(pair)
        return number

    def get_vocab(self) -> dict[str, int]:
        """Return all tokens and their numbers, with added tokens."""
        vocabulary: dict[str, int] = self.backend.get_vocab(with_added_tokens=True)
        return vocabulary


def load_light_tokenizer(folder: Path, key: object) -> LightTokenizer | None:
    """Return the tokenizer in a folder if its checksum begins with `key`; None if transformers has to load it."""
    settings = read_json_file(folder / SETTINGS_NAME)
    split_special, side = settings.get("split_special_tokens", False), settings.get("truncation_side", "right")
    if not isinstance(key, str) or not key:
        return None
    for backend in backends_of(folder / TOKENIZER_NAME):
        backend.encode_special_tokens = split_special is True
        backend.no_padding()
        state = backend_state(backend)
        for names in INPUT_NAMES:
            if key_of(state, settings.get("tokenizer_class"), side, names, split_special).startswith(key):
                tokenizer = LightTokenizer(backend, settings, names)
                return tokenizer if is_usual(tokenizer) else None
    return None


def backends_of(path: Path) -> Iterator[Backend]:
    """Yield the tokenizer in a file as transformers may read it; nothing if it cannot be read.

    The `tokenizers` library rounds the scores of a Unigram model when it reads a file. Most classes of transformers take them
    from Python's JSON, which does not.
    """
    if not path.is_file():
        return
    from tokenizers import Tokenizer
    from tokenizers.models import Unigram

    try:
        backend = Tokenizer.from_file(str(path))
        yield backend
        if isinstance(backend.model, Unigram):
            model = json.loads(path.read_text(encoding="utf-8"))["model"]
            backend.model = Unigram([*map(tuple, model["vocab"])], model["unk_id"], model.get("byte_fallback", False))
            yield backend
    except Exception:  # the Rust library raises nothing narrower
        return


def is_usual(tokenizer: LightTokenizer) -> bool:
    """Return whether a tokenizer can pad, and its settings have the usual types."""
    longest = tokenizer.model_max_length
    return (
        tokenizer.pad_token_id is not None
        and type(tokenizer.pad_token_type_id) is int
        and tokenizer.padding_side in SIDES
        and tokenizer.truncation_side in SIDES
        and isinstance(longest, int | float)
        and not isinstance(longest, bool)
        and longest >= 1
    )
