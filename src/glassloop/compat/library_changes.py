"""Changes of just imported libraries, in this process only: calls for older versions do what they did then, and are noted."""

from __future__ import annotations

import dis
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, partialmethod, wraps
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING

from glassloop.base.network import is_hub_name, offline
from glassloop.compat.loading import why_offline
from glassloop.compat.names import CALLED_INSTEAD, NO_LONGER_IN_PLACE
from glassloop.compat.substitution import LEDGER, Change, is_script, script_frame
from glassloop.data.interfaces import Tokenizer
from glassloop.models.loading import quickstart_model

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers.utils import ModelOutput

PACKAGED_NAMES = ("sentence-transformers/all-MiniLM-L6-v2", "quickstart")
RENAMED_ARGUMENTS = {
    "is_pretokenized": "is_split_into_words",
    "return_lengths": "return_length",
    "truncation_strategy": "truncation",
}
CALL = "the tokenizer itself is called since transformers 5"

# Classes with `from_pretrained`, by module.
PRETRAINED = {
    "transformers.modeling_utils": ("PreTrainedModel",),
    "transformers.configuration_utils": ("PreTrainedConfig", "PretrainedConfig"),
    "transformers.models.auto.auto_factory": ("_BaseAutoModelClass",),
    "transformers.models.auto.tokenization_auto": ("AutoTokenizer",),
    "transformers.models.auto.configuration_auto": ("AutoConfig",),
}

Method = Callable[..., object]


def changes(models: Mapping[str, str]) -> dict[str, Change]:
    """Return what to do with each library once it is imported. `models` names those that the user replaces."""
    pretrained: dict[str, Change] = {name: partial(resolve_models, kinds, models) for name, kinds in PRETRAINED.items()}
    return pretrained | {
        "transformers.tokenization_utils_base": partial(change_tokenizers, models),
        "transformers.utils.generic": change_outputs,
        "accelerate.accelerator": change_accelerator,
        "datasets.arrow_dataset": change_datasets,
        "pandas": change_pandas,
    }


# --- models by name ----------------------------------------------------------------------------------------------
def resolve_models(kinds: tuple[str, ...], models: Mapping[str, str], module: ModuleType) -> None:
    for kind in {getattr(module, name) for name in kinds if hasattr(module, name)}:
        kind.from_pretrained = classmethod(resolved(kind.from_pretrained.__func__, models))


def resolved(function: Method, models: Mapping[str, str]) -> Method:
    """Return `from_pretrained` with names that stand for others, and with advice if the hub is needed but not there."""

    @wraps(function)
    def from_pretrained(kind: type, pretrained_model_name_or_path: object, *arguments: object, **named: object) -> object:
        name = pretrained_model_name_or_path
        if isinstance(name, str) and name in models:
            LEDGER.note(f'model "{name}"', models[name], "another model, as --model_map asks")
            name = str(quickstart_model()) if models[name] == "quickstart" else models[name]
        if not isinstance(name, str) or Path(name).exists() or not is_hub_name(name):
            return function(kind, name, *arguments, **named)
        reason = why_offline()
        if reason and name in PACKAGED_NAMES:
            LEDGER.note(f'model "{name}"', "the packaged copy", "the same weights, without the hub")
            return function(kind, str(quickstart_model()), *arguments, **named)
        try:
            with offline("huggingface_hub.constants", reason is not None):
                return function(kind, name, *arguments, **named)
        except OSError as error:
            if reason and not getattr(error, "__notes__", None):
                error.add_note(
                    f"glassloop: the hub cannot be reached ({reason}), and this machine has no copy of {name}. To use another "
                    f"model in its place, name it: glassloop run --model_map {name}=FOLDER SCRIPT"
                )
            raise

    return from_pretrained


# --- tokenizers --------------------------------------------------------------------------------------------------
def change_tokenizers(models: Mapping[str, str], module: ModuleType) -> None:
    """Let tokenizers take the arguments and have the methods they had."""
    resolve_models(("PreTrainedTokenizerBase",), models, module)
    base = module.PreTrainedTokenizerBase
    for name in ("__call__", "encode", "pad"):
        setattr(base, name, with_former_arguments(getattr(base, name), arguments_today))
    for name, method in zip(CALLED_INSTEAD, (encode_plus, batch_encode_plus), strict=True):
        if not hasattr(base, name):
            setattr(base, name, method)

    def max_len(self: Tokenizer) -> int:
        LEDGER.note("tokenizer.max_len", "tokenizer.model_max_length", "renamed in transformers 4")
        length: int = self.model_max_length
        return length

    if not hasattr(base, "max_len"):
        base.max_len = property(max_len)


def with_former_arguments(function: Method, today: Callable[[dict[str, object]], dict[str, object]]) -> Method:
    """Return a method that also takes former arguments, which `today` translates, and columns of a data set for lists."""

    @wraps(function)
    def method(self: object, *arguments: object, **named: object) -> object:
        given = {name: listed_column(value) for name, value in named.items()}
        return function(self, *map(listed_column, arguments), **today(given))

    return method


def listed_column(value: object) -> object:
    """Return a column of a data set as a list, which it was until datasets 4."""
    if type(value).__name__ != "Column" or not type(value).__module__.startswith("datasets."):
        return value
    LEDGER.note("tokenizer(dataset[column])", "a list of the column", "a column is no list since datasets 4")
    return [*value]  # type: ignore[misc]


def arguments_today(named: dict[str, object]) -> dict[str, object]:
    LEDGER.rename("tokenizer", named, RENAMED_ARGUMENTS, "renamed in transformers 4")
    if "pad_to_max_length" in named:
        LEDGER.note("tokenizer(pad_to_max_length=)", 'padding="max_length"', "ignored since transformers 5")
        if named.pop("pad_to_max_length") and not named.get("padding"):
            named["padding"] = "max_length"
            if named.get("max_length") is not None and named.get("truncation") is None:
                named["truncation"] = True  # a length alone asked for truncation
    return named


def encode_plus(self: Tokenizer, text: object, text_pair: object = None, **named: object) -> object:
    """Return the encoding of one text or pair, as tokenizers did until transformers 4."""
    LEDGER.note("tokenizer.encode_plus", "tokenizer(...)", CALL)
    if isinstance(text, list | tuple):  # tokens or their numbers, not a batch
        return self(as_text(self, text), as_text(self, text_pair) if isinstance(text_pair, list | tuple) else None, **named)
    return self(text, text_pair, **named)


def as_text(tokenizer: Tokenizer, tokens: Sequence[str | int]) -> str:
    """Return a text with these tokens. Raises `ValueError` if the tokenizer would split it differently."""
    names = [tokenizer.convert_ids_to_tokens(token) if isinstance(token, int) else token for token in tokens]
    text: str = tokenizer.convert_tokens_to_string(names)
    if tokenizer.tokenize(text) != names:
        raise ValueError("encode_plus got tokens that are not those of their text; pass the text instead")
    return text


def batch_encode_plus(self: Tokenizer, batch_text_or_text_pairs: Iterable[object], **named: object) -> object:
    """Return the encodings of several texts or pairs, as tokenizers did until transformers 4."""
    LEDGER.note("tokenizer.batch_encode_plus", "tokenizer(...)", CALL)
    rows = [*batch_text_or_text_pairs]
    if rows and isinstance(rows[0], list | tuple) and not named.get("is_split_into_words", named.get("is_pretokenized")):
        first, second = zip(*rows, strict=True)
        return self([*first], [*second], **named)
    return self(rows, **named)


# --- outputs of models -------------------------------------------------------------------------------------------
def change_outputs(module: ModuleType) -> None:
    """Let `loss, logits = model(...)` unpack the outputs, which were a tuple until transformers 3, not their names."""

    def iterate(self: ModelOutput) -> Iterator[object]:
        frame = script_frame()
        if frame is not None and is_unpacking(frame):
            LEDGER.note("loss, logits = model(...)", "outputs.to_tuple()", "models return no tuple since transformers 4")
            return iter(self.to_tuple())
        return OrderedDict.__iter__(self)

    module.ModelOutput.__iter__ = iterate


def is_unpacking(frame: FrameType) -> bool:
    instruction = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    return instruction in ("UNPACK_SEQUENCE", "UNPACK_EX") and is_script(frame.f_code.co_filename)


# --- Accelerate --------------------------------------------------------------------------------------------------
LOADER_ARGUMENTS = ("dispatch_batches", "split_batches", "even_batches", "use_seedable_sampler")


def change_accelerator(module: ModuleType) -> None:
    module.Accelerator.__init__ = with_former_arguments(module.Accelerator.__init__, accelerator_arguments)


def accelerator_arguments(named: dict[str, object]) -> dict[str, object]:
    from accelerate import DataLoaderConfiguration

    for precision in ("fp16", "bf16"):
        if precision in named:
            LEDGER.note(f"Accelerator({precision}=)", "mixed_precision=", "renamed in Accelerate 0.5")
            if named.pop(precision):
                named.setdefault("mixed_precision", precision)
    LEDGER.rename("Accelerator", named, {"logging_dir": "project_dir"}, "renamed in Accelerate 0.17")
    loader = {name: named.pop(name) for name in LOADER_ARGUMENTS if name in named}
    if loader:
        for name in loader:
            LEDGER.note(f"Accelerator({name}=)", "DataLoaderConfiguration", "moved in Accelerate 1.0")
        named.setdefault("dataloader_config", DataLoaderConfiguration(**loader))
    return named


# --- datasets and pandas -----------------------------------------------------------------------------------------
def change_datasets(module: ModuleType) -> None:
    """Let a formatted column be the array or tensor it was, and give data sets the methods that changed them in place."""
    kind = module.Dataset
    original = kind.__getitem__

    @wraps(original)
    def get(self: Dataset, key: object) -> object:
        column = original(self, key)
        by_script = is_script(sys._getframe(1).f_code.co_filename)
        if not isinstance(key, str) or self._format_type in (None, "python", "custom") or not by_script:
            return column
        LEDGER.note("dataset[column] with a format", "an array of the column", "a column is no array since datasets 4")
        return column[:]

    kind.__getitem__ = get

    def change_itself(old: str, new: str, self: object, *arguments: object, **named: object) -> None:
        LEDGER.note(f"dataset.{old}", f"dataset.{new}", "data sets are not changed in place since datasets 2")
        vars(self).update(vars(getattr(self, new)(*arguments, **named)))

    for old, new in NO_LONGER_IN_PLACE.items():
        if not hasattr(kind, old) and hasattr(kind, new):
            setattr(kind, old, partialmethod(partial(change_itself, old, new)))
    if hasattr(module, "Column"):
        module.Column.__add__ = lambda self, other: [*self[:], *other]
        module.Column.__radd__ = lambda self, other: [*other, *self[:]]


def change_pandas(module: ModuleType) -> None:

    def append(self: object, other: object, ignore_index: bool = False, **named: object) -> object:
        LEDGER.note("DataFrame.append", "pandas.concat", "removed in pandas 2.0")
        rows = module.DataFrame([other]) if isinstance(other, Mapping) else other
        rows = rows.to_frame().T if isinstance(rows, module.Series) and isinstance(self, module.DataFrame) else rows
        return module.concat([self, *(rows if isinstance(rows, list) else [rows])], ignore_index=ignore_index)

    def iteritems(self: Mapping[str, object]) -> object:
        LEDGER.note("DataFrame.iteritems", "items", "removed in pandas 2.0")
        return self.items()

    for kind in (module.DataFrame, module.Series):
        for method in (append, iteritems):
            if not hasattr(kind, method.__name__):
                setattr(kind, method.__name__, method)
