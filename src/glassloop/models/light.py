"""Load and run a classifier and its tokenizer without transformers, whose import takes longer than a prediction."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from glassloop.base.records import Json, NotARecordError, decoded
from glassloop.data.encoding import backend_state, key_of
from glassloop.data.interfaces import LogitsOutput
from glassloop.models.families import FAMILIES, GELU_APPROXIMATIONS, WEIGHTS_NAME, Head
from glassloop.models.interface import longest_input
from glassloop.models.loading import CONFIG_NAME, find_model, read_json_file
from glassloop.models.pooled import HEAD_KEY, HEAD_NAME, pooled, pooling_of, split_towers
from glassloop.runs.record import RunRecord

if TYPE_CHECKING:
    from tokenizers import AddedToken
    from tokenizers import Encoding as Encoded
    from tokenizers import Tokenizer as Backend

TOKENIZER_NAME, SETTINGS_NAME = "tokenizer.json", "tokenizer_config.json"
WORDS_NAME = "embeddings.word_embeddings.weight"
# What tokenizers return: the checksum of the run says which of these it is.
INPUT_NAMES = (["input_ids", "token_type_ids", "attention_mask"], ["input_ids", "attention_mask"])
UNLIMITED = int(1e30)  # as in transformers
# What the config of DistilBERT calls the settings of other families, and what it does not say.
DISTILBERT_NAMES = {
    **{"dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads"},
    **{"hidden_dim": "intermediate_size", "activation": "hidden_act"},
}
DISTILBERT_SETTINGS: dict[str, Json] = {"type_vocab_size": 0, "layer_norm_eps": 1e-12}
# Settings that would change the results, with the only value that is accepted.
REQUIRED: dict[str, Json] = {
    **{"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"},
    **{"chunk_size_feed_forward": 0, "use_task_id": False, "sinusoidal_pos_embds": False},
}
# Settings without effect on an evaluation in fp32.
IGNORED = {
    *("architectures", "label2id", "dtype", "transformers_version", "initializer_range", "use_cache", "tie_word_embeddings"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "classifier_dropout_prob", "dropout"),
    *("attention_dropout", "qa_dropout", "seq_classif_dropout", "bos_token_id", "eos_token_id", "gradient_checkpointing"),
    *("summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj", "task_type_vocab_size"),
}


class LightEncoding(dict[str, Any]):
    """The inputs of some rows by name, and what is known about them, as in transformers' `BatchEncoding`."""

    is_fast = True
    rows: Sequence[Encoded] = ()

    def sequence_ids(self, row: int) -> list[int | None]:
        """Return for each token of a row whether it belongs to the first or the second text; None for special tokens."""
        return list(self.rows[row].sequence_ids)


class LightTokenizer:
    """A tokenizer with the part of transformers' interface that the command uses."""

    is_fast = True

    def __init__(self, backend: Backend, settings: Mapping[str, Json], input_names: list[str]) -> None:
        self.backend_tokenizer, self.model_input_names = backend, input_names
        self.files: list[Path] = []  # as transformers saves them
        self.kind, self.split_special_tokens = settings.get("tokenizer_class"), settings.get("split_special_tokens", False)
        self.truncation_side = str(settings.get("truncation_side", "right"))
        self.padding_side = settings.get("padding_side", "right")
        self.pad_token_id: int | None = backend.token_to_id(str(settings.get("pad_token")))
        self.pad_token_type_id = settings.get("pad_token_type_id", 0)
        self.model_max_length = settings.get("model_max_length", UNLIMITED)
        self.added_tokens_decoder: dict[int, AddedToken] = backend.get_added_tokens_decoder()
        special = {number: str(token) for number, token in self.added_tokens_decoder.items() if token.special}
        self.all_special_ids, self.all_special_tokens = [*special], [*special.values()]
        self.get_vocab, self.num_special_tokens_to_add = backend.get_vocab, backend.num_special_tokens_to_add

    def __call__(
        self,
        texts: str | list[str],
        pairs: str | list[str] | None = None,
        *,
        truncation: bool = False,
        max_length: int = UNLIMITED,
        add_special_tokens: bool = True,
        return_attention_mask: bool = False,
        return_offsets_mapping: bool = False,
        verbose: bool = True,
    ) -> LightEncoding | dict[str, list[int]]:
        """Return the inputs for a list of texts or pairs of texts, or only the ids of one text."""
        backend = self.backend_tokenizer
        if truncation:
            backend.enable_truncation(max_length, stride=0, strategy="longest_first", direction=self.truncation_side)
        else:
            backend.no_truncation()
        if isinstance(texts, str):
            return {"input_ids": backend.encode(texts, pairs, add_special_tokens=add_special_tokens).ids}
        columns = texts if pairs is None else [*zip(texts, pairs, strict=True)]
        rows = backend.encode_batch(columns, add_special_tokens=add_special_tokens)
        encoded = LightEncoding(input_ids=[row.ids for row in rows])
        if "token_type_ids" in self.model_input_names:
            encoded["token_type_ids"] = [row.type_ids for row in rows]
        if return_offsets_mapping:
            encoded["offset_mapping"] = [row.offsets for row in rows]
        encoded.rows = rows
        return encoded

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the files of the tokenizer into a folder, as transformers wrote them."""
        for path in self.files:
            copyfile(path, Path(folder) / path.name)


def load_light_tokenizer(folder: Path, key: object) -> LightTokenizer | None:
    """Return the tokenizer in a folder if its checksum begins with `key`; None if transformers has to load it."""
    # transformers 5 rebuilds a tokenizer from the settings of its class, so tokenizer.json alone does not determine the
    # ids: only one with the checksum that the run recorded is used.
    settings = read_json_file(folder / SETTINGS_NAME)
    split_special, side = settings.get("split_special_tokens", False), settings.get("truncation_side", "right")
    if not isinstance(key, str) or not key:
        return None
    for backend in backends_of(folder / TOKENIZER_NAME):
        backend.encode_special_tokens = split_special is True
        backend.no_padding()
        state = backend_state(backend.to_str())
        for names in INPUT_NAMES:
            if key_of(state, settings.get("tokenizer_class"), side, names, split_special).startswith(key):
                tokenizer = LightTokenizer(backend, settings, names)
                longest = tokenizer.model_max_length
                usual_length = isinstance(longest, int | float) and not isinstance(longest, bool) and longest >= 1
                usual_padding = tokenizer.pad_token_id is not None and type(tokenizer.pad_token_type_id) is int
                usual_sides = all(side in ("left", "right") for side in (tokenizer.padding_side, tokenizer.truncation_side))
                return tokenizer if usual_length and usual_padding and usual_sides else None
    return None


def backends_of(path: Path) -> Iterator[Backend]:
    """Yield the tokenizer in a file as transformers may read it; nothing if it cannot be read."""
    if not path.is_file():
        return
    from tokenizers import Tokenizer
    from tokenizers.models import Unigram

    try:
        backend = Tokenizer.from_file(str(path))
        yield backend
        if isinstance(backend.model, Unigram):
            # The library rounds the scores when it reads a file. Most classes of transformers take them from Python's JSON.
            model = json.loads(path.read_text(encoding="utf-8"))["model"]
            backend.model = Unigram([*map(tuple, model["vocab"])], model["unk_id"], model.get("byte_fallback", False))
            yield backend
    except Exception:  # the Rust library raises nothing narrower
        return


@dataclass(frozen=True)
class LightConfig:
    """The settings of a classifier, under the names of transformers' configs."""

    model_type: str
    problem_type: str
    id2label: dict[int, str]
    hidden_act: str
    layer_norm_eps: float
    vocab_size: int
    max_position_embeddings: int
    type_vocab_size: int
    pad_token_id: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    embedding_size: int
    num_hidden_groups: int = 0  # ALBERT: the layers run several times
    inner_group_num: int = 1
    glassloop_head: dict[str, object] | None = None  # of a `PooledClassifier`: how it pools

    @property
    def num_labels(self) -> int:
        return len(self.id2label)


class PostNormEncoder(nn.Module):
    """The forward pass of an encoder with post-norm layers on padded rows, by the names of its weights."""

    def __init__(self, config: LightConfig) -> None:
        super().__init__()
        family = FAMILIES[config.model_type]
        if family.layout is None:
            raise ValueError(f"{family.title} has no layout")
        self.config, self.layout = config, family.layout
        self.positions_after_padding = family.positions_after_padding
        # ELECTRA has a linear layer between the embeddings and the layers only for another width, ALBERT always.
        width = config.hidden_size
        projects = config.model_type == "albert" or getattr(config, "embedding_size", width) != width
        self.projection = family.projection if projects else None

    @abstractmethod
    def weight(self, name: str) -> torch.Tensor: ...

    def dropped(self, path: str, values: torch.Tensor) -> torch.Tensor:
        """Return values after the dropout at a path; in an evaluation, the values themselves."""
        return values

    def encode(self, ids: torch.Tensor, attention_mask: torch.Tensor, types: torch.Tensor | None) -> torch.Tensor:
        """Return the vectors of all tokens after the last layer."""
        mask = attention_mask_of(attention_mask)
        hidden = self.embed(ids, types)
        hidden = self.linear(self.projection, hidden) if self.projection else hidden
        for layer in self.layer_calls():
            hidden = self.run_layer(layer, hidden, mask)
        return hidden

    def embed(self, ids: torch.Tensor, types: torch.Tensor | None, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Return the sum of the word, position and token type vectors, normalized."""
        layout = self.layout
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device)[None]
            if self.positions_after_padding:
                counted = ids.ne(self.config.pad_token_id)
                positions = counted.cumsum(1) * counted + self.config.pad_token_id
        tables = [(layout.words, ids), (layout.positions, positions)]
        if self.config.type_vocab_size:  # added before the positions, as transformers does
            tables.insert(1, (layout.token_types, torch.zeros_like(ids) if types is None else types))
        vectors = [functional.embedding(rows, self.weight(f"{layout.embeddings}.{table}.weight")) for table, rows in tables]
        normed = self.norm(f"{layout.embeddings}.{layout.embeddings_norm}", sum(vectors[1:], start=vectors[0]))
        return self.dropped(f"{layout.embeddings}.{layout.embeddings_dropout}", normed)

    def run_layer(self, layer: str, hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Return what the layer of this name makes of the vectors of all tokens."""
        layout, (rows, tokens, width) = self.layout, hidden.shape
        query, key, value = (
            self.linear(f"{layer}.{part}", hidden).view(rows, tokens, self.config.num_attention_heads, -1).transpose(1, 2)
            for part in (layout.query, layout.key, layout.value)
        )
        rate = self.rate(f"{layer}.{layout.dropouts[0]}")
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=rate)
        attended = self.linear(f"{layer}.{layout.attention_output}", attended.transpose(1, 2).reshape(rows, tokens, width))
        hidden = self.norm(f"{layer}.{layout.attention_norm}", self.dropped(f"{layer}.{layout.dropouts[1]}", attended) + hidden)
        inner = self.linear(f"{layer}.{layout.up}", hidden)
        inner = functional.gelu(inner, approximate=GELU_APPROXIMATIONS[self.config.hidden_act])
        inner = self.dropped(f"{layer}.{layout.dropouts[2]}", self.linear(f"{layer}.{layout.down}", inner))
        return self.norm(f"{layer}.{layout.feed_forward_norm}", inner + hidden)

    def rate(self, path: str) -> float:
        """Return the dropout rate at a path; 0 in an evaluation."""
        return 0.0

    def linear(self, part: str, values: torch.Tensor) -> torch.Tensor:
        return functional.linear(values, self.weight(f"{part}.weight"), self.weight(f"{part}.bias"))

    def norm(self, part: str, values: torch.Tensor) -> torch.Tensor:
        weight, bias = self.weight(f"{part}.weight"), self.weight(f"{part}.bias")
        return functional.layer_norm(values, weight.shape, weight, bias, self.config.layer_norm_eps)

    def layer_calls(self) -> Iterator[str]:
        """Yield the name of the layer for each call: ALBERT runs a group of layers several times."""
        config, (first, *inner) = self.config, self.layout.layers
        for number in range(config.num_hidden_layers):
            if inner:
                group = int(number / (config.num_hidden_layers / config.num_hidden_groups))
                yield from (f"{first}.{group}.{inner[0]}.{place}" for place in range(config.inner_group_num))
            else:
                yield f"{first}.{number}"


def attention_mask_of(mask: torch.Tensor) -> torch.Tensor | None:
    """Return the tokens that may be attended to; None if all may."""
    return None if bool(mask.all()) else mask[:, None, None, :].bool()


def head_of(config: LightConfig) -> Head:
    if (head := FAMILIES[config.model_type].head) is None:
        raise ValueError(f"{config.model_type} has no known head")
    return head


class LightClassifier(PostNormEncoder):
    """An encoder and its classification head, that of its family or a pooled one, in evaluation only."""

    def __init__(self, config: LightConfig, weights: dict[str, torch.Tensor]) -> None:
        super().__init__(config)
        self.weights, self.head, self.pooling = weights, head_of(config), pooling_of(config)
        self.eval()

    def weight(self, name: str) -> torch.Tensor:
        return self.weights[name]

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> LogitsOutput:
        if self.pooling is None:
            first = self.encode(input_ids, attention_mask, token_type_ids)[:, 0]
            activate = getattr(functional, self.head.activation)
            return LogitsOutput(self.linear(self.head.outputs, activate(self.linear(self.head.dense, first))))
        if self.pooling.towers:
            types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            apart = split_towers(input_ids, attention_mask, types, self.config)
            input_ids, attention_mask, token_type_ids = apart[0].flatten(0, 1), apart[1].flatten(0, 1), None
        vectors = pooled(self.encode(input_ids, attention_mask, token_type_ids), attention_mask, self.pooling.mode)
        return LogitsOutput(self.linear(HEAD_NAME, self.pooling.features(vectors)))

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the names and shapes of all weights of a model with these settings."""
        config, layout = self.config, self.layout
        width, inner, embedded = config.hidden_size, config.intermediate_size, config.embedding_size
        tables = {layout.words: config.vocab_size, layout.positions: config.max_position_embeddings}
        tables |= {layout.token_types: config.type_vocab_size} if config.type_vocab_size else {}
        parts: dict[str, tuple[int, ...]] = {  # with a weight of this shape and a bias of its first size
            f"{layout.embeddings}.{layout.embeddings_norm}": (embedded,),
        }
        if self.pooling is None:
            parts |= {self.head.dense: (width, width), self.head.outputs: (config.num_labels, width)}
        else:
            parts |= {HEAD_NAME: (config.num_labels, self.pooling.num_features(width))}
        parts |= {self.projection: (width, embedded)} if self.projection else {}
        for layer in {*self.layer_calls()}:
            square = (layout.query, layout.key, layout.value, layout.attention_output)
            parts |= {f"{layer}.{part}": (width, width) for part in square}
            parts |= {f"{layer}.{layout.up}": (inner, width), f"{layer}.{layout.down}": (width, inner)}
            parts |= {f"{layer}.{part}": (width,) for part in (layout.attention_norm, layout.feed_forward_norm)}
        shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in parts.items()}
        shapes |= {f"{name}.bias": shape[:1] for name, shape in parts.items()}
        return shapes | {f"{layout.embeddings}.{name}.weight": (rows, embedded) for name, rows in tables.items()}


def load_light(folder: Path, run: RunRecord, device: torch.device) -> tuple[LightTokenizer, LightClassifier] | None:
    """Return the tokenizer and the model of a run, whose folder is checked first; None if transformers has to load them."""
    # Importing transformers' BERT takes twice as long as importing torch. What this file does not know goes to
    # transformers, which also reports every error.
    find_model(folder)
    tokenizer = load_light_tokenizer(folder, run.identity.get("tokenizer"))
    model = load_light_model(folder, device) if tokenizer is not None else None
    if tokenizer is None or model is None:
        return None
    types = "token_type_ids" in tokenizer.model_input_names and not model.config.type_vocab_size
    unknown = max(tokenizer.get_vocab().values()) >= model.config.vocab_size
    same_length = (run.settings.max_length or longest_input(tokenizer, model.config)) == run.max_length
    return (tokenizer, model) if same_length and not (types or unknown) else None


def load_light_model(folder: Path, device: torch.device) -> LightClassifier | None:
    """Return the classifier in a folder that `find_model` has checked; None if transformers has to load it."""
    config = light_config(read_json_file(folder / CONFIG_NAME))
    if config is None or [path.name for path in folder.glob("*.safetensors*")] != [WEIGHTS_NAME]:
        return None
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights = load_file(folder / WEIGHTS_NAME, device=str(device))
    except (OSError, SafetensorError):
        return None
    encoder = next((name.removesuffix(WORDS_NAME) for name in weights if name.endswith(f".{WORDS_NAME}")), "")
    model = LightClassifier(config, {name.removeprefix(encoder): weight for name, weight in weights.items()})
    if {name: tuple(weight.shape) for name, weight in model.weights.items()} != model.weight_shapes():
        return None
    for weight in weights.values():
        if weight.dtype != torch.float32 or not torch.isfinite(torch.stack(torch.aminmax(weight))).all():
            return None
    return model


def light_config(settings: Mapping[str, Json]) -> LightConfig | None:
    """Return the settings in a config.json; None if one is missing, has an unusual value or is unknown."""
    family, labels = FAMILIES.get(str(settings.get("model_type"))), settings.get("id2label")
    if family is None or family.head is None:
        return None
    if settings.get("architectures") != [family.encoder if HEAD_KEY in settings else family.classifier]:
        return None
    if not isinstance(labels, dict) or {*labels} != {str(number) for number in range(len(labels))}:
        return None
    used = {name: value for name, value in settings.items() if name not in IGNORED and REQUIRED.get(name, ...) != value}
    if settings["model_type"] == "distilbert":
        used = DISTILBERT_SETTINGS | {DISTILBERT_NAMES.get(name, name): value for name, value in used.items()}
    used = {"embedding_size": used.get("hidden_size")} | used
    if {*used} - {field.name for field in fields(LightConfig)}:
        return None
    try:
        config = decoded(LightConfig, used)
    except NotARecordError:
        return None
    heads = config.num_attention_heads
    if config.hidden_act not in GELU_APPROXIMATIONS or heads < 1 or config.hidden_size % heads:
        return None
    return replace(config, id2label={int(number): str(name) for number, name in labels.items()})
