"""A classifier on pooled tokens: it pools as its encoder was trained to be pooled, and has one linear layer on top."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from glassloop.base.errors import ModelError, shortened
from glassloop.base.records import Json, NotARecordError, decoded
from glassloop.data.interfaces import Config, LogitsOutput, Model
from glassloop.models.families import FAMILIES, WEIGHTS_NAME
from glassloop.settings.training import POOLING_MODES, SCORE, SEVERAL

if TYPE_CHECKING:
    from transformers.modeling_outputs import SequenceClassifierOutput

Layer = TypeVar("Layer", bound=nn.Module)
HEAD_KEY = "glassloop_head"  # the entry of config.json with the settings of the head
HEAD_NAME = "head"  # of the linear layer, among the names of the weights
MODULES_NAME, POOLING_DIR, NORMALIZE_DIR, DENSE_DIR = "modules.json", "1_Pooling", "2_Normalize", "3_Dense"
# The poolings of sentence-transformers that exist here, under the name of each and under its former entry.
NAMES = {"mean": "mean", "cls": "cls", "max": "max", "lasttoken": "last"}
FORMER = {
    "pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last", "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}  # fmt: skip
ALONE = ("Transformer", "Pooling", "Normalize")  # the modules of a sentence-embedding model that this one replaces
# How much the parts of the features of two texts weigh, whose regression has one penalty for all. Chosen on four sets of
# pairs with 50 to 1,000 rows: the products of the vectors, which others add, gain nothing beside their sum.
OF_ONE_TEXT, OF_COSINE = 1 / 3, 5.0
INITIAL_DEVIATION = 0.02  # of the weights of a new head, as in transformers


@dataclass(frozen=True)
class Pooling:
    """How the vectors of tokens become the features of a row."""

    mode: str  # the mean or the maximum of all tokens, the first token (cls), or the last one
    normalize: bool = False  # whether the pooled vector is divided by its length
    towers: bool = False  # whether the two texts of a pair go through the encoder apart

    def __post_init__(self) -> None:
        if self.mode not in POOLING_MODES:
            raise ValueError(f"the pooling is {self.mode}")

    def num_features(self, width: int) -> int:
        return 3 * width + 1 if self.towers else width

    def features(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return the features of rows from pooled vectors: one per row, or with towers two, one after the other."""
        if self.normalize or self.towers:
            vectors = functional.normalize(vectors, dim=-1)
        if not self.towers:
            return vectors
        first, second = vectors.view(-1, 2, vectors.shape[-1]).unbind(1)
        cosine = (first * second).sum(1, keepdim=True)
        return torch.cat([first * OF_ONE_TEXT, second * OF_ONE_TEXT, (first - second).abs(), cosine * OF_COSINE], dim=1)


def pooling_of(config: Config) -> Pooling | None:
    """Return how a trained model of this kind pools, from its config; None for any other model."""
    stored = getattr(config, HEAD_KEY, None)
    return None if stored is None else decoded_pooling(stored)


def decoded_pooling(stored: object) -> Pooling:
    """Return the pooling in a config or in the record of a run. Raise `ModelError` if this version does not know it."""
    # A head that is not understood must not become the fresh one that transformers would put in its place.
    try:
        if isinstance(stored, Mapping) and {*stored} <= {entry.name for entry in fields(Pooling)}:
            return decoded(Pooling, dict(stored))
    except (NotARecordError, ValueError):
        pass
    problem = f"this version does not know the head of the model ({HEAD_KEY}): {shortened(stored)}"
    raise ModelError(problem, "use the version of Glassloop that trained it, or restore its config.json")


def declared_pooling(read: Callable[[str], Json]) -> tuple[Pooling | None, str]:
    """Return the pooling that a model declares for its texts in its files, and what of it is not used."""
    # `read` returns the JSON in a file below the folder of the model; None if there is no such file.
    modules = read(MODULES_NAME)
    named = [entry for entry in modules if isinstance(entry, dict)] if isinstance(modules, list) else []
    kinds = {str(entry.get("type")).rpartition(".")[2]: str(entry.get("path")) for entry in named}
    if "Pooling" not in kinds:  # not a sentence-embedding model; ModernBERT says how its classifiers pool
        config = read("config.json")
        mode = config.get("classifier_pooling") if isinstance(config, dict) else None
        return (Pooling(mode) if isinstance(mode, str) and mode in POOLING_MODES else None), ""
    path = kinds["Pooling"]
    settings = read(f"{path}/config.json") if path and not {*path} & {"/", "\\", "\0"} and ".." not in path else None
    if not isinstance(settings, dict):
        return None, f"{MODULES_NAME} names a pooling without settings"
    given = settings.get("pooling_mode")
    wanted = [given] if isinstance(given, str) else given if isinstance(given, list) else None
    modes = [NAMES.get(str(name), str(name)) for name in wanted or ()]
    if wanted is None:
        modes = [mode for name, mode in FORMER.items() if settings.get(name)] or ["mean"]
    if len(modes) != 1 or modes[0] not in POOLING_MODES:
        return None, f"the pooling {' and '.join(modes)} is not supported"
    others = [kind for kind in kinds if kind not in ALONE]
    return Pooling(modes[0], "Normalize" in kinds), f"its module {others[0]} is not used" if others else ""


class PooledClassifier(nn.Module):
    """An encoder of transformers, a pooling, and a linear layer. Called like a classifier of transformers."""

    # The encoder has the name that transformers gives it inside a classifier, so that `AutoModel` and sentence-transformers
    # find it in the saved file.
    embeds = False  # return the pooled vectors of each row in place of its logits

    def __init__(self, config: Config, encoder: Model | None = None) -> None:
        super().__init__()
        pooling = pooling_of(config)
        if pooling is None:
            raise ValueError(f"the config has no {HEAD_KEY}")
        if encoder is None:
            encoder = new_encoder(config)
        self.config, self.pooling = config, pooling
        self.base_model_prefix = encoder.base_model_prefix
        self.takes_types = "token_type_ids" in inspect.signature(type(encoder).forward).parameters
        self.add_module(self.base_model_prefix, encoder)
        self.head = unfilled(nn.Linear, in_features=pooling.num_features(width_of(config)), out_features=config.num_labels)
        if not self.head.weight.is_meta:
            nn.init.normal_(self.head.weight, std=INITIAL_DEVIATION)
            nn.init.zeros_(self.head.bias)

    @property
    def base_model(self) -> Model:
        encoder: Model = getattr(self, self.base_model_prefix)
        return encoder

    def get_input_embeddings(self) -> nn.Module:
        embeddings: nn.Module = self.base_model.get_input_embeddings()
        return embeddings

    def gradient_checkpointing_enable(self, options: dict[str, object] | None = None) -> None:
        self.base_model.gradient_checkpointing_enable(options)

    @property
    def is_gradient_checkpointing(self) -> bool:
        return bool(getattr(self.base_model, "is_gradient_checkpointing", False))

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, token_type_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
    ) -> LogitsOutput | SequenceClassifierOutput:  # fmt: skip
        """Return the logits of padded rows, and their mean loss if there are `labels`, as classifiers of transformers do.

        With towers, `token_type_ids` says which of the two texts a token belongs to, or `input_ids` has the shape
        (pairs, 2, tokens): both texts of each pair, already apart.
        """
        return self.output(self.classify(self.vectors(input_ids, attention_mask, token_type_ids)), labels)

    def output(self, logits: torch.Tensor, labels: torch.Tensor | None = None) -> LogitsOutput | SequenceClassifierOutput:
        """Return the logits of rows, and their mean loss if there are labels."""
        if labels is None:
            return LogitsOutput(logits)
        from glassloop.models.interface import task_of

        task = task_of(self.config)
        if task == SCORE:
            loss = functional.mse_loss(logits.squeeze(-1), labels.float())
        elif task == SEVERAL:
            loss = functional.binary_cross_entropy_with_logits(logits, labels.float())
        else:
            loss = functional.cross_entropy(logits, labels)
        if hasattr(self.config, "build_encoder"):
            return LogitsOutput(logits, loss)
        from transformers.modeling_outputs import SequenceClassifierOutput

        return SequenceClassifierOutput(loss=loss, logits=logits)

    def vectors(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, token_type_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the pooled vector of each row; with towers, two of each row, one after the other."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        if self.pooling.towers:
            if input_ids.ndim == 2:
                types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
                input_ids, mask = split_towers(input_ids, mask, types, self.config)
            input_ids, mask, token_type_ids = input_ids.flatten(0, 1), mask.flatten(0, 1), None
        types_given = {"token_type_ids": token_type_ids} if self.takes_types and token_type_ids is not None else {}
        hidden = self.base_model(input_ids=input_ids, attention_mask=mask, **types_given).last_hidden_state
        return pooled(hidden, mask, self.pooling.mode)

    def classify(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return the logits of rows from the pooled vectors of their texts; these vectors themselves if it `embeds`."""
        if self.embeds:
            return vectors.reshape(len(vectors) // (1 + self.pooling.towers), -1)
        # No dropout of features: it costs 0.4 points of accuracy at 200 rows (docs/log.md, "Recipes"), more with pairs, whose
        # cosine it would sometimes drop.
        logits: torch.Tensor = self.head(self.pooling.features(vectors))
        return logits

    def save_pretrained(
        self, folder: str | Path, state_dict: Mapping[str, torch.Tensor] | None = None, max_shard_size: str = ""
    ) -> None:
        """Save config and weights, and the files with which sentence-transformers loads the encoder, and mostly the head."""
        place, weights = Path(folder), state_dict or self.state_dict()
        place.mkdir(parents=True, exist_ok=True)
        self.config.architectures = [encoder_class(self.base_model)]
        self.config.to_json_file(place / "config.json", use_diff=True)
        contents = {name: value.detach().to("cpu").contiguous() for name, value in weights.items()}
        save_file(contents, place / WEIGHTS_NAME, metadata={"format": "pt"})
        for name, content in module_files(self.pooling, width_of(self.config), self.config.num_labels).items():
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        if not self.pooling.towers:
            linear = {"linear.weight": contents["head.weight"], "linear.bias": contents["head.bias"]}
            save_file(linear, place / DENSE_DIR / WEIGHTS_NAME, metadata={"format": "pt"})


def module_files(pooling: Pooling, width: int, num_labels: int) -> dict[str, object]:
    """Return the files of sentence-transformers by name. The features of two towers are none of its modules."""
    modes = {name: mode == pooling.mode for name, mode in FORMER.items()}
    files: dict[str, object] = {f"{POOLING_DIR}/config.json": {"word_embedding_dimension": width, **modes}}
    kinds = [("Transformer", ""), ("Pooling", POOLING_DIR), *([("Normalize", NORMALIZE_DIR)] if pooling.normalize else [])]
    if not pooling.towers:
        kinds.append(("Dense", DENSE_DIR))
        identity = "torch.nn.modules.linear.Identity"
        sizes = {"in_features": width, "out_features": num_labels, "bias": True, "activation_function": identity}
        files[f"{DENSE_DIR}/config.json"] = sizes
    files[MODULES_NAME] = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (kind, path) in enumerate(kinds)
    ]
    return files


def frozen_copy(model: Model, pooling: Pooling) -> PooledClassifier:
    """Return the encoder of a classifier with a pooled head of its own, to compute embeddings with."""
    encoder = deepcopy(model.base_model)
    # The pooler would not be used, and a pooled classifier is built without it; but some encoders always call theirs.
    if "pooler" in encoder._modules and encoder_options(encoder.config):
        del encoder.pooler
        encoder.__dict__["pooler"] = None
    setattr(encoder.config, HEAD_KEY, asdict(pooling))
    return PooledClassifier(encoder.config, encoder).to(next(encoder.parameters()).device).eval()


def unfilled(kind: type[Layer], **settings: object) -> Layer:
    """Return a layer whose weights are not filled: drawing numbers on the meta device imports torch's compiler."""
    layer = type(kind.__name__, (kind,), {"reset_parameters": lambda self: None})(**settings)
    layer.__class__ = kind
    return cast(Layer, layer)


def new_encoder(config: Config) -> Model:
    if hasattr(config, "build_encoder"):  # without transformers
        built: Model = config.build_encoder()
        return built
    from transformers import AutoModel

    encoder: Model = AutoModel.from_config(config, **encoder_options(config))
    return encoder


def encoder_class(encoder: Model) -> str:
    """Return the class of transformers that an encoder is, or that it was described from."""
    return str(getattr(encoder, "architecture", type(encoder).__name__))


def encoder_options(config: Config) -> dict[str, bool]:
    """Return the options with which transformers builds the encoder of a config without a pooler, which would not be used."""
    from transformers import MODEL_MAPPING

    kind = MODEL_MAPPING[type(config)]
    kind = kind[0] if isinstance(kind, tuple | list) else kind
    return {"add_pooling_layer": False} if "add_pooling_layer" in inspect.signature(kind.__init__).parameters else {}


def can_be_pooled(config: Config) -> bool:
    """Return whether the encoder of a config gives one vector per token, which a head can pool."""
    if config.is_encoder_decoder or config.model_type in FAMILIES:
        return not config.is_encoder_decoder  # most decoders need tokens of their own
    from transformers import MODEL_MAPPING, AutoModel
    from transformers.initialization import no_init_weights

    if isinstance(MODEL_MAPPING.get(type(config), None), tuple | list):
        return False  # Funnel: the encoder of its classifiers, one of several, shortens the row
    small = deepcopy(config)
    with suppress(NotImplementedError):  # of a config that counts its layers otherwise
        small.num_hidden_layers = 1
    try:
        with no_init_weights(), torch.random.fork_rng(devices=[]):
            encoder = AutoModel.from_config(small, **encoder_options(config))
    except Exception:  # whatever the code of a family raises for a config that it cannot build
        return False
    return reads_tokens(encoder)


def reads_tokens(encoder: Model) -> bool:
    """Return whether an encoder gives one vector for each token of a row, by a pass over four tokens."""
    config = encoder.config
    if config.is_encoder_decoder or config.model_type in FAMILIES:
        return not config.is_encoder_decoder
    ids = torch.ones((1, 4), dtype=torch.int64, device=next(encoder.parameters()).device)
    was_training = encoder.training
    try:
        with torch.no_grad():
            hidden = encoder.eval()(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        return tuple(hidden.shape) == (1, 4, width_of(config))
    except Exception:  # a family may need other inputs, and says so in its own way
        return False
    finally:
        encoder.train(was_training)


def width_of(config: Config) -> int:
    return int(config.hidden_size)  # DistilBERT's config has it too, as another name of `dim`


def pooled(hidden: torch.Tensor, mask: torch.Tensor, mode: str) -> torch.Tensor:
    """Return one vector per row from the vectors of its tokens. Padding may be on either side."""
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    if mode == "mean":
        return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1.0)
    if mode == "max":
        return hidden.masked_fill(weights == 0, torch.finfo(hidden.dtype).min).amax(1)
    places = torch.arange(mask.shape[1], device=mask.device)
    place = (mask * (places + 1)).argmax(1) if mode == "last" else mask.to(torch.int64).argmax(1)
    return hidden[torch.arange(hidden.shape[0], device=mask.device), place]


def split_towers(
    ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor, config: Config
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids and the mask of both texts of each pair, padded to the longest text: (pairs, 2, tokens)."""
    width = ids.shape[1]
    places = torch.arange(width, device=ids.device).expand_as(ids)
    parts = []
    for tower in (0, 1):
        inside = (mask == 1) & (types == tower)
        start = inside.to(torch.int64).argmax(1, keepdim=True)
        length = inside.sum(1, keepdim=True)
        parts.append((ids.gather(1, (start + places).clamp(max=width - 1)), places < length))
    texts, tokens = (torch.stack(part, 1) for part in zip(*parts, strict=True))
    longest = int(tokens.sum(2).max())
    texts, tokens = texts[:, :, :longest], tokens[:, :, :longest]
    return torch.where(tokens, texts, int(config.pad_token_id or 0)), tokens.to(mask.dtype)


def head_settings(pooling: Pooling) -> dict[str, object]:
    """Return the settings of a head as a config stores them."""
    return {HEAD_KEY: asdict(pooling)}
