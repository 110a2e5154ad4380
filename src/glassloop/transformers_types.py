"""The types of models, tokenizers and configs in signatures.

Glassloop trains models of transformers, and models that behave like one. It uses so much of their interface (the config,
the encoder inside, inputs by name, saving) that a Protocol would copy half of transformers. So these names mean
transformers' own classes. Only type checkers and readers see them: importing this module loads neither torch nor transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig as Config
    from transformers import PreTrainedModel as Model
    from transformers import PreTrainedTokenizerBase as Tokenizer
else:
    Model = Tokenizer = Config = object

__all__ = ["Config", "Model", "Tokenizer"]
