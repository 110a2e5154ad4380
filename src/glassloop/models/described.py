"""Models to train without transformers: what it made of their files is described in the cache when it first loads them.

Importing transformers takes longer than importing torch. Later runs build the same modules from the description, and read
the weights themselves. Whatever differs from the description goes to transformers, which also reports every error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, cast

import torch
from safetensors.torch import load_file
from torch import nn

from glassloop.base.cache import open_if_built, open_or_build
from glassloop.base.errors import GlassloopError
from glassloop.base.files import sha256_of
from glassloop.base.records import Json, package_version
from glassloop.data.columns import LabelSet
from glassloop.data.encoding import tokenizer_key
from glassloop.data.interfaces import Config, Model, Tokenizer
from glassloop.models.families import BERT_LAYOUT, FAMILIES, GELU_APPROXIMATIONS, WEIGHTS_NAME
from glassloop.models.interface import carried_labels, refuse_other_labels
from glassloop.models.light import REQUIRED, LightConfig, PostNormEncoder, load_light_tokenizer
from glassloop.models.loading import PICKLES, find_model, quiet_transformers
from glassloop.models.pooled import HEAD_KEY, HEAD_NAME, PooledClassifier, Pooling, pooling_of, unfilled

FORMAT = 1
KIND, DESCRIPTION_NAME, TOKENIZER_DIR = "models", "description.json", "tokenizer"
READERS = ("transformers", "tokenizers", "torch")  # other versions may read the same files differently
NOT_READ = (".safetensors", ".onnx", ".md", *PICKLES)  # weights, and files that say nothing about a model
MOST_BYTES = 100_000_000  # of any other file
LEAVES: dict[str, tuple[type[nn.Module], tuple[str, ...]]] = {  # modules without children, and the settings that describe them
    "Embedding": (nn.Embedding, ("num_embeddings", "embedding_dim", "padding_idx")),
    "Linear": (nn.Linear, ("in_features", "out_features")),
    "LayerNorm": (nn.LayerNorm, ("normalized_shape", "eps")),
    "Dropout": (nn.Dropout, ("p",)),
}
FLOATING = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
COMPARED_TOKENS, ALLOWED = 16, 1e-5  # of the vectors of a few tokens, as transformers computes them, and without it


@dataclass(frozen=True)
class Leaf:
    """A module without children: its path, its class, and the settings it is built with."""

    path: str
    kind: str
    settings: dict[str, Json]


@dataclass(frozen=True)
class Description:
    """What transformers made of the files of an encoder, apart from its weights."""

    config: dict[str, Json]
    written: list[str]  # the entries of the config that it writes into a file
    defaults: dict[str, Json]  # of any config
    prefix: str  # of the encoder in a classifier
    leaves: list[Leaf]  # in their order, which is that of the weights
    tokenizer: str  # its checksum


class NotDescribedError(GlassloopError):
    """Nothing is known about a model yet."""


class StoredConfig:
    """A config as transformers read it, with the part of its interface that a training uses."""

    OWN: ClassVar = ("_description", "_described", "_defaults")
    id2label: dict[int, str]
    model_type: str
    num_attention_heads: int
    pad_token_id: int

    def __init__(self, description: Description) -> None:
        self._description = description
        self._described, self._defaults = numbered(description.config), numbered(description.defaults)
        vars(self).update(deepcopy(self._described))

    @property
    def num_labels(self) -> int:
        return len(self.id2label)

    def build_encoder(self) -> DescribedEncoder:
        """Return a new encoder with this config."""
        return DescribedEncoder(self, self._description.leaves, self._description.prefix)

    def to_dict(self) -> dict[str, object]:
        return {name: deepcopy(value) for name, value in vars(self).items() if name not in self.OWN}

    def to_diff_dict(self) -> dict[str, object]:
        """Return the entries that transformers writes: all but usual ones and the place of the files."""
        found = {}
        for name, value in self.to_dict().items():
            same = name in self._described and value == self._described[name]
            if name in self._description.written if same else value != self._defaults.get(name, ...):
                found[name] = value
        return {name: value for name, value in found.items() if name != "_name_or_path"}

    def to_json_string(self, use_diff: bool = True) -> str:
        return json.dumps(self.to_diff_dict() if use_diff else self.to_dict(), indent=2, sort_keys=True) + "\n"

    def to_json_file(self, path: str | Path, use_diff: bool = True) -> None:
        Path(path).write_text(self.to_json_string(use_diff), encoding="utf-8")


def numbered(entries: Mapping[str, Json]) -> dict[str, object]:
    """Return the entries of a config with numbers as keys of the label names, which JSON cannot have."""
    names = entries.get("id2label")
    return {**entries, "id2label": {int(key): name for key, name in names.items()}} if isinstance(names, dict) else {**entries}


# --- the modules of an encoder --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class EncoderOutput:
    last_hidden_state: torch.Tensor


class Delegate(nn.Module):
    """The embeddings or a layer of an encoder: its forward method, which fast paths replace, is one of the encoder."""

    def __init__(self, run: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.run = run

    def forward(self, *args: torch.Tensor | None, **inputs: torch.Tensor | None) -> torch.Tensor:
        return self.run(*args, **inputs)


class DescribedEncoder(PostNormEncoder):
    """The encoder of a BERT-like model with the modules, names and weights that transformers gives it."""

    def __init__(self, config: StoredConfig, leaves: Sequence[Leaf], prefix: str) -> None:
        super().__init__(cast(LightConfig, config))
        self.base_model_prefix, self.leaves, self.architecture = prefix, leaves, FAMILIES[config.model_type].encoder
        layout, lists = self.layout, ".".join(self.layout.layers)
        for leaf in leaves:
            *above, name = leaf.path.split(".")
            place: nn.Module = self
            for depth, part in enumerate(above, 1):
                path = ".".join(above[:depth])
                if part not in place._modules:
                    inner: nn.Module = nn.Module()
                    if path == lists:
                        inner = nn.ModuleList()
                    elif path == layout.embeddings:
                        inner = Delegate(self.embed)
                    elif ".".join(above[: depth - 1]) == lists:
                        inner = Delegate(partial(self.run_layer, path))
                    place.add_module(part, inner)
                place = place._modules[part]  # type: ignore[assignment]
            kind = LEAVES.get(leaf.kind)
            place.add_module(name, unfilled(kind[0], **leaf.settings) if kind else Unweighted(leaf.kind))
        *parents, heads = layout.num_heads.split(".")
        for layer in self.layer_calls():
            setattr(self.get_submodule(".".join((layer, *parents))), heads, config.num_attention_heads)
        if self.positions_after_padding:
            vars(self.get_submodule(layout.embeddings))["padding_idx"] = config.pad_token_id

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
    ) -> EncoderOutput:  # fmt: skip
        hidden = self.get_submodule(self.layout.embeddings)(input_ids, token_type_ids, position_ids)
        mask = None if attention_mask is None else attention_mask[:, None, None, :].bool()
        for layer in self.layer_calls():
            hidden = self.get_submodule(layer)(hidden, mask)
        return EncoderOutput(hidden)

    def weight(self, name: str) -> torch.Tensor:
        return self.get_parameter(name)

    def rate(self, path: str) -> float:
        part = cast(nn.Dropout, self.get_submodule(path))
        return part.p if part.training else 0.0

    def dropped(self, path: str, values: torch.Tensor) -> torch.Tensor:
        dropped: torch.Tensor = self.get_submodule(path)(values)
        return dropped

    def get_input_embeddings(self) -> nn.Module:
        return self.get_submodule(f"{self.layout.embeddings}.{self.layout.words}")


class Unweighted(nn.Module):
    """A module without weights that only has a name here: the encoder computes what it would."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def __repr__(self) -> str:
        return self.name


# --- what transformers made of a model ------------------------------------------------------------------------------------
def description_of(config: Config, tokenizer: Tokenizer, encoder: Model) -> Description | None:
    """Return the description of what transformers loaded; None for what is not built from one."""
    family = FAMILIES.get(config.model_type)
    usual = all(getattr(config, name, value) == value for name, value in REQUIRED.items())
    if family is None or family.layout is not BERT_LAYOUT or family.projection or not usual or not tokenizer.is_fast:
        return None
    if type(encoder).__name__ != family.encoder or config.hidden_act not in GELU_APPROXIMATIONS:
        return None
    leaves = []
    for path, part in encoder.named_modules():
        if [*part.children()]:
            if part._parameters:
                return None
        elif type(part) in (kinds := dict(LEAVES.values())):
            settings = {name: getattr(part, name) for name in kinds[type(part)]}
            leaves.append(Leaf(path, type(part).__name__, json.loads(json.dumps(settings))))
        elif part.state_dict():
            return None
        else:
            leaves.append(Leaf(path, repr(part), {}))
    values = json.loads(config.to_json_string(use_diff=False))
    from transformers import PretrainedConfig

    usual_values = json.loads(json.dumps(PretrainedConfig().to_dict()))
    prefix = encoder.base_model_prefix
    return Description(values, [*config.to_diff_dict()], usual_values, prefix, leaves, tokenizer_key(tokenizer))


@dataclass(frozen=True)
class KnownModel:
    """A model that transformers has loaded before: its folder, what it made of the files, and the tokenizer."""

    folder: Path
    description: Description
    tokenizer: Tokenizer

    @property
    def config(self) -> Config:
        stored = StoredConfig(self.description)
        vars(stored)["_name_or_path"] = str(self.folder)
        return cast(Config, stored)

    def load(
        self, labels: LabelSet | None, task: str, pooling: Pooling, *, new_head: bool, seed: int | None
    ) -> PooledClassifier | None:
        """Return the classifier that `load_model` returns; None if its files need transformers, or have an error."""
        config = self.config
        carried = carried_labels(config)
        if labels and carried and not new_head:
            refuse_other_labels(str(self.folder), carried, labels.names)
        named = labels or LabelSet(("LABEL_0",))
        has_head = pooling == pooling_of(config) and not new_head
        entries = {"problem_type": task, "id2label": named.id2label, "label2id": named.label2id, HEAD_KEY: asdict(pooling)}
        vars(config).update(entries, dtype="float32", return_dict=True, output_attentions=False)
        with torch.device("meta"):
            encoder = config.build_encoder()
        weights = fitting_weights(self.folder, encoder)
        if weights is None:
            return None
        encoder.load_state_dict(weights, assign=True)
        encoder.eval()  # as transformers does
        model = with_new_head(config, encoder, seed)
        if has_head:
            stored = head_in(self.folder, model.head)
            if stored is None:
                return None
            model.head.load_state_dict(stored)
        return model


def is_described(model: Model) -> bool:
    """Return whether a model was built from its description."""
    return isinstance(model.config, StoredConfig)


def with_new_head(config: Config, encoder: Model, seed: int | None) -> PooledClassifier:
    """Return a classifier on an encoder, whose head is drawn with a seed, as `load_model` does."""
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        return PooledClassifier(config, encoder)


def fitting_weights(folder: Path, encoder: DescribedEncoder) -> dict[str, torch.Tensor] | None:
    """Return the weights of an encoder in fp32 from the file in a folder; None if they are not what its modules need."""
    paths = [path.name for path in folder.glob("*.safetensors*")]
    stored = load_file(folder / WEIGHTS_NAME) if paths == [WEIGHTS_NAME] else {}
    prefix = f"{encoder.base_model_prefix}."
    given = {name.removeprefix(prefix): weight for name, weight in stored.items()}
    wanted = {name: weight.shape for name, weight in encoder.named_parameters()}
    # Layers beyond those of the config, or a name with and without the prefix, are for transformers to judge.
    further = [name for name in given if name not in wanted and name.startswith(f"{'.'.join(encoder.layout.layers)}.")]
    if further or len(given) < len(stored) or {name: given[name].shape for name in wanted if name in given} != wanted:
        return None
    if any(given[name].dtype not in FLOATING for name in wanted):
        return None
    weights = {name: given[name].to(torch.float32) for name in wanted}
    if not all(torch.isfinite(torch.stack(torch.aminmax(weight))).all() for weight in weights.values()):
        return None
    return weights


def head_in(folder: Path, head: nn.Linear) -> dict[str, torch.Tensor] | None:
    """Return the weights of a head in the file of a folder; None if it has none of these shapes."""
    stored = load_file(folder / WEIGHTS_NAME)
    names = {name: f"{HEAD_NAME}.{name}" for name in head.state_dict()}
    found = {name: stored[path] for name, path in names.items() if path in stored}
    shapes = {name: weight.shape for name, weight in head.state_dict().items()}
    return found if {name: weight.shape for name, weight in found.items()} == shapes else None


def known_model(name: str | Path) -> KnownModel | None:
    """Return a model whose description is in the cache, from its folder; None if transformers has to load it."""
    folder, key = described_folder(name)
    return open_if_built(KIND, key, partial(read_description, folder)) if folder and key else None


def describe(name: str | Path, config: Config, tokenizer: Tokenizer, encoder: Model) -> None:
    """Keep what transformers made of a model in the cache, unless something else would be built from it."""
    folder, key = described_folder(name)
    description = description_of(config, tokenizer, encoder) if folder is not None else None
    if folder is None or key is None or description is None or not computes_like(description, encoder):
        return

    def build(place: Path) -> None:
        (place / DESCRIPTION_NAME).write_text(json.dumps(asdict(description), indent=1), encoding="utf-8")
        tokenizer.save_pretrained(place / TOKENIZER_DIR)
        if load_light_tokenizer(place / TOKENIZER_DIR, description.tokenizer) is None:
            raise NotDescribedError("the tokenizer cannot be loaded alone", "load it with transformers")

    with suppress(NotDescribedError), quiet_transformers():
        open_or_build(KIND, key, build, partial(read_description, folder))


def read_description(folder: Path, place: Path) -> KnownModel:
    content = json.loads((place / DESCRIPTION_NAME).read_text(encoding="utf-8"))
    description = Description(**{**content, "leaves": [Leaf(**leaf) for leaf in content["leaves"]]})
    tokenizer = load_light_tokenizer(place / TOKENIZER_DIR, description.tokenizer)
    if tokenizer is None:
        raise ValueError("the tokenizer cannot be loaded alone")
    tokenizer.files = sorted((place / TOKENIZER_DIR).iterdir())
    return KnownModel(folder, description, cast(Tokenizer, tokenizer))


def computes_like(description: Description, encoder: Model) -> bool:
    """Return whether the modules built from a description compute what those of transformers compute, for a few tokens."""
    with torch.device("meta"):
        other = StoredConfig(description).build_encoder()
    other.load_state_dict(encoder.state_dict(), assign=True)
    device = next(encoder.parameters()).device
    ids = torch.arange(2 * COMPARED_TOKENS, device=device).view(2, -1) % encoder.get_input_embeddings().num_embeddings
    mask = torch.ones_like(ids)
    mask[1, COMPARED_TOKENS // 2 :] = 0
    was_training = encoder.training
    with torch.no_grad():
        vectors, others = (one.eval()(input_ids=ids, attention_mask=mask).last_hidden_state for one in (encoder, other))
    encoder.train(was_training)
    apart = (vectors - others)[mask.bool()].abs().max()
    return bool(apart <= ALLOWED * vectors[mask.bool()].abs().max())


def described_folder(name: str | Path) -> tuple[Path | None, str | None]:
    """Return the folder of a model, and a checksum of its files without its weights, and of what reads them.

    They are None for a model of the hub, which may change there, and for files that are too large.
    """
    place = find_model(name)
    folder = Path(place.name)
    if not folder.is_dir():
        return None, None
    sums = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix not in NOT_READ:
            if path.stat().st_size > MOST_BYTES:
                return None, None
            sums[path.name] = sha256_of(path)
    known = [FORMAT, {reader: package_version(reader) for reader in READERS}, sums]
    return folder, hashlib.sha256(json.dumps(known).encode()).hexdigest()[:32]
